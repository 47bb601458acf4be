// The API as pages ask it: JSON both ways. Integers above 2^53 go as BigInt, and come as texts.

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    [this.status, this.code] = [status, code];
  }
}

export async function ask(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method, cache: "no-store", credentials: "same-origin",
      headers: { "Content-Type": "application/json" },  // without it a server would have to think of a form
      body: body === undefined ? undefined : toJson(body),
    });
  } catch {
    throw new Refused(0, "", "the server does not answer");
  }
  const text = await response.text();
  let shown = null;
  try { shown = text ? JSON.parse(text) : null; } catch { /* no JSON: said below */ }
  if (!response.ok) {
    throw new Refused(response.status, shown?.error_code ?? "", shown?.error_msg ?? `the server answers ${response.status}`);
  }
  return shown;
}

export function toJson(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(toJson).join(",")}]`;
  if (value !== null && typeof value === "object") {
    const given = Object.entries(value).filter(([, item]) => item !== undefined);
    return `{${given.map(([key, item]) => `${JSON.stringify(key)}:${toJson(item)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

// A ts that was typed: undefined where there is none.
export function tsOf(text) {
  const typed = text.trim();
  if (!typed) return undefined;
  if (!/^\d{1,20}$/.test(typed)) throw new Refused(400, "", `${typed.slice(0, 30)} is no ts: digits only`);
  return BigInt(typed);
}

export function feedPath(feed, tail = "", base = "/api/v2") {
  return `${base}/changefeeds/${encodeURIComponent(feed.id)}${tail}?namespace=${encodeURIComponent(feed.namespace)}`;
}

// Names of physical tables by id, and what is said where an answer has none: it holds so many, and not those that are gone.
export async function tableNames() {
  const { total, items } = await ask("GET", "/api/tidebus/console/tables");
  const shown = ({ name, partition }) => (partition ? `${name} (${partition})` : name);
  const none = total > items.length ? `no name among the first ${items.length.toLocaleString("en")}` : "not known any more";
  return { of: new Map(items.map((item) => [String(item.id), shown(item)])), none };
}
