"""What a turn has received so far: the only writer of its channels, calls, parts, usage and finish.

A dialect reads an event and says here what it means, in levada's words; each call makes the delta, if there is one, and
keeps what the turn will be asked for. Nothing here knows a wire format, a socket or a clock.

Three things a dialect should know:
- Nothing is trimmed, nothing is guessed. Empty text makes no delta. `None` and "" never overwrite what is known.
- An event whose whole effect was one `text()` may serve as a stencil for the next ones (stencils.py). Any other effect
  must be visible here: every method counts itself; a dialect that changes its own state calls `touch()`.
- `fail()` is an error that the peer caused. It is sticky: the first one decides, later ones only fill its empty fields.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from levada._backend import hotpath
from levada.deltas import (
    CHANNELS,
    Anomalies,
    Anomaly,
    Choice,
    Citation,
    Delta,
    Finish,
    Opaque,
    Part,
    Reference,
    TextDelta,
    TextReplaced,
    ToolCall,
    ToolCallDelta,
    Usage,
    UsageUpdate,
)
from levada.errors import ProtocolError, ProviderError, TooLarge, TurnError
from levada.thinking import ThinkSplitter

if TYPE_CHECKING:
    from levada._hotpath_py import TextLog
else:
    TextLog = hotpath.TextLog

_T = TypeVar("_T")

MOST_USAGE_KEYS: Final = 256  # in one object; providers send some twenty
FIRST_ANOMALIES: Final = 100  # kept with their places; the others are counted

# Stand for a list and a dict in which nothing is yet: thousands of turns may be alive, and most need few of them.
_NONE: Final[Any] = ()
_EMPTY: Final[Any] = MappingProxyType({})


class _ByChannel(Generic[_T]):
    """A dict of the three channels, at a quarter of a dict's size."""

    __slots__ = CHANNELS

    def __init__(self) -> None:
        for channel in CHANNELS:
            setattr(self, channel, None)

    def get(self, channel: str) -> _T | None:
        found: _T | None = getattr(self, channel)
        return found

    def __setitem__(self, channel: str, value: _T) -> None:
        setattr(self, channel, value)

    def pop(self, channel: str) -> _T | None:
        found = self.get(channel)
        setattr(self, channel, None)
        return found


class _Part:
    """A part that grows. Text parts are stretches of their channel's log: [start, end), the last one open."""

    __slots__ = ("block", "channel", "choice", "data", "kind", "log", "model", "name", "stretches", "tool", "type")

    def __init__(self, type: str, choice: int, block: int) -> None:
        self.type = type
        self.choice = choice
        self.block = block
        self.channel = ""
        self.kind: str | None = None
        self.model: str | None = None
        self.log: TextLog | None = None
        self.stretches: list[list[int]] = []
        self.tool: Tool | None = None
        self.name: str | None = None
        self.data: Any = None


class Tool:
    """A tool call that grows. Dialects hold on to it between events; only Draft changes it."""

    __slots__ = ("announced", "arguments", "block", "choice", "closed", "id", "id_is_ours", "index", "kind", "name")

    def __init__(self, index: int, choice: int, block: int, kind: str) -> None:
        self.index = index
        self.choice = choice
        self.block = block
        self.kind = kind
        self.id = ""
        self.id_is_ours = False  # the wire gave none
        self.name = ""
        self.arguments = TextLog()
        self.closed = False  # the provider said that it is complete
        self.announced = False  # its first delta went out


class _Choice:
    """One answer candidate that grows."""

    __slots__ = ("current", "finish", "index", "known", "logs", "splitter", "went_on")

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish: str | None = None  # the native word
        self.went_on = False  # text or a call came after it
        self.logs: _ByChannel[TextLog] = _ByChannel()
        self.current: _ByChannel[_Part] = _ByChannel()  # the part that grows
        self.known: dict[tuple[str, int, str | None], _Part] = _EMPTY  # by channel, block, kind: the last part
        self.splitter: ThinkSplitter | None = None


class Draft:
    """Everything a turn knows before it ends."""

    __slots__ = (
        "_anomaly_counts",
        "_first_anomalies",
        "_namesakes",
        "choices",
        "citations",
        "effects",
        "error",
        "event_number",
        "id",
        "max_choices",
        "max_tool_calls",
        "model",
        "only_text",
        "out",
        "parts",
        "provider",
        "raw_usage",
        "references",
        "refused",
        "terminal",
        "text_mode",
        "think_tags",
        "tools",
        "usage",
    )

    def __init__(
        self,
        provider: str,
        *,
        think_tags: tuple[str, ...] = (),
        text_mode: str = "delta",
        max_tool_calls: int = 1024,
        max_choices: int = 128,
    ) -> None:
        self.provider = provider
        self.think_tags = think_tags
        self.text_mode = text_mode
        self.max_tool_calls = max_tool_calls
        self.max_choices = max_choices
        # set by the turn before each event
        self.event_number = 0
        self.out: list[Delta] = []
        # what came
        self.id: str | None = None
        self.model: str | None = None
        self.choices: dict[int, _Choice] = {}
        self.parts: list[_Part] = []
        self.tools: list[Tool] = _NONE
        self.citations: list[Citation] = _NONE
        self.references: list[Reference] = _NONE
        self.raw_usage: dict[str, Any] = _EMPTY
        self._namesakes: dict[tuple[int, str], list[Reference]] = _EMPTY  # the references, by choice and id
        self.usage: Usage | None = None
        self.error: TurnError | None = None
        self.terminal = False  # the dialect's terminal signal came
        self.refused = False
        # anomalies
        self._anomaly_counts: dict[str, int] = _EMPTY
        self._first_anomalies: list[Anomaly] = _NONE
        # how many effects this event had, and its text where that was the only one
        self.effects = 0
        self.only_text: TextDelta | None = None

    # -- bookkeeping -----------------------------------------------------------------------------------------------

    def begin_event(self, out: list[Delta]) -> None:
        """Begin to take an event; its deltas go to `out`."""
        self.out = out
        self.event_number += 1
        self.effects = 0
        self.only_text = None

    def end_events(self) -> None:
        """Let go of what only an event being taken needs."""
        self.out = _NONE
        self.only_text = None

    def touch(self) -> None:
        """Say that the event changed something that only the dialect knows."""
        self.effects += 1

    @property
    def pure_text(self) -> TextDelta | None:
        """The delta of this event where making it was the event's whole effect."""
        return self.only_text if self.effects == 1 else None

    def anomaly(self, name: str, path: str = "") -> None:
        """Count something odd that loses nothing. `name` is one of the words in docs/turns.md; `path` says where."""
        self.effects += 1
        if not self._anomaly_counts:
            self._anomaly_counts, self._first_anomalies = {}, []
        self._anomaly_counts[name] = self._anomaly_counts.get(name, 0) + 1
        if len(self._first_anomalies) < FIRST_ANOMALIES:
            self._first_anomalies.append(Anomaly(name, self.event_number, path))

    def count_of(self, name: str) -> int:
        """Return how often an anomaly was counted."""
        return self._anomaly_counts.get(name, 0)

    @property
    def anomalies(self) -> Anomalies:
        """What was tolerated so far."""
        counts = MappingProxyType(dict(self._anomaly_counts))
        return Anomalies(sum(counts.values()), counts, tuple(self._first_anomalies))

    # -- who answers -----------------------------------------------------------------------------------------------

    def name_turn(self, id: object = None, model: object = None) -> None:
        """Take the answer's id (the first one stays) and model (the last one wins)."""
        if type(id) is str and id and self.id is None:
            self.id = id
            self.effects += 1
        if type(model) is str and model and model != self.model:
            self.model = model
            self.effects += 1

    def choice(self, index: int) -> _Choice:
        """Return the candidate, new where it was not seen before. Above `max_choices` the turn fails."""
        found = self.choices.get(index)
        if found is None:
            found = _Choice(index)
            if len(self.choices) >= self.max_choices:
                self.fail(
                    f"more than {self.max_choices} choices, at event {self.event_number}; raise max_choices if you "
                    "trust this provider",
                    error=TooLarge,
                )
                return found
            if self.think_tags:
                found.splitter = ThinkSplitter(self.think_tags)
            self.choices[index] = found
            self.effects += 1
        return found

    # -- text ------------------------------------------------------------------------------------------------------

    def text(
        self, text: str, channel: str = "answer", choice: int = 0, block: int = 0, kind: str | None = None
    ) -> None:
        """Append text to a channel. `block`: the provider's content block, which begins a part of its own."""
        if not text:
            return
        candidate = self.choice(choice)
        if channel == "answer":
            if candidate.splitter is not None:
                for inside, piece in candidate.splitter.feed(text):
                    self._append(piece, "reasoning" if inside else "answer", candidate, block, None)
                self.effects += 1  # the splitter's own state
                return
        elif channel == "refusal":
            self.refused = True
        self._append(text, channel, candidate, block, kind)

    def text_so_far(
        self, text: str, channel: str = "answer", choice: int = 0, block: int = 0, kind: str | None = None
    ) -> None:
        """Take a channel's whole text so far, from wires that repeat it: append what is new, replace what changed."""
        log = self.choice(choice).logs.get(channel)
        known = log.text() if log is not None else ""
        if text.startswith(known):
            self.text(text[len(known) :], channel, choice, block, kind)
        else:
            self.replace(text, channel, choice, block, "changed_prefix")

    def _append(self, text: str, channel: str, candidate: _Choice, block: int, kind: str | None) -> None:
        if candidate.finish is not None:
            candidate.went_on = True
        log = candidate.logs.get(channel)
        if log is None:
            log = candidate.logs[channel] = TextLog()
            self.effects += 1
        part = candidate.current.get(channel)
        if part is None or part.block != block or part.kind != kind:
            part = self._switch_part(candidate, channel, block, kind, log)
        delta = TextDelta(text, channel, candidate.index, block, kind, log, log.append(text))
        self.effects += 1
        self.only_text = delta
        self.out.append(delta)

    def _switch_part(self, candidate: _Choice, channel: str, block: int, kind: str | None, log: TextLog) -> _Part:
        """End the part that grew in this channel; return the one that grows now, new or taken up again."""
        self.effects += 1
        former = candidate.current.get(channel)
        if former is not None:
            former.stretches[-1][1] = log.length
        part = None
        if former is not None and former.block != block:
            part = candidate.known.get((channel, block, kind))
        if part is None:
            part = _Part("text" if channel == "answer" else channel, candidate.index, block)
            part.channel, part.kind, part.model, part.log = channel, kind, self.model, log
            self.parts.append(part)
            if former is not None or candidate.known:
                if candidate.known is _EMPTY:  # most candidates have one part of a channel, and need no dict
                    candidate.known = {}
                if former is not None:
                    candidate.known.setdefault((channel, former.block, former.kind), former)
                candidate.known[channel, block, kind] = part
        part.stretches.append([log.length, -1])
        candidate.current[channel] = part
        return part

    def end_part(self, channel: str, choice: int = 0) -> None:
        """End the part that grows: text that follows begins a new one, also in the same block."""
        candidate = self.choice(choice)
        part = candidate.current.pop(channel)
        if part is not None and part.log is not None:
            part.stretches[-1][1] = part.log.length
            self.effects += 1

    def replace(
        self, text: str, channel: str = "answer", choice: int = 0, block: int = 0, reason: str | None = None
    ) -> None:
        """Set a channel's whole text anew: withdrawn or replaced by the provider. "" withdraws all of it."""
        candidate = self.choice(choice)
        former = candidate.logs.get(channel)
        if former is not None and former.text() == text:
            return
        log = candidate.logs[channel] = TextLog()
        if channel == "answer" and candidate.splitter is not None:
            candidate.splitter = ThinkSplitter(self.think_tags)
        candidate.current.pop(channel)
        place = next((n for n, part in enumerate(self.parts) if part.log is former is not None), len(self.parts))
        self.parts = [part for part in self.parts if former is None or part.log is not former]
        candidate.known = {key: part for key, part in candidate.known.items() if part.log is not former}
        if not text and channel == "answer":
            self.citations = [citation for citation in self.citations if citation.choice != choice]
        self.effects += 2
        if text:
            part = _Part("text" if channel == "answer" else channel, choice, block)
            part.channel, part.model, part.log = channel, self.model, log
            part.stretches.append([0, -1])
            self.parts.insert(place, part)
            candidate.current[channel] = part
            if candidate.known is not _EMPTY:
                candidate.known[channel, block, None] = part
            log.append(text)
        self.out.append(TextReplaced(text, channel, choice, block, reason))

    def growing_part(self, channel: str, choice: int = 0) -> _Part | None:
        """Return the part that this channel's text goes to, for dialects whose wire repeats the text of each part."""
        candidate = self.choices.get(choice)
        return candidate.current.get(channel) if candidate is not None else None

    def text_of(self, parts: Iterable[_Part]) -> str:
        """Return the text of some parts, joined."""
        return "".join(_text_of(part) for part in parts)

    def replace_parts(self, parts: Sequence[_Part], text: str, reason: str | None = None) -> None:
        """Set the text of one or more parts of one channel anew, in the place of the first; other parts keep theirs."""
        first = parts[0]
        former = first.log
        assert former is not None  # only text parts come here
        known = former.text()
        kin = [
            (start, end if end >= 0 else former.length, part)
            for part in self.parts
            if part.log is former
            for start, end in part.stretches
        ]
        kin.sort(key=lambda stretch: stretch[:2])
        candidate = self.choice(first.choice)
        log = candidate.logs[first.channel] = TextLog()
        for part in {id(part): part for _, _, part in kin}.values():
            part.log, part.stretches = log, []
        placed = False
        for start, end, part in kin:
            piece = known[start:end]
            if part in parts:
                piece, placed = "" if placed else text, True
            part.stretches.append([log.length, log.append(piece) if piece else log.length])
        growing = candidate.current.get(first.channel)
        if growing is not None:
            growing.stretches.append([log.length, -1])
        self.effects += 2
        self.out.append(TextReplaced(log.text(), first.channel, first.choice, first.block, reason))

    def flush_text(self) -> None:
        """Give out what the think-tag splitter holds: nothing more can come that would complete a tag."""
        for candidate in self.choices.values():
            if candidate.splitter is not None:
                for inside, piece in candidate.splitter.close():
                    part = candidate.current.get("reasoning" if inside else "answer")
                    block = part.block if part is not None else 0
                    self._append(piece, "reasoning" if inside else "answer", candidate, block, None)

    @property
    def went_on(self) -> bool:
        """Whether a candidate went on after its finish reason, and named none after that."""
        return any(candidate.went_on for candidate in self.choices.values())

    def channel_text(self, channel: str, choice: int = 0) -> str:
        """Return a channel's text so far; "" where nothing came."""
        candidate = self.choices.get(choice)
        log = candidate.logs.get(channel) if candidate is not None else None
        return log.text() if log is not None else ""

    def part_text(self, channel: str, choice: int, block: int) -> str:
        """Return the text so far of one block of a channel."""
        return "".join(
            _text_of(part)
            for part in self.parts
            if part.channel == channel and part.choice == choice and part.block == block and part.log is not None
        )

    # -- tool calls ------------------------------------------------------------------------------------------------

    def open_tool(
        self,
        id: str | None = None,
        name: str | None = None,
        choice: int = 0,
        block: int = 0,
        kind: str = "function",
    ) -> Tool:
        """Begin a tool call and return it. Above `max_tool_calls` the turn fails."""
        candidate = self.choice(choice)
        tool = Tool(len(self.tools), candidate.index, block, kind)
        if len(self.tools) >= self.max_tool_calls:
            self.fail(
                f"more than {self.max_tool_calls} tool calls, at event {self.event_number}; raise max_tool_calls if "
                "you trust this provider",
                error=TooLarge,
            )
            return tool
        self.tools = self.tools or []
        self.tools.append(tool)
        part = _Part("tool", choice, block)
        part.tool, part.model = tool, self.model
        self.parts.append(part)
        self.effects += 1
        self.tool(tool, id=id, name=name)
        return tool

    def tool(self, tool: Tool, arguments: str = "", *, id: str | None = None, name: str | None = None) -> None:
        """Add to a tool call. The first non-empty id and name stay; the call is announced once its name is known."""
        if id and not tool.id:
            tool.id = id
        if name and not tool.name:
            tool.name = name
        if arguments:
            tool.arguments.append(arguments)
        self.effects += 1
        candidate = self.choices.get(tool.choice)
        if candidate is not None and candidate.finish is not None:
            candidate.went_on = True
        self._announce(tool, arguments)

    def set_arguments(self, tool: Tool, arguments: str) -> None:
        """Take a tool call's whole arguments, from wires that repeat them: add what is missing, count what differs."""
        known = tool.arguments.text()
        if arguments.startswith(known):
            self.tool(tool, arguments[len(known) :])
        elif arguments != known:
            self.anomaly("arguments_differ", f"tool {tool.index}")
            tool.arguments = TextLog()
            tool.arguments.append(arguments)

    def close_tool(self, tool: Tool) -> None:
        """Take the provider's word that a tool call is complete. Without arguments it has {}."""
        if tool.closed:
            return
        tool.closed = True
        self.effects += 1
        missing = ""
        if not tool.arguments.length and tool.kind == "function":
            missing = "{}"
            tool.arguments.append(missing)
        self._announce(tool, missing)
        if tool.announced:
            self.out.append(ToolCallDelta(tool.index, "", None, None, tool.choice, tool.block, tool.kind, True))

    def close_tools(self, choice: int) -> None:
        """Close every tool call of a candidate: its finish said that they are complete."""
        for tool in self.tools:
            if tool.choice == choice:
                self.close_tool(tool)

    def _announce(self, tool: Tool, fragment: str) -> None:
        """Make the delta for what is new. A call is announced once its name and id are known, or it is closed."""
        first = not tool.announced
        if first:
            if not tool.name or not (tool.id or tool.closed):
                return
            tool.announced = True
            if not tool.id:
                tool.id, tool.id_is_ours = f"call_{tool.index}", True
            fragment = tool.arguments.text()
        elif not fragment:
            return
        self.out.append(
            ToolCallDelta(
                tool.index,
                fragment,
                tool.id if first else None,
                tool.name if first else None,
                tool.choice,
                tool.block,
                tool.kind,
            )
        )

    # -- what stands beside the text -------------------------------------------------------------------------------

    def cite(self, citation: Citation) -> None:
        """Add a citation."""
        self.effects += 1
        self.citations = self.citations or []
        self.citations.append(citation)
        self.out.append(citation)

    def refer(self, reference: Reference) -> None:
        """Add a reference, unless an equal one is known."""
        if self._namesakes is _EMPTY:
            self._namesakes = {}
        namesakes = self._namesakes.setdefault((reference.choice, reference.id), [])
        if reference not in namesakes:
            self.effects += 1
            namesakes.append(reference)
            self.references = self.references or []
            self.references.append(reference)
            self.out.append(reference)

    def set_citations(self, citations: Sequence[Citation], choice: int = 0) -> None:
        """Set a candidate's citations anew, from wires that repeat or correct them. Only what is new makes a delta."""
        former = [citation for citation in self.citations if citation.choice == choice]
        if former != list(citations):
            self.effects += 1
            self.citations = [citation for citation in self.citations if citation.choice != choice] + list(citations)
            self.out.extend(_news(former, citations))

    def set_references(self, references: Sequence[Reference], choice: int = 0) -> None:
        """Set a candidate's references anew, as `set_citations` does."""
        former = [reference for reference in self.references if reference.choice == choice]
        if former != list(references):
            self.effects += 1
            self.references = [known for known in self.references if known.choice != choice] + list(references)
            self._namesakes = {}
            for reference in self.references:
                self._namesakes.setdefault((reference.choice, reference.id), []).append(reference)
            self.out.extend(_news(former, references))

    def keep(self, name: str, data: Any, choice: int = 0, block: int = 0) -> None:
        """Keep something for the next request that is no text, as a part. The dialect may go on filling `data`."""
        self.choice(choice)
        part = _Part("opaque", choice, block)
        part.name, part.data, part.model = name, data, self.model
        self.parts.append(part)
        self.effects += 1

    def opaque(self, name: str, data: Any, choice: int = 0, block: int = 0, *, keep: bool = True) -> None:
        """Hand out something that is no text; with `keep`, as a part too."""
        if keep:
            self.keep(name, data, choice, block)
        self.effects += 1
        self.out.append(Opaque(name, data, self.provider, self.model, choice, block))

    def use(self, raw: Mapping[str, Any], usage: Usage) -> None:
        """Take the usage known so far, as `merge_usage` and the dialect's own rule made it of `raw`."""
        if usage != self.usage:
            self.usage = usage
            self.effects += 1
            self.out.append(UsageUpdate(usage))

    def merge_usage(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a raw usage object into what is known, key by key; null and missing overwrite nothing."""
        self.raw_usage = self.raw_usage or {}
        if _merge(self.raw_usage, raw, MOST_USAGE_KEYS) <= 0:
            self.anomaly("usage_too_large", "usage")
        return self.raw_usage

    # -- how it ends -----------------------------------------------------------------------------------------------

    def finish(self, native: str, finish_reason: str, choice: int = 0) -> None:
        """Take a finish reason: the provider's word, and ours for it. A later one beats an earlier one."""
        candidate = self.choice(choice)
        self.effects += 1
        candidate.went_on = False
        if candidate.finish == native:
            return
        candidate.finish = native
        self.out.append(Finish(finish_reason, native, choice))

    def confirm(self) -> None:
        """Take the dialect's terminal signal. The turn checks every other rule."""
        self.effects += 1
        self.terminal = True

    def fail(
        self,
        message: str,
        type: str | None = None,
        *,
        error: type[TurnError] = ProviderError,
        retryable: bool = False,
        retry_after_s: float | None = None,
        raw: Any = None,
    ) -> None:
        """Take an error that the peer caused. The first one decides its kind; later ones fill its empty fields."""
        self.effects += 1
        if self.error is None:
            self.error = error(message, type, retryable, retry_after_s, raw)
        elif self.error.kind == "provider" == error.kind:
            known = self.error
            self.error = ProviderError(
                known.message or message,
                known.type or type,
                known.retryable or retryable,
                known.retry_after_s if known.retry_after_s is not None else retry_after_s,
                known.raw if known.raw is not None else raw,
            )

    def break_protocol(self, message: str, raw: Any = None) -> None:
        """Fail because text, tool arguments or a finish may have been lost."""
        self.fail(f"{message}, at event {self.event_number}", error=ProtocolError, raw=raw)

    # -- what the turn is asked for --------------------------------------------------------------------------------

    def tool_calls(self, finish_reasons: Mapping[int, str | None], choice: int | None = None) -> tuple[ToolCall, ...]:
        """Return the tool calls so far, with `complete` by the rule of docs/turns.md."""
        return tuple(
            self._tool_call(tool, finish_reasons.get(tool.choice))
            for tool in self.tools
            if choice is None or tool.choice == choice
        )

    def _tool_call(self, tool: Tool, finish_reason: str | None) -> ToolCall:
        arguments = tool.arguments.text()
        complete = tool.closed
        if tool.kind == "function" and (not complete or finish_reason == "length"):
            complete = _is_json_object(arguments)
        elif finish_reason == "length" and not tool.closed:
            complete = False
        return ToolCall(
            tool.id or f"call_{tool.index}",
            tool.name,
            arguments,
            complete,
            tool.kind,
            tool.choice,
            tool.block,
            tool.id_is_ours or not tool.id,
        )

    def choice_values(self, finish_reasons: Mapping[int, str | None]) -> tuple[Choice, ...]:
        """Return the candidates so far, by index."""
        return tuple(
            Choice(
                index,
                self.channel_text("answer", index),
                self.channel_text("reasoning", index),
                self.channel_text("refusal", index),
                self.tool_calls(finish_reasons, index),
                finish_reasons.get(index),
                self.choices[index].finish,
            )
            for index in sorted(self.choices)
        )

    def part_values(self, finish_reasons: Mapping[int, str | None]) -> tuple[Part, ...]:
        """Return the parts so far, in the provider's order."""
        values = []
        for part in self.parts:
            call = self._tool_call(part.tool, finish_reasons.get(part.choice)) if part.tool is not None else None
            values.append(
                Part(
                    part.type,
                    self.provider,
                    part.model,
                    part.choice,
                    part.block,
                    _text_of(part) if part.log is not None else "",
                    part.kind,
                    call,
                    part.name,
                    copy.deepcopy(part.data),
                )
            )
        return tuple(values)


def _news(former: Sequence[_T], values: Sequence[_T]) -> list[_T]:
    """Return the values that are not among the former ones. By repr: they hold JSON, which cannot be hashed."""
    known = {repr(value) for value in former}
    return [value for value in values if repr(value) not in known]


def _text_of(part: _Part) -> str:
    assert part.log is not None  # only text parts come here
    text = part.log.text()
    return "".join(text[start : end if end >= 0 else None] for start, end in part.stretches)


def _merge(known: dict[str, Any], news: Mapping[str, Any], room: int) -> int:
    """Merge, so that no object has more than `room` keys; return how much room is left, 0 where a key was left out."""
    for key, value in news.items():
        if value is None:
            continue
        if key not in known and len(known) >= room:
            return 0
        if isinstance(value, dict) and isinstance(known.get(key), dict):
            if not _merge(known[key], value, room):
                return 0
        else:
            known[key] = dict(value) if isinstance(value, dict) else value
    return 1


def _is_json_object(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True
