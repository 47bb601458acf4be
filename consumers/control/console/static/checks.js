// The first night: what this capture's machine, the upstream and the raw log have and lack.

import { button, card, el, stateMark, table } from "./dom.js";
import { ask } from "./api.js";
import { shortId } from "./words.js";

export const checks = {
  title: () => "Checks",
  load: () => ask("GET", "/api/tidebus/console/checks"),
  view: (params, data) => [
    el("p", null, "What ", el("code", null, "tidebus doctor"), " checks, from the capture that serves this page. Begin here on the first night; mend from the top."),
    card("Findings", data ? [el("p", { class: "soft" }, `From capture ${shortId(data.capture)}.`),
      table("Findings", [["Check"], ["Result"], ["What was seen"]], data.items.map((item) => [
        item.name, stateMark(item.ok ? "ok" : item.needed ? "not-ok" : "warning"), item.said]))] : el("p", null, "Checking …"),
    button("Check again", "again", {}, {})),
    card("Then", el("ol", { class: "steps" },
      el("li", null, el("a", { href: "#/upstream" }, "Upstream"), ": all regions are scanned, and nothing stands still."),
      el("li", null, el("a", { href: "#/create" }, "Create a changefeed"), ": the page says what would become of each table before it exists."),
      el("li", null, el("a", { href: "#/" }, "Overview"), ": its lag falls to seconds, and nothing waits."))),
  ],
  actions: { again: (named, { look }) => look() },
};
