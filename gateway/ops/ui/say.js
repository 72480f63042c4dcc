// What was done and what was refused, and the question before it. Rule of this file: whoever changes something hears
// how it went, in the server's words.

import { $, set } from "./dom.js";

const SAID_MS = 8000;
let timer = null;
let allowed = false;

export function say(words, bad = false) {
  clearTimeout(timer);
  set($("said"), { text: words, "data-bad": bad ? "" : null });
  timer = setTimeout(() => set($("said"), { text: "" }), SAID_MS);
}

// Enable what changes something, or say why it is not.
export function changes(may) {
  allowed = may;
  for (const node of document.querySelectorAll(".changes")) permit(node);
}

export function permit(node) {
  set(node, { disabled: allowed ? null : "", title: allowed ? null : "needs the token" });
}

// Make a change and say how it went. Gives its answer, null when it was refused.
export async function change(words, make) {
  try {
    const answer = await make();
    say(answer.result ?? words);
    return answer;
  } catch (error) {
    say(`Not done: ${error.message}`, true);
    return null;
  }
}

// Ask before something that is hard to take back.
export function confirmed(words, verb) {
  const dialog = $("confirm");
  set($("confirm-words"), { text: words });
  set($("confirm-yes"), { text: verb });
  dialog.showModal();
  $("confirm-no").focus();
  return new Promise((resolve) => {
    const ended = new AbortController();
    const end = (answer) => {
      ended.abort();
      if (dialog.open) dialog.close();
      resolve(answer);
    };
    $("confirm-yes").addEventListener("click", () => end(true), { signal: ended.signal });
    $("confirm-no").addEventListener("click", () => end(false), { signal: ended.signal });
    dialog.addEventListener("close", () => end(false), { signal: ended.signal });
  });
}
