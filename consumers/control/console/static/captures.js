// Captures and the tables that each pulls; sorter services and their changefeeds; moving and draining.

import { button, card, el, stateMark, table } from "./dom.js";
import { ask, feedPath, tableNames } from "./api.js";
import { count, feedHref, feedName, shortId, timeOf } from "./words.js";
import { askDrain, askMoveTable, askResign } from "./verbs.js";
import { live } from "./live.js";

let [chosen, names] = ["", null];

export const captures = {
  title: () => "Captures and tables",
  every_ms: 4000,
  load: async () => {
    const feeds = (live.overview?.changefeeds ?? []).filter((feed) => feed.state !== "failed");
    const feed = feeds.find((item) => feedName(item) === chosen) ?? feeds[0];
    const services = ask("GET", "/api/tidebus/services");
    names ??= await tableNames().catch(() => null);
    const pulled = feed ? await ask("GET", feedPath(feed, "/tables")).catch((error) => ({ refusal: error.message })) : { items: [] };
    return { feed, feeds, pulled, services: (await services).items };
  },
  leave: () => { names = null; },
  view: (params, data, { overview, trouble }) => [
    overview ? captureCard(overview) : el("p", null, trouble || "Asking the bus …"), data && tableCard(data), data && serviceCard(data.services),
  ],
  actions: {
    drain: ({ capture }, { look }) => askDrain(live.overview.captures.find((item) => item.id === capture), look),
    resign: (named, { look }) => askResign(look),
    "move-table": ({ table: id, name }, { data, look }) => askMoveTable(data.feed, { id, name }, look),
  },
  chosen: (event, { look }) => { chosen = event.target.value; look(); },
};

function captureCard(overview) {
  const pullers = Object.assign({}, ...overview.upstreams.map((item) => item.pullers ?? {}));
  return card("Captures", table("Captures", [["Capture"], ["Address"], ["Tables", "number"], ["Spans", "number"], ["Regions", "number"], ["Version"], ["What can be done"]],
    overview.captures.map((capture) => {
      const puller = pullers[capture.id] ?? {};
      return [[shortId(capture.id), capture.is_owner && " ", capture.is_owner && stateMark("owner")], capture.address, count(capture.tables), count(puller.spans), count(puller.regions), capture.version,
        capture.is_owner ? button("Resign", "resign", {}, { class: "slight" }) : button("Drain", "drain", { capture: capture.id }, { class: "slight", "aria-label": `Drain ${capture.address}` })];
    })), el("p", { class: "soft" }, "Each table is pulled once, by one capture or, where its spans are split, by several, for all changefeeds."));
}

function tableCard({ feed, feeds, pulled }) {
  if (!feed) return card("Tables", el("p", null, "Tables are shown by changefeed, and there is none that runs."));
  const rows = (pulled.items ?? []).flatMap((item) => item.table_ids.map((id) => ({ id: String(id), capture: item.node_id })));
  const wanted = feeds.some((item) => feedName(item) === chosen) ? chosen : feedName(feed);  // also before it is loaded
  const address = (id) => live.overview?.captures.find((capture) => capture.id === id)?.address ?? shortId(id);
  return card("Tables", el("label", { for: "of-feed" }, "Of changefeed"),
    el("select", { id: "of-feed" }, feeds.map((item) => el("option", { value: feedName(item), selected: feedName(item) === wanted }, feedName(item)))),
    pulled.refusal && el("p", { class: "problem" }, pulled.refusal),
    rows.length > 0 && table("Tables by capture", [["Table"], ["Id", "number"], ["Pulled by"], ["What can be done"]], rows.slice(0, 500).map((row) => {
      const name = names?.of.get(row.id) ?? `table ${row.id}`;
      return [name, row.id, address(row.capture), button("Move", "move-table", { table: row.id, name }, { class: "slight", "aria-label": `Move ${name}` })];
    })), rows.length > 500 && el("p", { class: "soft" }, `and ${rows.length - 500} more`));
}

function serviceCard(services) {
  return card("Sorter services", services.length ? table("Sorter services", [["Service"], ["Capture"], ["Process"], ["Since"], ["Changefeeds"], ["Spark"]],
    services.map((item) => [item.id, shortId(item.capture), `${item.host}, pid ${item.pid}`, new Date(item.started_at_s * 1000).toLocaleString("sv"),
      item.changefeeds.length ? item.changefeeds.map((feed) => el("div", null, el("a", { href: feedHref(feed) }, feedName(feed)), `, ${count(feed.rows_total)} rows, ${timeOf(feed.checkpoint_ts)}`)) : "none",
      [item.master, /^https?:\/\//.test(item.spark_ui) && [", ", el("a", { href: item.spark_ui, rel: "noreferrer noopener", target: "_blank" }, "its pages (new window)")]]])) : el("p", null, "None lives."));
}
