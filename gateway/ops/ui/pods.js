// The pods: state, load, caches, and the switch that drains one.

import { call } from "./api.js";
import { $, element, keyed, onClick, set } from "./dom.js";
import { count, percent, podName } from "./format.js";
import { change, confirmed, permit } from "./say.js";

const COLUMNS = ["pod", "state", "breaker", "in flight", "load, tokens", "KV use", "known resident", "drain"];
const NUMBERS = ["in flight", "load, tokens"];
const BREAKERS = { closed: "✓ closed", open: "✖ open", half_open: "◐ half open" };

export function podsPanel(again) {
  let caches = new Map();
  let known = [];

  onClick($("pods"), "button", async (button) => {
    const pod = known.find((each) => each.url === button.dataset.url);
    if (pod === undefined) return;
    const drain = !pod.draining;
    if (drain && !(await confirmed(question(pod), "Drain"))) return;
    await change("", () => call(`pods/${drain ? "drain" : "undrain"}`, "POST", { url: pod.url }));
    await again();
  });

  function question(pod) {
    const others = known.filter((each) => each.role === pod.role && each.up && !each.draining && each !== pod).length;
    const left = others ? `${others} other ${pod.role} pod${others > 1 ? "s" : ""} take${others > 1 ? "" : "s"} over.` : `It is the last ${pod.role} pod that takes traffic!`;
    return `Drain ${pod.url}? It gets nothing new, and its conversations leave at their next turn. ${left}`;
  }

  function show(pods, residency) {
    known = pods;
    if (residency !== null) caches = new Map(residency.map((each) => [each.pod, each]));
    keyed($("pods"), pods, (pod) => pod.url, made, update);
    const up = pods.filter((pod) => pod.up).length;
    set($("pods-sum"), { text: `${up} of ${pods.length} up` });
  }

  function made(pod) {
    const row = element("tr", { role: "row" });
    for (const name of COLUMNS) {
      const kind = NUMBERS.includes(name) ? "number" : null;
      const first = name === "pod";
      const cell = element(first ? "th" : "td", { role: first ? "rowheader" : "cell", class: kind, "data-name": name });
      row.append(cell);
    }
    const [name, , , , , use, , drain] = row.children;
    name.append(element("span", { class: "role" }), element("span", { class: "name", title: pod.url }));
    use.append(element("meter", { min: 0, max: 1, high: 0.9, "aria-hidden": "true" }), element("span"));
    drain.append(element("button", { type: "button", class: "changes", "data-url": pod.url }));
    return row;
  }

  function update(row, pod) {
    const [name, state, breaker, flight, load, use, resident, drain] = row.children;
    set(name.children[0], { text: pod.role[0].toUpperCase(), title: pod.role, "data-role": pod.role });
    set(name.children[1], { text: podName(pod.url) });
    const [word, mark] = pod.up ? (pod.draining ? ["draining", "◐"] : ["up", "●"]) : ["down", "✖"];
    const share = pod.weight < 1 ? `, ${percent(pod.weight)} of its share` : "";
    set(state, { text: `${mark} ${word}${share}`, "data-state": word, title: pod.why });
    set(breaker, { text: BREAKERS[pod.breaker] ?? pod.breaker, "data-state": pod.breaker });
    set(flight, { text: count(pod.in_flight) });
    set(load, { text: count(pod.load_tokens) });
    set(use.children[0], { value: pod.facts.kv_usage });
    set(use.children[1], { text: percent(pod.facts.kv_usage) });
    set(resident, { text: held(pod.url) });
    const button = drain.children[0];
    set(button, { text: pod.draining ? "Undrain" : "Drain", "aria-label": `${pod.draining ? "Undrain" : "Drain"} ${pod.url}` });
    permit(button);
  }

  // By its own events where there are some, by the ledger otherwise.
  function held(url) {
    const cache = caches.get(url);
    if (cache === undefined) return "–";
    const heard = cache.events.filter((each) => each.heard);
    if (heard.length && cache.block_size) {
      const blocks = heard.reduce((sum, each) => sum + each.resident_blocks, 0);
      return `${count(blocks * cache.block_size)} tokens, by events`;
    }
    const room = cache.ledger.capacity_tokens ? ` of ${count(cache.ledger.capacity_tokens)}` : "";
    return `${count(cache.ledger.tokens)}${room} tokens, ${count(cache.ledger.conversations)} conv.`;
  }

  return { show };
}
