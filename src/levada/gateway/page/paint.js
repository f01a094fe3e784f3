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

// UTF-16 units. A line is laid out anew as a whole at each paint, so that one without end is shown as several; a line
// goes on to its next space, yet no further than twice this.
const LONGEST_LINE = 8192;

/**
 * Text that grows in an element. Each line is an element of its own and holds its line end, so that a paint lays out
 * the last line alone, and the element's textContent is the text. Text nodes only: markup stays characters.
 */
export class TextFlow {
  text = "";
  #element;
  #waiting = "";
  #emptied = false;
  #line = null;

  constructor(element) {
    this.#element = element;
  }

  append(text) {
    this.text += text;
    this.#waiting += text;
  }

  replace(text) {
    this.text = this.#waiting = text;
    this.#emptied = true;
  }

  /** How many UTF-16 units wait to be painted. */
  get behind() {
    return this.#waiting.length;
  }

  /** Paint at most so much; return how much it was. */
  paint(most = Infinity) {
    if (this.#emptied) {
      this.#element.replaceChildren();
      this.#line = null;
      this.#emptied = false;
    }
    if (!this.#waiting) return 0;
    const now = this.#waiting.length > most ? this.#waiting.slice(0, whole(this.#waiting, most)) : this.#waiting;
    if (!now) return 0;   // room for half a character
    this.#waiting = this.#waiting.slice(now.length);
    const added = document.createDocumentFragment();
    for (const piece of now.match(/[^\n]*\n|[^\n]+/g)) {
      this.#put(piece, added);
      if (piece.endsWith("\n")) this.#line = null;
    }
    this.#element.append(added);
    return now.length;
  }

  #put(piece, added) {
    while (piece) {
      this.#line ??= begun(added, "auto");
      const part = fitting(piece, LONGEST_LINE - this.#line.length);
      this.#line.appendData(part);
      piece = piece.slice(part.length);
      // it goes on in its own direction, whatever letter comes first there
      if (piece) this.#line = begun(added, this.#line.parentNode.matches(":dir(rtl)") ? "rtl" : "ltr");
    }
  }
}

function begun(parent, dir) {
  const line = document.createElement("span");
  line.className = "line";
  line.dir = dir;
  parent.append(line);
  return line.appendChild(document.createTextNode(""));
}

/** What of `text` still goes into a line that has room for so much: to a space, where there is one. */
function fitting(text, room) {
  if (text.length <= room) return text;
  for (let at = room; at > 0; at--) if (/\s/.test(text[at - 1])) return text.slice(0, at);
  const next = text.slice(Math.max(0, room)).search(/\s/);
  const end = Math.max(0, room) + (next < 0 ? text.length : next + 1);
  return text.slice(0, end <= room + LONGEST_LINE ? end : whole(text, room + LONGEST_LINE));
}

/** The place at or before `at` that is not inside of a character. */
const whole = (text, at) => at - (/[\ud800-\udbff]/.test(text[at - 1]) ? 1 : 0);

/** How many characters a text has, where JavaScript counts UTF-16 units. */
export function characters(text) {
  let pairs = 0;
  for (let at = 1; at < text.length; at++) {
    const before = text.charCodeAt(at - 1), here = text.charCodeAt(at);
    if (before >= 0xd800 && before < 0xdc00 && here >= 0xdc00 && here < 0xe000) pairs++;
  }
  return text.length - pairs;
}
