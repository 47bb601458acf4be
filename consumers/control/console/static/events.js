// Warnings and errors of a capture's log, and what has happened on the bus, as that capture has seen it.

import { card, el, table } from "./dom.js";
import { ask } from "./api.js";
import { live } from "./live.js";
import { feedName, moment, shortId } from "./words.js";

const SHOWN_ELSEWHERE = new Set(["time", "level", "logger", "message", "stack"]);
const SHOWN_MAX = 200;
let chosen = null;  // a changefeed; null: all lines

export const events = {
  title: () => "Log and events",
  every_ms: 4000,
  load: async () => {
    const of = chosen ? `?changefeed=${encodeURIComponent(chosen.id)}&namespace=${encodeURIComponent(chosen.namespace)}` : "";
    const [log, seen] = await Promise.all([ask("GET", `/api/tidebus/console/log${of}`), ask("GET", `/api/tidebus/console/events${of}`)]);
    return { ...log, events: seen.items };
  },
  view: (params, data, { overview }) => [
    choice(overview?.changefeeds ?? []), logCard(data),
    card("Events", el("p", null, "State changes, owners, captures, stalls and errors since the capture that serves this page began, newest first, at most 1,000."),
      data && (data.events.length ? eventTable(data.events.slice(0, SHOWN_MAX)) : el("p", { id: "no-events" }, "Nothing has changed yet.")),
      data?.events.length > SHOWN_MAX && el("p", { class: "soft" }, `and ${data.events.length - SHOWN_MAX} more`)),
  ],
  leave: () => { chosen = null; },
  chosen: (event, { look }) => {
    chosen = (live.overview?.changefeeds ?? []).find((feed) => feedName(feed) === event.target.value) ?? null;
    look();
  },
};

export function eventTable(events) {
  return table("Events", [["At", "whole"], ["What"]], events.map((item) => [moment(item.at_s), item.text]));
}

function choice(feeds) {
  return el("section", { class: "card", "aria-label": "Which" }, el("label", { for: "log-of" }, "Of changefeed"),
    el("select", { id: "log-of" }, el("option", { value: "", selected: !chosen }, "all, and what is of none"),
      feeds.map((feed) => el("option", { value: feedName(feed), selected: chosen !== null && feedName(feed) === feedName(chosen) }, feedName(feed)))));
}

function logCard(data) {
  return card("Log", el("p", null, "The newest warnings and errors of the capture that serves this page, newest first, at most 500. Sorters and processors have logs of their own."),
    data && el("p", { class: "soft" }, `From capture ${shortId(data.capture)}.`),
    data && (data.items.length ? table("Log", [["At", "whole"], ["Level", "whole"], ["Where", "whole"], ["What"]], data.items.map((line) => [
      new Date(line.time).toLocaleString("sv"), line.level, line.logger, [el("strong", null, line.message), " ", fields(line), line.stack && stack(line)]])) : el("p", { id: "no-lines" }, "No warning and no error.")));
}

function fields(line) {
  return Object.entries(line).filter(([name]) => !SHOWN_ELSEWHERE.has(name)).map(([name, value]) => `${name}=${value}`).join(", ");
}

function stack(line) {
  return el("details", null, el("summary", null, "Where it was raised"), el("pre", { tabindex: "0", "aria-label": `Traceback of ${line.message}` }, line.stack));
}
