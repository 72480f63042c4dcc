// Every word with the server. Rule of this file: the token is in sessionStorage and in the Authorization header, and
// nowhere else; an error that the server explained keeps the server's words.

const TOKEN = "ppd-gateway-admin-token";
const PATIENCE_MS = 8000;
const SILENCE_MS = 40000;
const RETRY_MS = [1000, 2000, 4000, 8000];

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = () => sessionStorage.getItem(TOKEN);
export const keepToken = (value) => sessionStorage.setItem(TOKEN, value);
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

function headers(more = {}) {
  const known = token();
  return known === null ? more : { ...more, Authorization: `Bearer ${known}` };
}

// What the token that is kept is good for: {view, change}.
export const access = () => answered("ui/access", { headers: headers() });

// A call of the admin API, as `pods` for GET api/v1/pods. Throws Refused, and what fetch throws.
export function call(path, method = "GET", body = undefined) {
  const given = { method, headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }) };
  if (body !== undefined) given.body = JSON.stringify(body);
  return answered(`api/v1/${path}`, given);
}

async function answered(path, given) {
  const answer = await fetch(path, { ...given, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  const found = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, found.error.message);
  return found;
}

// The decisions as they come, until `stop` is aborted. `began` is called whenever the stream stands (again).
export async function follow(decided, began, lost, stop) {
  for (let failures = 0; !stop.aborted; failures += 1) {
    const silence = new AbortController();
    try {
      await listen(decided, () => {
        failures = 0;
        began();
      }, AbortSignal.any([stop, silence.signal]), silence);
    } catch (error) {
      if (stop.aborted || (error instanceof Refused && error.status === 401)) return;
    }
    if (stop.aborted) return;
    lost();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
  }
}

async function listen(decided, began, signal, silence) {
  const waiting = () => setTimeout(() => silence.abort(), SILENCE_MS);
  let timer = waiting();
  try {
    const answer = await fetch("api/v1/decisions?follow=1", { headers: headers(), cache: "no-store", signal });
    if (!answer.ok) throw new Refused(answer.status, "");
    began();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = waiting();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event.startsWith("data: ")) decided(JSON.parse(event.slice(6)));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}
