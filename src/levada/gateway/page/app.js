// The page: asks the gateway, shows one turn after the other.

import { eventsOf } from "./events.js";
import { toTheEnd, TurnView } from "./turn.js";

const MOST_TURNS = 30;   // on the page; older ones go
const DEMO_QUESTION = "What is a levada?";   // a recorded stream answers anything
const [log, welcome, announcer, form, upstream, note, question, send, stop] =
  ["log", "welcome", "announcer", "ask", "upstream", "note", "question", "send", "stop"].map((id) => document.getElementById(id));

let known = new Map();
let running = null;   // {view, controller}

const announce = (words) => { announcer.textContent = words; };

/** What each dialect's provider calls a question. A gateway's own `request` settings add the model. */
function requestFor(dialect, text) {
  switch (dialect) {
    case "openai_responses": return { input: text };
    case "gemini": return { contents: [{ role: "user", parts: [{ text }] }] };
    case "vertex_search": return { query: { text } };
    case "anthropic": return { messages: [{ role: "user", content: text }], max_tokens: 4096 };
    default: return { messages: [{ role: "user", content: text }] };
  }
}

async function run(view, name, text) {
  const controller = new AbortController();
  const mine = (running = { view, controller });
  send.hidden = true;
  stop.hidden = false;
  try {
    const response = await fetch("turns", {
      method: "POST",
      headers: { "content-type": "application/json", accept: "text/event-stream" },
      body: JSON.stringify({ upstream: name, request: requestFor(known.get(name)?.dialect, text) }),
      signal: controller.signal,
    });
    view.id = response.headers.get("levada-turn");
    if (!response.ok) {
      const body = await response.json().catch(() => ({}));
      view.fail({ kind: "gateway", type: body.error?.type ?? `HTTP ${response.status}`, message: body.error?.message });
    } else {
      for await (const event of eventsOf(response)) view.take(event);
      view.close();
    }
  } catch (error) {
    // after a stop this is the abort, and the view has ended already
    view.fail({ kind: view.id ? "truncated" : "transport", message: "the gateway could not be reached, or went away" });
  } finally {
    if (running === mine) {
      running = null;
      send.hidden = false;
      stop.hidden = true;
    }
  }
}

function ask(name, text) {
  if (running) return;
  welcome.hidden = true;
  const view = new TurnView(text, {
    announce,
    again: () => ask(name, text),
    retry: (failed) => { if (!running) { failed.begin(); run(failed, name, text); } },
  });
  log.append(view.element);
  while (log.querySelectorAll(".turn").length > MOST_TURNS) log.querySelector(".turn").remove();
  toTheEnd();
  run(view, name, text);
}

function cancel() {
  if (!running) return;
  const { view, controller } = running;
  running = null;
  send.hidden = false;
  stop.hidden = true;
  view.cancel();
  question.focus();
  if (!view.id) return controller.abort();
  // the gateway is told, and the connection goes in every case
  fetch(`turns/${encodeURIComponent(view.id)}`, { method: "DELETE", keepalive: true })
    .catch(() => {})
    .finally(() => controller.abort());
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
  const text = question.value.trim() || (known.get(upstream.value)?.group ? DEMO_QUESTION : "");
  if (running || !text) return;
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
stop.addEventListener("click", cancel);
upstream.addEventListener("change", choose);
window.addEventListener("pagehide", () => running?.controller.abort());

const { upstreams } = await (await fetch("upstreams")).json();
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
