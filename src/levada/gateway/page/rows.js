// What stands below an answer: tool calls and sources. A paint touches only what is new, however much there is.

import { make } from "./make.js";
import { TextFlow } from "./paint.js";

export class ToolRows {
  element = make("ul", { className: "tools", hidden: true });
  #calls = new Map();   // index → {name, complete, row, label, flow}
  #moved = new Set();

  get size() {
    return this.#calls.size;
  }

  /** How many characters wait to be painted. */
  get behind() {
    let behind = 0;
    for (const call of this.#moved) behind += call.flow.behind;
    return behind;
  }

  take({ index, name, arguments: more, complete }) {
    let call = this.#calls.get(index);
    if (!call) {
      const [label, code] = [make("code", { className: "name" }), make("code", { className: "arguments" })];
      call = { row: make("li", {}, label, code), label, flow: new TextFlow(code) };
      this.#calls.set(index, call);
    }
    Object.assign(call, { name, complete });
    call.flow.append(more);
    this.#moved.add(call);
  }

  /** Paint at most so many characters; return how many there is room for still. */
  paint(room) {
    for (const call of this.#moved) {
      if (room <= 0) return 0;
      room -= call.flow.paint(room);
      call.label.textContent = call.name;
      call.row.dataset.complete = call.complete;
      if (!call.row.isConnected) this.element.append(call.row);
      if (!call.flow.behind) this.#moved.delete(call);
    }
    this.element.hidden = this.size === 0;
    return room;
  }
}

export class SourceRows {
  element = make("ol", { className: "sources", hidden: true });
  #rows = new Map();   // "r id" or "c address" → {source, choices, row}
  #moved = new Set();

  get size() {
    return this.#rows.size;
  }

  reference(reference) {
    this.#put(`r ${reference.id}`, reference, null);
  }

  /** A citation of a reference is shown by that. */
  citation(citation) {
    if (!citation.references.length) this.#put(`c ${citation.url ?? citation.title}`, citation, citation.choice);
  }

  /** The text that citations stood in was withdrawn, and they with it. */
  withdraw(choice) {
    for (const [key, known] of this.#rows) {
      if (!known.choices.delete(choice) || known.choices.size) continue;
      this.#rows.delete(key);
      this.#moved.delete(known);
      known.row.remove();
    }
  }

  paint() {
    for (const known of this.#moved) {
      known.row.replaceChildren(...sourceLine(known.source));
      if (!known.row.isConnected) this.element.append(known.row);
    }
    this.#moved.clear();
    this.element.hidden = this.size === 0;
  }

  #put(key, source, choice) {
    const known = this.#rows.get(key) ?? { row: make("li"), choices: new Set() };
    this.#rows.set(key, known);
    known.choices.add(choice);
    if (known.source && choice !== null) return;   // the same address once more
    known.source = source;
    this.#moved.add(known);
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
