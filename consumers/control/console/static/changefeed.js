// A changefeed: state, error with what to do, verbs, who ran what, topics, settings with their differences.

import { button, card, el, figures, stateMark, table } from "./dom.js";
import { ask, feedPath, tableNames } from "./api.js";
import { named } from "./dialogs.js";
import { bytes, count, feedName, moment, seconds, shortId, timeOf } from "./words.js";
import { eventTable } from "./events.js";
import { feedRate, lag, legend, sorter } from "./overview.js";
import { TITLES, askVerb } from "./verbs.js";
import { askImages, imageCard } from "./images.js";

const BASE = "/api/tidebus/console";
const topics = new Map();  // by changefeed: asked for once, for each asks Kafka for all schemas
const proofs = new Map();  // as topics: each reads the end of a topic
const refused = new Map();  // of lakes; likewise
let [everySetting, names] = [false, null];  // names: of tables by id; a promise until they are there

export const changefeed = {
  title: ([namespace, id]) => `Changefeed ${feedName({ namespace, id })}`,
  every_ms: 3000,
  load: async ([namespace, id]) => {
    const feed = { namespace, id };
    const key = `${namespace}/${id}`;
    for (const [asked, tail] of [[topics, "/topics"], [proofs, "/proofs"], [refused, "/refused"]]) {
      if (asked.has(key)) continue;
      asked.set(key, { waits: true });
      ask("GET", feedPath(feed, tail, BASE)).then((said) => { asked.set(key, said); if (said.busiest?.length) askNames(); }, (error) => asked.set(key, { refusal: error.message }));
    }
    return { feed, key, page: await ask("GET", feedPath(feed, "", BASE)) };
  },
  leave: () => { topics.clear(); proofs.clear(); refused.clear(); names = null; },
  view: (params, data, live) => {
    if (!data) return el("p", null, "Asking the bus …");
    const { feed, key, page } = data;
    const now = live.overview?.changefeeds.find((item) => item.namespace === feed.namespace && item.id === feed.id);
    return [
      error(page), refusedCard(refused.get(key)), state(feed, page, now, live), imageCard(page), verbs(page),
      el("div", { class: "columns" }, work(page, now), settings(page)), history(page), proofCard(feed, proofs.get(key)), topicCard(feed, page, topics.get(key)),
    ];
  },
  actions: {
    verb: ({ verb }, { data, look }) => askVerb(verb, data.feed, data.page, look),
    images: ({ verb }, { data, look }) => askImages(verb, data.feed, data.page, look),
    "all-settings": (named, { draw }) => { everySetting = !everySetting; draw(); },
    "proofs-again": (named, { data, look }) => { proofs.delete(data.key); look(); },
    "topics-again": (named, { data, look }) => { topics.delete(data.key); refused.delete(data.key); look(); },
  },
};

function askNames() {
  names ??= tableNames().then((said) => { names = said; }, () => { names = null; });
}

function error({ changefeed: feed, advice }) {
  if (!feed.error) return null;
  const follows = { retried: "tried again by itself", "needs you": "needs you", "a bug": "a bug of TideBus" }[advice.follows];
  return el("section", { class: `card ${feed.state === "failed" ? "alarm" : "heed"}`, "aria-label": "Error" },
    el("h2", null, el("code", { id: "error-code" }, feed.error.code), ` – ${follows}`),
    advice.meaning && el("p", null, advice.meaning), el("pre", { tabindex: "0", "aria-label": "The error's text" }, feed.error.message),
    el("p", { class: "soft" }, feed.error.time), el("h3", null, "What to do"),
    el("ol", { class: "steps", id: "advice" }, advice.steps.map((step) => el("li", null, step))),
    advice.verbs.length > 0 && el("div", { class: "buttons" }, advice.verbs.map((verb) => button(TITLES[verb], "verb", { verb }, { id: `advised-${verb}`, class: "main" }))));
}

// Tables of which no lake table can be, as TiDB's schema is now, also those that it has not come to yet; and one whose
// DDL has stopped the changefeed.
function refusedCard(said) {
  if (!said?.items?.length) return said?.refusal && card("Refused lake tables", el("p", { class: "problem" }, said.refusal));
  const means = ({ code }) => el("details", null, el("summary", null, el("code", null, code)), el("p", null, said.codes[code].meaning), el("ol", { class: "steps" }, said.codes[code].steps.map((step) => el("li", null, step))));
  const by = ({ ddl }) => ddl && [
    el("p", null, "Stopped by a DDL ", el("span", { class: "ts" }, ddl.commit_ts), ` (${timeOf(ddl.commit_ts)})`, ddl.query ? ":" : ", which the changefeed leaves out; rows behind it need it."),
    ddl.query && el("pre", { tabindex: "0", "aria-label": "The DDL" }, ddl.query)];
  const why = (item) => el("div", null, by(item), el("p", null, item.reason), item.what_helps && el("p", { class: "soft" }, `What helps: ${item.what_helps}`));
  return el("section", { class: "card heed", "aria-label": "Refused lake tables", id: "refused" }, el("h2", null, "Refused lake tables"),
    el("p", null, "No lake table can be of these as they are now, or follow the DDL that is named."),
    table("Refused lake tables", [["Table"], ["Why"], ["Code"]], said.items.slice(0, 200).map((item) => [item.table, why(item), means(item)])),
    said.items.length > 200 && el("p", { class: "soft" }, `${count(said.items.length)} in all`));
}

function state(feed, { changefeed: shown }, now, live) {
  const points = live.curves.get(`feed ${feed.namespace}/${feed.id}`) ?? [];
  return el("section", { class: "card", "aria-label": "State" }, el("h2", null, "State"), figures([
    ["State", stateMark(shown.state)], ["Lag", now ? lag(now) : "–"], ["Rows", now ? feedRate(now) : "–"],
    ["Checkpoint ts", [el("span", { class: "ts" }, shown.checkpoint_ts), el("br"), timeOf(shown.checkpoint_ts)], "small"],
    ["Resolved ts", [el("span", { class: "ts" }, shown.resolved_ts), el("br"), timeOf(shown.resolved_ts)], "small"],
    ["Since", [el("span", { class: "ts" }, shown.start_ts), el("br"), shown.target_ts ? `until ${shown.target_ts}` : "without an end"], "small"],
  ]), now && legend(now), points.length > 2 && curve(points),
  el("p", null, "Sink: ", el("code", null, shown.sink_uri)));
}

function curve(points) {
  const most = Math.max(1, ...points);
  const line = points.map((value, at) => `${(100 * at) / (points.length - 1)},${30 - (28 * value) / most}`).join(" ");
  return [el("svg", { class: "curve", viewBox: "0 0 100 31", preserveAspectRatio: "none", "aria-hidden": "true" }, el("polyline", { points: line })),
    el("p", { class: "soft" }, `Lag since this page was opened, ${seconds(most)} at most`)];
}

function verbs(page) {
  return el("section", { class: "card", "aria-label": "What can be done" }, el("h2", null, "What can be done"),
    el("div", { class: "buttons" }, page.verbs.map(({ verb, allowed, effect }) =>
      button(TITLES[verb], allowed ? "verb" : "", { verb }, {
        id: `verb-${verb}`, class: verb === "remove" ? "danger" : null, "aria-disabled": allowed ? null : "true", title: effect, "aria-describedby": `why-${verb}` }))),
    page.verbs.map(({ verb, allowed, effect }) => el("p", { id: `why-${verb}`, class: allowed ? "unseen" : "hint" }, `${TITLES[verb]}: ${effect}`)));
}

function work({ work: done, shares }, now) {
  const who = now?.sorter ?? done.sorter;
  return card("Who runs it", figures([
    ["By tasks of Spark", `${count(done.spark_rows_total)} rows`], ["By the driver's threads", `${count(done.driver_rows_total)} rows`],
    ["Last batch", `${count(done.batch_rows)} rows in ${Number(done.batch_s).toFixed(2)} s`, "small"],
    ["Sorter", sorter(who), "small"], ["Ended without a word", count(done.sorter_deaths ?? 0), "small"],
    ["Rows with a wrong checksum", count(done.corrupt_rows_total ?? 0), "small"],
    ["Damaged raw records passed over", count(done.damaged_records_total ?? 0), "small"],
  ]), who?.reason && el("p", null, "The last batch ran there because: ", who.reason.replaceAll("_", " ")),
  shares.length > 0 && [el("h3", null, "Who applies"), table("Partitions of its topic by capture", [["Capture"], ["Partitions"]],
    shares.map((share) => [shortId(share.capture), share.partitions.join(", ") || "none"]))]);
}

// As the capture that serves this page has seen it since it began.
function history({ history: { events, batches } }) {
  const cuts = batches.length > 0 && table("Newest batches, one a look", [["Seen at"], ["Up to"], ["Rows", "number"], ["Took", "number"], ["Rows since the look before", "number"], ["By Spark", "number"], ["Where and why"]],
    batches.map((item) => [moment(item.at_s), timeOf(item.checkpoint_ts), count(item.rows), `${item.seconds.toFixed(2)} s`, count(item.rows_since), count(item.spark_rows_since), [item.at, item.reason.replaceAll("_", " ")].filter(Boolean).join(", ")]));
  return el("section", { class: "card", "aria-label": "History", id: "history" }, el("h2", null, "History"),
    el("p", null, "Since the capture that serves this page began, which looks every three seconds."),
    events.length ? eventTable(events) : el("p", null, "Its state has not changed."), cuts || el("p", null, "No batch with rows has been seen."));
}

function settings({ settings: rows }) {
  const shown = everySetting ? rows : rows.filter((row) => row.differs);
  return card("Settings", el("p", null, everySetting ? "All settings." : "What differs from the defaults."),
    shown.length ? table("Settings", [["Setting"], ["Value"], ["Default"]], shown.map((row) => [
      el("code", null, row.key), row.differs ? el("strong", null, row.value) : row.value, row.default ?? "–"])) : el("p", null, "Nothing."),
    button(everySetting ? "Only differences" : "All settings", "all-settings", {}, { class: "slight", "aria-pressed": String(everySetting) }));
}

function proofCard(feed, said) {
  const again = button("Look again", "proofs-again", {}, { class: "slight" });
  const all = el("p", null, el("a", { href: feedPath(feed, "/proofs", "/api/tidebus") }, "The records as the API has them"));
  if (!said || said.waits) return card("Proofs", el("p", null, "Asking …"));
  if (said.refusal) return card("Proofs", el("p", { class: "problem" }, said.refusal), again);
  if (!said.windows) return card("Proofs", el("p", null, "Its sorter has told of no window yet."), again);
  return card("Proofs", figures([
    ["Windows proven", `${count(said.proven)} of ${count(said.windows)}`], ["Windows that differ", count(said.differing)],
    ["Stretches that nobody told of", count(said.unproven)],
  ]), said.findings.length > 0 && el("ul", { class: "problem" }, said.findings.map((text) => el("li", null, text))),
  said.stretches.length > 0 && el("ul", null, said.stretches.map((item) => el("li", null, `Nobody told of what was between ${timeOf(item.after_ts)} and ${timeOf(item.upto_ts)}.`))),
  table("Newest windows", [["Up to"], ["Rows read", "number"], ["Left out", "number"], ["Written", "number"], ["Proven"]], said.newest.map((item) => [
    timeOf(item.upto_ts), count(item.landed), count(item.left_out), count(item.written), item.faults.length ? `no: ${item.faults.join(", ")}` : "yes"])), all, again,
  said.busiest.length > 0 && [el("h3", null, "Busiest tables of these windows"), table("Busiest tables", [["Table"], ["Id", "number"], ["Rows written", "number"]],
    said.busiest.map((item) => [names?.of ? names.of.get(String(item.table_id)) ?? names.none : "…", item.table_id, count(item.rows)]))]);
}

function topicCard(feed, { changefeed: { sink_uri: uri } }, said) {
  const again = button("Look again", "topics-again", {}, { class: "slight" });
  if (!said || said.waits) return card("Topics and tables", el("p", null, "Asking …"));
  if (said.refusal) return card("Topics and tables", el("p", { class: "problem" }, said.refusal), again);
  if (said.kind) return card("Tables", el("p", null, wayTo(uri.split(":")[0])), destinationTable(said), again,
    uri.startsWith("iceberg:") && el("p", { class: "hint" }, "Its sorter compacts the tables each compaction-interval. By hand, on a machine that sees the warehouse: ", el("code", null, `tidebus lake compact ${named(feed)}`), "."));
  return card("Topics and tables", topicTable(said), again);
}

// How rows come to a sink that is no Kafka.
export function wayTo(scheme) {
  if (scheme === "iceberg") return "Its sorter writes lake tables itself; there is no topic.";
  if (scheme === "blackhole") return "Its rows go nowhere; there is no topic.";
  return "Processors apply its rows from a topic of TideBus's own.";
}

// Where tables go at a sink that is no Kafka.
export function destinationTable(said) {
  const tables = said.tables.filter((item) => item.replicated);
  const types = (item) => item.types.length > 0 && el("details", null, el("summary", null, count(item.columns)), item.types.map((column) => `${column.name} ${column.type}`).join(", "));
  return [table("Tables and where they go", [["Table"], ["Goes to"], ["Key"], ["Columns"], ["Layout"], ["Trouble"]],
    tables.slice(0, 200).map((item) => [item.table, item.target ?? "?", item.key ?? "?", types(item) || count(item.columns), item.layout ?? "–", item.trouble.join("; ") || "none"])),
  el("p", { class: "soft" }, `${tables.length} tables are replicated, ${said.tables.length - tables.length} are left out.`), said.notes.map((note) => el("p", null, "Note: ", note))];
}

export function topicTable(said) {
  const tables = said.tables.filter((item) => item.replicated);
  return [table("Tables, largest messages first", [["Table"], ["Topic"], ["Partitions", "number"], ["Partition by"], ["Largest message", "number"], ["Trouble"]],
    [...tables].sort((a, b) => (b.largest_message_bytes ?? 0) - (a.largest_message_bytes ?? 0)).slice(0, 200).map((item) => [
      item.target ? `${item.table} as ${item.target}` : item.table, [item.topic ?? "?", item.topic_exists === false ? " (new)" : ""],
      count(item.partitions), item.partition_by ?? "?", bytes(item.largest_message_bytes), (item.trouble ?? []).join("; ") || "none"])),
  el("p", { class: "soft" }, `${tables.length} tables are replicated, ${said.tables.length - tables.length} are left out by the filter.`)];
}
