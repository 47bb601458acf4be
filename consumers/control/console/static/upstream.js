// The upstream: regions, what is pulled, spans and tables that stand still with their reasons, locks.

import { card, el, figures, table } from "./dom.js";
import { bytes, count, seconds, shortId, timeOf } from "./words.js";
import { perSecond } from "./live.js";

const SILENT_S = 10;

export const upstream = {
  title: () => "Upstream",
  view: (params, data, { overview, trouble }) => {
    if (!overview) return el("p", null, trouble || "Asking the bus …");
    if (!overview.upstreams.length) return el("p", null, "No owner has said anything of an upstream yet.");
    return overview.upstreams.map(shown);
  },
};

function shown(item) {
  const rate = perSecond(`upstream ${item.upstream}`);
  const [locks, troubles] = [item.locks ?? {}, Object.entries(item.troubles ?? {}).filter(([, number]) => number)];
  return [
    card(`Upstream ${item.upstream}`, figures([
      ["State", item.state ?? "–"], ["Lag of the raw log", seconds(item.lag_s)], ["Rows in", rate === null ? "–" : `${count(rate)}/s`],
      ["Tables", count(item.tables)], ["Spans", count(item.spans)], ["Regions scanned", `${count(item.regions_initialized)} of ${count(item.regions)}`],
      ["Scans running", count(item.scans_running)], ["Scans waiting", count(item.scans_waiting)],
      ["Open transactions", `${bytes(item.held_bytes)}, ${bytes(item.spilled_bytes)} on disk`, "small"],
      ["Cluster id", el("span", { class: "ts" }, item.upstream_id || "not asked"), "small"],
      ["Resolved ts", [el("span", { class: "ts" }, item.resolved_ts ?? "–"), el("br"), timeOf(item.resolved_ts)], "small"],
    ]), item.silent_s > SILENT_S && el("p", { class: "problem" }, `Its owner has said nothing for ${seconds(item.silent_s)}: all but the lag is of then.`), item.error && el("p", { class: "problem" }, `${item.error.code ?? ""} ${item.error.message ?? ""}`)),
    card("What stands still", item.stalls?.length ? el("ul", { class: "plain" }, item.stalls.map((stall) => el("li", null, stall))) : el("p", null, "No span stands still."),
      item.held?.length > 0 && table("Held tables", [["Held tables"], ["At ts"]], item.held.map((group) => [
        group.tables.map((id, at) => group.names[at] || `table ${id}`).join(", "), `${group.ts}, ${timeOf(group.ts)}`]))),
    el("div", { class: "columns" },
      card("Locks of crashed transactions", figures([["Committed", count(locks.committed)], ["Rolled back", count(locks.rolled_back)], ["Left alive", count(locks.left_alive)]])),
      card("Region troubles since the captures' starts", troubles.length ? table("Troubles", [["Kind"], ["Times", "number"]], troubles.map(([kind, number]) => [kind, count(number)])) : el("p", null, "None."))),
    card("Pulled by", table("Pullers", [["Capture"], ["Spans", "number"], ["Regions", "number"], ["Scans", "number"], ["Open transactions", "number"]],
      Object.entries(item.pullers ?? {}).map(([id, puller]) => [shortId(id), count(puller.spans), `${count(puller.regions_initialized)} of ${count(puller.regions)}`, `${count(puller.scans_running)}, ${count(puller.scans_waiting)} wait`, bytes(puller.held_bytes)]))),
  ];
}
