// One turn as a person sees it. It follows the normal form (docs/normal-form.md) and keeps its promises:
// text is provisional until the turn is finished; an error takes the draft's place; after the end nothing changes.

import { make } from "./make.js";
import { characters, PaintClock, TextFlow } from "./paint.js";
import { SourceRows, ToolRows } from "./rows.js";
import { count, early, EMPTY, left, problem, seconds, STATES, wait } from "./words.js";

const ENDS = new Set(["finished", "error", "cancelled"]);
// UTF-16 units in one paint, so that 5 MB at once are many short tasks and no long one; 400,000 a second, and a model
// says some hundred.
const MOST_AT_ONCE = 16_384;

/** Whether the person looks at the end; who has scrolled up is left there. */
const atTheEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 48;
export const toTheEnd = () => window.scrollTo(0, document.documentElement.scrollHeight);

export class TurnView {
  #announce;
  #mark;
  #again;
  #retry;
  #readOn;
  #news;
  #clock = new PaintClock(() => this.#paintOn());
  #ticker = 0;
  #countdown = 0;
  #lost = 0;   // the timer of the hint that says so
  onEnd = () => {};

  /**
   * `again`, `retry`, `readOn`: what the buttons do. `news`: is called for what comes where the person does not look. `announce`: says a state to who cannot see it. `mark`: is given each button
   * that asks, to say whether it can.
   */
  constructor(question, { again, retry, readOn, news, announce, mark }) {
    this.#announce = announce;
    this.#mark = mark;
    this.asked = Math.random().toString(36).slice(2);   // the same for each try
    this.element = make("article", { className: "turn", tabIndex: -1 });
    this.element.setAttribute("aria-label", "Answer");
    this.question = make("p", { className: "question", textContent: question, dir: "auto" });
    this.#again = () => again();
    this.#retry = () => retry(this);
    this.#readOn = () => readOn(this);
    this.#news = () => news(this);
    this.begin();
  }

  /** Begin, or begin again: the draft is emptied first, so that two attempts never mix. */
  begin() {
    this.#clock.stop();
    clearTimeout(this.#lost);
    this.#lost = 0;
    clearInterval(this.#ticker);
    clearInterval(this.#countdown);
    const focused = this.element.contains(document.activeElement);
    this.state = "connecting";
    this.id = null;
    this.turn = null;    // how the gateway knows it, once it does
    this.left = false;   // whether it was left before its end
    delete this.element.dataset.left;
    this.started = performance.now();
    this.firstText = null;
    this.usage = null;
    this.error = null;
    this.end = null;
    this.flows = new Map();   // "choice channel" → TextFlow
    this.finishes = new Map();   // choice → finish reason
    this.tools = new ToolRows();
    this.sources = new SourceRows();
    this.arriving = "";   // what came last: "answer" or "reasoning"
    this.thoughtMs = 0;
    this.thinkingSince = null;
    delete this.element.dataset.phase;
    delete this.element.dataset.early;
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
    this.alert = make("div");
    this.alert.setAttribute("role", "alert");
    this.problem = make("div", { className: "problem", hidden: true }, this.alert);
    this.figures = make("p", { className: "figures" });
    this.actions = make("p", { className: "actions" });
    this.element.replaceChildren(this.question, this.status, this.reasoning, this.answer, this.tools.element,
      this.sources.element, this.problem, make("footer", {}, this.figures, this.actions));
    if (focused) this.element.focus({ preventScroll: true });   // the button that was pressed is gone
    this.#show("connecting");
    this.#run();
  }

  #run() {
    this.#tick();
    this.#ticker = setInterval(() => this.#tick(), 500);
  }

  /** Who asked it to go on sees it from its question on. */
  comeIntoView() {
    if (this.element.getBoundingClientRect().top < 0) this.element.scrollIntoView({ block: "start" });
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

  /** Whether all was told, though some of it may wait to be painted. */
  get told() {
    return this.ended || this.end !== null;
  }

  /** Take one event of the normal form. */
  take({ type, data }) {
    if (this.told) return;
    const value = JSON.parse(data);
    switch (type) {
      case "state":
        this.id = value.turn ?? this.id;
        if (value.state === "streaming") this.#show("streaming");
        return;
      case "text":
        this.firstText ??= performance.now() - this.started;
        this.#arrives(value.channel === "reasoning" ? "reasoning" : "answer");
        this.#flow(value).append(value.text);
        break;
      case "replaced":
        if (value.text) this.#arrives(value.channel === "reasoning" ? "reasoning" : "answer");
        this.#flow(value).replace(value.text);
        if (value.text === "" && value.channel === "answer") this.sources.withdraw(value.choice);
        break;
      case "tool_call":
        this.#arrives("answer");
        this.tools.take(value);
        break;
      case "reference":
        this.sources.reference(value);
        break;
      case "citation":
        this.sources.citation(value);
        break;
      case "usage":
        this.usage = value;
        return;
      case "finish":
        this.finishes.set(value.choice, value.finish_reason);
        return;
      case "error":
        this.error = value;
        return;
      case "end":
        this.end = value;
        this.#finish();
        return;
      default:
        return;
    }
    this.#clock.offer();
  }

  /** The stream is over; without its `end` it was cut, whatever had come. */
  close() {
    if (!this.told) this.fail({ kind: "broken", type: this.error?.type });
  }

  /** It could not be read on for `ms`, and may go on without us: what had come waits for who reads on. */
  leave(ms, { type, message }) {
    if (this.told) return;
    this.#keepingPlace(() => {
      this.left = this.state;
      this.#settle();
      this.element.dataset.left = "true";
      this.#show("error");
      const readOn = this.#asking("Read on", this.#readOn);
      readOn.className += " primary";
      const detail = type === "live_log_unavailable" ? type : [type, message].filter(Boolean).join(": ");   // its words say "later"
      this.#complain(left(ms, type), detail, readOn, this.#asking("Try again", this.#retry));
    });
  }

  /** Go on where it was left. */
  goOn() {
    const state = this.left;
    this.#keepingPlace(() => {
      this.left = false;
      this.error = null;
      delete this.element.dataset.left;
      this.problem.hidden = true;
      this.problem.replaceChildren(this.alert);
      this.alert.replaceChildren();
      this.answer.setAttribute("aria-busy", "true");
      this.#show(state);
      if (state === "streaming" && this.element.dataset.phase === "reasoning") this.#say("thinking");
      this.#run();
      this.#clock.offer();
    });
  }

  fail(error) {
    if (this.ended) return;
    this.#keepingPlace(() => {
      this.#settle();
      const arrived = [...this.flows.values()].some((flow) => flow.text) || this.tools.size + this.sources.size > 0;
      this.flows.clear();       // the error takes the draft's place, on the screen and here
      this.reasoning.remove();
      this.answer.replaceChildren();
      this.tools.element.remove();
      this.sources.element.remove();
      this.#show("error");
      const button = this.#asking("Try again", this.#retry);
      this.#complain(problem(error.kind, arrived), [error.type, error.message].filter(Boolean).join(": "), button);
      if (error.retry_after_s) this.#wait(button, error.retry_after_s * 1000);
      else button.className += " primary";
    });
  }

  #complain([title, words], detail, ...buttons) {
    this.alert.append(make("h2", { textContent: title }));
    if (words) this.alert.append(make("p", { textContent: words }));
    if (detail) this.alert.append(make("p", { className: "detail", textContent: detail }));
    this.problem.append(...buttons);
    this.problem.hidden = false;
    this.#announce("No answer.");
    this.#tick();
  }

  /** The provider asks to wait: say so once, count down without a word, and leave it to the person. */
  #wait(button, ms) {
    const until = performance.now() + ms;
    const left = make("span", { className: "left" });
    left.setAttribute("aria-hidden", "true");   // a reader of the screen need not hear each second
    button.after(left);
    this.alert.append(make("p", { textContent: `The provider asks to wait ${wait(ms)}.` }));
    const update = () => {
      const over = performance.now() >= until;
      button.textContent = over ? "Try again" : "Try anyway";
      button.classList.toggle("primary", over);
      left.textContent = over ? "" : `${wait(until - performance.now())} to go`;
      if (over) clearInterval(this.#countdown);
    };
    update();
    this.#countdown = setInterval(update, 250);
  }

  /** The person stopped it: nothing moves from here on. */
  cancel() {
    if (this.ended) return;
    this.#keepingPlace(() => {
      this.#settle();
      this.#paint();
      this.#fold();
      this.#show("cancelled");
      this.actions.append(this.#asking("Try again", this.#retry));
      this.#announce("Stopped. The answer is incomplete.");
      this.#tick();
    });
  }

  // -- the end --------------------------------------------------------------------------------------------------------

  #finish() {
    const end = this.end;
    if (end.state === "error") return this.fail(this.error ?? { kind: "provider" });
    if (end.state === "cancelled") return this.cancel();
    for (const channel of ["answer", "reasoning", "refusal"]) {
      if (characters(this.#text(channel)) !== end.characters[channel]) {
        return this.fail({ kind: "truncated", message: `text of the ${channel} is missing` });
      }
    }
    if (this.#behind > MOST_AT_ONCE) this.#clock.offer();
    else this.#conclude();
  }

  /** Say what the provider said of the whole: all of it is on the screen, or fits into one paint. */
  #conclude() {
    this.#keepingPlace(() => {
      this.#settle();
      this.#paint();
      this.#show("finished");
      this.#fold();
      const empty = !this.#text("answer") && !this.#text("refusal") && !this.tools.size;
      const ended = early(this.#text("refusal") && !this.#text("answer") ? "refusal" : this.end.finish_reason) ?? (empty ? EMPTY : null);
      if (ended) {
        this.element.dataset.early = "true";
        [this.word.textContent, this.hint.textContent] = ended;
        if (empty && ended !== EMPTY) this.hint.textContent += "; the answer is empty";
      }
      for (const [choice, reason] of this.finishes) {
        const element = this.flows.get(`${choice} answer`)?.element;
        if (choice > 0 && element && early(reason)) element.dataset.label += ` (${early(reason).join(" ").toLowerCase()})`;
      }
      if (this.#text("answer")) this.actions.append(make("button", { type: "button", textContent: "Copy", onclick: (event) => this.#copy(event.currentTarget) }));
      this.actions.append(this.#asking("Ask again", this.#again));
      this.#announce(ended ? `${[this.word, this.hint].map((part) => part.textContent).join(": ")}.` : "Answer confirmed.");
      this.#tick();
    });
  }

  /** No paint comes after this but the one that the caller makes. */
  #settle() {
    this.#clock.stop();
    clearInterval(this.#ticker);
    this.#thinks(false);
    this.connected(true);
    this.total = performance.now() - this.started;
    if (this.replayed && this.end?.first_text_ms != null) this.firstText = this.end.first_text_ms;
    queueMicrotask(this.onEnd);   // once it shows its end
  }

  // -- what is seen ---------------------------------------------------------------------------------------------------

  /** Who looks at the end goes along with it, and what has the focus does not lose it to nothing. */
  #keepingPlace(change) {
    const follow = atTheEnd();
    const focused = this.element.contains(document.activeElement);
    change();
    if (focused && !this.element.contains(document.activeElement)) this.element.focus({ preventScroll: true });
    if (follow) toTheEnd();
    else this.#news();
  }

  get #behind() {
    let behind = this.tools.behind;
    for (const flow of this.flows.values()) behind += flow.behind;
    return behind;
  }

  #arrives(phase) {
    this.arriving = phase;
    this.#thinks(phase === "reasoning");
  }

  /** A model may think again after it has begun to answer: the time is that of all stretches. */
  #thinks(yes) {
    if (yes) this.thinkingSince ??= performance.now();
    else if (this.thinkingSince !== null) {
      this.thoughtMs += performance.now() - this.thinkingSince;
      this.thinkingSince = null;
    }
  }

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
      this.flows.set(key, (flow = Object.assign(new TextFlow(element), { element })));
    }
    return flow;
  }

  #show(state) {
    if (state === "streaming" && this.state === "streaming") return;
    this.state = state;
    this.element.dataset.state = state;
    this.#say(state);
    if (state === "connecting") this.#announce("Waiting for an answer.");
    if (this.ended) this.answer.setAttribute("aria-busy", "false");
  }

  #say(word) {
    [this.word.textContent, this.hint.textContent] = STATES[word];
  }

  /** Fold the reasoning, once: who opens it again keeps it open. */
  #fold() {
    if (this.reasoning.hidden) return;
    if (!this.reasoning.dataset.folded) this.reasoning.open = false;
    this.reasoning.dataset.folded = "true";
    this.summary.textContent = this.thoughtMs < 100 ? "Thoughts" : `Thought for ${seconds(this.thoughtMs)}`;
  }

  #paint() {
    const follow = atTheEnd();
    let room = MOST_AT_ONCE;
    for (const flow of this.flows.values()) if (room > 0) room -= flow.paint(room);
    this.tools.paint(room);
    this.sources.paint();
    this.reasoning.hidden &&= this.#text("reasoning") === "";
    this.#painted(this.arriving);
    if (follow) toTheEnd();
    else this.#news();
  }

  #paintOn() {
    this.#paint();
    if (this.#behind) this.#clock.offer();
    else if (this.end) this.#conclude();
  }

  /** Show what the model is at. Thinking again opens nothing: the person may have folded it. */
  #painted(phase) {
    if (phase === (this.element.dataset.phase ?? "")) return;
    this.element.dataset.phase = phase;
    if (phase === "reasoning") this.summary.textContent = "Thinking…";
    else this.#fold();
    if (this.ended) return;
    this.#say(phase === "reasoning" ? "thinking" : "streaming");
    this.#announce(phase === "reasoning" ? "The model is thinking." : "The answer arrives.");
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
      parts.push(count(this.end.characters.answer, "character"));
      if (this.end.finish_reason === "tool_use") parts.push(`ended by ${this.end.finish_reason}`);
      if (this.end.model) parts.push(this.end.model);
    }
    this.figures.textContent = parts.join(" · ");
  }

  #asking(label, onclick) {
    const button = make("button", { type: "button", className: "asks", textContent: label, onclick });
    this.#mark(button);
    return button;
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
