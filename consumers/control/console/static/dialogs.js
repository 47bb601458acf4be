// A question before anything is changed: what it will do, what is sent, and what a terminal would say for it.

import { el, morph, say } from "./dom.js";
import { ask, toJson } from "./api.js";

const dialog = document.getElementById("dialog");
let shown = null;

// question: { title, effect, command? (a text, or of the form), danger?, confirm?, fields?: [nodes], request: (form) => [method, path, body?] | Promise,
//             done?: (answer) => text, after?: () => void, typed?: (form) => void }
export function put(question) {
  shown = { ...question, from: document.activeElement };
  morph(dialog, el("div", null, el("div", null,
    el("h2", { id: "dialog-title", tabindex: "-1" }, question.title),
    el("p", null, question.effect),
    el("form", { id: "dialog-form", novalidate: true }, question.fields ?? [],
      question.command && el("p", { class: "hint" }, "By a command: ", el("code", { id: "dialog-command" })),
      el("details", null, el("summary", { id: "dialog-sent", "data-do": "show-request" }, "What is sent"), el("pre", { id: "dialog-request" })),
      el("p", { id: "dialog-refusal", class: "problem", role: "alert" }),
      el("div", { class: "buttons" },
        el("button", { type: "submit", id: "dialog-confirm", class: question.danger ? "main danger" : "main" }, question.confirm ?? question.title),
        el("button", { type: "button", "data-do": "close-dialog" }, "Cancel"))))));
  dialog.showModal();
  (dialog.querySelector("input, textarea, select") ?? dialog.querySelector("#dialog-title")).focus();
  showRequest();
}

// A field of a question; its hint has the id `ID-hint`.
export function fieldOf(id, label, hint, control) {
  return [el("label", { for: id }, label), control, hint && el("p", { class: "hint", id: `${id}-hint` }, hint)];
}

// How a command names a changefeed.
export function named(feed) {
  return `-c ${feed.id}${feed.namespace === "default" ? "" : ` -n ${feed.namespace}`}`;
}

export function closeDialog() {
  dialog.close();
}

export async function showRequest() {
  const [sent, command] = [dialog.querySelector("#dialog-request"), dialog.querySelector("#dialog-command")];
  if (command) command.textContent = typeof shown.command === "function" ? shown.command(dialog.querySelector("form")) : shown.command;
  try {
    const [method, path, body] = await shown.request(dialog.querySelector("form"));
    sent.textContent = `${method} ${path}${body === undefined ? "" : `\n${masked(toJson(body))}`}`;
  } catch (error) {
    sent.textContent = error.message;
  }
}

// Of a body on the screen: passwords in it stay unread over a shoulder.
function masked(text) {
  return text.replace(/((?:password|secret|token)[^"&=:]*(?:=|":"))[^"&]+/gi, "$1…");
}

dialog.addEventListener("close", () => {
  const from = shown?.from;
  shown = null;
  dialog.replaceChildren();
  if (from?.isConnected) from.focus();
});

dialog.addEventListener("input", () => {
  shown?.typed?.(dialog.querySelector("form"));
  showRequest();
});

dialog.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [question, form] = [shown, event.target];
  const [confirm, refusal] = [dialog.querySelector("#dialog-confirm"), dialog.querySelector("#dialog-refusal")];
  confirm.disabled = true;
  refusal.textContent = "";
  try {
    const answer = await ask(...(await question.request(form)));
    say(question.done ? question.done(answer) : `${question.title}: done`);
    dialog.close();
    question.after?.(answer);
  } catch (error) {
    refusal.textContent = error.message;
    confirm.disabled = false;
    confirm.focus();
  }
});
