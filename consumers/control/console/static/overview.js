// The bus at a glance: upstreams, changefeeds with their lag by stage, captures, and what waits for what.

import { card, el, figures, stateMark, table } from "./dom.js";
import { count, feedHref, feedName, seconds, shortId, stages, timeOf } from "./words.js";
import { perSecond } from "./live.js";

export const overview = {
  title: () => "Overview",
  view: (params, data, live) => {
    const bus = live.overview;
    if (!bus) return el("p", null, live.trouble || "Asking the bus …");
    return [
      waits(bus), bus.upstreams.map(upstreamCard), feeds(bus), captures(bus),
    ];
  },
};

function waits(bus) {
  if (!bus.waits.length) return el("section", { class: "card", "aria-label": "What waits" }, el("h2", null, "What waits for what"), el("p", null, "Nothing waits."));
  return el("section", { class: "card heed", "aria-label": "What waits" }, el("h2", null, "What waits for what"),
    el("ul", { class: "plain" }, bus.waits.slice(0, 30).map((wait) => el("li", null,
      wait.id ? el("a", { href: feedHref(wait) }, wait.who) : wait.who, " waits for ", wait.waits_for))),
    bus.waits.length > 30 && el("p", { class: "soft" }, `and ${bus.waits.length - 30} more`));
}

function upstreamCard(item) {
  const rate = perSecond(`upstream ${item.upstream}`);
  return card(`Upstream ${item.upstream}`, figures([
    ["Lag of the raw log", seconds(item.lag_s)], ["Rows in", rate === null ? "–" : `${count(rate)}/s`],
    ["Tables", count(item.tables)], ["Regions", `${count(item.regions_initialized)} of ${count(item.regions)}`],
    ["Tables held", count(item.tables_held)],
    ["Resolved ts", [el("span", { class: "ts" }, item.resolved_ts ?? "–"), el("br"), timeOf(item.resolved_ts)], "small"],
  ]));
}

function feeds(bus) {
  if (!bus.changefeeds.length) {
    return card("Changefeeds", el("p", null, "There is none yet. ", el("a", { href: "#/create" }, "Create a changefeed"), "."));
  }
  const order = ["failed", "warning", "stopped", "normal", "finished"];
  const sorted = [...bus.changefeeds].sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state) || feedName(a).localeCompare(feedName(b)));
  return card("Changefeeds", table("Changefeeds, trouble first",
    [["Changefeed"], ["State"], ["Lag"], ["Rows", "number"], ["Sorter"], ["Checkpoint"]],
    sorted.map((feed) => [
      el("a", { href: feedHref(feed) }, feedName(feed)),
      [stateMark(feed.state), feed.error && el("div", { class: "soft" }, feed.error.code)],
      lag(feed), feedRate(feed), sorter(feed.sorter), timeOf(feed.checkpoint_ts),
    ])), legend());
}

export function feedRate(feed) {
  const rate = perSecond(`feed ${feed.namespace}/${feed.id}`);
  return rate === null ? "–" : `${count(rate)}/s`;
}

const STILL = ["stopped", "failed", "finished"];
const SHORT_S = 5;  // a lag below it fills a part of its bar

// Its stages as shares of a bar; the text says the same.
export function lag(feed) {
  if (STILL.includes(feed.state)) return seconds(feed.lags.whole);
  const most = Math.max(SHORT_S, feed.lags.whole ?? 0);
  let x = 0;
  const parts = stages(feed).map(([stage]) => {
    const width = Math.min(100 - x, (100 * (feed.lags[stage] ?? 0)) / most);
    x += width;
    return el("rect", { class: stage, x: x - width, width, y: 0, height: 8 });
  });
  return [seconds(feed.lags.whole), el("svg", { class: "lag", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, parts),
    el("span", { class: "unseen" }, stages(feed).filter(([stage]) => feed.lags[stage] !== null).map(([stage, name]) => `${name} ${seconds(feed.lags[stage])}`).join(", "))];
}

export function legend(feed) {
  if (feed && STILL.includes(feed.state)) return null;
  return el("ul", { class: "legend", "aria-label": "Stages of the lag" }, stages(feed).map(([stage, name]) =>
    el("li", null, el("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, el("rect", { class: stage, width: 8, height: 8 })), name)));
}

export function sorter(who) {
  if (!who) return "–";
  const process = who.pid ? `pid ${who.pid}` : "starts";
  return [who.capture ? `capture ${shortId(who.capture)}` : who.service ? `service ${who.service}` : "by itself", `, ${process}`, who.pinned ? ", pinned" : ""];
}

function captures(bus) {
  return card("Captures", table("Captures", [["Capture"], ["Address"], ["Tables", "number"], ["Version"]],
    bus.captures.map((capture) => [
      [shortId(capture.id), capture.is_owner && " ", capture.is_owner && stateMark("owner")],
      capture.address, count(capture.tables), capture.version,
    ])), el("p", null, el("a", { href: "#/captures" }, "Who pulls what, move and drain")));
}
