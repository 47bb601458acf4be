// Elements from data, and one tree made like another. Text becomes text nodes, never markup; events are heard by main.js
// through `data-do`, so that an element that stays while its data changes has no old listener.

const SVG = new Set(["svg", "rect", "polyline"]);

export function el(tag, attributes, ...children) {
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// Makes the children of `old` those of `fresh`, and keeps what is the same: focus, selection and scrolling stay.
export function morph(old, fresh) {
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, at) => {
    const there = old.childNodes[at];
    if (!there) old.append(node);
    else if (isSameKind(there, node)) update(there, node);
    else there.replaceWith(node);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function isSameKind(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && (old.id ?? "") === (fresh.id ?? "");
}

function update(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  morph(old, fresh);
  // Once somebody has chosen, the attribute alone chooses nothing.
  if (old.nodeName === "OPTION" && old.selected !== fresh.hasAttribute("selected")) old.selected = !old.selected;
}

// A table that is a list of cards on a phone. Its roles are said, for browsers drop them where `display` changes.
// columns: [heading, class?]; rows: arrays of cells, each a text, a node or a list of them.
export function table(caption, columns, rows) {
  const head = columns.map(([heading, kind]) => el("th", { role: "columnheader", scope: "col", class: kind }, heading));
  const body = rows.map((cells) => el("tr", { role: "row" }, cells.map((cell, at) =>
    el("td", { role: "cell", class: columns[at][1], "data-label": columns[at][0] }, el("div", null, cell)))));
  return el("div", { class: "scroll" }, el("table", { role: "table", class: "stacks" },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" }, body)));
}

export function figures(pairs) {
  return el("dl", { class: "figures" }, pairs.map(([name, value, kind]) =>
    el("div", null, el("dt", null, name), el("dd", { class: kind }, value))));
}

export function card(title, ...children) {
  return el("section", { class: "card", "aria-label": title }, el("h2", null, title), children);
}

export function stateMark(state) {
  return el("span", { class: `state ${/^[a-z-]+$/.test(state) ? state : ""}` }, state);
}

export function button(text, action, data, more) {
  const named = Object.fromEntries(Object.entries(data ?? {}).map(([key, value]) => [`data-${key}`, value]));
  return el("button", { type: "button", "data-do": action, ...named, ...more }, text);
}

export function say(text) {
  document.getElementById("news").textContent = text;
}
