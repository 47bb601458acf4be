// What has changed since this page was opened, as this browser has seen it.

import { card, el, table } from "./dom.js";
import { clock } from "./words.js";

export const events = {
  title: () => "Events",
  view: (params, data, live) => [
    el("p", null, "State changes, owners, captures, stalls and errors since this page was opened, newest first. What was before stands in the captures' logs."),
    card("Events", live.events.length ? table("Events", [["At"], ["What"]], live.events.map((item) => [clock(item.at), item.text])) : el("p", null, "Nothing has changed yet.")),
  ],
};
