"""Gates: how much of an answer a person may see, and when.

Rules this file keeps (docs/gates-and-painting.md):
- A gate takes the answer's text and gives candidates, `Sentence(n, text)`. Joined, they are the text that was fed.
- A verdict on each comes back through `decide`, in any order; what it decides comes out in the order of `n`.
- Nothing after a block comes out, whatever is fed or decided later.
- `close` is for a turn that is FINISHED, and for no other: it makes candidates of what no one may see before. The gate
  of a turn that failed or was cancelled is dropped.
- Where the provider replaces its text, candidates that are still the beginning of it stay, with their verdicts. The
  others are withdrawn: what a person saw of them is taken back (`Replaced`), later verdicts on them are ignored, and
  what comes in their place gets new numbers. No number is used twice, so no verdict meets a text it was not given for.

A gate knows no reviewer, thread, task or clock: `levada.review` has the drivers. `levada.sentences` knows where
sentences end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from levada.errors import UsageError
from levada.sentences import SentenceCutter

# 4,096 characters, about 700 words; the longest paragraph of the recorded answers has 912. It bounds what is held, and
# how long a person waits for a sentence whose end is not certain.
DEFAULT_HOLD: Final = 4096


class Sentence(Struct, frozen=True, gc=False):
    """A candidate for release. `n`: its number, from 0; it is decided under it.

    `whole`: False where the gate ran out of room and had to cut, before it or after it: it may be part of a sentence.
    """

    n: int
    text: str
    whole: bool = True


class Released(Struct, frozen=True, gc=False):
    """Sentence `n` may be seen as it is: `text` comes next on the screen."""

    n: int
    text: str


class Replaced(Struct, frozen=True, gc=False):
    """From sentence `n` on, the screen has `text` in place of all that was released there.

    After a verdict: the reviewer's text in place of sentence `n`, of which nothing was seen. After a replacement by the
    provider: `text` is "", and what was seen from sentence `n` on is taken back.
    """

    n: int
    text: str


class Blocked(Struct, frozen=True, gc=False):
    """Sentence `n`, and all that follows, may not be seen. `reason`: in words, never the answer's own.

    This is a value; the error that a blocked turn raises is `levada.errors.Blocked`.
    """

    n: int
    reason: str | None = None


Decision: TypeAlias = Released | Replaced | Blocked


class Replacement(Struct, frozen=True, gc=False):
    """The verdict `replace(text)`."""

    text: str


Verdict: TypeAlias = Literal["release", "block"] | Replacement

release: Final = "release"
"""The verdict that a sentence may be seen as it is."""

block: Final = "block"
"""The verdict that neither a sentence nor anything after it may be seen."""


def replace(text: str) -> Replacement:
    """Return the verdict that `text` may be seen in place of a sentence."""
    if not isinstance(text, str):
        raise UsageError(f"replace() takes the text to show, not {type(text).__name__}")
    return Replacement(text)


def is_verdict(value: object) -> bool:
    """Return whether `value` is a verdict: "release", "block" or replace(text)."""
    return value in (release, block) if isinstance(value, str) else isinstance(value, Replacement)


class Gate(Protocol):
    """What every gate can do. A policy, chosen per turn, is a gate's class or any callable that returns a gate."""

    @property
    def released(self) -> str:
        """All that may be seen so far."""

    @property
    def blocked(self) -> bool:
        """Whether a block came out."""

    @property
    def settled(self) -> bool:
        """Whether the gate was closed and all it gave was decided, nothing blocked: the answer may be stored."""

    def feed(self, text: str) -> list[Sentence]:
        """Take new text of the answer; return the candidates it completes."""

    def replace(self, text: str) -> list[Replaced | Sentence]:
        """Take the whole text anew; return what is taken back, if anything, then the candidates it makes."""

    def close(self) -> list[Sentence]:
        """Take the confirmed end; return the candidates that are left."""

    def decide(self, n: int, verdict: Verdict, *, reason: str | None = None) -> list[Decision]:
        """Take the verdict on sentence `n`; return what can be said now, in the order of `n`."""


GatePolicy: TypeAlias = Callable[[], Gate]


class _Candidate:
    """A sentence that was handed out and not withdrawn, its verdict, and what a person saw of it."""

    __slots__ = ("n", "reason", "text", "verdict")

    def __init__(self, sentence: Sentence) -> None:
        self.n = sentence.n
        self.text = sentence.text
        self.verdict: Verdict | None = None
        self.reason: str | None = None

    def decision(self) -> Decision:
        """Return what its verdict makes of it."""
        if isinstance(self.verdict, Replacement):
            return Replaced(self.n, self.verdict.text)
        return Blocked(self.n, self.reason) if self.verdict == block else Released(self.n, self.text)


class _Gate(ABC):
    """The order of verdicts, which all gates share; each says how it cuts the text."""

    def __init__(self) -> None:
        self._candidates: list[_Candidate] = []  # not withdrawn, in order
        self._open: dict[int, _Candidate] = {}  # of these, those without a verdict
        self._given_out = 0  # how many of them were decided, counted from the first one
        self._next_n = 0
        self._shown: list[str] = []
        self._blocked = self._closed = False

    @abstractmethod
    def _cut(self, text: str) -> Sequence[tuple[str, bool]]:
        """Take new text; return what it completes as (text, whole)."""

    @abstractmethod
    def _cut_rest(self) -> Sequence[tuple[str, bool]]:
        """Return what is held."""

    @abstractmethod
    def _restart(self) -> None:
        """Forget what is held."""

    @property
    def released(self) -> str:
        """All that may be seen so far. O(length); kept until more is released."""
        if len(self._shown) > 1:
            self._shown = ["".join(self._shown)]
        return self._shown[0] if self._shown else ""

    @property
    def blocked(self) -> bool:
        """Whether a block came out: nothing comes any more."""
        return self._blocked

    @property
    def settled(self) -> bool:
        """Whether the gate was closed and all it gave was decided, nothing blocked: the answer may be stored."""
        return self._closed and not self._blocked and not self._open

    def feed(self, text: str) -> list[Sentence]:
        """Take new text of the answer; return the candidates it completes, in order, or []. [] after a block.

        Raises UsageError after close().
        """
        self._refuse_after_close("feed")
        return [] if self._blocked else self._number(self._cut(text))

    def replace(self, text: str) -> list[Replaced | Sentence]:
        """Take the answer's whole text anew: the provider replaced it, or withdrew it (""). [] after a block.

        Returns Replaced(n, "") first, if what was seen from sentence n on is no longer the text; then new candidates.
        Raises UsageError after close().
        """
        self._refuse_after_close("replace")
        if self._blocked:
            return []
        at = kept = 0
        for candidate in self._candidates:
            if not text.startswith(candidate.text, at):
                break
            at += len(candidate.text)
            kept += 1
        withdrawn = self._candidates[kept:]
        del self._candidates[kept:]
        for candidate in withdrawn:
            self._open.pop(candidate.n, None)
        taken_back: list[Replaced | Sentence] = []
        if kept < self._given_out:
            self._given_out = kept
            self._shown = [_shown(candidate.decision()) for candidate in self._candidates]
            taken_back.append(Replaced(withdrawn[0].n, ""))
        self._restart()
        return taken_back + self._number(self._cut(text[at:]))

    def close(self) -> list[Sentence]:
        """Take the confirmed end of the answer; return the candidates that are left. Only for a turn that is FINISHED.

        A second call returns [].
        """
        if not self._closed and not self._blocked:
            self._closed = True
            return self._number(self._cut_rest())
        self._closed = True
        return []

    def decide(self, n: int, verdict: Verdict, *, reason: str | None = None) -> list[Decision]:
        """Take the verdict on sentence `n`: release, replace(text) or block, and for a block its reason.

        Returns what can be said now, in the order of n: [] while an earlier one is undecided, on a sentence that the
        provider withdrew, and after a block. Raises UsageError for a number that was not given or was decided, and for
        what is no verdict.
        """
        if not is_verdict(verdict):
            raise UsageError(f"a verdict is release, block or replace(text), not {type(verdict).__name__}")
        if type(n) is not int or not 0 <= n < self._next_n:
            raise UsageError(f"no sentence {n!r:.100}: {self._next_n} were given")
        if self._blocked:
            return []
        candidate = self._open.pop(n, None)
        if candidate is None:
            if any(candidate.n == n for candidate in self._candidates):
                raise UsageError(f"sentence {n} was decided already")
            return []
        candidate.verdict, candidate.reason = verdict, reason
        decisions: list[Decision] = []
        while self._given_out < len(self._candidates):
            candidate = self._candidates[self._given_out]
            if candidate.verdict is None:
                break
            decision = candidate.decision()
            decisions.append(decision)
            if isinstance(decision, Blocked):
                self._blocked = True
                self._restart()
                self._open.clear()
                break
            self._shown.append(_shown(decision))
            self._given_out += 1
        return decisions

    def _number(self, pieces: Sequence[tuple[str, bool]]) -> list[Sentence]:
        sentences = [Sentence(n, text, whole) for n, (text, whole) in enumerate(pieces, self._next_n)]
        self._next_n += len(sentences)
        for sentence in sentences:
            candidate = self._open[sentence.n] = _Candidate(sentence)
            self._candidates.append(candidate)
        return sentences

    def _refuse_after_close(self, call: str) -> None:
        if self._closed:
            raise UsageError(f"{call}() after close(): the answer has ended")


def _shown(decision: Decision) -> str:
    return "" if isinstance(decision, Blocked) else decision.text


class OpenGate(_Gate):
    """Gives each piece of text as it comes: everything may be seen at once."""

    def _cut(self, text: str) -> Sequence[tuple[str, bool]]:
        return [(text, True)] if text else []

    def _cut_rest(self) -> Sequence[tuple[str, bool]]:
        return []

    def _restart(self) -> None:
        pass


class HoldGate(_Gate):
    """Gives nothing before the end, and then the whole text as one candidate."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[str] = []

    def _cut(self, text: str) -> Sequence[tuple[str, bool]]:
        self._held.append(text)
        return []

    def _cut_rest(self) -> Sequence[tuple[str, bool]]:
        text = "".join(self._held)
        self._held.clear()
        return [(text, True)] if text else []

    def _restart(self) -> None:
        self._held.clear()


class SentenceGate(_Gate):
    """Gives whole sentences, because a reviewer cannot judge half of one. The unfinished last one comes at close().

    `languages`: the codes of the languages that the answer may be in, as ("pt", "en"), or one code. `max_hold_chars`:
    the most characters held for one sentence, inclusive; beyond, it is cut (Sentence.whole). A boundary counts once
    what follows or the end confirms it; the same text gives the same sentences, however it was cut (levada.sentences).
    Raises UsageError for a setting that makes no sense, and without sentencex (the extra `sentences`).
    """

    def __init__(self, languages: str | Sequence[str] = "en", max_hold_chars: int = DEFAULT_HOLD) -> None:
        super().__init__()
        self._cutter = SentenceCutter(languages, max_hold_chars)

    def _cut(self, text: str) -> Sequence[tuple[str, bool]]:
        return self._cutter.feed(text)

    def _cut_rest(self) -> Sequence[tuple[str, bool]]:
        return self._cutter.close()

    def _restart(self) -> None:
        self._cutter.restart()
