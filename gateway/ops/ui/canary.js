// The canary: its share, its switch, and how close its guard is to stopping it.

import { call } from "./api.js";
import { $, element, keyed, set } from "./dom.js";
import { age, count, plain } from "./format.js";
import { change } from "./say.js";

const SIGNS = { on: "●", off: "○", stopped: "✖" };

export function canaryPanel(again) {
  const field = $("canary-percent");
  let state = "on";
  let touched = false;

  field.addEventListener("input", () => {
    touched = true;
  });
  $("canary").addEventListener("submit", (event) => {
    event.preventDefault();
    put({ percent: Number(field.value) });
  });
  $("canary-turn").addEventListener("click", () => put({ state: state === "on" ? "off" : "on" }));

  async function put(body) {
    const found = await change("", async () => {
      const answer = await call("canary", "PUT", body);
      return { ...answer, result: `The canary is ${answer.state}, ${plain(answer.percent)} %.` };
    });
    if (found !== null) touched = false;
    await again();
  }

  function show(canary) {
    state = canary.state;
    const shadow = canary.shadow ? ", in shadow" : "";
    set($("canary-state"), { text: `${SIGNS[state]} ${state}, ${plain(canary.percent)} %${shadow}`, "data-state": state });
    const since = canary.since_s ? ` ${age(Date.now() / 1000 - canary.since_s)} ago` : "";
    const rest = canary.passthrough ? `, the rest by ${canary.passthrough}` : "";
    set($("canary-why"), { text: `${canary.why}${since}${rest}` });
    set($("canary-turn"), { text: state === "on" ? "Turn off" : "Turn on" });
    if (!touched && document.activeElement !== field) field.value = plain(canary.percent);
    const none = { name: canary.guard ? "nothing to compare yet" : "no guard", empty: true };
    keyed($("guard"), canary.tests.length ? canary.tests : [none], (test) => test.name, made, update);
  }

  function made(test) {
    if (test.empty) return element("tr", {}, element("td", { colspan: 6, text: test.name }));
    const row = element("tr", {}, element("th", { scope: "row" }));
    for (let column = 0; column < 5; column += 1) row.append(element("td", { class: "number" }));
    return row;
  }

  function update(row, test) {
    if (test.empty) return;
    const bad = test.p <= test.alpha;
    const p = test.p < 0.001 ? "< 0.001" : test.p.toFixed(3);
    const texts = [`${bad ? "✖ " : ""}${test.name}`, count(test.canary), count(test.baseline), count(test.seen), plain(test.expected), p];
    texts.forEach((text, column) => set(row.children[column], { text }));
    set(row, { title: `an alarm needs p ≤ ${plain(test.alpha)}` });
  }

  return { show };
}
