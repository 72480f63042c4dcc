// The decisions as they come, the newest first. Rule of this file: drawn at most every DRAW_MS however many come, never
// more than ROWS; while it is paused nothing moves and nothing is lost that the memory holds.

import { call } from "./api.js";
import { $, element, keyed, onClick, set } from "./dom.js";
import { clock, count, MARKS, milliseconds, podName, score } from "./format.js";

const KEPT = 2000;
const ROWS = 150;
const DRAW_MS = 300;
const COLUMNS = ["ended", "request", "route", "pods", "turn", "S", "prompt", "cached", "out", "TTFT", "TPOT", "reason"];
const NUMBERS = new Set(["turn", "S", "prompt", "cached", "out", "TTFT", "TPOT"]);

export function decisionsPanel(follow, explain) {
  let kept = []; // the newest last
  let held = null; // what is shown while it is paused
  let timer = null;
  let number = 0;
  const panel = { follow: start, pods: choices, following: false };

  $("pause").addEventListener("click", () => {
    held = held === null ? [...kept] : null;
    set($("pause"), { "aria-pressed": held !== null, text: held === null ? "Pause" : "Go on" });
    draw();
  });
  for (const name of ["filter-route", "filter-pod", "filter-id"]) $(name).addEventListener("input", draw);
  $("filter").addEventListener("submit", (event) => event.preventDefault());
  onClick($("decision-rows"), "tr", (row) => {
    if (!String(getSelection())) explain(row.dataset.id);
  });

  function start(stop) {
    stop.addEventListener("abort", () => {
      panel.following = false;
    });
    follow(take, () => began(stop), () => {
      panel.following = false;
    }, stop);
  }

  // What came while nobody listened is fetched; what came twice is shown once.
  async function began(stop) {
    panel.following = true;
    try {
      const found = (await call("decisions?limit=200")).decisions.reverse();
      if (stop.aborted) return;
      const known = new Set(kept.map(same));
      const missed = found.filter((each) => !known.has(same(each))).map(numbered);
      kept = [...kept, ...missed].sort((a, b) => a.time - b.time).slice(-KEPT);
      soon();
    } catch {
      // the next look at the gateway says what is wrong
    }
  }

  const same = (decision) => `${decision.time} ${decision.id}`;

  function numbered(decision) {
    number += 1;
    return { ...decision, number };
  }

  function take(decision) {
    kept.push(numbered(decision));
    if (kept.length > 1.5 * KEPT) kept = kept.slice(-KEPT);
    soon();
  }

  function soon() {
    timer ??= setTimeout(() => {
      timer = null;
      draw();
    }, DRAW_MS);
  }

  function draw() {
    const from = held ?? kept;
    const shown = [];
    for (let at = from.length - 1; at >= 0 && shown.length < ROWS; at -= 1) if (wanted(from[at])) shown.push(from[at]);
    keyed($("decision-rows"), shown, (decision) => String(decision.number), made, () => {});
    const more = held === null ? 0 : kept.filter((decision) => decision.number > (held.at(-1)?.number ?? 0)).length;
    set($("decisions-sum"), { text: held === null ? "" : `paused, ${count(more)} more came` });
  }

  function wanted(decision) {
    const route = $("filter-route").value;
    const pod = $("filter-pod").value;
    const id = $("filter-id").value.trim();
    if (route && decision.route !== route) return false;
    if (pod && ![decision.prefill, decision.holder, decision.answered_by].includes(pod)) return false;
    return !id || decision.id.includes(id);
  }

  function choices(pods) {
    const all = [{ url: "" }, ...pods];
    keyed($("filter-pod"), all, (pod) => pod.url, (pod) => element("option", { value: pod.url }), (option, pod) => {
      set(option, { text: pod.url ? `${pod.role[0].toUpperCase()} ${podName(pod.url)}` : "all" });
    });
  }

  function made(decision) {
    const failed = decision.outcome !== "ok";
    const row = element("tr", { role: "row", "data-id": decision.id, "data-outcome": decision.outcome, "data-arm": decision.arm });
    for (const name of COLUMNS) {
      row.append(element("td", { role: "cell", "data-name": name, class: NUMBERS.has(name) ? "number" : null }));
    }
    const [ended, request, route, pods, turn, s, prompt, cached, out, ttft, tpot, reason] = row.children;
    ended.textContent = clock(decision.time);
    request.append(element("button", { type: "button", class: "plain", text: decision.id, "aria-label": `Explain request ${decision.id}` }));
    route.append(element("span", { class: "route", "data-route": decision.route, text: `${MARKS[decision.route] ?? "○"} ${decision.route}` }));
    pods.textContent = [decision.holder, decision.prefill, decision.answered_by].filter(Boolean).map(podName).join(" → ");
    pods.title = [decision.prefill, decision.answered_by].filter(Boolean).join(" → ");
    turn.textContent = decision.turn ?? "–";
    s.textContent = score(decision.score);
    prompt.textContent = count(decision.prompt_tokens);
    cached.textContent = count(decision.cached_tokens);
    out.textContent = count(decision.output_tokens);
    ttft.textContent = milliseconds(decision.ttft_ms);
    tpot.textContent = milliseconds(decision.tpot_ms);
    const words = [failed ? `✖ ${decision.outcome}` : "", decision.arm === "baseline" ? "baseline" : "", decision.reason ?? ""];
    reason.textContent = words.filter(Boolean).join(": ");
    reason.title = reason.textContent;
    return row;
  }

  return panel;
}
