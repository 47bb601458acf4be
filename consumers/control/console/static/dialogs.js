// A question before anything is changed: what it will do, what is sent, and what a terminal would say for it.

import { el, morph, say } from "./dom.js";
import { ask, toJson } from "./api.js";

const TYPED_MS = 400;
const dialog = document.getElementById("dialog");
const late = document.getElementById("late");  // the refusal of what was asked by a dialog that is gone
let [shown, timer, turn] = [null, 0, 0];

// question: { title, effect, command? (a text, or of the form), danger?, confirm?, fields?: [nodes], request: (form) => [method, path, body?] | Promise,
//             done?: (answer) => text, after?: () => void, typed?: (form) => void }
export function put(question) {
  if (dialog.open) return;
  late.textContent = "";
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

// What is under way is not left: its answer would be seen by nobody.
export function closeDialog() {
  if (!shown?.isSending) dialog.close();
}

export async function showRequest() {
  clearTimeout(timer);
  const [mine, form, sent] = [++turn, dialog.querySelector("form"), dialog.querySelector("#dialog-request")];
  showCommand(form);
  let text;
  try {
    const [method, path, body] = await shown.request(form);
    text = `${method} ${path}${body === undefined ? "" : `\n${masked(toJson(body))}`}`;
  } catch (error) {
    text = error.message;
  }
  if (mine === turn) sent.textContent = text;  // else more was typed meanwhile, or it is gone
}

function showCommand(form) {
  const command = dialog.querySelector("#dialog-command");
  if (command) command.textContent = typeof shown.command === "function" ? shown.command(form) : shown.command;
}

// Of a body on the screen: passwords in it stay unread over a shoulder.
function masked(text) {
  return text.replace(/((?:password|secret|token)[^"&=:]*(?:=|":"))[^"&]+/gi, "$1…");
}

dialog.addEventListener("close", () => {
  const from = shown?.from;
  clearTimeout(timer);
  turn += 1;
  shown = null;
  dialog.replaceChildren();
  if (from?.isConnected) from.focus();
});

dialog.addEventListener("cancel", (event) => {
  if (shown?.isSending) event.preventDefault();
});

// Chromium asks by `cancel` once: a second Escape would close.
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && shown?.isSending) event.preventDefault();
});

dialog.addEventListener("input", () => {
  const form = dialog.querySelector("form");
  shown?.typed?.(form);
  showCommand(form);
  clearTimeout(timer);
  timer = setTimeout(showRequest, TYPED_MS);  // the server may be asked for it
});

dialog.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [question, form] = [shown, event.target];
  if (question.isSending) return;
  send(question, true);
  try {
    const answer = await ask(...(await question.request(form)));
    say(question.done ? question.done(answer) : `${question.title}: done`);
    if (shown === question) dialog.close();
    question.after?.(answer);
  } catch (error) {
    if (shown !== question) {
      late.textContent = `${question.title}: ${error.message}`;
      return;
    }
    send(question, false);
    dialog.querySelector("#dialog-refusal").textContent = error.message;
    dialog.querySelector("#dialog-confirm").focus();
  }
});

function send(question, isSending) {
  question.isSending = isSending;
  for (const button of dialog.querySelectorAll(".buttons button")) button.disabled = isSending;
  dialog.querySelector("#dialog-refusal").textContent = "";
}
