// Every verb as a question: what it does comes from the server, by the state that it has now.

import { el } from "./dom.js";
import { ask, feedPath, tsOf } from "./api.js";
import { fieldOf, named, put } from "./dialogs.js";
import { feedName, shortId } from "./words.js";
import { live } from "./live.js";

export const TITLES = { pause: "Pause", resume: "Resume", update: "Update", move: "Move", remove: "Remove" };

function captureChoice(id, first) {
  const captures = live.overview?.captures ?? [];
  return el("select", { id }, first && el("option", { value: "" }, first), captures.map((capture) =>
    el("option", { value: capture.id }, `${capture.address} (${shortId(capture.id)}${capture.is_owner ? ", owner" : ""})`)));
}

// What a field holds, as a command's option; nothing where it is empty.
function optional(option, form, id) {
  const typed = form.querySelector(`#${id}`).value.trim();
  return typed ? ` ${option} ${typed}` : "";
}

// feed: {namespace, id}; page: what /api/tidebus/console/changefeeds says of it; after: looks again.
export function askVerb(verb, feed, page, after) {
  const effect = page.verbs.find((item) => item.verb === verb)?.effect ?? "";
  const base = { title: `${TITLES[verb]} ${feedName(feed)}`, confirm: TITLES[verb], effect, after };
  const command = `tidebus changefeed ${verb} ${named(feed)}`;
  if (verb === "pause") put({ ...base, command, request: () => ["POST", feedPath(feed, "/pause"), {}], done: () => `${feed.id} is to pause` });
  if (verb === "resume") resume(feed, page, { ...base, command });
  if (verb === "update") update(feed, page, { ...base, command });
  if (verb === "move") move(feed, { ...base, command: (form) => `${command} --capture ${form.querySelector("#capture").value || "''"}` });
  if (verb === "remove") {
    put({ ...base, command, danger: true, request: () => ["DELETE", feedPath(feed), {}], after: () => { location.hash = "#/"; }, done: () => `${feed.id} is removed` });
  }
}

function resume(feed, page, base) {
  const hint = `Empty: from its checkpoint, ${page.changefeed.checkpoint_ts}.`;
  put({
    ...base, done: () => `${feed.id} goes on`,
    command: (form) => `${base.command}${optional("--overwrite-checkpoint-ts", form, "checkpoint")}`,
    fields: fieldOf("checkpoint", "Another checkpoint ts", hint, el("input", { id: "checkpoint", inputmode: "numeric", autocomplete: "off", "aria-describedby": "checkpoint-hint" })),
    request: (form) => ["POST", feedPath(feed, "/resume"), { overwrite_checkpoint_ts: tsOf(form.querySelector("#checkpoint").value) }],
  });
}

function update(feed, page, base) {
  const uri = page.changefeed.sink_uri;
  put({
    ...base, done: () => `${feed.id} is updated; resume it`,
    command: (form) => [base.command, form.querySelector("#toml").value !== page.toml && " --config FILE",
      form.querySelector("#uri").value.trim() !== uri && " --sink-uri URI", optional("--target-ts", form, "target")].filter(Boolean).join(""),
    fields: [
      fieldOf("uri", "Sink URI", "Passwords are shown as xxxxx. As it stands here it is not sent; if you change it, write them out again.",
        el("input", { id: "uri", value: uri, autocomplete: "off", spellcheck: "false", "aria-describedby": "uri-hint" })),
      fieldOf("toml", "Changefeed file", "Secrets are shown as ***, and stay what they are where that is left.",
        el("textarea", { id: "toml", class: "tall", spellcheck: "false", "aria-describedby": "toml-hint" }, page.toml)),
      fieldOf("target", "Target ts", "Empty: as it is.", el("input", { id: "target", inputmode: "numeric", autocomplete: "off", "aria-describedby": "target-hint" })),
    ],
    request: async (form) => {
      const [newUri, toml] = [form.querySelector("#uri").value.trim(), form.querySelector("#toml").value];
      if (newUri !== uri && newUri.includes("xxxxx")) throw new Error("the sink URI has a masked password: write it out again");
      const body = { target_ts: tsOf(form.querySelector("#target").value) };
      if (newUri !== uri) body.sink_uri = newUri;
      if (toml !== page.toml) body.replica_config = await configOf(toml, newUri, page.ours);
      return ["PUT", feedPath(feed), body];
    },
  });
}

// The file's text as the API takes it: the server reads TOML, so that there is one reading of it. ours: keys that the API
// keeps where they are not sent, for clients of TiCDC do not know them.
async function configOf(toml, uri, ours) {
  const read = await ask("POST", "/api/tidebus/console/draft", { toml, sink_uri: uri, is_only_read: true });
  if (!read.replica_config) throw new Error(read.problems[0]?.message ?? "the file does not read");
  const gone = ours.filter((key) => !Object.hasOwn(read.replica_config, key)).map((key) => [key, null]);
  return { ...read.replica_config, ...Object.fromEntries(gone) };
}

function move(feed, base) {
  put({
    ...base, done: () => `${feed.id} is to move`,
    fields: fieldOf("capture", "Capture", null, captureChoice("capture", "any: the owner chooses")),
    request: (form) => ["POST", feedPath(feed, "/move", "/api/tidebus"), { capture_id: form.querySelector("#capture").value }],
  });
}

export function askDrain(capture, after) {
  put({
    title: `Drain capture ${capture.address}`, confirm: "Drain", after,
    effect: `All ${capture.tables ?? ""} tables that it pulls go to other captures. It stays in the cluster and is given none as long as it drains; ask again until it has none, then it can be stopped without a gap.`,
    command: `tidebus cli capture drain ${capture.id}`,
    request: () => ["POST", `/api/v2/captures/${encodeURIComponent(capture.id)}/drain`, {}],
    done: (answer) => `${answer.current_table_count} tables are to leave ${capture.address}`,
  });
}

export function askResign(after) {
  put({
    title: "Let the owner resign", confirm: "Resign", after,
    effect: "Its reign ends, and the next capture in line becomes the owner. Tables stay where they are pulled; for some seconds nothing is scheduled and the frontier stands.",
    command: "tidebus cli capture resign-owner",
    request: () => ["POST", "/api/v2/owner/resign", {}],
    done: () => "the owner resigns",
  });
}

export function askMoveTable(feed, table, after) {
  put({
    title: `Move table ${table.name}`, confirm: "Move", after,
    effect: "Another capture pulls it from its checkpoint on, for all changefeeds that have it; nothing is lost, and its changes are late by some seconds.",
    command: (form) => `tidebus changefeed move-table ${named(feed)} -t ${table.id} -d ${form.querySelector("#capture").value}`,
    fields: fieldOf("capture", "To capture", null, captureChoice("capture")),
    request: (form) => ["POST", `${feedPath(feed, "/move_table")}&tableID=${table.id}&targetNodeID=${encodeURIComponent(form.querySelector("#capture").value)}`, {}],
    done: () => `${table.name} is to move`,
  });
}
