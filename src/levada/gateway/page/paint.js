// When to paint, and how text gets onto the screen: at most 25 paints a second, and never anything but characters.

export const INTERVAL_MS = 40;

/** Calls `paint` at most once per interval, in an animation frame; `now` paints at once and cancels what waits. */
export class PaintClock {
  #paint;
  #last = -Infinity;
  #timer = 0;
  #frame = 0;

  constructor(paint) {
    this.#paint = paint;
  }

  /** Something is new: paint it as soon as the interval allows. */
  offer() {
    if (this.#timer || this.#frame) return;
    const wait = this.#last + INTERVAL_MS - performance.now();
    if (wait > 0) this.#timer = setTimeout(() => { this.#timer = 0; this.#ask(); }, wait);
    else this.#ask();
  }

  now() {
    this.stop();
    this.#last = performance.now();
    this.#paint();
  }

  stop() {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#timer = this.#frame = 0;
  }

  #ask() {
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      if (performance.now() < this.#last + INTERVAL_MS) this.offer();  // a timer may fire a little early
      else this.now();
    });
  }
}

/**
 * Text that grows in an element. Each line is an element of its own and holds its line end, so that a paint lays out
 * the last line alone, and the element's textContent is the text. Text nodes only: markup stays characters.
 */
export class TextFlow {
  text = "";
  #element;
  #shown = 0;
  #line = null;

  constructor(element) {
    this.#element = element;
  }

  append(text) {
    this.text += text;
  }

  replace(text) {
    this.text = text;
    this.#shown = -1;
  }

  get behind() {
    return this.#shown !== this.text.length;
  }

  paint() {
    if (this.#shown < 0) {
      this.#element.replaceChildren();
      this.#line = null;
      this.#shown = 0;
    }
    if (!this.behind) return;
    const added = document.createDocumentFragment();
    for (const piece of this.text.slice(this.#shown).match(/[^\n]*\n|[^\n]+/g)) {
      if (this.#line) this.#line.appendData(piece);
      else {
        const line = document.createElement("span");
        line.className = "line";
        line.dir = "auto";
        this.#line = line.appendChild(document.createTextNode(piece));
        added.append(line);
      }
      if (piece.endsWith("\n")) this.#line = null;
    }
    this.#element.append(added);
    this.#shown = this.text.length;
  }
}
