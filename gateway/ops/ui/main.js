// Starts the page and keeps it fresh. Rule of this file: it decides when to ask; what an answer looks like is for the
// panels. Nobody looks: nobody asks.

import { access, call, follow, forgetToken, keepToken, Refused, token } from "./api.js";
import { canaryPanel } from "./canary.js";
import { decisionsPanel } from "./decisions.js";
import { $, set } from "./dom.js";
import { explainDialog } from "./explain.js";
import { flowPanel } from "./flow.js";
import { age, nameAll } from "./format.js";
import { headerPanel } from "./header.js";
import { heatmapPanel } from "./heatmap.js";
import { podsPanel } from "./pods.js";
import { changes } from "./say.js";
import { watchPanel } from "./watch.js";

const EVERY_MS = 2000;
const SLOW = 5; // rounds between two looks at what hardly changes

const may = { view: false, change: false };
const panels = {};
let stream = new AbortController();
let round = 0;
let last = null; // when the last answers came
let timer = null;
let asking = false;

function link(state, words) {
  set($("link"), { "data-state": state, text: words });
  document.body.classList.toggle("stale", state === "lost" && last !== null);
}

async function look() {
  clearTimeout(timer);
  if (document.hidden || asking || !may.view) return;
  asking = true;
  try {
    const names = ["health", "pods", "flow", "alarms", "canary", "weights"];
    const [health, pods, flow, alarms, canary, weights] = await Promise.all(names.map((name) => call(name)));
    const slow = round % SLOW === 0;
    const measured = health.policy === "ppd";
    const residency = slow ? (await call("residency")).pods : null;
    if (slow) panels.watch.show(...(await Promise.all(["slo", "admission", "drift"].map((name) => call(name)))));
    const table = slow && measured ? await call("table") : null;
    round += 1;
    last = Date.now();
    nameAll(pods.pods.map((pod) => pod.url));
    panels.header.show(health, weights, canary, measured, table, alarms.alarms);
    panels.pods.show(pods.pods, residency);
    panels.flow.show(flow);
    panels.canary.show(canary);
    panels.decisions.pods(pods.pods);
    await panels.heatmap.show(measured, health.policy, weights, table);
    link(panels.decisions.following ? "live" : "connecting", panels.decisions.following ? "live" : "no stream yet");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      await enter();
    } else {
      const since = last === null ? "" : `; shown: ${age((Date.now() - last) / 1000)} old`;
      link("lost", error instanceof Refused ? `error: ${error.message}` : `no connection${since}`);
    }
  } finally {
    asking = false;
    timer = setTimeout(look, EVERY_MS);
  }
}

// Find out what may be seen and changed, and begin, or begin again.
async function enter() {
  stream.abort();
  try {
    Object.assign(may, await access());
  } catch {
    link("lost", "no connection");
    timer = setTimeout(start, EVERY_MS);
    return;
  }
  const wrong = token() !== null && !may.change;
  if (wrong) {
    forgetToken();
    Object.assign(may, await access().catch(() => may));
  }
  set($("token-form"), { hidden: may.change ? "" : null });
  set($("token-words"), { text: may.view ? "Read only: changes need the token" : "This gateway shows nothing without its token" });
  set($("token-said"), { text: wrong ? "That token is not right." : "" });
  set($("forget"), { hidden: token() === null ? "" : null });
  set($("main"), { hidden: may.view ? null : "" });
  changes(may.change);
  if (may.view) listen();
  else link("locked", "token needed");
}

// Browsers open few connections to one host: a page that nobody looks at keeps none.
function listen() {
  stream.abort();
  if (document.hidden) return;
  stream = new AbortController();
  panels.decisions.follow(stream.signal);
}

async function start() {
  clearTimeout(timer);
  round = 0;
  await enter();
  if (may.view) await look();
}

$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = $("token").value.trim();
  $("token").value = "";
  if (!/^[\x21-\x7e]+$/.test(given)) {
    set($("token-said"), { text: "A token is visible ASCII." });
    return;
  }
  keepToken(given);
  await start();
  if (token() === null) $("token").focus();
});
$("forget").addEventListener("click", () => {
  forgetToken();
  start();
});
document.addEventListener("visibilitychange", () => {
  if (may.view) listen();
  look();
});

panels.explain = explainDialog();
panels.header = headerPanel();
panels.flow = flowPanel();
panels.decisions = decisionsPanel(follow, panels.explain.open);
panels.heatmap = heatmapPanel(look);
panels.canary = canaryPanel(look);
panels.pods = podsPanel(look);
panels.watch = watchPanel();
start();
