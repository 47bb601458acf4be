// Values as people read them.

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 100) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

export function count(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let [size, unit] = [Number(value), 0];
  while (size >= 1024 && unit < 4) { size /= 1024; unit += 1; }
  return `${size.toFixed(unit && size < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// A TSO's clock half: milliseconds shifted left by 18 bits; more digits than a number holds, so it comes as a text.
export function timeOf(ts) {
  const ms = Number(BigInt(ts || 0) >> 18n);
  return ms ? new Date(ms).toLocaleString("sv") : "–";
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("sv");
}

export function moment(atS) {
  return new Date(atS * 1000).toLocaleString("sv");
}

export function feedName(feed) {
  return feed.namespace === "default" ? feed.id : `${feed.namespace}/${feed.id}`;
}

export function feedHref(feed) {
  return `#/changefeed/${encodeURIComponent(feed.namespace)}/${encodeURIComponent(feed.id)}`;
}

export function shortId(id) {
  return id ? String(id).slice(0, 8) : "–";
}

// [stage of an answer, its name], of a changefeed, or of all sinks that there may be
export function stages(feed) {
  const [sink, last] = [feed?.sink ?? "", ["destination", "topic to destination"]];
  if (sink === "iceberg") return [["raw_log", "TiKV to raw log"], ["sorter", "raw log to lake tables"]];
  if (/^(kafka|blackhole)/.test(sink)) return [["raw_log", "TiKV to raw log"], ["sorter", "raw log to topics"]];
  return [["raw_log", "TiKV to raw log"], ["sorter", feed ? "raw log to topic" : "raw log to topics or lake tables"], last];
}
