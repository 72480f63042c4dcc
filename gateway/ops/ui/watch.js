// What the gateway watches by itself: targets and what it did to meet them, who waits to be let in, and whether the
// table still describes this cluster.

import { $, element, keyed, set } from "./dom.js";
import { age, count, plain, rate } from "./format.js";

export function watchPanel() {
  function show(slo, admission, drift) {
    showTargets(slo);
    showQueue(admission);
    showDrift(drift);
  }

  function showTargets(slo) {
    set($("slo-sum"), { text: slo.enabled ? moved(slo) : "no targets are set" });
    keyed($("slo"), slo.targets, (each) => `${each.service_class} ${each.target}`, () => cells(4), (row, each) => {
      const measured = each.measured === null ? "–" : rate(each.measured);
      const sign = each.violated ? "✖" : each.measured === null ? "○" : "✓";
      fill(row, [`${sign} ${each.service_class} ${each.target}`, plain(each.wanted), measured, count(each.samples)]);
      set(row, { "data-bad": each.violated ? "" : null });
    });
    set($("slo").closest("table"), { hidden: slo.targets.length ? null : "" });
  }

  function moved(slo) {
    if (slo.step === 0) return "weights as configured";
    return `weights moved to ttft ${plain(slo.w_ttft)} : tpot ${plain(slo.w_tpot)} (step ${slo.step} of ${slo.steps}): ${slo.why}`;
  }

  function showQueue(admission) {
    const room = admission.max_tokens ? ` of ${count(admission.max_tokens)}` : "";
    const now = `${count(admission.waiting)} waiting, ${count(admission.in_flight_tokens)}${room} tokens in flight`;
    set($("queue-sum"), { text: admission.enabled ? now : "no limits are set" });
    const named = admission.classes.map((each) => ({ ...each, name: each.service_class, refusals: total(each.refused) }));
    const busy = admission.enabled ? named.filter((each) => each.queued || each.refusals || each.tokens) : [];
    keyed($("queue"), busy, (each) => each.name, () => cells(4), (row, each) => {
      fill(row, [each.name, count(each.tokens), count(each.queued), count(each.refusals)]);
    });
    set($("queue").closest("table"), { hidden: busy.length ? null : "" });
  }

  const total = (counts) => Object.values(counts).reduce((sum, each) => sum + each, 0);

  function showDrift(drift) {
    const last = drift.changes.at(0);
    const said = last === undefined ? "" : `; ${age(last.age_s)} ago: ${last.text}`;
    const state = drift.drifting ? "✖ the table is off" : "✓ the table holds";
    const explored = drift.explored ? `, ${count(drift.explored)} to explore` : "";
    const words = `${state}, ${count(drift.observed)} turns compared${explored}${said}`;
    set($("drift-sum"), { text: drift.enabled ? words : "no table to compare with", "data-bad": drift.drifting ? "" : null });
    keyed($("drift"), drift.series, (each) => `${each.arm} ${each.latency}`, () => cells(4), (row, each) => {
      const sign = each.drifting ? "✖ " : "";
      const reference = each.reference === null ? "–" : `×${each.reference.toFixed(2)}`;
      fill(row, [`${sign}${each.arm} ${each.latency}`, `×${each.ratio.toFixed(2)}`, reference, `×${each.correction.toFixed(2)}`]);
      set(row, { "data-bad": each.drifting ? "" : null });
    });
    set($("drift").closest("table"), { hidden: drift.series.length ? null : "" });
  }

  function cells(columns) {
    const row = element("tr", {}, element("th", { scope: "row" }));
    for (let column = 1; column < columns; column += 1) row.append(element("td", { class: "number" }));
    return row;
  }

  const fill = (row, texts) => texts.forEach((text, column) => set(row.children[column], { text }));

  return { show };
}
