// An event stream, read as it comes: text in, events out. The rules are the HTML Standard's, 9.2.5 and 9.2.6:
// lines end with LF, CR or CRLF, wherever the text was cut; an event that has no blank line after it is no event.

export class EventParser {
  #line = "";        // of the line that is not finished yet
  #afterCr = false;  // a LF that comes now belongs to the CR before it
  #begun = false;    // a byte order mark counts at the very beginning only
  #data = null;
  #type = "";
  #id = "";

  /** Take the next text; return the events that it completes: {type, data, id}. */
  feed(text) {
    const events = [];
    if (!this.#begun && text) {
      this.#begun = true;
      if (text.startsWith("\ufeff")) text = text.slice(1);
    }
    if (this.#afterCr && text) {
      if (text.startsWith("\n")) text = text.slice(1);
      this.#afterCr = false;
    }
    const ends = /\r\n|\n|\r/g;
    let from = 0;
    for (let end; (end = ends.exec(text)); from = ends.lastIndex) {
      const line = this.#line + text.slice(from, end.index);
      this.#line = "";
      this.#take(line, events);
      this.#afterCr = end[0] === "\r" && ends.lastIndex === text.length;
    }
    this.#line += text.slice(from);
    return events;
  }

  #take(line, events) {
    if (line === "") {
      if (this.#data !== null) events.push({ type: this.#type || "message", data: this.#data, id: this.#id });
      this.#data = null;
      this.#type = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;  // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") this.#data = this.#data === null ? value : `${this.#data}\n${value}`;
    else if (name === "event") this.#type = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}

/** Yield the events of a fetch() body's reader as they arrive. `awake` is called for whatever comes. */
export async function* eventsOf(reader, awake = () => {}) {
  const parser = new EventParser();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });  // keeps the mark: the parser knows where it counts
  try {
    for (;;) {
      const { done, value } = await reader.read();
      awake();
      yield* parser.feed(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
