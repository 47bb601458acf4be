// The newest overview, rates from one to the next, and what has changed since this page was opened.

import { say } from "./dom.js";
import { feedName } from "./words.js";

const [RATE_MS, CURVE_MAX, EVENTS_MAX, POLL_MS] = [10000, 90, 300, 5000];

export const live = { overview: null, at: 0, trouble: "", events: [], rates: new Map(), curves: new Map() };
let [source, listener, poll] = [null, () => {}, 0];

// EventSource holds one of the browser's six connections to this server, so a page that nobody looks at closes it.
export function listen(onChange) {
  listener = onChange;
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
}

function open() {
  if (source) return;
  clearTimeout(poll);
  source = new EventSource("/api/tidebus/console/live");
  source.addEventListener("overview", (event) => take(JSON.parse(event.data)));
  source.addEventListener("trouble", (event) => fail(JSON.parse(event.data).error_msg));
  source.onerror = () => {
    fail("the server does not answer; trying again");
    if (source?.readyState === EventSource.CLOSED) {  // refused: too many listen, or nobody is logged in
      close();
      poll = setTimeout(open, POLL_MS);
    }
  };
}

function close() {
  source?.close();
  source = null;
}

function fail(reason) {
  if (live.trouble !== reason) note(reason);
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
  if (before) compare(before, overview);
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

function compare(before, after) {
  differ(before.captures, after.captures, (capture) => capture.id, {
    came: (capture) => `capture ${capture.address} has come`,
    went: (capture) => `capture ${capture.address} has gone`,
    changed: (old, now) => (now.is_owner && !old.is_owner ? `capture ${now.address} is the owner now` : ""),
  });
  differ(before.changefeeds, after.changefeeds, (feed) => `${feed.namespace}/${feed.id}`, {
    came: (feed) => `changefeed ${feedName(feed)} has been created`,
    went: (feed) => `changefeed ${feedName(feed)} is gone`,
    changed: (old, now) => {
      if (old.state !== now.state) return `changefeed ${feedName(now)} is ${now.state}${now.error ? `: ${now.error.code}` : ""}`;
      if ((old.error?.code ?? "") !== (now.error?.code ?? "") && now.error) return `changefeed ${feedName(now)}: ${now.error.code}`;
      const [from, to] = [old.sorter?.capture ?? "", now.sorter?.capture ?? ""];
      return from && to && from !== to ? `changefeed ${feedName(now)} has moved to capture ${to}` : "";
    },
  });
  const stalls = (overview) => overview.upstreams.flatMap((item) => item.stalls ?? []).map((text) => ({ text }));
  differ(stalls(before), stalls(after), ({ text }) => text, {
    came: ({ text }) => `stalled: ${text}`, went: ({ text }) => `no longer: ${text}`, changed: () => "",
  });
}

function differ(before, after, nameOf, { came, went, changed }) {
  const [old, now] = [before, after].map((items) => new Map(items.map((item) => [nameOf(item), item])));
  for (const [name, item] of now) {
    const text = old.has(name) ? changed(old.get(name), item) : came(item);
    if (text) note(text);
  }
  for (const [name, item] of old) if (!now.has(name)) note(went(item));
}

export function note(text) {
  live.events.unshift({ at: Date.now(), text });
  live.events.length = Math.min(live.events.length, EVENTS_MAX);
  say(text);
}
