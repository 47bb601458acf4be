// Warnings and errors of this capture's log, and what has changed since this page was opened, as this browser has seen it.

import { card, el, table } from "./dom.js";
import { ask } from "./api.js";
import { live } from "./live.js";
import { clock, feedName, shortId } from "./words.js";

const SHOWN_ELSEWHERE = new Set(["time", "level", "logger", "message", "stack"]);
let chosen = null;  // a changefeed; null: all lines

export const events = {
  title: () => "Log and events",
  every_ms: 4000,
  load: () => ask("GET", `/api/tidebus/console/log${chosen ? `?changefeed=${encodeURIComponent(chosen.id)}&namespace=${encodeURIComponent(chosen.namespace)}` : ""}`),
  view: (params, data, { events: seen, overview }) => [
    logCard(data, overview?.changefeeds ?? []),
    card("Events", el("p", null, "State changes, owners, captures, stalls and errors since this page was opened, newest first."),
      seen.length ? table("Events", [["At"], ["What"]], seen.map((item) => [clock(item.at), item.text])) : el("p", null, "Nothing has changed yet.")),
  ],
  leave: () => { chosen = null; },
  chosen: (event, { look }) => {
    chosen = (live.overview?.changefeeds ?? []).find((feed) => feedName(feed) === event.target.value) ?? null;
    look();
  },
};

function logCard(data, feeds) {
  return card("Log", el("p", null, "The newest warnings and errors of the capture that serves this page, newest first, at most 500. Sorters and processors have logs of their own."),
    el("label", { for: "log-of" }, "Of changefeed"),
    el("select", { id: "log-of" }, el("option", { value: "", selected: !chosen }, "all lines"),
      feeds.map((feed) => el("option", { value: feedName(feed), selected: chosen !== null && feedName(feed) === feedName(chosen) }, feedName(feed)))),
    data && el("p", { class: "soft" }, `From capture ${shortId(data.capture)}.`),
    data && (data.items.length ? table("Log", [["At"], ["Level"], ["Where"], ["What"]], data.items.map((line) => [
      new Date(line.time).toLocaleString("sv"), line.level, line.logger, [el("strong", null, line.message), " ", fields(line), line.stack && stack(line)]])) : el("p", { id: "no-lines" }, "No warning and no error.")));
}

function fields(line) {
  return Object.entries(line).filter(([name]) => !SHOWN_ELSEWHERE.has(name)).map(([name, value]) => `${name}=${value}`).join(", ");
}

function stack(line) {
  return el("details", null, el("summary", null, "Where it was raised"), el("pre", { tabindex: "0", "aria-label": `Traceback of ${line.message}` }, line.stack));
}
