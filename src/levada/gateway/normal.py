"""levada's normal form: a turn as an event stream of its own, the same for every dialect (docs/normal-form.md).

Rules this file keeps:
- Text is append-only: what was not sent yet is merged, so that what waits is bounded by the turn's own text.
- Within a frame the order is state, text, tool calls, references, citations, usage, finish, error, end.
- `end` is the last event and comes once. A stream without it was cut: nothing before it confirms anything.

Sans-IO: deltas in, the events of one frame out. Time comes in, in milliseconds of any clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from levada.errors import TurnError
from levada.lifecycle import ENDS, State
from levada.sse import encode_comment, encode_event, json_text
from levada.turn import Turn

__all__ = ["HEADERS", "KEEP_ALIVE", "NormalForm", "ending", "error_event"]

# What the answer to POST /turns says of itself: no cache keeps it, and nginx and its kin do not hold it back.
HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
KEEP_ALIVE: Final = encode_comment("keep-alive")

_LONGEST: Final = 256 * 1024  # characters of text in one event: a log keeps events of some MiB, JSON may need six times
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
        """Return everything that waits, as the bytes of its events, numbered; b"" where nothing does."""
        return self.encoded(self.events(now_ms))

    def encoded(self, events: Iterable[tuple[str, str]]) -> bytes:
        """Return the bytes of events, numbered on."""
        out: list[bytes] = []
        for event, data in events:
            self._number += 1
            out.append(encode_event(data, event=event, id=str(self._number)))
        return b"".join(out)

    def events(self, now_ms: float) -> list[tuple[str, str]]:
        """Return everything that waits as events: type and JSON text of each; [] where nothing waits."""
        if self.ended:
            return []
        out: list[tuple[str, str]] = []
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
        return out

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

    def _content(self) -> list[tuple[str, str]]:
        out = [event for run in self._runs if run.replaced or any(run.pieces) for event in self._text(run)]
        self._runs, self._growing = [], {}
        out += [event for index in self._moved_calls for event in self._tool_call(index, self._calls[index])]
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

    def _text(self, run: _Run) -> Iterator[tuple[str, str]]:
        first, *more = _pieces("".join(run.pieces))
        data = {"choice": run.choice, "channel": run.channel, "block": run.block, "text": first}
        yield self._event("replaced", {**data, "reason": run.reason}) if run.replaced else self._event("text", data)
        for text in more:
            yield self._event("text", {**data, "text": text})

    def _tool_call(self, index: int, call: _Call) -> Iterator[tuple[str, str]]:
        data: dict[str, Any] = {"index": index, "choice": call.choice, "block": call.block, "kind": call.kind}
        data |= {"id": call.id, "name": call.name}
        *some, last = _pieces("".join(call.pieces))
        call.told_arguments = call.told_arguments or bool(call.pieces)
        call.told_complete = call.complete
        call.pieces = []
        for arguments in some:
            yield self._event("tool_call", {**data, "arguments": arguments, "complete": False})
        yield self._event("tool_call", {**data, "arguments": last, "complete": call.complete})

    def _failed_at_once(self, state: State) -> bool:
        """Say whether the turn ended badly before anything came: it never streamed then."""
        nothing = self._first_text_ms is None and not (self._calls or self._references or self._finishes or self._runs)
        return state in (State.ERROR, State.CANCELLED) and nothing

    def _state(self, state: State) -> tuple[str, str]:
        data: dict[str, Any] = {"state": state.value, "turn": self._turn_id}
        if self._told is State.CONNECTING and state is State.CONNECTING:
            data |= {"upstream": self._upstream, "dialect": self._turn.dialect, "profile": self._turn.profile}
        return self._event("state", data)

    def _ending(self, state: State, now_ms: float) -> list[tuple[str, str]]:
        turn, error, out = self._turn, self._turn.error, []
        if error is not None:
            out.append(error_event(error))
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

    def _event(self, event: str, data: dict[str, Any]) -> tuple[str, str]:
        return event, json_text(data)


def error_event(error: TurnError) -> tuple[str, str]:
    """Return the event that says why there is no answer."""
    names = ("kind", "type", "message", "retryable", "retry_after_s")
    return "error", json_text({name: getattr(error, name) for name in names})


def ending(turn_id: str, error: TurnError) -> list[tuple[str, str]]:
    """Return the last events of a turn that nobody can tell to its end: `end` knows nothing but the state."""
    names = ("finish_reason", "native_finish_reason", "model", "id", "characters", "tool_calls", "anomalies")
    unknown = dict.fromkeys((*names, "first_text_ms", "total_ms"))
    told = {"state": State.ERROR.value, "turn": turn_id}
    return [error_event(error), ("state", json_text(told)), ("end", json_text({**unknown, **told}))]


def _without_raw(value: Citation | Reference | Usage) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__ if name != "raw"}


def _pieces(text: str) -> list[str]:
    """Cut text to what one event carries; at least one piece."""
    return [text[at : at + _LONGEST] for at in range(0, len(text), _LONGEST)] or [""]
