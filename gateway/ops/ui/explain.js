// One request opened: all that is remembered of it, and where its conversation lies.

import { call } from "./api.js";
import { $, element, set } from "./dom.js";
import { clock } from "./format.js";

const FIRST = ["outcome", "route", "reason", "score", "prefill", "holder", "answered_by", "turn", "arm"];

export function explainDialog() {
  const dialog = $("explain");
  $("explain-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  });

  async function open(id) {
    set($("explain-title"), { text: `Request ${id}` });
    $("explain-body").replaceChildren(element("p", { text: "…" }));
    if (!dialog.open) dialog.showModal();
    try {
      const found = (await call(`decisions/${encodeURIComponent(id)}`)).decisions;
      const parts = found.map(table);
      const conversation = found.at(-1).conversation;
      if (conversation) parts.push(await whereabouts(conversation));
      $("explain-body").replaceChildren(...parts);
    } catch (error) {
      $("explain-body").replaceChildren(element("p", { class: "bad", text: error.message }));
    }
  }

  async function whereabouts(id) {
    try {
      const found = await call(`conversations/${encodeURIComponent(id)}`);
      return list("Its conversation now", Object.entries(found));
    } catch (error) {
      return element("p", { text: `Its conversation: ${error.message}` });
    }
  }

  function table(decision) {
    const rest = Object.keys(decision).filter((name) => !FIRST.includes(name) && name !== "time");
    const known = [...FIRST, ...rest].filter((name) => decision[name] !== undefined);
    return list(`Ended ${clock(decision.time)}`, known.map((name) => [name, decision[name]]));
  }

  function list(title, pairs) {
    const rows = pairs.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: written(value) })));
    return element("section", {}, element("h3", { text: title }), element("dl", { class: "pairs" }, ...rows));
  }

  function written(value) {
    if (value === null) return "–";
    if (Array.isArray(value)) return value.join(", ") || "–";
    if (typeof value !== "object") return String(value);
    return Object.entries(value).map(([name, each]) => `${name}: ${each}`).join(", ") || "–";
  }

  return { open };
}
