// The line at the top and the alarms below it.

import { $, element, keyed, set } from "./dom.js";
import { age, count, plain, podName } from "./format.js";

const SIGNS = { critical: "✖", warning: "▲", info: "ℹ" };
const NAMES = ["policy", "weights", "table", "canary", "in flight", "conversations"];

export function headerPanel() {
  let table = null;
  for (const name of NAMES) {
    const value = element("dd", { text: "–" });
    value.dataset.fact = name;
    $("facts").append(element("div", {}, element("dt", { text: name }), value));
  }

  function fact(name, text, title = null) {
    set($("facts").querySelector(`[data-fact="${name}"]`), { text, title });
  }

  function show(health, weights, canary, measured, found, alarms) {
    table = measured ? (found ?? table) : null;
    set($("version"), { text: health.version });
    fact("policy", health.policy);
    fact("weights", `ttft ${plain(weights.w_ttft)} : tpot ${plain(weights.w_tpot)}`);
    if (table === null) {
      fact("table", "none");
    } else {
      const old = (Date.now() - Date.parse(table.created)) / 1000;
      const kind = table.simulated ? "simulated, " : "";
      fact("table", `${table.model}, ${kind}${age(old)} old`, table.description);
    }
    const shadow = canary.shadow ? ", shadow" : "";
    fact("canary", `${canary.state}, ${plain(canary.percent)} %${shadow}`, canary.why);
    fact("in flight", count(health.in_flight));
    fact("conversations", count(health.conversations));
    showAlarms(alarms);
    const bad = alarms.filter((alarm) => alarm.severity !== "info").length;
    document.title = bad ? `(${bad}) ppd-gateway` : "ppd-gateway";
  }

  function showAlarms(alarms) {
    const shown = alarms.length ? alarms : [{ severity: "none", subject: "", message: "No alarms." }];
    keyed($("alarms"), shown, (alarm) => `${alarm.severity} ${alarm.subject} ${alarm.message}`, made, () => {});
  }

  function made(alarm) {
    const subject = alarm.subject.startsWith("http") ? podName(alarm.subject) : alarm.subject;
    const sign = element("span", { class: "sign", text: SIGNS[alarm.severity] ?? "✓", "aria-hidden": "true" });
    const kind = alarm.severity === "none" ? "" : `${alarm.severity}: `;
    const words = element("span", {}, element("strong", { text: kind + subject }), ` ${alarm.message}`);
    return element("li", { "data-severity": alarm.severity, title: alarm.subject || null }, sign, words);
  }

  return { show };
}
