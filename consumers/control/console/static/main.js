// Which page is shown, by the address behind #; one listener for each kind of event; drawing when anything is new.

import { el, morph } from "./dom.js";
import { closeDialog, showRequest } from "./dialogs.js";
import { listen, live } from "./live.js";
import { clock } from "./words.js";
import { captures } from "./captures.js";
import { changefeed } from "./changefeed.js";
import { checks } from "./checks.js";
import { create } from "./create.js";
import { events } from "./events.js";
import { overview } from "./overview.js";
import { upstream } from "./upstream.js";

const PAGES = { "": overview, changefeed, create, captures, upstream, events, checks };
const main = document.getElementById("main");
let [page, params, data, refusal, timer, visit] = [null, [], null, "", 0, 0];

function go() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  if (name === "main") return;  // the link past the navigation
  page?.leave?.();
  document.getElementById("late").textContent = "";
  page = Object.hasOwn(PAGES, name) ? PAGES[name] : overview;
  params = rest.map(decoded);
  [data, refusal] = [null, ""];
  visit += 1;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showCurrent();
  document.title = `${page.title(params)} – TideBus`;
  main.replaceChildren();
  draw(true);
  document.querySelector("h1").focus({ preventScroll: true });
  scrollTo(0, 0);
  look();
}

// A phone shows three of the pages' names; that of this page is to be among them.
function showCurrent() {
  document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function draw(isFirst = false) {
  if (page.still && !isFirst) return;
  morph(main, el("main", null, el("h1", { tabindex: "-1" }, page.title(params)),
    refusal && el("p", { class: "card alarm", id: "refusal", role: "alert" }, refusal), page.view(params, data, live)));
}

// Asks for what the page shows beyond the live data, and again after its time.
async function look() {
  clearTimeout(timer);
  const [mine, asked] = [visit, page];
  if (!asked.load) return;
  try {
    const said = await asked.load(params);
    if (mine !== visit) return;
    [data, refusal] = [said, ""];
  } catch (error) {
    if (mine !== visit) return;
    refusal = error.message;
  }
  draw();
  clearTimeout(timer);
  if (asked.every_ms) timer = setTimeout(() => (document.hidden ? onceSeen() : look()), asked.every_ms);
}

function onceSeen() {
  document.addEventListener("visibilitychange", look, { once: true });
}

function status() {
  const link = document.getElementById("link");
  link.textContent = live.trouble || (live.overview ? "Live" : "Connecting …");
  link.className = live.trouble ? "problem" : "";
  if (live.overview) link.title = `newest answer at ${clock(live.at)}`;
  document.getElementById("cluster").textContent = live.overview?.cluster_id ?? "";
}

const ALL = { "close-dialog": closeDialog, "show-request": showRequest, skip: () => main.focus() };

document.addEventListener("click", (event) => {
  const named = event.target.closest?.("[data-do]");
  if (!named) return;
  const { do: action, ...rest } = named.dataset;
  if (action === "skip") event.preventDefault();
  if (named.getAttribute("aria-disabled") === "true") return;
  (ALL[action] ?? page.actions?.[action])?.(rest, { data, look, draw });
});
main.addEventListener("input", (event) => page.typed?.(event));
main.addEventListener("change", (event) => page.chosen?.(event, { data, look, draw }));
main.addEventListener("submit", (event) => {
  event.preventDefault();
  page.submit?.(event);
});
addEventListener("hashchange", go);
addEventListener("resize", showCurrent);

go();
listen(() => {
  status();
  draw();
  if (page === captures && !data?.feed) look();
});
