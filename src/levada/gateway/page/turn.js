// One turn as a person sees it. It follows the normal form (docs/normal-form.md) and keeps its promises:
// text is provisional until the turn is finished; an error takes the draft's place; after the end nothing changes.

import { PaintClock, TextFlow } from "./paint.js";

const WORDS = {
  connecting: ["Waiting", "for the first word"],
  streaming: ["Answering", "provisional until confirmed"],
  thinking: ["Thinking", "provisional until confirmed"],
  finished: ["Confirmed", ""],
  error: ["No answer", ""],
  cancelled: ["Stopped", "incomplete, not an answer"],
};
const PROBLEMS = {
  truncated: ["The answer was cut", "The connection ended before the provider had finished. What had arrived was not a whole answer, so it is not shown."],
  provider: ["The provider reported an error", "What had arrived before it was not a whole answer, so it is not shown."],
  transport: ["The connection failed", "What had arrived was not a whole answer, so it is not shown."],
  protocol: ["The answer could not be read", "The stream broke its own rules, and some of the answer may be lost."],
  timeout: ["No answer in time", "The provider took too long. What had arrived was not a whole answer, so it is not shown."],
  too_large: ["The answer was too large", "It went over a limit of this gateway."],
  blocked: ["The answer was held back", "A reviewer did not release it."],
  gateway: ["The gateway did not start a turn", ""],
};
const ENDS = new Set(["finished", "error", "cancelled"]);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Whether the person looks at the end; who has scrolled up is left there. */
const atTheEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 48;
export const toTheEnd = () => window.scrollTo(0, document.documentElement.scrollHeight);

const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

export class TurnView {
  #announce;
  #again;
  #retry;
  #clock = new PaintClock(() => this.#paint());
  #ticker = 0;
  #dirty;   // what else than text is to be painted
  #lost = 0;   // the timer of the hint that says so
  onEnd = () => {};

  /** `again`, `retry`: what the buttons do. `announce`: says a state to who cannot see it. */
  constructor(question, { again, retry, announce }) {
    this.#announce = announce;
    this.element = make("article", { className: "turn" });
    this.element.setAttribute("aria-label", "Answer");
    this.question = make("p", { className: "question", textContent: question, dir: "auto" });
    this.#again = () => again();
    this.#retry = () => retry(this);
    this.begin();
  }

  /** Begin, or begin again: the draft is emptied first, so that two attempts never mix. */
  begin() {
    this.#clock.stop();
    clearTimeout(this.#lost);
    this.#lost = 0;
    clearInterval(this.#ticker);
    this.state = "connecting";
    this.id = null;
    this.started = performance.now();
    this.firstText = null;
    this.usage = null;
    this.error = null;
    this.end = null;
    this.flows = new Map();   // "choice channel" → TextFlow
    this.calls = new Map();
    this.references = new Map();
    this.citations = [];
    this.#dirty = new Set();
    delete this.element.dataset.phase;
    this.word = make("strong");
    this.hint = make("span", { className: "hint" });
    this.lost = make("span", { className: "lost", textContent: "reconnecting…", hidden: true });
    this.time = make("span", { className: "time" });
    this.sign = make("span", { className: "sign" });
    this.sign.setAttribute("aria-hidden", "true");
    this.status = make("header", { className: "status" }, this.sign, this.word, this.hint, this.lost, this.time);
    this.thoughts = make("div");
    this.summary = make("summary", { textContent: "Thinking…" });
    this.reasoning = make("details", { className: "thoughts", open: true, hidden: true }, this.summary, this.thoughts);
    this.answer = make("div", { className: "reply" });
    this.answer.setAttribute("aria-live", "polite");
    this.answer.setAttribute("aria-busy", "true");   // read out once, when it is settled
    this.tools = make("ul", { className: "tools", hidden: true });
    this.sources = make("ol", { className: "sources", hidden: true });
    this.problem = make("div", { className: "problem", hidden: true });
    this.problem.setAttribute("role", "alert");
    this.figures = make("p", { className: "figures" });
    this.actions = make("p", { className: "actions" });
    this.element.replaceChildren(this.question, this.status, this.reasoning, this.answer, this.tools, this.sources,
      this.problem, make("footer", {}, this.figures, this.actions));
    this.#show("connecting");
    this.#tick();
    this.#ticker = setInterval(() => this.#tick(), 500);
  }

  /** It began on a page that was left, at `began` of Date.now(). */
  resumed(began) {
    this.started -= Math.max(0, Date.now() - began);
    this.replayed = true;
    this.#tick();
  }

  /** Whether events can come. What stands there stays; a word beside it says so once it takes longer than a moment. */
  connected(yes) {
    if (yes === !this.#lost || this.ended) return;
    clearTimeout(this.#lost);
    this.#lost = yes ? 0 : setTimeout(() => this.#reconnecting(true), 400);
    if (yes) this.#reconnecting(false);
  }

  #reconnecting(yes) {
    this.element.toggleAttribute("data-reconnecting", yes);
    this.lost.hidden = !yes;
    if (yes) this.#announce("The connection was lost. Reconnecting.");
  }

  get ended() {
    return ENDS.has(this.state);
  }

  /** Take one event of the normal form. */
  take({ type, data }) {
    if (this.ended) return;
    const value = JSON.parse(data);
    switch (type) {
      case "state":
        this.id = value.turn ?? this.id;
        if (value.state === "streaming") this.#show("streaming");
        break;
      case "text":
        this.firstText ??= performance.now() - this.started;
        this.#flow(value).append(value.text);
        this.#clock.offer();
        break;
      case "replaced":
        this.#flow(value).replace(value.text);
        if (value.text === "" && value.channel === "answer") {
          this.citations = this.citations.filter((citation) => citation.choice !== value.choice);
          this.#dirty.add("sources");
        }
        this.#clock.offer();
        break;
      case "tool_call": {
        const call = this.calls.get(value.index) ?? { arguments: "" };
        this.calls.set(value.index, { ...value, arguments: call.arguments + value.arguments });
        this.#dirty.add("tools");
        this.#clock.offer();
        break;
      }
      case "reference":
        this.references.set(value.id, value);
        this.#dirty.add("sources");
        this.#clock.offer();
        break;
      case "citation":
        this.citations.push(value);
        this.#dirty.add("sources");
        this.#clock.offer();
        break;
      case "usage":
        this.usage = value;
        break;
      case "error":
        this.error = value;
        break;
      case "end":
        this.#finish(value);
        break;
    }
  }

  /** The stream is over; without its `end` it was cut, whatever had come. */
  close() {
    if (!this.ended) this.fail(this.error ?? { kind: "truncated", message: "the gateway's stream ended without its last event" });
  }

  fail(error) {
    if (this.ended) return;
    this.#settle();
    this.flows.clear();       // the error takes the draft's place, on the screen and here
    this.reasoning.remove();
    this.answer.replaceChildren();
    this.tools.remove();
    this.sources.remove();
    this.#show("error");
    const [title, words] = PROBLEMS[error.kind] ?? PROBLEMS.provider;
    const [first, ...more] = [error.type, error.message].filter(Boolean);
    this.problem.append(make("h2", { textContent: title }), make("p", { textContent: words }));
    if (first) this.problem.append(make("p", { className: "detail", textContent: [first, ...more].join(": ") }));
    if (error.retry_after_s) this.problem.append(make("p", { textContent: `Better after ${seconds(error.retry_after_s * 1000)}.` }));
    this.problem.append(make("button", { type: "button", className: "primary", textContent: "Try again", onclick: this.#retry }));
    this.problem.hidden = false;
    this.#tick();
  }

  /** The person stopped it: nothing moves from here on. */
  cancel() {
    if (this.ended) return;
    this.#settle();
    this.#paint();
    this.#fold();
    this.#show("cancelled");
    this.#button("Try again", this.#retry);
    this.#announce("Stopped. The answer is incomplete.");
    this.#tick();
  }

  // -- the end --------------------------------------------------------------------------------------------------------

  #finish(end) {
    this.end = end;
    if (end.state === "error") return this.fail(this.error ?? { kind: "provider" });
    if (end.state === "cancelled") return this.cancel();
    for (const channel of ["answer", "reasoning", "refusal"]) {
      if ([...this.#text(channel)].length !== end.characters[channel]) {
        return this.fail({ kind: "truncated", message: `text of the ${channel} is missing` });
      }
    }
    this.#settle();
    this.#paint();
    this.#show("finished");
    this.answer.setAttribute("aria-busy", "false");
    const follow = atTheEnd();
    this.#fold();
    this.#button("Copy", (event) => this.#copy(event.currentTarget));
    this.#button("Ask again", this.#again);
    this.#announce("Answer confirmed.");
    this.#tick();
    if (follow) toTheEnd();
  }

  /** No paint comes after this but the one that the caller makes. */
  #settle() {
    this.#clock.stop();
    clearInterval(this.#ticker);
    this.connected(true);
    this.total = performance.now() - this.started;
    if (this.replayed && this.end?.first_text_ms != null) this.firstText = this.end.first_text_ms;
    queueMicrotask(this.onEnd);   // once it shows its end
  }

  // -- what is seen ---------------------------------------------------------------------------------------------------

  #text(channel) {
    return this.flows.get(`0 ${channel}`)?.text ?? "";
  }

  #flow({ choice, channel }) {
    const key = `${choice} ${channel}`;
    let flow = this.flows.get(key);
    if (!flow) {
      const element = make("div", { className: `text ${channel}` });
      if (channel === "reasoning") this.thoughts.append(element);
      else {
        if (choice > 0) element.dataset.label = `Alternative ${choice + 1}`;
        if (channel === "refusal") element.dataset.label = "Refused";
        this.answer.append(element);
      }
      this.flows.set(key, (flow = new TextFlow(element)));
    }
    return flow;
  }

  #show(state) {
    if (state === "streaming" && this.state === "streaming") return;
    this.state = state;
    this.element.dataset.state = state;
    this.#say(state);
    if (state === "connecting") this.#announce("Waiting for an answer.");
    if (state === "error") this.answer.setAttribute("aria-busy", "false");
  }

  #say(word) {
    [this.word.textContent, this.hint.textContent] = WORDS[word];
  }

  /** Fold the reasoning, once: who opens it again keeps it open. */
  #fold() {
    if (this.reasoning.hidden || this.reasoning.dataset.folded) return;
    this.reasoning.dataset.folded = "true";
    this.reasoning.open = false;
    const took = performance.now() - this.thinkingSince;
    this.summary.textContent = took < 100 ? "Thoughts" : `Thought for ${seconds(took)}`;
  }

  #paint() {
    const follow = atTheEnd();
    const thinking = this.#text("reasoning") !== "";
    const answering = this.#text("answer") !== "" || this.#text("refusal") !== "" || this.calls.size > 0;
    for (const flow of this.flows.values()) flow.paint();
    if (thinking && this.reasoning.hidden) {
      this.reasoning.hidden = false;
      this.thinkingSince = performance.now();
    }
    if (answering) this.#fold();
    const phase = answering ? "answer" : thinking ? "reasoning" : "";
    if (phase !== this.element.dataset.phase) {
      this.element.dataset.phase = phase;
      if (phase && !this.ended) this.#say(phase === "reasoning" ? "thinking" : "streaming");
      if (phase && !this.ended) this.#announce(phase === "reasoning" ? "The model is thinking." : "The answer arrives.");
    }
    if (this.#dirty.has("tools")) this.#paintTools();
    if (this.#dirty.has("sources")) this.#paintSources();
    this.#dirty.clear();
    if (follow) toTheEnd();
  }

  #paintTools() {
    this.tools.hidden = false;
    for (const [index, call] of this.calls) {
      let row = this.tools.children[index];
      if (!row) {
        row = make("li", {}, make("code", { className: "name" }), make("code", { className: "arguments" }));
        this.tools.append(row);
      }
      row.dataset.complete = call.complete;
      row.children[0].textContent = call.name;
      row.children[1].textContent = call.arguments;
    }
  }

  #paintSources() {
    const rows = new Map();
    for (const reference of this.references.values()) rows.set(`r ${reference.id}`, reference);
    for (const citation of this.citations) {
      if (!citation.references.length) rows.set(`c ${citation.url ?? citation.title}`, citation);
    }
    this.sources.hidden = rows.size === 0;
    this.sources.replaceChildren(...[...rows.values()].map((source) => make("li", {}, ...sourceLine(source))));
  }

  #tick() {
    const now = this.ended ? this.total : performance.now() - this.started;
    this.time.textContent = seconds(now);
    if (!this.ended) return;
    const parts = [];
    if (this.state === "finished") {
      if (this.firstText !== null) parts.push(`first word after ${seconds(this.firstText)}`);
      if (this.usage?.output_tokens != null) {
        const thought = this.usage.reasoning_tokens ? `, ${this.usage.reasoning_tokens.toLocaleString("en")} of them thinking` : "";
        parts.push(count(this.usage.output_tokens, "token") + thought);
      }
      parts.push(count([...this.#text("answer")].length, "character"));
      if (this.end.finish_reason !== "stop") parts.push(`ended by ${this.end.finish_reason}`);
      if (this.end.model) parts.push(this.end.model);
    }
    this.figures.textContent = parts.join(" · ");
  }

  #button(label, onclick) {
    this.actions.append(make("button", { type: "button", textContent: label, onclick }));
  }

  async #copy(button) {
    try {
      await navigator.clipboard.writeText(this.#text("answer"));
      button.textContent = "Copied";
      this.#announce("Answer copied.");
    } catch {   // no permission, or a page without TLS: mark the text, so that the person's own copy works
      getSelection().selectAllChildren(this.answer);
      this.#announce("The answer is selected.");
    }
  }
}

/** A title, and the address: a link only where it is one of the web, else characters. */
function sourceLine({ title, url, id }) {
  const words = title || url || id || "source";
  let safe = null;
  try {
    const parsed = new URL(url);
    if (parsed.protocol === "https:" || parsed.protocol === "http:") safe = parsed;
  } catch { /* no address, or none that is absolute */ }
  if (!safe) return [make("span", { textContent: words }), ...(url && url !== words ? [make("small", { textContent: ` ${url}` })] : [])];
  const link = make("a", { href: safe.href, target: "_blank", rel: "noopener noreferrer nofollow", textContent: words });
  return [link, make("small", { textContent: ` ${safe.host}` })];
}
