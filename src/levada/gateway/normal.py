"""levada's normal form: a turn as an event stream of its own, the same for every dialect (docs/normal-form.md).

Rules this file keeps:
- Text is append-only: what was not sent yet is merged, so that what waits is bounded by the turn's own text.
- Within a frame the order is state, text, tool calls, references, citations, usage, finish, error, end.
- `end` is the last event and comes once. A stream without it was cut: nothing before it confirms anything.

Sans-IO: deltas in, the bytes of one frame out. Time comes in, in milliseconds of any clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from levada.deltas import (
    Citation,
    Delta,
    Finish,
    Opaque,
    Reference,
    TextDelta,
    TextReplaced,
    ToolCallDelta,
    Usage,
    UsageUpdate,
)
from levada.lifecycle import ENDS, State
from levada.sse import encode_comment, encode_json
from levada.turn import Turn

__all__ = ["HEADERS", "KEEP_ALIVE", "NormalForm"]

# What the answer to POST /turns says of itself: no cache keeps it, and nginx and its kin do not hold it back.
HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
KEEP_ALIVE: Final = encode_comment("keep-alive")

_MERGE_AT: Final = 256  # pieces of text; a short str costs some 50 bytes more than its characters


class _Run:
    """Text of one block that waits: to be appended, or put in the place of the whole channel."""

    __slots__ = ("block", "channel", "choice", "pieces", "reason", "replaced")

    def __init__(self, choice: int, channel: str, block: int) -> None:
        self.choice, self.channel, self.block = choice, channel, block
        self.pieces: list[str] = []
        self.replaced = False
        self.reason: str | None = None

    def append(self, text: str) -> None:
        self.pieces.append(text)
        if len(self.pieces) >= _MERGE_AT:
            self.pieces = ["".join(self.pieces)]


class _Call:
    """What of a tool call waits, and what was told."""

    __slots__ = ("block", "choice", "complete", "id", "kind", "name", "pieces", "told_arguments", "told_complete")

    def __init__(self, choice: int, block: int, kind: str) -> None:
        self.choice, self.block, self.kind = choice, block, kind
        self.id: str | None = None
        self.name: str | None = None
        self.pieces: list[str] = []
        self.complete = self.told_complete = self.told_arguments = False

    def append(self, arguments: str) -> None:
        self.pieces.append(arguments)
        if len(self.pieces) >= _MERGE_AT:
            self.pieces = ["".join(self.pieces)]


class NormalForm:
    """Tells one turn in the normal form. Give it every list of deltas, and ask for a frame when one may be sent."""

    def __init__(self, turn: Turn, *, turn_id: str, now_ms: float, upstream: str | None = None) -> None:
        self._turn = turn
        self._turn_id = turn_id
        self._upstream = upstream
        self._started_ms = now_ms
        self._first_text_ms: float | None = None
        self._number = 0  # of the last event
        self._told: State | None = None
        self._runs: list[_Run] = []
        self._growing: dict[tuple[int, str], _Run] = {}  # where a channel's text is appended to
        self._calls: dict[int, _Call] = {}
        self._moved_calls: dict[int, None] = {}  # a set in order of arrival
        self._references: list[Reference] = []
        self._citations: list[Citation] = []
        self._usage: Usage | None = None
        self._finishes: dict[int, Finish] = {}

    @property
    def ended(self) -> bool:
        """Whether `end` was told: nothing comes after it."""
        return self._told in ENDS

    @property
    def pending_characters(self) -> int:
        """How much text and how many characters of arguments wait."""
        pieces = [run.pieces for run in self._runs] + [self._calls[index].pieces for index in self._moved_calls]
        return sum(len(piece) for some in pieces for piece in some)

    def take(self, deltas: Iterable[Delta], now_ms: float) -> None:
        """Take what the turn brought. After `end` it changes nothing."""
        if self.ended:
            return
        for delta in deltas:
            match delta:
                case TextDelta():
                    if self._first_text_ms is None:
                        self._first_text_ms = now_ms
                    self._run(delta.choice, delta.channel, delta.block).append(delta.text)
                case TextReplaced():
                    self._replace(delta)
                case ToolCallDelta():
                    self._call(delta)
                case Citation():
                    self._citations.append(delta)
                case Reference():
                    self._references.append(delta)
                case UsageUpdate():
                    self._usage = delta.usage
                case Finish():
                    self._finishes[delta.choice] = delta
                case Opaque():
                    pass  # for the next request, not for the screen

    def frame(self, now_ms: float) -> bytes:
        """Return everything that waits, as the bytes of its events; b"" where nothing does."""
        if self.ended:
            return b""
        out: list[bytes] = []
        state = self._turn.state
        if self._told is None:
            self._told = State.CONNECTING
            out.append(self._state(State.CONNECTING))
        if state is not State.CONNECTING and self._told is State.CONNECTING and not self._failed_at_once(state):
            self._told = State.STREAMING
            out.append(self._state(State.STREAMING))
        if state is State.FINISHED:
            self._complete_calls()
        out += self._content()
        if state in ENDS:
            out += self._ending(state, now_ms)
            self._told = state
        return b"".join(out)

    # -- what waits ------------------------------------------------------------------------------------------------

    def _run(self, choice: int, channel: str, block: int) -> _Run:
        run = self._growing.get((choice, channel))
        if run is None or run.block != block:
            run = self._growing[choice, channel] = _Run(choice, channel, block)
            self._runs.append(run)
        return run

    def _replace(self, delta: TextReplaced) -> None:
        """Drop what waits for this channel: the new text stands in the place of all of it."""
        channel = (delta.choice, delta.channel)
        self._runs = [run for run in self._runs if (run.choice, run.channel) != channel]
        self._growing.pop(channel, None)
        run = self._run(delta.choice, delta.channel, delta.block)
        run.append(delta.text)
        run.replaced, run.reason = True, delta.reason
        if not delta.text and delta.channel == "answer":
            self._citations = [citation for citation in self._citations if citation.choice != delta.choice]

    def _call(self, delta: ToolCallDelta) -> None:
        call = self._calls.get(delta.index)
        if call is None:
            call = self._calls[delta.index] = _Call(delta.choice, delta.block, delta.kind)
        if delta.id is not None:
            call.id = delta.id
        if delta.name is not None:
            call.name = delta.name
        if delta.arguments:
            call.append(delta.arguments)
        call.complete = call.complete or delta.complete
        self._moved_calls[delta.index] = None

    def _complete_calls(self) -> None:
        """Tell what only the confirmed end decides: a call that is whole, and `{}` for one without arguments."""
        for index, whole in enumerate(self._turn.tool_calls):
            call = self._calls.get(index)
            if call is None:
                continue
            if whole.arguments and not call.told_arguments and not call.pieces:
                call.append(whole.arguments)
            call.complete = call.complete or whole.complete
            if call.pieces or call.complete != call.told_complete:
                self._moved_calls[index] = None

    # -- telling it ------------------------------------------------------------------------------------------------

    def _content(self) -> list[bytes]:
        out = [self._text(run) for run in self._runs if run.replaced or any(run.pieces)]
        self._runs, self._growing = [], {}
        out += [self._tool_call(index, self._calls[index]) for index in self._moved_calls]
        self._moved_calls = {}
        out += [self._event("reference", _without_raw(reference)) for reference in self._references]
        out += [self._event("citation", _without_raw(citation)) for citation in self._citations]
        self._references, self._citations = [], []
        if self._usage is not None:
            out.append(self._event("usage", _without_raw(self._usage)))
            self._usage = None
        for finish in self._finishes.values():
            named = {"choice": finish.choice, "finish_reason": finish.finish_reason, "native": finish.native}
            out.append(self._event("finish", named))
        self._finishes = {}
        return out

    def _text(self, run: _Run) -> bytes:
        data = {"choice": run.choice, "channel": run.channel, "block": run.block, "text": "".join(run.pieces)}
        if run.replaced:
            return self._event("replaced", {**data, "reason": run.reason})
        return self._event("text", data)

    def _tool_call(self, index: int, call: _Call) -> bytes:
        data: dict[str, Any] = {"index": index, "choice": call.choice, "block": call.block, "kind": call.kind}
        data |= {"id": call.id, "name": call.name, "arguments": "".join(call.pieces), "complete": call.complete}
        call.told_arguments = call.told_arguments or bool(call.pieces)
        call.told_complete = call.complete
        call.pieces = []
        return self._event("tool_call", data)

    def _failed_at_once(self, state: State) -> bool:
        """Say whether the turn ended badly before anything came: it never streamed then."""
        nothing = self._first_text_ms is None and not (self._calls or self._references or self._finishes or self._runs)
        return state in (State.ERROR, State.CANCELLED) and nothing

    def _state(self, state: State) -> bytes:
        data: dict[str, Any] = {"state": state.value, "turn": self._turn_id}
        if self._told is State.CONNECTING and state is State.CONNECTING:
            data |= {"upstream": self._upstream, "dialect": self._turn.dialect, "profile": self._turn.profile}
        return self._event("state", data)

    def _ending(self, state: State, now_ms: float) -> list[bytes]:
        turn, error, out = self._turn, self._turn.error, []
        if error is not None:
            names = ("kind", "type", "message", "retryable", "retry_after_s")
            out.append(self._event("error", {name: getattr(error, name) for name in names}))
        out.append(self._state(state))
        first_ms = self._first_text_ms
        end = {
            "turn": self._turn_id,
            "state": state.value,
            "finish_reason": turn.finish_reason if state is State.FINISHED else None,
            "native_finish_reason": turn.native_finish_reason if state is State.FINISHED else None,
            "model": turn.model,
            "id": turn.id,
            # so that a reader can tell that it holds the whole answer: characters, not bytes nor UTF-16 units
            "characters": {name: len(getattr(turn, name)) for name in ("answer", "reasoning", "refusal")},
            "tool_calls": len(turn.tool_calls),
            "anomalies": turn.anomalies.total,
            "first_text_ms": None if first_ms is None else round(first_ms - self._started_ms),
            "total_ms": round(now_ms - self._started_ms),
        }
        out.append(self._event("end", end))
        return out

    def _event(self, event: str, data: dict[str, Any]) -> bytes:
        self._number += 1
        return encode_json(data, event=event, id=str(self._number))


def _without_raw(value: Citation | Reference | Usage) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__ if name != "raw"}
