// A changefeed that is being written: a form and its file side by side, each laid into the other by the server.

import { button, card, el, morph, table } from "./dom.js";
import { ask, tsOf } from "./api.js";
import { named, put } from "./dialogs.js";
import { destinationTable, topicTable, wayTo } from "./changefeed.js";
import { bytes, count, feedHref, timeOf } from "./words.js";

const [TYPED_MS, BUSY_MS, TRIES_MAX] = [400, 1000, 10];
const OF_FILE = ["rules", "case_sensitive", "force_replicate"];  // fields that have a key in the file
const changed = new Set();  // of these, whose change is not in the file yet
let [draft, timer, running, isUnchecked] = [null, 0, null, false];

const field = (name) => document.getElementById(name);

export const create = {
  title: () => "Create a changefeed",
  still: true,  // drawn once: who types is not interrupted
  leave: () => { clearTimeout(timer); [draft, isUnchecked] = [null, false]; changed.clear(); },
  view: () => [
    el("p", null, "Form and file are two sides of the same: what you change in the form changes its key in the file, and the other way round. The server checks both as you type; nothing is created before you confirm."),
    el("form", { id: "draft", novalidate: true },
      el("div", { class: "columns" },
        card("Form", input("id", "Changefeed id", "Letters, digits and dashes."), input("namespace", "Namespace", "", "default"),
          input("uri", "Sink URI", "kafka://HOST:PORT/TOPIC?protocol=canal-json, mysql://USER:PASSWORD@HOST:PORT/, file:///FOLDER, s3://BUCKET/PREFIX, iceberg://?warehouse=file:///FOLDER"),
          area("rules", "Filter rules", "One a line: shop.*, !shop.tmp_*", "*.*"),
          el("fieldset", null, el("legend", { class: "label" }, "Options"), box("case_sensitive", "Names are case-sensitive"), box("force_replicate", "Tables without a key, too"), box("ignore_ineligible", "Leave out tables without a key")),
          input("start", "Start ts", "Empty: from now on."), input("target", "Target ts", "Empty: without an end.")),
        card("Changefeed file", el("label", { for: "toml" }, "TiCDC's TOML"), el("textarea", { id: "toml", class: "tall", spellcheck: "false", "aria-describedby": "toml-hint" }),
          el("p", { class: "hint", id: "toml-hint" }, "All settings of docs/changefeeds.md; comments stay."))),
      card("What would become of it",
        el("div", { class: "buttons" }, el("button", { type: "submit", class: "main", id: "create" }, "Create …"), button("First messages", "first", {}, { id: "show-first" })),
        el("div", { id: "checked", "aria-live": "polite" }, el("p", null, "Give a sink URI.")),
        el("div", { id: "first", "aria-live": "polite" }))),
  ],
  actions: { first: () => showFirst() },
  typed: (event) => {
    clearTimeout(timer);
    field("first").replaceChildren();  // they were of another text
    if (OF_FILE.includes(event.target.id)) changed.add(event.target.id);
    isUnchecked = true;
    timer = setTimeout(check, TYPED_MS, field("draft"));
  },
  submit: async () => {
    const visit = field("draft");
    isUnchecked = true;  // tables may be others by now
    await settled(visit);
    if (visit.isConnected && draft?.replica_config) confirm();  // of a file that does not read, what is wrong is said
  },
};

function input(id, label, hint, value = "") {
  return [el("label", { for: id }, label), el("input", { id, value, autocomplete: "off", spellcheck: "false", "aria-describedby": hint ? `${id}-hint` : null }), hint && el("p", { class: "hint", id: `${id}-hint` }, hint)];
}

function area(id, label, hint, value) {
  return [el("label", { for: id }, label), el("textarea", { id, spellcheck: "false", rows: 3, "aria-describedby": `${id}-hint` }, value), el("p", { class: "hint", id: `${id}-hint` }, hint)];
}

function box(id, label) {
  return el("label", { class: "check", for: id }, el("input", { type: "checkbox", id }), label);
}

// One check at a time, in the order of typing. visit: the page's form, which is gone once another page is shown.
async function check(visit) {
  while (running) await running;
  if (!visit.isConnected || !isUnchecked) return;
  running = checked(visit).finally(() => { running = null; });
  await running;
}

// Until all that was typed is checked: then form and file say the same.
async function settled(visit) {
  while (visit.isConnected && (running || isUnchecked)) {
    clearTimeout(timer);
    await check(visit);
  }
}

// Lays into the file what was changed in the form; the rest of the form is as the file says.
async function checked(visit) {
  isUnchecked = false;
  try {
    const [whole, laid] = [formNow(), [...changed]];
    const form = laid.length ? Object.fromEntries(laid.map((name) => [name, whole[name]])) : null;
    const asked = { toml: field("toml").value, sink_uri: field("uri").value.trim(), changefeed_id: field("id").value.trim(), form, start_ts: tsOf(field("start").value) };
    const said = await asking(`/api/tidebus/console/draft?namespace=${encodeURIComponent(field("namespace").value.trim())}`, asked);
    if (!visit.isConnected) return;
    draft = said;
    if (said.form && field("toml").value === asked.toml) take(said, form ?? {});  // else the next check lays them in
    show(said);
  } catch (error) {
    if (!visit.isConnected) return;
    draft = null;
    show({ problems: [{ message: error.message }], notes: [] });
  }
}

function formNow() {
  const rules = field("rules").value.split("\n").map((line) => line.trim()).filter(Boolean);
  return { rules, case_sensitive: field("case_sensitive").checked, force_replicate: field("force_replicate").checked };
}

// A field that has been changed again meanwhile stays as it is.
function take(said, laid) {
  const now = formNow();
  for (const [name, value] of Object.entries(laid)) if (JSON.stringify(now[name]) === JSON.stringify(value)) changed.delete(name);
  if (field("toml").value !== said.toml) field("toml").value = said.toml;
  if (!changed.has("rules") && now.rules.join("\n") !== said.form.rules.join("\n")) field("rules").value = said.form.rules.join("\n");
  for (const name of ["case_sensitive", "force_replicate"]) if (!changed.has(name)) field(name).checked = said.form[name];
}

// What it would write first: rows of the raw log, run through the sorter's own steps on the server; nothing is written.
async function showFirst() {
  const visit = field("first");
  const say = (...content) => visit.isConnected && morph(visit, el("div", null, content));
  say(el("p", null, "Reading the raw log …"));
  await settled(field("draft"));  // else of a file that lacks what was changed in the form
  if (!visit.isConnected) return;
  try {
    const asked = { toml: field("toml").value, sink_uri: field("uri").value.trim(), start_ts: tsOf(field("start").value) };
    say(first(await asking("/api/tidebus/console/first-messages", asked)));
  } catch (error) {
    say(el("p", { class: "problem" }, error.message));
  }
}

function first({ messages, refused, rows, records, is_newest: isNewest, is_rows: isRows }) {
  const side = (value) => (value ? el("code", { class: "message" }, value.text ?? `${value.hex} …`) : "none");
  const head = [["Commit ts"], ["Table"], ["What"], ...(isRows ? [["Row"]] : [["Where to"], ["Key"], ["Value"]]), ["Size", "number"]];
  return [el("h3", null, isRows ? "First rows" : "First messages"),
    el("p", null, rows ? `A dry run of ${isNewest ? "the newest" : "the first"} ${count(rows)} row changes in ${count(records)} raw records; nothing is written.`
      : `No row of its tables is in the ${count(records)} raw records that were looked at.`),
    isRows && el("p", null, `No messages: ${wayTo(field("uri").value.trim().split(":")[0])} Values are as TiDB shows them; those of a DELETE are what was there.`),
    refused.map((text) => el("p", { class: "problem" }, "It would fail here: ", text)),
    messages.length > 0 && table(isRows ? "First rows" : "First messages", head,
      messages.map((item) => [[el("span", { class: "ts" }, item.commit_ts), el("br"), timeOf(item.commit_ts)], item.table ?? "–", item.op,
        ...(isRows ? [] : [`${item.topic}, partition ${item.partition}`, side(item.key)]), side(item.value), bytes(item.value?.bytes)]))];
}

// A server that is busy with other checks is asked again.
async function asking(path, asked) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await ask("POST", path, asked);
    } catch (error) {
      if (error.status !== 503 || tries === TRIES_MAX) throw error;
      await new Promise((resume) => setTimeout(resume, BUSY_MS));
    }
  }
}

function show({ problems, notes, tables, explanation }) {
  const about = (problem) => String(problem.key ?? "");
  field("uri").setAttribute("aria-invalid", String(problems.some((problem) => about(problem).startsWith("sink-uri"))));
  field("toml").setAttribute("aria-invalid", String(problems.some((problem) => problem.line)));
  const lost = tables?.ineligible_tables ?? [];
  morph(field("checked"), el("div", null,
    problems.map((problem) => el("p", { class: "problem" }, problem.line ? `line ${problem.line}: ` : "", problem.message)),
    notes.map((note) => el("p", null, "Note: ", note)),
    lost.length > 0 && el("p", { class: "problem" }, `Without a key, so that they are ${field("ignore_ineligible").checked ? "left out" : "refused; leave them out by an option of the form"}: ${lost.slice(0, 20).map((item) => `${item.database_name}.${item.table_name}`).join(", ")}`),
    tables && el("p", null, `${tables.eligible_tables.length} tables are replicated.`),
    explanation?.tables && (explanation.kind ? destinationTable(explanation) : topicTable(explanation)),
    explanation?.acls?.length > 0 && el("details", null, el("summary", null, "Rights that it needs in Kafka"), el("ul", { class: "plain" },
      explanation.acls.map((acl) => el("li", null, `${acl.resource} ${acl.name}: ${acl.operations.join(", ")}`))))));
}

// What becomes of rows that were there before the start ts, by the file.
function before({ initial, initial_rules: rules = [] }) {
  const some = rules.some((rule) => rule.initial === "snapshot");
  if (initial === "snapshot" && !rules.some((rule) => rule.initial !== "snapshot")) return "Rows that were there before are written, too: an image of each table is scanned in TiKV.";
  if (initial === "snapshot" || some) return "Rows that were there before are written, too, of the tables that initial-rules and initial name: an image of each is scanned in TiKV.";
  return "Rows that were there before are not written.";
}

function createCommand(feed, start, target) {
  return `tidebus changefeed create ${named({ id: feed.id || "ID", namespace: feed.namespace })} --sink-uri URI --config FILE${start && ` --start-ts ${start}`}${target && ` --target-ts ${target}`}`;
}

function confirm() {
  const feed = { id: field("id").value.trim(), namespace: field("namespace").value.trim() || "default" };
  const [uri, start, target, said] = [field("uri").value.trim(), field("start").value, field("target").value, draft];
  const ignores = field("ignore_ineligible").checked;
  const tables = said.tables ? `${said.tables.eligible_tables.length} tables` : "its tables";
  put({
    title: `Create ${feed.id || "a changefeed"}`, confirm: "Create",
    effect: `It is stored, and a sorter writes the changes of ${tables} to the sink, ${start.trim() ? `from ts ${start.trim()} on` : "from now on"}. ${before(said.replica_config ?? {})}`,
    command: createCommand(feed, start.trim(), target.trim()) + (ignores ? " --no-confirm" : ""),
    request: () => ["POST", `/api/v2/changefeeds?namespace=${encodeURIComponent(feed.namespace)}`, {
      changefeed_id: feed.id || undefined, sink_uri: uri, replica_config: ignores ? { ...said.replica_config, ignore_ineligible_table: true } : said.replica_config ?? undefined, start_ts: tsOf(start), target_ts: tsOf(target) }],
    done: (made) => `changefeed ${made.id} is created`,
    after: (made) => { location.hash = feedHref(made); },
  });
}
