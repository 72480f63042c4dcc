// Numbers and names as people read them. Rule of this file: the same thing is written the same way in every panel.

export const MARKS = { pd: "■", local: "●", readback: "▲", replica: "◆" };

// 1234 → 1.2 k; whole below 1000. What is not known is a dash.
export function count(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= 0.9995 * size) return `${fixed(value / size)} ${unit}`;
  }
  return String(Math.round(value));
}

const fixed = (value) => value.toFixed(Math.abs(value) < 99.95 ? 1 : 0);

export function rate(value) {
  return value > 0 && value < 9.95 ? value.toFixed(1) : count(value);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 9.95 ? value.toFixed(1) : String(Math.round(value));
}

export function score(value) {
  if (value === null || value === undefined) return "–";
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)}`;
}

export function percent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

export function plain(value) {
  return String(Number(value.toFixed(4)));
}

export function age(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

export function clock(seconds) {
  const time = new Date(1000 * seconds);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

// Short names of pods, by URL: what all of them share is left out.
const names = new Map();

export function nameAll(urls) {
  const split = urls.map((url) => new URL(url).host).map((host) => {
    const at = host.endsWith("]") ? -1 : host.lastIndexOf(":");
    return at < 0 ? [host, ""] : [host.slice(0, at), host.slice(at)];
  });
  const hosts = new Set(split.map(([host]) => host));
  const ports = new Set(split.map(([, port]) => port));
  const tails = [...hosts].map((host) => (/^[\d.]+$|:/.test(host) ? host : host.replace(/^[^.]*/, "")));
  const tail = new Set(tails).size === 1 && hosts.size > 1 ? tails[0] : "";
  names.clear();
  urls.forEach((url, index) => {
    const [host, port] = split[index];
    const only = tail ? host.slice(0, host.length - tail.length) : host;
    names.set(url, hosts.size === 1 && port ? port : ports.size === 1 ? only : only + port);
  });
}

export function podName(url) {
  return names.get(url) ?? url.replace(/^https?:\/\//, "");
}
