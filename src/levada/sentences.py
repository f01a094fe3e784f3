"""Cuts a growing text into whole sentences; which and when depends on the text alone, never on how it was cut.

sentencex knows where sentences end, but not while the text still grows: it takes boundaries back. `Then (he said "no. `
is a sentence until the closing parenthesis arrives; `U.S. ` is one until `Senate` does; a month undoes `3. `. And it
reads all that it is given, each time. So:

Where it is asked. A *mark* is a character that may end a sentence or close a bracket: punctuation, symbol, line feed.
A check is due at the end of the first word after a mark, or 16 characters into that word (URLs, Thai), or at once at a
wide character (Chinese, Japanese, Korean: each is word enough). That is a property of the text: the scan takes one
character after the other, with `_look` and `_again` for its state, and a check at position p reads what is held up to p
even where the delta brought more. So any cut of the deltas gives the same sentences, each with the delta that brings p.

What counts. A boundary counts when both hold:
- What follows it is known: the word after it is complete, by the same measure. No rule looks further ahead than to
  lower case, digits, months, initials, `[1]`, and the words that open sentences.
- No bracket or quote that is still open can take it back. We do not copy sentencex's rules for these: we ask a second
  time, with everything closed right here (`_CLOSERS`), and keep the boundaries that are in both answers. The end of a
  paragraph settles what was open in it, for sentencex and so for us.
In several languages at once, a boundary counts where all of them have it: an abbreviation of one is one of all.
A boundary is moved behind closing emphasis (`**Done.** Next`) and white space. Two kinds that leave half a sentence are
not taken: after a period before a lower-case letter or a digit on the same line (sentencex knows `p. ej.` in Spanish,
but not `p. ex.` in Portuguese), and after a list marker (for it, `1. ` is a sentence until `2. ` comes).
`close` is the confirmed end: what sentencex then says of the rest holds.

Fenced code. A fence (three or more backticks or tildes that begin a line, also in a list item or a quotation) is one
sentence, from its opening line to its closing line and the blank lines after; nothing inside is a boundary. What stands
before it has a confirmed end. A line that may yet become an opening line is left alone until that is decided.

Why this is linear. Let a check leave r characters held. The next one is made when at least r/8 more have come; so it
reads at most 9 characters for each new one, whatever the text, and the closers, of fixed length: all checks together
read the text a constant number of times. sentencex itself is not quite linear in a text full of brackets;
`max_hold_chars` bounds what it gets at once. When the hold is full, the text is cut at the best place in the last three
quarters of it: the last boundary that is merely likely, else the last line (in code) or word, else at the very end. So
a cut for want of room reads at most 4 characters for each one released. The pieces beside it are marked as not whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from levada.errors import UsageError

_MARK: Final = re.compile(r"[^\w\s,:/(\[{-]|\n")
_WORD: Final = re.compile(r"\w")
_SPACE: Final = re.compile(r"\s")
_NO_SPACE: Final = re.compile(r"\S")
_WIDE: Final = "\u2e80"  # CJK radicals and what comes after them: scripts without spaces, and Hangul
_LOOK_AHEAD: Final = 16  # characters; longer than any month or opener that a rule knows
# what must follow a boundary: punctuation, then a wide character, or a word that has ended or is long enough
_FOLLOWED: Final = re.compile(rf"\W*+(?:[^\W\0-\u2e7f]|\w(?:\S*+\s|\S{{{_LOOK_AHEAD - 1}}}))")
# what is no sentence of its own: no word at all, or a list marker's number or letter
_NO_SENTENCE: Final = re.compile(r"\W*+(?:[ivxIVX]{1,5}+|[A-Za-z]|\d++)?+\W*+")
_GOES_ON: Final = re.compile(r"\.[^\S\n]*\Z")
# between two sentences: emphasis that ends with the first, and white space
_BETWEEN: Final = re.compile(r"(?:[*_~]++(?=\s))?+\s*+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# sentencex 1.0.32 cuts such a space in its middle and panics, where a capital letter stands before it
_WIDE_SPACE: Final = re.compile(r"[^\S\0-\x7f](?=\.)")
_GAP: Final = 8  # characters looked at for a period before a boundary, white space included

# Closes everything that sentencex pairs (QUOTE_PAIRS and PARENS_REGEX of its constants.rs, 1.0.32), and what it may
# come to pair. A closing quote counts only after what is no space and before what is no word.
_CLOSING_MARKS: Final = "'`\"»’‚”‛“«‟›》」』】〉〕)]}>）］｝"  # noqa: RUF001  # look-alikes are what it is about
_OPENING_MARKS: Final = "‘„‹《「『【〈〔([{<（［｛"  # noqa: RUF001  # the same
_CLOSERS: Final = "".join(f"x{closer} " for closer in ("''", "``", *_CLOSING_MARKS))
_PAIRED: Final = re.compile(f"[{re.escape(_CLOSING_MARKS + _OPENING_MARKS)}]")

_LONGEST_LINE: Final = 200  # characters of an opening or closing line: a language and a file name fit many times
_OPENING: Final = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}(?=[^`]*$)|~{3,})")
_CLOSING: Final = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t\r]*")
# the beginnings of such lines; with a beginning that is none, no line can become one
_MAY_OPEN: Final = re.compile(r"[ \t>]*(?:[-*+]|\d{1,9}[.)]?)?[ \t]*(?:`{0,2}|`{3,}[^`]*|~{0,2}|~{3,}.*)")
_MAY_CLOSE: Final = re.compile(r"[ \t>]*(?:`*|~*)[ \t\r]*")


class _Mode(Enum):
    PROSE = "prose"
    FENCE = "fence"  # inside fenced code
    AFTER_FENCE = "after a fence"  # in the white space after its closing line, which belongs to it


class SentenceCutter:
    """Text, cut anywhere, to sentences as (text, whole). Joined, they are the text.

    `languages`: codes, as ("pt", "en"), or one code; a region, as in pt-BR, is ignored, and a language that sentencex
    does not know is cut as its nearest or as English. `max_hold_chars`: the most characters held, inclusive. `whole` is
    False for the two pieces beside a cut that was made because the hold was full.
    Raises UsageError for a setting that makes no sense, and where sentencex is not installed.
    """

    __slots__ = (
        "_again",
        "_fence",
        "_languages",
        "_line",
        "_line_start",
        "_look",
        "_max_hold_chars",
        "_mode",
        "_next_size",
        "_partial",
        "_parts",
        "_segment",
        "_size",
    )

    def __init__(self, languages: Sequence[str], max_hold_chars: int) -> None:
        languages = (languages,) if isinstance(languages, str) else tuple(languages)
        if not languages or not all(isinstance(code, str) and code for code in languages):
            raise UsageError(f"languages must be codes, as ('pt', 'en'), not {languages!r:.100}")
        if type(max_hold_chars) is not int or max_hold_chars < 1:
            raise UsageError(f"max_hold_chars must be an int from 1 on, not {max_hold_chars!r:.100}")
        if find_spec("sentencex") is None:
            raise UsageError("sentences need sentencex: pip install 'levada[sentences]'")
        self._segment = import_module("sentencex").segment
        self._languages = tuple(dict.fromkeys(re.split("[-_]", code)[0].lower() for code in languages))
        self._max_hold_chars = max_hold_chars
        self.restart()

    def restart(self) -> None:
        """Forget what is held, and begin anew."""
        self._parts: list[str] = []  # what is held
        self._size = 0  # its length
        self._mode = _Mode.PROSE
        self._fence = ""  # the opening fence, inside one
        self._line: str | None = ""  # the current line so far, while it may become an opening or closing one
        self._line_start = 0  # where it begins in what is held
        self._look = -1  # characters seen of the word after a mark; -1: no mark seen
        self._again = False  # there was another mark in that word
        self._next_size = 0  # no check below this size
        self._partial = False  # what is held begins where there was no room for more

    def feed(self, text: str) -> list[tuple[str, bool]]:
        """Take new text; return the sentences it completes, in order."""
        out: list[tuple[str, bool]] = []
        at, end = 0, len(text)
        while at < end:
            # at most to the end of the line, and at most what there is room for
            stop = min(end, at + self._max_hold_chars - self._size)
            stop = text.find("\n", at, stop) + 1 or stop
            if self._mode is _Mode.AFTER_FENCE:
                at = self._after_fence(text, at, stop, out)
            elif self._mode is _Mode.FENCE:
                at = self._code(text, at, stop)
            else:
                at = self._prose(text, at, stop, out)
            if self._size >= self._max_hold_chars:
                self._cut_for_room(out)
        return out

    def close(self) -> list[tuple[str, bool]]:
        """Take the confirmed end; return the rest, in sentences."""
        out: list[tuple[str, bool]] = []
        held = self._held()
        ends = self._ends(held) if self._mode is _Mode.PROSE else []
        self._release(held, [*ends, len(held)] if held else [], out)
        self.restart()
        return out

    # -- the three modes: each takes text[at:stop], at most one line, and returns where it stopped ---------------------

    def _prose(self, text: str, at: int, stop: int, out: list[tuple[str, bool]]) -> int:
        while at < stop:
            due = self._next_check(text, at, stop)
            line, line_start = self._keep(text[at : due or stop], _MAY_OPEN)
            at = due or stop
            if line is not None and (opening := _OPENING.match(line)):
                self._open_fence(opening[1], line_start, out)
            elif due is not None:
                self._check(out)
        return at

    def _code(self, text: str, at: int, stop: int) -> int:
        line, _ = self._keep(text[at:stop], _MAY_CLOSE)
        closing = _CLOSING.fullmatch(line) if line is not None else None
        if closing and closing[1].startswith(self._fence):
            self._mode = _Mode.AFTER_FENCE
        return stop

    def _after_fence(self, text: str, at: int, stop: int, out: list[tuple[str, bool]]) -> int:
        found = _NO_SPACE.search(text, at, stop)
        at, begun = (stop, at) if found is None else (found.start(), at)
        self._keep(text[begun:at], _MAY_OPEN)
        if found is not None:
            self._release(self._held(), [self._size], out)
            self._mode = _Mode.PROSE
        return at

    # -- marks and checks ----------------------------------------------------------------------------------------------

    def _next_check(self, text: str, at: int, stop: int) -> int | None:
        """Return where in text[at:stop] the next check is due, or None; note what was seen up to there."""
        if self._look < 0:
            mark = _MARK.search(text, at, stop)
            if mark is None:
                return None
            at = mark.end()
            self._look = 0
        if self._look == 0:
            word = _WORD.search(text, at, stop)
            if word is None:
                return None
            at = word.end()
            self._look = 1 if word[0] < _WIDE else _LOOK_AHEAD
            self._again = False
        enough = at + _LOOK_AHEAD - self._look
        space = _SPACE.search(text, at, min(stop, enough))
        due = min(stop, enough) if space is None else space.end()
        self._again = self._again or _MARK.search(text, at, due) is not None
        if space is None and due < enough:
            self._look += due - at
            return None
        self._look = 0 if self._again else -1
        return due

    def _check(self, out: list[tuple[str, bool]]) -> None:
        """Release the sentences that are certain."""
        if self._size < self._next_size:
            self._look = 0  # too soon: at the end of the next word, then
            return
        held = self._held()
        ends = self._likely_ends(held)
        if ends and _PAIRED.search(held):
            certain = frozenset(self._ends(held + _CLOSERS))
            ends = [end for end in ends if end in certain]
        self._release(held, ends, out)
        self._next_size = self._size + self._size // 8

    def _likely_ends(self, held: str) -> list[int]:
        """Return the ends of sentences in `held` after which enough is known."""
        latest = len(held) if self._line is None else self._line_start
        return [end for end in self._ends(held) if end <= latest and _FOLLOWED.match(held, end)]

    def _ends(self, text: str) -> list[int]:
        """Return where sentences end, each as the place of the character that begins the next one, in order."""
        ends: list[int] = []
        begun = 0
        for end in sorted(frozenset.intersection(*(self._ends_in(language, text) for language in self._languages))):
            following = text[end]
            if (following.islower() or following.isdigit()) and _GOES_ON.search(text, max(begun, end - _GAP), end):
                continue
            if not _NO_SENTENCE.fullmatch(text, begun, end):
                ends.append(end)
                begun = end
        return ends

    def _ends_in(self, language: str, text: str) -> frozenset[int]:
        ends: list[int] = []
        end = begin = 0  # of the sentence, and where the next one begins
        for sentence in self._segmented(language, _WIDE_SPACE.sub(" ", text)):
            end += len(sentence)
            if end > begin:
                between = _BETWEEN.match(text, end)
                begin = end if between is None else between.end()
            ends.append(begin)
        return frozenset(ends) - {len(text)}

    def _segmented(self, language: str, text: str) -> list[str]:
        try:
            return self._segment(language, text)  # type: ignore[no-any-return]  # imported at run time
        except UnicodeEncodeError:  # half of a surrogate pair, which some wires can bring; a symbol stands for it
            return self._segmented(language, _SURROGATE.sub("\ufffd", text))
        except BaseException as exc:
            # A panic in its Rust is no Exception. Text that it cannot read has no boundaries; the hold is bounded.
            if type(exc).__name__ != "PanicException":
                raise
            return [text]

    def _open_fence(self, fence: str, line_start: int, out: list[tuple[str, bool]]) -> None:
        held = self._held()
        prose = held[:line_start]
        if prose and not prose.isspace():
            self._release(held, [*self._ends(prose), line_start], out)
        self._mode = _Mode.FENCE
        self._fence = fence
        self._look = -1

    def _cut_for_room(self, out: list[tuple[str, bool]]) -> None:
        """Release what is at the front of a full hold."""
        held = self._held()
        places = [held.rfind("\n") + 1, max(held.rfind(" "), held.rfind("\t"), held.rfind("\n")) + 1]
        if self._mode is _Mode.PROSE:
            places[0] = max(self._likely_ends(held), default=0)
        place = next((place for place in places if place >= max(1, len(held) // 4)), len(held))
        if self._mode is _Mode.AFTER_FENCE:
            self._release(held, [len(held)], out)
            self._mode = _Mode.PROSE
        else:
            self._release(held, [place], out, whole=False)
        self._next_size = self._size + self._size // 8

    # -- what is held --------------------------------------------------------------------------------------------------

    def _held(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def _keep(self, piece: str, may_become: re.Pattern[str]) -> tuple[str | None, int]:
        """Hold `piece`. Return the line that it completes, if that may be a fence's, and where the line began."""
        done = piece.endswith("\n")
        if self._line is not None:
            self._line += piece[:-1] if done else piece
            if len(self._line) > _LONGEST_LINE or not may_become.fullmatch(self._line):
                self._line = None
        self._parts.append(piece)
        self._size += len(piece)
        line, line_start = self._line, self._line_start
        if not done:
            return None, line_start
        self._line, self._line_start = "", self._size
        return line, line_start

    def _release(self, held: str, ends: Sequence[int], out: list[tuple[str, bool]], *, whole: bool = True) -> None:
        """Hand out `held` up to the last of `ends`, cut at each."""
        if not ends:
            return
        begun = 0
        for end in ends:
            out.append((held[begun:end], whole and not self._partial))
            self._partial = not whole
            begun = end
        self._parts = [held[begun:]]
        self._size = len(held) - begun
        self._line_start = max(0, self._line_start - begun)
