"""A turn: bytes of a model's stream in, deltas out, and at the end one verified answer, or why there is none.

Rules this file keeps (docs/turns.md):
- FINISHED is entered in `_finish` alone, after every check: no error seen, the dialect's terminal signal or a clean end
  that the dialect accepts, a finish reason for every choice where the dialect asks for it, none of them an error.
- What the peer does ends in the state; only our caller's mistakes raise.
- After the end nothing changes: events are counted, and an error's empty fields may be filled.
- Any cut of the stream gives the same deltas, joined, and the same end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from levada._hotpath_py import DEFAULT_LIMIT, LARGEST_LIMIT, _as_bytes
from levada._wire import Stray
from levada.deltas import Anomalies, Choice, Citation, Delta, Part, Reference, TextDelta, ToolCall, Usage
from levada.dialects import Profile, dialect_named, profile_named
from levada.dialects.base import Dialect
from levada.dialects.failures import fail_with, is_error_document, is_retryable
from levada.dialects.reading import read_document
from levada.draft import Draft
from levada.errors import (
    Cancelled,
    EventTooLarge,
    MalformedPayload,
    NotFinished,
    ProtocolError,
    ProviderError,
    TooLarge,
    TransportError,
    Truncated,
    TurnError,
    TurnTimeout,
    UsageError,
)
from levada.finished import _MAKER, FinishedTurn
from levada.frames import JsonArray, JsonLines
from levada.lifecycle import Lifecycle, Signal, State
from levada.sse import Event, EventParser
from levada.stencils import find_stencil
from levada.strays import Strays
from levada.transport import retry_after_s

if TYPE_CHECKING:
    from levada._hotpath_py import Stencil

# 256 MiB: four of the largest events. The turn counts what it was fed, whatever it keeps of it.
DEFAULT_TURN_LIMIT: Final = 256 * 1024 * 1024

_FRAMINGS: Final = ("sse", "ndjson", "json-array")
_TERMINALS: Final = ("strict", "done", "finish_reason")
_TEXT_MODES: Final = ("delta", "cumulative", "auto")
_STREAM_TYPES: Final = {
    "text/event-stream": "sse",
    "application/x-ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/json": "json-array",
    "application/json+stream": "json-array",
}
_VAGUE_TYPES: Final = ("", "text/plain", "application/octet-stream", "binary/octet-stream")
_SPACE: Final = b" \t\r\n\xef\xbb\xbf"  # white space and a byte order mark: they do not tell the framing
_MOST_SPACE: Final = 4096  # after so much of it the framing is the default one

_STENCILS: Final = 4  # kept at once: answer and reasoning of two choices
_STENCIL_TRIES: Final = 16  # each costs some microseconds; a stream that never fits one in so many stops trying


class Turn:
    """One turn of a model, from its stream.

    `dialect`: the wire's name (levada.DIALECTS). `profile`: a server's name (levada.PROFILES) or a Profile; its habits
    are used unless said otherwise here. `framing`: sse, ndjson or json-array; the dialect's by default, told by the
    head or the first bytes where it has two. `terminal`: strict, done or finish_reason (docs/turns.md). `think_tags`:
    names of tags to split out of the answer, as ("think",). `text_mode`: delta, cumulative or auto.
    Limits are inclusive; above one the turn ends as an error of kind too_large.
    Raises UsageError for a name or setting that makes no sense.
    """

    __slots__ = (
        "_body",
        "_content_type",
        "_dialect",
        "_draft",
        "_events",
        "_first_bytes",
        "_framing",
        "_lifecycle",
        "_max_event_bytes",
        "_max_turn_bytes",
        "_parser",
        "_retry_after_s",
        "_room",
        "_status",
        "_stencil_tries",
        "_stencils",
        "_strays",
        "_terminal",
    )

    def __init__(
        self,
        dialect: str,
        *,
        profile: str | Profile | None = None,
        framing: str | None = None,
        terminal: str | None = None,
        think_tags: Iterable[str] | None = None,
        text_mode: str | None = None,
        max_event_bytes: int = DEFAULT_LIMIT,
        max_turn_bytes: int = DEFAULT_TURN_LIMIT,
        max_tool_calls: int = 1024,
        max_choices: int = 128,
    ) -> None:
        room = dialect_named(dialect)
        habits = profile_named(profile, dialect)
        terminal = habits.terminal if terminal is None else terminal
        text_mode = habits.text_mode if text_mode is None else text_mode
        _check_word(terminal, _TERMINALS, "terminal")
        _check_word(text_mode, _TEXT_MODES, "text_mode")
        if terminal not in room.terminals:
            raise UsageError(
                f"terminal={terminal!r} makes no sense for {dialect}; there: {', '.join(sorted(room.terminals))}"
            )
        if text_mode not in room.text_modes:
            fitting = ", ".join(sorted(room.text_modes))
            raise UsageError(f"text_mode={text_mode!r} makes no sense for {dialect}; there: {fitting}")
        if think_tags and text_mode != "delta":
            raise UsageError("think_tags need text_mode='delta': a text that is repeated whole cannot be split")
        if framing is not None:
            _check_word(framing, _FRAMINGS, "framing")
            if framing not in room.framings:
                raise UsageError(f"{dialect} is never framed as {framing}; there: {', '.join(room.framings)}")
        for name, value in (
            ("max_event_bytes", max_event_bytes),
            ("max_turn_bytes", max_turn_bytes),
            ("max_tool_calls", max_tool_calls),
            ("max_choices", max_choices),
        ):
            if type(value) is not int or not 1 <= value <= LARGEST_LIMIT:
                raise UsageError(f"{name} must be an int from 1 to {LARGEST_LIMIT}, not {value!r:.100}")
        if isinstance(think_tags, str):
            raise UsageError("think_tags takes names of tags, as ('think',), not one string")
        self._draft = Draft(
            room.provider if profile is None else habits.name,
            think_tags=tuple(think_tags or ()),
            text_mode=text_mode,
            max_tool_calls=max_tool_calls,
            max_choices=max_choices,
        )
        self._dialect: Dialect = room(self._draft, habits)
        self._terminal = terminal
        self._lifecycle = Lifecycle()
        self._max_event_bytes = max_event_bytes
        self._max_turn_bytes = max_turn_bytes
        self._room = max_turn_bytes  # so many bytes may yet come
        self._framing = framing if framing is not None or len(room.framings) > 1 else room.framings[0]
        self._parser: EventParser | JsonArray | JsonLines | None = None
        self._events: EventParser | None = None  # the parser of an event stream, until the turn ends
        self._first_bytes: bytes | None = b""  # held while the framing is not decided
        self._body: bytearray | None = None  # a body that is no stream is held whole
        self._status: int | None = None
        self._content_type = ""
        self._retry_after_s: float | None = None
        self._strays: Strays | None = None
        self._stencils: list[Stencil] = []
        self._stencil_tries = _STENCIL_TRIES

    # -- what the peer does ----------------------------------------------------------------------------------------

    def head(
        self,
        status: int,
        content_type: str | None = None,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> None:
        """Take the head of the HTTP response; optional, before the first `feed`.

        A status other than 2xx, or a type that is no stream, makes the body an error at `eof`. `headers` may give
        content-type, and retry-after (a date counts from the response's own). Raises UsageError after the first `feed`.
        """
        fed = self._room < self._max_turn_bytes
        if fed or self._lifecycle.state is not State.CONNECTING or self._status is not None:
            raise UsageError("head() comes once, before the first feed(); a Turn reads one response: make a new one")
        if content_type is not None and not isinstance(content_type, str):
            raise TypeError(f"content_type must be str or None, not {type(content_type).__name__}")
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        named = {str(name).lower(): str(value) for name, value in pairs}
        if content_type is None:
            content_type = named.get("content-type")
        self._status = status
        self._content_type = (content_type or "").partition(";")[0].strip().lower()
        self._retry_after_s = retry_after_s(named)
        framing = _STREAM_TYPES.get(self._content_type)
        vague = self._content_type in _VAGUE_TYPES
        if not 200 <= status < 300:
            self._body = bytearray()
        elif framing is not None and framing in ((self._framing,) if self._framing else self._dialect.framings):
            self._framing = framing
        elif not vague:
            self._body = bytearray()

    def feed(self, chunk: bytes | bytearray | memoryview, /) -> list[Delta]:
        """Take the next bytes of the stream; return the deltas they complete, oldest first, or [].

        `chunk` may be cut anywhere. After the end it returns [] and counts. Raises TypeError for anything but bytes,
        bytearray or memoryview, never for what the bytes say: look at `state` and `error`.
        """
        # The hot path: an event stream that goes on. Everything else, once a chunk, is `_feed_otherwise`.
        parser = self._events
        if parser is None or type(chunk) is not bytes:
            return self._feed_otherwise(chunk)
        room = self._room - len(chunk)
        if room < 0:
            return self._feed_otherwise(chunk)
        self._room = room
        try:
            frames = parser._feed_frames(chunk, self._stencils)
        except EventTooLarge as error:
            return self._break(error, TooLarge(str(error)))
        if not frames:
            return frames
        if type(frames[-1]) is TextDelta:
            # stencils rest after the first frame that is no delta, so all of these are deltas
            self._draft.event_number += len(frames)
            self._stencil_tries = _STENCIL_TRIES
            return frames
        out: list[Delta] = []
        self._process(frames, out)
        return out

    def _feed_otherwise(self, chunk: bytes | bytearray | memoryview) -> list[Delta]:
        chunk = _as_bytes(chunk, "feed", "; use feed_text for text")
        if self._lifecycle.ended:
            self._after_end(chunk)
            return []
        over = len(chunk) > self._room
        rest = b""
        if over:
            chunk, rest = chunk[: self._room], chunk[self._room :]
        if self._events is not None:
            out = Turn.feed(self, chunk)  # not an override, which has seen this chunk
        else:
            self._room -= len(chunk)
            out = self._take(chunk) if chunk else []
        if over and not self._lifecycle.ended:
            self._fail(
                TooLarge(
                    f"the turn is larger than {self._max_turn_bytes} bytes; raise max_turn_bytes if you trust this "
                    "provider"
                )
            )
        if rest:
            self._count_chunk(rest)
        return out

    def feed_text(self, text: str, /) -> list[Delta]:
        """Do as `feed` does with text, for transports that decode by themselves."""
        if not isinstance(text, str):
            raise TypeError(f"feed_text() takes str, not {type(text).__name__}; use feed for bytes")
        return self.feed(text.encode("utf-8", "surrogatepass"))

    def feed_event(self, event: Event | bytes, /) -> list[Delta]:
        """Take one event that somebody else framed: an Event, or one JSON item's bytes. Not to be mixed with feed."""
        if isinstance(event, Event):
            frame = (event.event, event.data.encode("utf-8", "surrogatepass"))
        elif isinstance(event, (bytes, bytearray, memoryview)):
            frame = ("message", bytes(event))
        else:
            raise TypeError(f"feed_event() takes Event or the bytes of a JSON item, not {type(event).__name__}")
        if self._parser is not None or self._body is not None:
            raise UsageError("feed_event() does not mix with feed(): the framing is one's or the other's")
        if self._lifecycle.ended:
            self._count_after_end([frame])
            return []
        self._first_bytes = None
        self._room -= len(frame[1])
        if self._room < 0:
            self._fail(TooLarge(f"the turn is larger than {self._max_turn_bytes} bytes; raise max_turn_bytes"))
            return []
        out: list[Delta] = []
        self._process([frame], out)
        return out

    def eof(self, *, clean: bool) -> list[Delta]:
        """Take the end of the stream. `clean`: the HTTP framing was complete (last chunk, content length, END_STREAM).

        Returns the deltas that only the end completes. Without the terminal signal the turn ends as truncated.
        """
        if self._lifecycle.ended:
            self._lifecycle.after_end += 1
            return []
        out: list[Delta] = []
        if self._body is not None:
            self._read_body(bytes(self._body), clean, out)
            self._body = bytearray()
            return out
        if self._first_bytes:
            held, self._first_bytes = self._first_bytes, None
            self._choose_parser("")
            out += self._take(held)
        array_closed, torn = None, False
        if not self._lifecycle.ended:
            array_closed, torn = self._close_parser(out)
        if not self._lifecycle.ended and self._strays:
            self._judge_strays(clean, out)
        if not self._lifecycle.ended and clean and not torn:
            self._draft.begin_event(out)
            self._draft.event_number -= 1  # the end is no event
            if self._dialect.confirmed_by_end(array_closed) or (
                self._terminal == "finish_reason" and self._all_finished() and not self._draft.went_on
            ):
                self._finish()
        if not self._lifecycle.ended:
            self._truncate(clean)
        return out

    def fail(self, exc: BaseException) -> bool:
        """Take a failure of the transport: kind timeout for TimeoutError, else transport; a TurnError stays itself.

        Returns False, having changed nothing, where the turn had already ended.
        """
        if self._lifecycle.ended:
            self._lifecycle.after_end += 1
            return False
        words = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
        if isinstance(exc, TurnError):
            error = exc.copy()
        elif isinstance(exc, TimeoutError):
            error = TurnTimeout(words, retryable=True)
        else:
            error = TransportError(words, retryable=True)
        if error.retry_after_s is None and not 200 <= (self._status or 200) < 300:
            # its body was lost, its head was not
            error = type(error)(error.message, error.type, error.retryable, self._retry_after_s, error.raw)
        self._fail(error)
        return True

    def cancel(self) -> bool:
        """Stop the turn from our side. Returns False, having changed nothing, where it had already ended."""
        moved = self._lifecycle.move(Signal.CANCEL)
        if moved:
            self._release()
        return moved

    # -- what came of it -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Where the turn is."""
        return self._lifecycle.state

    @property
    def error(self) -> TurnError | None:
        """Why the turn ended badly; None while it has not."""
        return self._draft.error if self._lifecycle.state is State.ERROR else None

    @property
    def dialect(self) -> str:
        """The wire's name."""
        return self._dialect.name

    @property
    def profile(self) -> str:
        """The server's name; the dialect's own where none was given."""
        return self._dialect.profile.name

    @property
    def answer(self) -> str:
        """The answer so far: choice 0, all its blocks in arrival order. O(length), kept until more comes."""
        return self._draft.channel_text("answer")

    @property
    def reasoning(self) -> str:
        """The reasoning of choice 0 so far."""
        return self._draft.channel_text("reasoning")

    @property
    def refusal(self) -> str:
        """The refusal of choice 0 so far."""
        return self._draft.channel_text("refusal")

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All candidates so far, by index."""
        return self._draft.choice_values(self._finish_reasons())

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls so far, in order of appearance. None may be run before the turn is finished."""
        return self._draft.tool_calls(self._finish_reasons())

    @property
    def parts(self) -> tuple[Part, ...]:
        """The pieces of the answer so far, in the provider's order."""
        return self._draft.part_values(self._finish_reasons())

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations so far."""
        return tuple(self._draft.citations)

    @property
    def references(self) -> tuple[Reference, ...]:
        """The references so far."""
        return tuple(self._draft.references)

    @property
    def usage(self) -> Usage | None:
        """The usage last stated, or None."""
        return self._draft.usage

    @property
    def finish_reason(self) -> str | None:
        """The common finish reason of choice 0, None while none was named. It does not mean "finished"."""
        reason = self._finish_reasons().get(0)
        return "other" if reason is None and self._lifecycle.state is State.FINISHED else reason

    @property
    def native_finish_reason(self) -> str | None:
        """The provider's own word for it."""
        choice = self._draft.choices.get(0)
        return choice.finish if choice is not None else None

    @property
    def model(self) -> str | None:
        """The model named last, or None."""
        return self._draft.model

    @property
    def id(self) -> str | None:
        """The answer's id named first, or None."""
        return self._draft.id

    @property
    def anomalies(self) -> Anomalies:
        """What was odd and tolerated so far, events after the end included."""
        return self._draft.anomalies

    @property
    def events(self) -> int:
        """How many events or JSON items came, the terminal signal and those after the end included."""
        return self._draft.event_number

    @property
    def after_end(self) -> int:
        """How many calls came after the end and changed nothing."""
        return self._lifecycle.after_end

    def result(self) -> FinishedTurn:
        """Return the finished turn. Raises NotFinished, Cancelled, or the turn's own error (a fresh copy)."""
        state = self._lifecycle.state
        if state is State.ERROR and self._draft.error is not None:
            raise self._draft.error.copy()
        if state is State.CANCELLED:
            raise Cancelled()
        if state is not State.FINISHED:
            raise NotFinished(state.value)
        return FinishedTurn(
            _MAKER,
            dialect=self.dialect,
            profile=self.profile,
            **{name: getattr(self, name) for name in FinishedTurn.__slots__ if name not in ("dialect", "profile")},
        )

    # -- framing ---------------------------------------------------------------------------------------------------

    def _take(self, chunk: bytes) -> list[Delta]:
        if self._parser is None:
            if self._body is not None:
                return self._take_body(chunk)
            held = (self._first_bytes or b"") + chunk
            first = held.lstrip(_SPACE)[:1]
            if self._framing is None and not first and len(held) <= _MOST_SPACE:
                self._first_bytes = held
                return []
            self._first_bytes = None
            self._choose_parser(first.decode("latin-1"))
            chunk = held
        if self._events is not None:
            self._room += len(chunk)  # feed counts them
            return Turn.feed(self, chunk)  # not an override, which has seen this chunk
        parser = self._parser
        assert not isinstance(parser, EventParser | None)  # chosen above, and no event stream
        try:
            items = parser.feed(chunk)
        except EventTooLarge as error:
            return self._break(error, TooLarge(str(error)))
        except MalformedPayload as error:
            return self._break(error, ProtocolError(str(error)))
        out: list[Delta] = []
        self._process([("message", item) for item in items], out)
        return out

    def _break(self, error: EventTooLarge | MalformedPayload, failure: TurnError) -> list[Delta]:
        """Take what came before the framing broke, and fail."""
        out: list[Delta] = []
        self._process(_frames_of(error), out)
        if not self._lifecycle.ended:
            self._fail(failure)
        return out

    def _choose_parser(self, first: str) -> None:
        """Make the parser of the framing: the one that was said, or what the first byte tells."""
        framings = self._dialect.framings
        framing = self._framing
        if framing is None:
            framing = framings[0]
            if "json-array" in framings and "sse" in framings and first:
                framing = "json-array" if first in "[{" else "sse"
        self._framing = framing
        if framing == "sse":
            self._parser = self._events = EventParser(max_event_bytes=self._max_event_bytes)
        elif framing == "ndjson":
            self._parser = JsonLines(max_item_bytes=self._max_event_bytes)
        else:
            self._parser = JsonArray(max_item_bytes=self._max_event_bytes)

    def _close_parser(self, out: list[Delta]) -> tuple[bool | None, bool]:
        """Close the framing and take what only the end completes.

        Returns whether a JSON array was closed (None in other framings), and whether the stream is torn: something
        had begun that nobody read, an event, an item or a bare JSON document. It may be an error that was cut off, so
        that a clean end does not confirm the turn.
        """
        parser = self._parser
        if isinstance(parser, EventParser):
            remainder, stray = parser._close_frames()
            if stray is not None:
                self._process([stray], out)
            torn = stray is not None or (self._strays is not None and (self._strays.open or self._strays.markup))
            if self._lifecycle.ended or not remainder.raw:
                return None, torn
            data = remainder.data
            if data is not None and self._dialect.is_terminal(data):
                return None, torn  # no terminal signal without its blank line, but nothing is lost
            if data is not None and self._dialect.accepts_unterminated and read_document(data) is not None:
                self._process([("message", data.encode("utf-8", "surrogatepass"))], out)
                return None, torn
            return None, True
        if isinstance(parser, JsonLines):
            self._process([("message", item) for item in parser.close()], out)
            return None, False
        if parser is not None:
            return parser.closed, bool(parser.close())
        return None, False

    # -- events ----------------------------------------------------------------------------------------------------

    def _process(self, frames: list[Any], out: list[Delta]) -> None:
        """Take frames in order: deltas that stencils made, pairs of event type and data, strays."""
        draft = self._draft
        for number, frame in enumerate(frames):
            if type(frame) is TextDelta:
                draft.event_number += 1
                self._stencil_tries = _STENCIL_TRIES
                out.append(frame)
                continue
            if isinstance(frame, Stray):
                self._take_stray(frame.line, out)
            else:
                event, data = frame
                delta = self._by_stencil(event, data)
                if delta is not None:
                    draft.event_number += 1
                    out.append(delta)
                    continue
                self._take_event(event, data, out)
            if self._lifecycle.ended:
                self._count_after_end(frames[number + 1 :])
                break
        draft.end_events()

    def _by_stencil(self, event: str, data: bytes) -> TextDelta | None:
        for stencil in self._stencils:
            if stencil.event == event:
                delta: TextDelta | None = stencil.delta(data)
                if delta is not None:
                    return delta
        return None

    def _take_event(self, event: str, data: bytes, out: list[Delta]) -> None:
        draft = self._draft
        draft.begin_event(out)
        if self._dialect.take(event, data):
            self._open()
        if draft.error is not None:
            self._fail(draft.error)
        elif draft.terminal:
            self._finish()
        elif draft.effects:
            delta = draft.pure_text
            if delta is None:
                self._stencils = []
            else:
                self._learn(event, data, delta)

    def _open(self) -> None:
        """Note an event that is no keep-alive."""
        self._lifecycle.move(Signal.OPENED if self._lifecycle.state is State.CONNECTING else Signal.DELTA)

    def _learn(self, event: str, data: bytes, delta: TextDelta) -> None:
        decoder = self._dialect.decoder
        if decoder is None or not self._stencil_tries or self._draft.think_tags or self._draft.text_mode != "delta":
            return
        self._stencil_tries -= 1
        stencil = find_stencil(event, data, delta, decoder, self._dialect.text_keys, self._dialect.noise_keys)
        if stencil is not None:
            others = [known for known in self._stencils if known.log is not delta._log]
            self._stencils = [stencil, *others][:_STENCILS]

    def _take_stray(self, line: str, out: list[Delta]) -> None:
        """Look for an error in lines that are no fields: `error: {…}`, or a bare JSON document of one or more lines."""
        draft = self._draft
        draft.begin_event(out)
        draft.event_number -= 1  # a stray line is no event
        name, colon, value = line.partition(":")
        if colon and name == "error":
            document = read_document(value)
            fail_with(draft, value.strip() if document is None else document)
        else:
            draft.anomaly("stray_line")
            if self._strays is None:
                self._strays = Strays(self._max_event_bytes)
            for found in self._strays.feed(line, keep=self._lifecycle.state is State.CONNECTING):
                document = read_document(found)
                if document is None:
                    draft.break_protocol("a bare JSON document that cannot be read")
                elif is_error_document(document):
                    fail_with(draft, document, status=self._status, retry_after_s=self._retry_after_s)
        if draft.error is not None:
            self._fail(draft.error)

    def _judge_strays(self, clean: bool, out: list[Delta]) -> None:
        """Say at the end what a body was that had no event at all, only lines that are no fields."""
        if self._lifecycle.state is State.CONNECTING and self._strays is not None:
            self._read_body("\n".join(self._strays.lines).encode("utf-8", "surrogatepass"), clean, out)

    def _after_end(self, chunk: bytes) -> None:
        """Count what comes after the end, and let an error's later events fill its empty fields."""
        self._lifecycle.after_end += 1
        self._count_chunk(chunk)

    def _count_chunk(self, chunk: bytes) -> None:
        parser = self._parser
        try:
            if isinstance(parser, EventParser):
                self._count_after_end(parser._feed_frames(chunk, []))
            elif parser is not None:
                self._count_after_end([("message", item) for item in parser.feed(chunk)])
        except (EventTooLarge, MalformedPayload) as error:
            self._count_after_end(_frames_of(error))
        except UsageError:
            pass  # the framing was closed

    def _count_after_end(self, frames: list[Any]) -> None:
        for frame in frames:
            if isinstance(frame, Stray):
                continue
            self._draft.event_number += 1
            self._draft.anomaly("after_end")
            if self._lifecycle.state is State.ERROR and self._draft.error is not None:
                scratch = Draft(self._draft.provider)
                scratch.error = self._draft.error
                scratch.begin_event([])
                type(self._dialect)(scratch, self._dialect.profile).take(*frame)
                self._draft.error = scratch.error

    # -- bodies that are no stream ---------------------------------------------------------------------------------

    def _take_body(self, chunk: bytes) -> list[Delta]:
        assert self._body is not None  # the caller looked
        self._body += chunk
        if len(self._body) > self._max_event_bytes:
            self._fail(
                TooLarge(
                    f"a body that is no stream is larger than {self._max_event_bytes} bytes; raise max_event_bytes if "
                    "you trust this provider"
                )
            )
        return []

    def _read_body(self, body: bytes, clean: bool, out: list[Delta]) -> None:
        """Judge a body that is no stream: an error of the provider, a whole answer, or something else."""
        status = self._status or 200
        ok = 200 <= status < 300
        draft = self._draft
        draft.begin_event(out)
        draft.event_number -= 1  # neither is such a body
        document = read_document(body)
        if is_error_document(document) or (not ok and isinstance(document, (dict, list))):
            fail_with(draft, document, status=None if ok else status, retry_after_s=self._retry_after_s)
            assert draft.error is not None  # fail_with sets it
            self._fail(draft.error)
            return
        if ok and document is not None and clean and self._dialect.take_whole(document):
            self._open()
            if draft.error is not None:
                self._fail(draft.error)
            else:
                self._finish()
            return
        if ok and not body.strip():
            self._truncate(clean)
            return
        what = "a page of HTML" if body.lstrip()[:1] == b"<" else "JSON" if document is not None else "text"
        words = f"HTTP status {status}" if not ok else "the body is no stream"
        self._fail(
            ProtocolError(
                f"{words}: {len(body)} bytes of {what}, content type {self._content_type or 'not told'}",
                type=None if ok else str(status),
                retryable=is_retryable([status]),
                retry_after_s=self._retry_after_s,
            )
        )

    # -- ends ------------------------------------------------------------------------------------------------------

    def _finish_reasons(self) -> Mapping[int, str | None]:
        return self._dialect.finish_reasons()

    def _all_finished(self) -> bool:
        choices = self._draft.choices.values()
        return bool(choices) and all(choice.finish is not None for choice in choices)

    def _finish(self) -> None:
        """Enter FINISHED, if every rule allows it. The one way in."""
        draft = self._draft
        if draft.error is not None:
            self._fail(draft.error)
            return
        reasons = self._finish_reasons()
        for index, reason in reasons.items():
            if reason == "error":
                native = draft.choices[index].finish
                self._fail(
                    ProviderError(
                        f"the provider ended choice {index} with {native}", native, retryable=is_retryable([native])
                    )
                )
                return
        if self._strays is not None and self._strays.open:
            self._fail(Truncated("a bare JSON document, which may be an error, began and never ended", retryable=True))
            return
        if self._dialect.needs_all_finishes and self._terminal != "done" and not self._all_finished():
            missing = [str(index) for index, reason in reasons.items() if reason is None]
            which = f"choice {', '.join(missing)}" if missing else "any choice"
            self._fail(
                Truncated(
                    f"{self._dialect.terminal_signal} came without a finish reason for {which}; "
                    "terminal='done' accepts that",
                    retryable=True,
                )
            )
            return
        draft.flush_text()
        self._dialect.closing()
        if draft.error is not None:
            self._fail(draft.error)
            return
        self._open()
        self._lifecycle.move(Signal.TERMINAL)
        self._release()

    def _truncate(self, clean: bool) -> None:
        how = "ended" if clean else "broke off"
        came, retryable = "without its terminal signal", True
        if self._lifecycle.state is State.CONNECTING:
            came = "before anything came"
            strange = self._draft.count_of("unknown_event")
            if strange:
                came = f"after {strange} events that {self.dialect} does not know: is it another dialect?"
                retryable = False
        self._draft.error = Truncated(f"the stream {how} {came} ({self._dialect.terminal_signal})", retryable=retryable)
        self._lifecycle.move(Signal.CLOSED)
        self._release()

    def _fail(self, error: TurnError) -> None:
        self._draft.error = error
        self._lifecycle.move(Signal.FAILED)
        self._release()

    def _release(self) -> None:
        """Let go of what only a turn that goes on needs."""
        self._events = None
        self._stencils = []
        self._strays = None
        self._first_bytes = None


def _frames_of(error: EventTooLarge | MalformedPayload) -> list[Any]:
    return [("message", item) if isinstance(item, bytes) else item for item in error.completed]


def _check_word(value: object, words: tuple[str, ...], option: str) -> None:
    if value not in words:
        raise UsageError(f"{option} must be one of {', '.join(words)}, not {value!r:.100}")
