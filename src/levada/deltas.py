"""The values that a turn is made of: deltas, parts, usage, the finished turn. All are frozen.

Each delta says to which `choice` (answer candidate) and `block` (the provider's content block, item or part) it
belongs; both are 0 where the wire has none. The hot path makes deltas by position: the order of fields matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from levada.errors import UsageError

Channel: TypeAlias = Literal["answer", "reasoning", "refusal"]
CHANNELS: tuple[Channel, ...] = ("answer", "reasoning", "refusal")

FinishReason: TypeAlias = Literal["stop", "length", "tool_use", "content_filter", "refusal", "pause", "error", "other"]


class TextDelta(Struct, frozen=True, gc=False, eq=False):
    """New text of one channel. `kind`: of reasoning, raw, summary or plan; None where the provider does not say."""

    text: str
    channel: str = "answer"
    choice: int = 0
    block: int = 0
    kind: str | None = None
    # where the channel's text is kept, and its length with this delta, for `so_far`; no part of the value
    _log: Any = None
    _end: int = 0

    @property
    def so_far(self) -> str:
        """The whole text of this choice's channel up to and with this delta. O(length); kept until the next append.

        Raises UsageError on a delta that did not come from a turn in this process.
        """
        if self._log is None:
            raise UsageError("this delta came from no turn of this process (unpickled or made by hand): no text so far")
        text: str = self._log.text()
        return text if len(text) == self._end else text[: self._end]

    def _key(self) -> tuple[Any, ...]:
        return self.text, self.channel, self.choice, self.block, self.kind

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if type(other) is TextDelta else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"TextDelta(text={self.text!r}, channel={self.channel!r}, choice={self.choice!r}, block={self.block!r}, "
            f"kind={self.kind!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return TextDelta, self._key()


class TextReplaced(Struct, frozen=True, gc=False):
    """The provider withdrew or replaced a channel's text: from here on, `text` is the whole of it."""

    text: str
    channel: str = "answer"
    choice: int = 0
    block: int = 0
    reason: str | None = None  # the provider's word, or ours: content_filter, final_text, …


class ToolCallDelta(Struct, frozen=True, gc=False):
    """A fragment of one tool call. `arguments` is raw JSON text, not yet parsed and often not yet valid.

    `index`: the call's place among this turn's calls, from 0. `id` and `name` are set on its first delta alone;
    it is held until the name is known. `complete` is set on the delta with which the provider closed the call.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    choice: int = 0
    block: int = 0
    kind: str = "function"  # function, or custom: then `arguments` is free text
    complete: bool = False


class Citation(Struct, frozen=True, gc=False):
    """A claim's source. `start` and `end` (exclusive) bound the claim in the answer, counted in `unit`.

    `unit`: "characters" or "bytes" (of UTF-8) of the channel's text of this block; None where the provider gives no
    span, as Anthropic, whose span is the whole block. `references`: ids of the references it names. `raw`: as received.
    """

    start: int | None = None
    end: int | None = None
    unit: str | None = None
    url: str | None = None
    title: str | None = None
    cited_text: str | None = None
    references: tuple[str, ...] = ()
    choice: int = 0
    block: int = 0
    raw: Any = None


class Reference(Struct, frozen=True, gc=False):
    """A source that the answer rests on. `id`: what citations call it by. `raw`: as received."""

    id: str
    title: str | None = None
    url: str | None = None
    text: str | None = None
    choice: int = 0
    block: int = 0
    raw: Any = None


class Usage(Struct, frozen=True, gc=False):
    """Tokens, in one form for all providers; None is not told. Snapshots: the last one wins, nothing is summed."""

    input_tokens: int | None = None  # all input: cached, cache-written and tool-prompt included
    output_tokens: int | None = None  # all billed output, reasoning included
    reasoning_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    total_tokens: int | None = None  # the provider's own number
    raw: Any = None  # the provider's objects, merged key by key


class UsageUpdate(Struct, frozen=True, gc=False):
    """The usage known so far."""

    usage: Usage
    choice: int = 0
    block: int = 0


class Finish(Struct, frozen=True, gc=False):
    """A finish reason was named. That does not finish the turn: only its provider's terminal signal does."""

    finish_reason: str
    native: str
    choice: int = 0
    block: int = 0


class Opaque(Struct, frozen=True, gc=False):
    """Something kept for the next request and never shown as text: a signature, encrypted reasoning, a server tool.

    `name`: signature, encrypted, redacted, … ; `data`: as received. It goes back only to `provider` and `model`.
    """

    name: str
    data: Any
    provider: str
    model: str | None = None
    choice: int = 0
    block: int = 0


Delta: TypeAlias = TextDelta | TextReplaced | ToolCallDelta | Citation | Reference | UsageUpdate | Finish | Opaque


class ToolCall(Struct, frozen=True, gc=False):
    """A tool call. `arguments`: raw JSON text (free text where `kind` is custom).

    `complete`: the provider closed it, or its arguments are one whole JSON object. Only the calls of a FinishedTurn may
    be run.
    """

    id: str
    name: str
    arguments: str
    complete: bool
    kind: str = "function"
    choice: int = 0
    block: int = 0
    id_is_ours: bool = False  # the wire had none


class Part(Struct, frozen=True, gc=False):
    """A piece of the answer in the provider's order, with what the next request needs of it.

    `type`: text, reasoning, refusal, tool or opaque. `text` of the first three; `tool_call`; `name` and `data` of an
    opaque part. `provider` and `model` say where it came from, and where alone an opaque part may go back to.
    """

    type: str
    provider: str
    model: str | None = None
    choice: int = 0
    block: int = 0
    text: str = ""
    kind: str | None = None
    tool_call: ToolCall | None = None
    name: str | None = None
    data: Any = None


class Choice(Struct, frozen=True, gc=False):
    """One answer candidate, so far."""

    index: int
    answer: str
    reasoning: str
    refusal: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    native_finish_reason: str | None


class Anomaly(Struct, frozen=True, gc=False):
    """Something odd that was tolerated. `event`: the number of the event, from 1. `path`: where in it."""

    name: str
    event: int
    path: str


class Anomalies(Struct, frozen=True, gc=False):
    """What was tolerated in a turn: how much, of what, and the first 100 with their places."""

    total: int
    counts: Mapping[str, int]
    first: tuple[Anomaly, ...]
