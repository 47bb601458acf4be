// The newest overview, rates from one to the next, and events of the server's as they come.

import { say } from "./dom.js";

const [RATE_MS, CURVE_MAX, POLL_MS] = [10000, 90, 5000];

export const live = { overview: null, at: 0, trouble: "", rates: new Map(), curves: new Map() };
let [source, listener, poll] = [null, () => {}, 0];

// EventSource holds one of the browser's six connections to this server, so a page that nobody looks at closes it.
export function listen(onChange) {
  listener = onChange;
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource("/api/tidebus/console/live");
  source.addEventListener("overview", (event) => take(JSON.parse(event.data)));
  source.addEventListener("trouble", (event) => fail(JSON.parse(event.data).error_msg));
  source.addEventListener("again", () => { close(); open(); });  // it has had its time
  source.onerror = () => {
    fail("the server does not answer; trying again");
    if (source?.readyState === EventSource.CLOSED) {  // refused: too many listen, or nobody is logged in
      close();
      poll = setTimeout(open, POLL_MS);
    }
  };
}

function close() {
  clearTimeout(poll);
  source?.close();
  source = null;
}

function fail(reason) {
  if (live.trouble !== reason) say(reason);
  live.trouble = reason;
  listener();
}

function take(overview) {
  const now = performance.now();
  const before = live.overview;
  [live.overview, live.at, live.trouble] = [overview, Date.now(), ""];
  for (const item of overview.upstreams) rate(`upstream ${item.upstream}`, now, item.rows_in ?? 0);
  for (const feed of overview.changefeeds) {
    rate(`feed ${feed.namespace}/${feed.id}`, now, feed.rows_total);
    curve(`feed ${feed.namespace}/${feed.id}`, feed.lags.whole);
  }
  announce(before, overview);
  listener();
}

function rate(key, now, value) {
  const points = live.rates.get(key) ?? [];
  if (points.length && Number(value) < points.at(-1)[1]) points.length = 0;  // another process counts from 0
  points.push([now, Number(value)]);
  while (points.length > 2 && now - points[0][0] > RATE_MS) points.shift();
  live.rates.set(key, points);
}

export function perSecond(key) {
  const points = live.rates.get(key) ?? [];
  if (points.length < 2) return null;
  const [[from, low], [to, high]] = [points[0], points.at(-1)];
  return Math.round((high - low) / ((to - from) / 1000));
}

function curve(key, value) {
  const points = live.curves.get(key) ?? [];
  points.push(value ?? 0);
  if (points.length > CURVE_MAX) points.shift();
  live.curves.set(key, points);
}

// Events that the server has noted since the answer before are said once; another capture numbers its own.
function announce(before, after) {
  const newest = before?.answered_by === after.answered_by ? before.news[0]?.number ?? 0 : Infinity;
  const fresh = after.news.filter((event) => event.number > newest);
  if (fresh.length) say(fresh.reverse().map((event) => event.text).join("; "));
}
