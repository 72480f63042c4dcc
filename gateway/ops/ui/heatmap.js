// The score map of the live table, and the weights: moving them shows at once what they would decide, and changes
// nothing before somebody applies them.

import { call } from "./api.js";
import { $, element, keyed, set } from "./dom.js";
import { count, plain, rate, score } from "./format.js";
import { change } from "./say.js";

const PREVIEW_MS = 150;
const LETTERS = { local: "L", pd: "P", readback: "R" };

export function heatmapPanel(again) {
  const sliders = { w_ttft: $("w-ttft"), w_tpot: $("w-tpot") };
  let live = null;
  let timer = null;
  let measured = false;
  let asked = 0;

  for (const slider of Object.values(sliders)) slider.addEventListener("input", moved);
  $("weights-reset").addEventListener("click", reset);
  $("weights").addEventListener("submit", apply);
  $("map-assignment").addEventListener("input", draw);
  $("reload").addEventListener("click", async () => {
    await change("The table was read again.", () => call("table/reload", "POST"));
    await again();
  });

  const wanted = () => ({ w_ttft: Number(sliders.w_ttft.value), w_tpot: Number(sliders.w_tpot.value) });
  const near = (a, b) => Math.abs(a - b) < 0.025;
  const differs = () => live !== null && !(near(wanted().w_ttft, live.w_ttft) && near(wanted().w_tpot, live.w_tpot));

  function moved() {
    told();
    clearTimeout(timer);
    timer = setTimeout(draw, PREVIEW_MS);
  }

  function reset() {
    place(live);
    draw();
  }

  async function apply(event) {
    event.preventDefault();
    const found = await change("", async () => {
      const answer = await call("weights", "PUT", wanted());
      return { ...answer, result: `Weights in use: ttft ${plain(answer.w_ttft)} : tpot ${plain(answer.w_tpot)}.` };
    });
    if (found !== null) {
      live = { w_ttft: found.w_ttft, w_tpot: found.w_tpot };
      told();
    }
    await again();
  }

  // The range grows for weights beyond it; a slider rounds, the number beside it does not.
  function place(weights) {
    for (const [name, slider] of Object.entries(sliders)) {
      if (weights[name] > Number(slider.max)) slider.max = Math.ceil(weights[name]);
      slider.value = weights[name];
    }
    told();
  }

  function told() {
    const preview = differs();
    const shown = preview || live === null ? wanted() : live;
    set($("w-ttft-now"), { text: plain(shown.w_ttft) });
    set($("w-tpot-now"), { text: plain(shown.w_tpot) });
    const both = `ttft ${plain(live?.w_ttft ?? 1)} : tpot ${plain(live?.w_tpot ?? 1)}`;
    set($("weights-said"), { text: preview ? `preview; in use: ${both}` : "as they are in use", "data-preview": preview ? "" : null });
  }

  async function show(uses, policy, weights, table) {
    measured = uses;
    set($("map-box"), { hidden: measured ? null : "" });
    set($("weights"), { hidden: measured ? null : "" });
    for (const id of ["reload", "map-assignment"]) set($(id).closest("label") ?? $(id), { hidden: measured ? null : "" });
    const follow = live === null || !differs();
    live = weights;
    if (follow && !Object.values(sliders).includes(document.activeElement)) place(weights);
    told();
    if (table !== null) {
      const all = ["", ...table.assignments];
      keyed($("map-assignment"), all, (name) => name, (name) => element("option", { value: name }), (option, name) => {
        set(option, { text: name || "as pods are up" });
      });
    }
    await draw();
  }

  async function draw() {
    if (!measured) return;
    asked += 1;
    const mine = asked;
    const query = new URLSearchParams(differs() ? wanted() : {});
    if ($("map-assignment").value) query.set("assignment", $("map-assignment").value);
    const text = query.toString();
    let found;
    try {
      found = await call(`table/heatmap${text ? `?${text}` : ""}`);
    } catch (error) {
      set($("map-words"), { text: error.message });
      return;
    }
    if (mine === asked) paint(found);
  }

  function paint(map) {
    const turns = map.counts.flat().reduce((sum, each) => sum + each, 0);
    set($("map-words"), { text: `${map.assignment}, ${count(map.output_tokens)} output tokens, ${rate(map.rate)} turns/s; ● are the last ${count(turns)} decisions` });
    const busiest = Math.max(1, ...map.counts.flat());
    const rows = [{ key: "head" }, ...map.context_tokens.map((context, index) => ({ key: `c${context}`, context, index })).reverse()];
    keyed($("map"), rows, (row) => row.key, () => element("tr"), (node, row) => {
      if (row.key === "head") head(node, map);
      else cells(node, row, map, busiest);
    });
  }

  function head(node, map) {
    const all = ["context ↓  new →", ...map.new_tokens.map(count)];
    keyed(node, all.map((text, index) => ({ text, index })), (each) => String(each.index), () => element("th", { scope: "col" }), (cell, each) => set(cell, { text: each.text }));
  }

  function cells(node, row, map, busiest) {
    const all = [null, ...map.new_tokens.map((tokens, column) => ({ tokens, column }))];
    const make = (each) => (each === null ? element("th", { scope: "row" }) : element("td", {}, element("b"), element("span"), element("i")));
    keyed(node, all, (each) => (each === null ? "name" : `n${each.tokens}`), make, (cell, each) => {
      if (each === null) {
        set(cell, { text: count(row.context) });
        return;
      }
      const s = map.s[row.index][each.column];
      const route = map.routes[row.index][each.column];
      const turns = map.counts[row.index][each.column];
      const [letter, number, dot] = cell.children;
      set(cell, { "data-route": route ?? "tie", "data-seen": turns ? "" : null });
      cell.style.setProperty("--strength", (0.3 + 0.7 * Math.sqrt(Math.min(1, Math.abs(s)))).toFixed(2));
      const fails = (route === "pd" && s > 0) || (route === "local" && s < 0);
      set(letter, { text: `${LETTERS[route] ?? "="}${fails ? "!" : ""}` });
      set(number, { text: score(s) });
      set(dot, { text: turns ? count(turns) : "" });
      cell.style.setProperty("--dot", (turns ? 4 + 9 * Math.sqrt(turns / busiest) : 0).toFixed(1));
      set(cell, { title: `context ${plain(row.context)}, new ${plain(each.tokens)}: S ${plain(s)}, ${route ?? "a tie"}${fails ? ", for the other way fails too often there" : ""}; ${turns} of the last decisions` });
    });
  }

  return { show };
}
