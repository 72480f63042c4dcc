// The drawing: who sends KV to whom, and what never moved. Rule of this file: a line's width is its tokens per second,
// and every number that is drawn is also in words below, for those who do not see the drawing.

import { $, element, keyed, set, shape } from "./dom.js";
import { podName, rate } from "./format.js";

const WIDE = { row: 44, box: 30, loop: 9 };
const TIGHT = { row: 25, box: 19, loop: 7 };
const MANY = 7; // rows from which they are tight
const TOP = 22;
const THICKEST = 10;

export function flowPanel() {
  const box = $("flow");
  const drawing = shape("svg", { role: "img", "aria-label": "Tokens per second from prefill to decode pods" });
  const heads = shape("g", { class: "heads" });
  const lines = shape("g", { class: "lines" });
  const stays = shape("g", { class: "stays" });
  const nodes = shape("g", { class: "nodes" });
  drawing.append(heads, lines, stays, nodes);
  box.append(drawing);
  let latest = null;
  new ResizeObserver(() => latest && draw()).observe(box);

  function show(flow) {
    latest = flow;
    draw();
    const moved = sum(flow.pairs, "tokens_per_s");
    const stayed = sum(flow.pods, "stayed_tokens_per_s");
    const appended = sum(flow.pods, "appended_tokens_per_s");
    const total = moved + stayed + appended;
    const share = total ? `, ${Math.round((100 * (stayed + appended)) / total)} %` : "";
    set($("flow-sum"), { text: `tokens/s: ${rate(moved)} moved P → D · ${rate(stayed + appended)} never moved (${rate(stayed)} resident, ${rate(appended)} appended${share})` });
    words(flow);
  }

  const sum = (list, name) => list.reduce((total, each) => total + each[name], 0);

  function draw() {
    const width = Math.max(280, box.clientWidth);
    const left = latest.pods.filter((pod) => pod.role === "prefill");
    const right = latest.pods.filter((pod) => pod.role !== "prefill");
    const rows = Math.max(left.length, right.length, 1);
    const { row, box: tall, loop: round } = rows > MANY ? TIGHT : WIDE;
    const height = TOP + rows * row;
    const narrow = width < 560;
    const size = narrow ? 82 : 150;
    const loop = narrow ? 78 : 190; // room for what stays, right of the decode pods
    const at = new Map();
    const place = (pods, x) => pods.forEach((pod, index) => {
      at.set(pod.url, { x, y: TOP + (index + 0.5) * (rows / pods.length) * row, pod });
    });
    place(left, 0);
    place(right, width - size - loop);
    set(drawing, { viewBox: `0 0 ${width} ${height}`, width, height });
    const most = Math.max(1, ...latest.pairs.map((pair) => pair.tokens_per_s), ...right.map(kept));
    const thick = (tokens) => 1.5 + (THICKEST - 1.5) * Math.sqrt(tokens / most);
    drawHeads(width, size, loop, narrow, left.length);
    drawNodes([...at.values()], size, tall, narrow);
    drawLines(latest.pairs.filter((pair) => at.has(pair.prefill) && at.has(pair.decode)), at, size, tall, thick, narrow);
    drawStays(right.map((pod) => at.get(pod.url)), size, round, thick, narrow);
  }

  const kept = (pod) => pod.stayed_tokens_per_s + pod.appended_tokens_per_s;

  function drawHeads(width, size, loop, narrow, prefill) {
    const texts = [
      { key: "p", x: 0, text: prefill ? "prefill" : "no prefill pod", end: "start" },
      { key: "m", x: (width - loop) / 2, text: narrow ? "moved/s" : "■ moved, tokens/s", end: "middle" },
      { key: "d", x: width - size - loop, text: "decode", end: "start" },
      { key: "s", x: width, text: narrow ? "● stayed/s" : "● never moved, tokens/s", end: "end" },
    ];
    keyed(heads, texts, (each) => each.key, () => shape("text", { y: 12 }), (node, each) => {
      set(node, { x: each.x, "text-anchor": each.end, text: each.text, "data-head": each.key });
    });
  }

  function drawNodes(places, size, tall, narrow) {
    const make = () => shape("g", {}, shape("rect", { rx: 3 }), shape("text"), shape("text", { class: "rate" }), shape("title"));
    keyed(nodes, places, ({ pod }) => pod.url, make, (node, { x, y, pod }) => {
      const [rect, name, tokens, title] = node.children;
      set(node, { "data-role": pod.role, "data-up": pod.up });
      set(rect, { x: x + 0.5, y: y - tall / 2, width: size - 1, height: tall });
      set(name, { x: x + 7, y: y + 4, text: `${pod.up ? "" : "✖ "}${pod.role[0].toUpperCase()} ${short(podName(pod.url), narrow ? 9 : 14)}` });
      set(tokens, { x: x + size - 7, y: y + 4, "text-anchor": "end", text: narrow ? "" : `${rate(pod.requests_per_s)} req/s` });
      set(title, { text: `${pod.url}: ${rate(pod.requests_per_s)} requests/s, ${rate(pod.output_tokens_per_s)} output tokens/s` });
    });
  }

  const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

  function drawLines(pairs, at, size, tall, thick, narrow) {
    const make = () => shape("g", {}, shape("path", { fill: "none" }), shape("path", { fill: "none", class: "moving" }), shape("text", { "text-anchor": "end" }), shape("title"));
    const met = new Map();
    for (const pair of pairs) met.set(pair.decode, [...(met.get(pair.decode) ?? []), pair]);
    const named = Math.max(...[...met.values()].map((group) => group.length)) <= (tall < 30 ? 1 : narrow ? 2 : 3);
    keyed(lines, pairs, (pair) => `${pair.prefill} ${pair.decode}`, make, (node, pair) => {
      const [path, moving, label, title] = node.children;
      const from = at.get(pair.prefill);
      const to = at.get(pair.decode);
      const [x1, x2] = [from.x + size, to.x];
      const beside = met.get(pair.decode);
      const end = to.y + (beside.indexOf(pair) - (beside.length - 1) / 2) * Math.min(15, (tall + 8) / beside.length);
      const middle = (x1 + x2) / 2;
      const d = `M${x1} ${from.y} C${middle} ${from.y} ${middle} ${end} ${x2} ${end}`;
      set(path, { d, "stroke-width": thick(pair.tokens_per_s).toFixed(1) });
      set(moving, { d });
      set(label, { x: x2 - 6, y: end - 3, text: named ? rate(pair.tokens_per_s) : "" });
      set(title, { text: `${pair.prefill} → ${pair.decode}: ${rate(pair.tokens_per_s)} tokens/s, ${rate(pair.requests_per_s)} requests/s` });
    });
  }

  function drawStays(places, size, round, thick, narrow) {
    const make = () => shape("g", {}, shape("path", { fill: "none" }), shape("text"), shape("title"));
    keyed(stays, places, ({ pod }) => pod.url, make, (node, { x, y, pod }) => {
      const [path, label, title] = node.children;
      const some = kept(pod) > 0;
      const from = x + size;
      const reach = narrow ? 26 : 42;
      set(path, { d: `M${from} ${y - round} h${reach - 19} a${round} ${round} 0 0 1 0 ${2 * round} h${19 - reach}`, "stroke-width": some ? thick(kept(pod)).toFixed(1) : 0 });
      set(label, { x: from + reach + 2, y: y + 4, text: some ? (narrow ? rate(kept(pod)) : `${rate(pod.stayed_tokens_per_s)} + ${rate(pod.appended_tokens_per_s)} new`) : "" });
      set(title, { text: `${pod.url}: ${rate(pod.stayed_tokens_per_s)} tokens/s were resident, ${rate(pod.appended_tokens_per_s)} appended` });
    });
  }

  function words(flow) {
    const pairs = flow.pairs.map((pair) => `${podName(pair.prefill)} to ${podName(pair.decode)}: ${rate(pair.tokens_per_s)} tokens per second moved`);
    const pods = flow.pods.filter((pod) => pod.role !== "prefill").map((pod) => `${podName(pod.url)}: ${rate(kept(pod))} tokens per second never moved`);
    keyed($("flow-words"), [...pairs, ...pods].map((text, index) => ({ text, index })), (each) => String(each.index), () => element("li"), (node, each) => set(node, { text: each.text }));
  }

  return { show };
}
