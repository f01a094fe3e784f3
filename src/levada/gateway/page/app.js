// The page: asks the gateway, shows one turn after the other.

import { follow, forget, keep, kept, refusal, stop } from "./live.js";
import { toTheEnd, TurnView } from "./turn.js";

const MOST_TURNS = 30;   // on the page; older ones go
const NOTICE_MS = 4000;
const [log, welcome, announcer, form, upstream, note, question, send, stopButton, notice, below] =
  ["log", "welcome", "announcer", "ask", "upstream", "note", "question", "send", "stop", "notice", "below"].map((id) => document.getElementById(id));

let known = new Map();
let live = { linger_s: 0, heartbeat_s: 15 };   // what the gateway says of its turns
let running = null;   // {view, controller, turn}
let noticed = 0;      // the timer that takes the notice away
let news = null;      // the turn that has something new below what is seen
let owner = null;     // whose turns these are: a token, once the gateway has given one

const announce = (words) => { announcer.textContent = words; };

/** One answer at a time. What would begin another one says so, and stays where the keyboard has it. */
function free() {
  if (!running) return true;
  announce(notice.textContent = "Another answer is arriving. Stop it first.");
  notice.hidden = false;
  clearTimeout(noticed);
  noticed = setTimeout(() => { notice.hidden = true; }, NOTICE_MS);
  return false;
}

function busy(yes) {
  const held = document.activeElement;
  send.hidden = yes;
  stopButton.hidden = !yes;
  if (yes && held === send) stopButton.focus();   // each stands in the other's place, for the keyboard too
  if (!yes && held === stopButton) send.focus();
  for (const button of log.querySelectorAll("button.asks")) mark(button);
}

function mark(button) {
  button.setAttribute("aria-disabled", String(running !== null));
  button.title = running ? "Another answer is arriving" : "";
}

/** What each dialect's provider calls a question. A gateway's own `request` settings add the model. */
function requestFor(upstream, text, asked) {
  if (upstream?.demo) return { ...requestFor({ ...upstream, demo: false }, text), asked };   // tells a try from the next
  switch (upstream?.dialect) {
    case "openai_responses": return { input: text };
    case "gemini": return { contents: [{ role: "user", parts: [{ text }] }] };
    case "vertex_search": return { query: { text } };
    case "anthropic": return { messages: [{ role: "user", content: text }], max_tokens: 4096 };
    default: return { messages: [{ role: "user", content: text }] };
  }
}

async function run(view, name, text) {
  const controller = new AbortController();
  const mine = begin(view, controller);
  try {
    const response = await fetch("turns", {
      method: "POST",
      headers: { "content-type": "application/json", accept: "text/event-stream", ...(owner ? { "levada-owner": owner } : {}) },
      body: JSON.stringify({ upstream: name, request: requestFor(known.get(name), text, view.asked) }),
      signal: controller.signal,
    });
    view.id = response.headers.get("levada-turn");
    owner = response.headers.get("levada-owner") ?? owner;
    if (!response.ok) view.fail({ kind: "gateway", ...(await refusal(response)) });
    else {
      mine.turn = view.turn = { id: view.id, owner, upstream: name, question: text, asked: view.asked, began: Date.now(), last: "" };
      if (live.linger_s) keep(mine.turn);
      await follow(mine.turn, view, response, live, controller.signal);
    }
  } catch {
    // after a stop this is the abort, and the view has ended already
    view.fail({ kind: "transport", message: "the gateway could not be reached, or went away" });
  } finally {
    over(mine);
  }
}

/** Go on with the turn that ran when the page was left. */
async function resume(turn) {
  const view = show(turn.upstream, turn.question);
  view.resumed(turn.began);
  view.asked = turn.asked;
  owner = turn.owner ?? owner;
  await readOn(view, turn);
}

/** Read a turn behind the last event that the view has. */
async function readOn(view, turn) {
  const controller = new AbortController();
  const mine = begin(view, controller);
  mine.turn = view.turn = turn;
  view.id = turn.id;
  keep(turn);
  try {
    await follow(turn, view, null, live, controller.signal);
  } finally {
    over(mine);
  }
}

function begin(view, controller) {
  const mine = (running = { view, controller, turn: null });
  view.onEnd = () => over(mine);   // the next question need not wait until the connection is done
  busy(true);
  return mine;
}

function over(mine) {
  if (running !== mine) return;
  running = null;
  notice.hidden = true;
  if (!mine.view.left) forget();   // else a reload reads it on, as the button does
  busy(false);
}

function show(name, text) {
  welcome.hidden = true;
  const view = new TurnView(text, {
    announce,
    mark,
    again: () => { if (free()) ask(name, text); },
    retry: (failed) => {
      if (!free()) return;
      failed.begin();
      failed.comeIntoView();
      run(failed, name, text);
    },
    readOn: (left) => {
      if (!free()) return;
      left.goOn();
      left.comeIntoView();
      readOn(left, left.turn);
    },
    news: (view) => {
      news = view;
      look();
    },
  });
  log.append(view.element);
  while (log.querySelectorAll(".turn").length > MOST_TURNS) log.querySelector(".turn").remove();
  toTheEnd();
  return view;
}

/** Where the end of what is new is hidden below the form, a button leads there. */
function look() {
  if (news && (!news.element.isConnected || news.element.getBoundingClientRect().bottom <= form.getBoundingClientRect().top + 24)) news = null;
  below.hidden = news === null;
}

function ask(name, text) {
  run(show(name, text), name, text);
}

function cancel() {
  if (!running) return;
  const mine = running;
  over(mine);
  mine.view.cancel();
  question.focus();
  if (!mine.turn) return mine.controller.abort();
  // the gateway is told, and the connection goes in every case
  stop(mine.turn, live).finally(() => mine.controller.abort());
}

function fit() {
  question.style.height = "auto";
  question.style.height = `${Math.min(question.scrollHeight, 160)}px`;
}

function choose() {
  note.textContent = known.get(upstream.value)?.note ?? "";
  history.replaceState(null, "", `#${encodeURIComponent(upstream.value)}`);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question.value.trim();
  if (!text) question.focus();
  if (!text || !free()) return;
  ask(upstream.value, text);
  question.value = "";
  fit();
});
question.addEventListener("input", fit);
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) {
    event.preventDefault();
    cancel();
  }
});
stopButton.addEventListener("click", cancel);
below.addEventListener("click", () => {
  const { element } = news;
  if (element === log.lastElementChild) toTheEnd();
  else element.scrollIntoView({ block: "end" });
  element.focus({ preventScroll: true });   // the button goes
  news = null;
  look();
});
window.addEventListener("scroll", look, { passive: true });
window.addEventListener("resize", look);
upstream.addEventListener("change", choose);
window.addEventListener("pagehide", () => { if (!live.linger_s) running?.controller.abort(); });

const small = matchMedia("(pointer: coarse), (max-width: 36rem)");   // no keyboard, or no room to speak of it
const hint = () => { question.placeholder = small.matches ? "Ask something" : "Ask: Enter sends, Esc stops"; };
small.addEventListener("change", hint);
hint();

const { upstreams, ...said } = await (await fetch("upstreams")).json();
live = { ...live, ...said.live };
known = new Map(upstreams.map((one) => [one.name, one]));
const groups = new Map();
for (const one of upstreams) {
  const option = new Option(one.title || one.name, one.name);
  if (!groups.has(one.group)) {
    const parent = one.group ? Object.assign(document.createElement("optgroup"), { label: one.group }) : upstream;
    if (one.group) upstream.append(parent);
    groups.set(one.group, parent);
  }
  groups.get(one.group).append(option);
}
const wanted = decodeURIComponent(location.hash.slice(1));
if (known.has(wanted)) upstream.value = wanted;
choose();
document.documentElement.dataset.ready = "true";
question.focus();
const left = kept();
if (left) resume(left);
