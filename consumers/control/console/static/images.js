// Table images of a changefeed: how far they are, and the verbs that ask for more of them, pause them and let them go on.

import { button, el, figures, table } from "./dom.js";
import { feedPath } from "./api.js";
import { fieldOf, named, put } from "./dialogs.js";
import { bytes, count, feedName, seconds } from "./words.js";

const TITLES = { backfill: "Backfill …", resync: "Resync …", pause: "Pause images …", resume: "Resume images …" };
const OURS = "/api/tidebus";

export function imageCard({ images: said, table_verbs: verbs }) {
  if (!said && !verbs.some((verb) => verb.allowed)) return null;
  return el("section", { class: "card", "aria-label": "Table images", id: "images" }, el("h2", null, "Table images"),
    said ? progress(said) : el("p", { id: "no-images" }, "No image of a table is under way."),
    el("div", { class: "buttons" }, verbs.map(({ verb, allowed, effect }) => button(TITLES[verb], allowed ? "images" : "", { verb }, {
      id: `images-${verb}`, "aria-disabled": allowed ? null : "true", title: effect, "aria-describedby": `why-images-${verb}` }))),
    verbs.map(({ verb, allowed, effect }) => el("p", { id: `why-images-${verb}`, class: allowed ? "unseen" : "hint" }, `${TITLES[verb]}: ${effect}`)));
}

function progress(said) {
  const left = (share) => (share === null || share === undefined ? "–" : `${Math.floor(100 * share)} %`);
  const whole = Number(said.tables_done) + Number(said.tables_left);
  return [figures([
    ["State", said.state], ["Tables whole", `${count(said.tables_done)} of ${count(whole)}`],
    ["Rows", count(said.rows)], ["Size", bytes(said.bytes)], ["Left", said.eta_s === null ? "nobody can tell yet" : seconds(Number(said.eta_s)), "small"],
  ]), said.reason && el("p", { class: "hint" }, `Why: ${said.reason}`),
  said.tables.length > 0 && table("Tables that are begun", [["Table"], ["Why"], ["Rows", "number"], ["Size", "number"], ["Regions done", "number"], ["Left", "number"]],
    said.tables.map((item) => [(item.name || item.table_id) + (item.partition ? ` (${item.partition})` : ""), item.is_paused ? `${item.mode}, paused` : item.mode, count(item.rows), bytes(item.bytes), left(item.done_share), seconds(item.eta_s === null ? null : Number(item.eta_s))]))];
}

export function askImages(verb, feed, page, after) {
  const effect = page.table_verbs.find((item) => item.verb === verb)?.effect ?? "";
  const needed = verb === "backfill" || verb === "resync";
  const title = TITLES[verb].replace(" …", "");
  put({
    title: `${title}${needed ? " tables" : ""} of ${feedName(feed)}`, confirm: title, effect, after,
    fields: [
      fieldOf("tables", "Tables", needed ? "One a line: shop.orders." : "One a line: shop.orders. Empty: all that the changefeed has.",
        el("textarea", { id: "tables", spellcheck: "false", rows: 3, "aria-describedby": "tables-hint" })),
      needed && fieldOf("range", "Key range", "Empty: all rows. START:END of the one table's whole-number key, END not included.",
        el("input", { id: "range", autocomplete: "off", spellcheck: "false", "aria-describedby": "range-hint" })),
    ],
    command: (form) => [`tidebus table ${verb} ${named(feed)}`, ...tablesOf(form).map((name) => ` -t ${name}`), rangeOf(form) && ` --where-key-range ${rangeOf(form)}`].filter(Boolean).join(""),
    request: (form) => {
      if (needed && !tablesOf(form).length) throw new Error("name a table at least: schema.table");
      return ["POST", feedPath(feed, `/tables/${verb}`, OURS), { tables: tablesOf(form), where_key_range: rangeOf(form) || undefined }];
    },
    done: (answer) => (needed ? `${answer.table_ids.length} tables are asked for` : answer.is_paused ? "all images of the changefeed are paused" : `${answer.table_ids.length} tables are paused now`),
  });
}

function tablesOf(form) {
  return form.querySelector("#tables").value.split("\n").map((line) => line.trim()).filter(Boolean);
}

function rangeOf(form) {
  return form.querySelector("#range")?.value.trim() ?? "";
}
