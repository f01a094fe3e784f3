"""OpenAI Responses, and the servers that speak it, to deltas.

Events: `event:` equal to `data.type`, with a `sequence_number`; servers that leave the name out are read by the type.
Terminal: `response.completed` or `response.incomplete`. `response.failed`, `error` (flat or nested) and a status of
cancelled or failed fail the turn. The end of an item, `[DONE]`, the end of the stream confirm nothing.
Order: response.created, response.in_progress, per item output_item.added, its content, output_item.done; the terminal
event with the whole response.

Items are known by `output_index`, which is our `block`, never by `item_id`: GitHub Copilot changes every id on every
event. Indexes may have gaps.

The wire says every text up to five times: in deltas, at the end of the text, of its part, of its item, and in the
terminal event. The deltas count, the repetitions are checked:
- an empty, null or missing repetition says nothing;
- where no delta came for a part, its first repetition is its text;
- where they differ, `final_text_differs` is counted and the repetition holds: what is missing at the end of the channel
  is added, anything else becomes a TextReplaced, in which the other parts of the channel keep their text.
With think tags the answer cannot be compared; there the deltas hold. Arguments are put right in the same way.

What stands where:
- message: the answer, also what its `phase` calls commentary, and the refusal. Annotations: citations, in characters of
  the block's text; a part of a message that is not its first is counted from the first one's beginning.
- reasoning: the reasoning, kind summary or raw. `encrypted_content`, as output_item.done has it (what comes earlier is
  another): the opaque part "encrypted".
- function_call and custom_tool_call: tool calls, with `call_id` as id.
- every other item, as a server's tool: an opaque part "item", whole. Its progress events say nothing more.
- what is left of the first three (ids, status, phase), for the next request: an opaque part "envelope".

Sources: openai-python 3.57.0 types, vercel/ai and pydantic-ai sources, recorded streams; read 2026-11-30.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from levada.deltas import Citation, Usage
from levada.dialects.failures import fail_with
from levada.dialects.named import NamedDialect, NamedEvent
from levada.dialects.profiles import Profile
from levada.dialects.reading import as_count, compact
from levada.draft import Draft, Tool

if TYPE_CHECKING:
    from levada.deltas import Part
    from levada.draft import _Part
    from levada.finished import FinishedTurn

_INCOMPLETE: Final = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "max_messages": "pause",
    "steered": "pause",  # WebSocket only
}

# type of a part of content -> channel, kind, the field with its text
_PARTS: Final = {
    "output_text": ("answer", None, "text"),
    "refusal": ("refusal", None, "refusal"),
    "reasoning_text": ("reasoning", "raw", "text"),
    "summary_text": ("reasoning", "summary", "text"),
}
# event -> type of the part that it belongs to
_DELTAS: Final = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
    "response.reasoning_summary_text.delta": "summary_text",
}
_DONES: Final = {
    "response.output_text.done": "output_text",
    "response.refusal.done": "refusal",
    "response.reasoning_text.done": "reasoning_text",
    "response.reasoning_summary_text.done": "summary_text",
}
_PART_EVENTS: Final = frozenset(
    {
        "response.content_part.added",
        "response.content_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
    }
)
# event -> type of the item, field with the arguments
_ARGUMENTS: Final = {
    "response.function_call_arguments.delta": ("function_call", "delta"),
    "response.function_call_arguments.done": ("function_call", "arguments"),
    "response.custom_tool_call_input.delta": ("custom_tool_call", "delta"),
    "response.custom_tool_call_input.done": ("custom_tool_call", "input"),
}
_OPENINGS: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS: Final = {"response.completed": "completed", "response.incomplete": "incomplete"}
_FAILURES: Final = {"response.failed": "failed", "response.cancelled": "cancelled"}

# The progress of what runs at the server: the final item says it all.
_PROGRESS: Final = (
    "response.web_search_call",
    "response.file_search_call",
    "response.code_interpreter_call",
    "response.image_generation_call",
    "response.mcp_call",
    "response.mcp_list_tools",
    "response.shell_call",
    "response.local_shell_call",
    "response.apply_patch_call",
    "response.tool_search_call",
    "response.computer_call",
    "response.program",
    "response.audio.",
    "response.compaction.",
    "response.steer",
)

# Items that are read, with the fields that become text, calls and opaque parts; the rest is their envelope.
_READ_ITEMS: Final = {
    "message": frozenset({"content"}),
    "reasoning": frozenset({"content", "summary", "encrypted_content"}),
    "function_call": frozenset({"call_id", "name", "arguments"}),
    "custom_tool_call": frozenset({"call_id", "name", "input"}),
}
# Items that are kept whole. Others are kept as well, and counted.
_KEPT_ITEMS: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "shell_call",
        "shell_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "computer_call",
        "computer_call_output",
        "tool_search_call",
        "tool_search_output",
        "function_call_output",
        "custom_tool_call_output",
        "program",
        "program_output",
        "additional_tools",
        "configuration_update",
        "compaction",
    }
)

_Key = tuple[str, str | None, int]  # of a text within its item: channel, kind, index


class _Event(NamedEvent):
    """The keys of an event that mean something here. All are Any: a wrong type is dealt with where it is read."""

    output_index: Any = None
    content_index: Any = None
    summary_index: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    input: Any = None
    item: Any = None
    part: Any = None
    annotation: Any = None
    response: Any = None


class _Text:
    """The text of one part of an item, as streamed."""

    __slots__ = ("annotations", "came", "parts")

    def __init__(self) -> None:
        self.came = False  # any text
        self.parts: list[_Part] = []  # the draft's; more than one where parts of an item took turns
        self.annotations: Counter[str] = Counter()


class _Item:
    """An output item that came or is coming."""

    __slots__ = ("current", "done", "encrypted", "id", "index", "kept", "shares", "texts", "tool", "type")

    def __init__(self, index: int, type: str, kept: dict[str, Any]) -> None:
        self.index = index
        self.type = type
        self.kept = kept  # the part "item" or "envelope"
        self.id: str | None = None  # told last
        self.done = False
        self.shares = False  # its index, with an item before it
        self.encrypted = False  # handed out
        self.tool: Tool | None = None
        self.texts: dict[_Key, _Text] = {}
        self.current: dict[str, _Key] = {}  # by channel, the text that grows


class ResponsesDecoder(NamedDialect):
    """Reads one Responses stream."""

    __slots__ = (
        "_after",
        "_all",
        "_created",
        "_id",
        "_items",
        "_last",
        "_reason",
    )

    name = "openai_responses"
    provider = "openai"
    terminal_signal = "response.completed or response.incomplete"
    shape = _Event
    content_events = (
        frozenset({"response.output_item.added", "response.output_item.done", "response.output_text.annotation.added"})
        | frozenset(_DELTAS)
        | frozenset(_DONES)
        | _PART_EVENTS
        | frozenset(_ARGUMENTS)
        | _OPENINGS
        | frozenset(_ENDS)
        | frozenset(_FAILURES)
    )
    terminal_events = frozenset(_ENDS)
    keep_alives = frozenset({"ping", "keepalive", "response.keepalive"})
    decoder = msgspec.json.Decoder(_Event)
    text_keys = (b'"delta":', b'"delta": ')
    noise_keys = (
        b'"sequence_number":',
        b'"sequence_number": ',
        b'"obfuscation":',
        b'"obfuscation": ',
        b'"item_id":',
        b'"item_id": ',
    )

    def __init__(self, draft: Draft, profile: Profile) -> None:
        super().__init__(draft, profile)
        self._created = False
        self._id: str | None = None
        self._items: dict[int, _Item] = {}  # by output_index, the latest
        self._all: list[_Item] = []
        self._last: _Item | None = None
        self._after = 0  # an index that no item has
        self._reason: str | None = None  # of an incomplete response

    # -- events ----------------------------------------------------------------------------------------------------

    def has_content(self, chunk: _Event) -> bool:
        """Say whether an event without a type has something that may be text."""
        return any(value is not None for value in (chunk.delta, chunk.text, chunk.item, chunk.part, chunk.response))

    def read_event(self, kind: str, chunk: _Event) -> bool:
        """Read one event of a type; say whether it was no keep-alive."""
        part = _DELTAS.get(kind)
        if part is not None:
            self._text_delta(part, chunk)
        elif kind in _ARGUMENTS:
            self._arguments(kind, chunk)
        elif kind in _DONES:
            self._text_done(_DONES[kind], chunk)
        elif kind in _PART_EVENTS:
            self._part_event(kind, chunk)
        elif kind == "response.output_item.added":
            self._item_added(chunk)
        elif kind == "response.output_item.done":
            self._item_done(chunk)
        elif kind == "response.output_text.annotation.added":
            self._annotation_added(chunk)
        elif kind in _OPENINGS:
            self._opening(kind, chunk.response)
        elif kind in _ENDS:
            self._end(_ENDS[kind], chunk.response)
        elif kind in _FAILURES:
            self._failure(_FAILURES[kind], chunk.response)
        elif not kind.startswith(_PROGRESS):
            self.draft.anomaly("unknown_event", kind[:100])
            return False
        return True

    # -- the response ----------------------------------------------------------------------------------------------

    def _opening(self, kind: str, response: Any) -> None:
        draft = self.draft
        draft.touch()
        if not isinstance(response, dict):
            draft.anomaly("missing_response", kind)
            response = {}
        if response.get("status") in ("failed", "cancelled"):
            self._failure(response["status"], response)
            return
        id = _string(response.get("id"))
        if kind == "response.created":
            if self._created or self._all:
                if self._all and (id is None or id != self._id):
                    draft.break_protocol("a second response began inside the first")
                else:
                    draft.anomaly("repeated_response_created")
                return
            self._created = True
            self._id = id
        draft.name_turn(id, response.get("model"))

    def _failure(self, status: str, response: Any) -> None:
        if not isinstance(response, dict):
            response = {}
        self.draft.name_turn(response.get("id"), response.get("model"))
        self._usage(response.get("usage"))
        error = response.get("error")
        if isinstance(error, dict) and error:
            fail_with(self.draft, error)
        else:
            words = error if isinstance(error, str) and error else f"the response ended as {status}"
            self.draft.fail(words, status, raw=response or None)

    def _end(self, status: str, response: Any) -> None:
        """Take the terminal event: check all texts once more, then confirm."""
        draft = self.draft
        if response is None:
            draft.anomaly("missing_response", status)
            response = {}
        elif not isinstance(response, dict):
            draft.break_protocol("response is no object")
            return
        told = response.get("status")
        if told in ("failed", "cancelled") or response.get("error"):
            self._failure(told if told in ("failed", "cancelled") else "failed", response)
            return
        if isinstance(told, str) and told and told != status:
            draft.anomaly("status_differs", told[:100])
            if told == "incomplete":
                status = told
        draft.name_turn(response.get("id"), response.get("model"))
        output = response.get("output")
        if isinstance(output, list):
            self._check_output(output)
        elif output is not None:
            draft.break_protocol("output is no list")
            return
        self._usage(response.get("usage"))
        details = response.get("incomplete_details")
        if isinstance(details, dict):
            self._reason = _string(details.get("reason"))
        for item in self._all:
            if item.tool is not None:
                if not item.tool.name:
                    draft.break_protocol("a tool call never got its name")
                    return
                if status == "completed" and item.done and item.kept.get("status") != "incomplete":
                    draft.close_tool(item.tool)
        draft.finish(status, self.common_finish(status, 0))
        draft.confirm()

    def _usage(self, raw: Any) -> None:
        if isinstance(raw, dict):
            merged = self.draft.merge_usage(raw)
            self.draft.use(merged, usage_of(merged))
        elif raw is not None:
            self.draft.anomaly("usage_no_object", "response.usage")

    def common_finish(self, native: str, choice: int) -> str:
        """Return the common word for the response's status: what it holds tells more than the status."""
        if native == "completed":
            if self.draft.tools:
                return "tool_use"
            return "refusal" if self.draft.refused else "stop"
        if native == "incomplete":
            return _INCOMPLETE.get(self._reason or "", "other")
        return "error" if native in ("failed", "cancelled") else "other"

    # -- items -----------------------------------------------------------------------------------------------------

    def _item(self, index: Any, type: str) -> _Item | None:
        """Return the item that an event speaks of; without an index, the latest one; new where it never began."""
        item: _Item | None
        if index is None:
            self.draft.anomaly("missing_output_index")
            item = self._last
            index = 0
        elif _is_index(index):
            item = self._items.get(index)
        else:
            self.draft.break_protocol("output_index is no number")
            return None
        if item is None:
            self.draft.anomaly("item_not_begun", f"output_index {index}")
            item = self._begin(index, type)
        return item

    def _begin(self, index: int, type: str) -> _Item:
        draft = self.draft
        kept: dict[str, Any] = {"type": type}
        draft.keep("envelope" if type in _READ_ITEMS else "item", kept, 0, index)
        shares = index in self._items
        item = self._items[index] = self._last = _Item(index, type, kept)
        item.shares = shares
        self._all.append(item)
        self._after = max(self._after, index + 1)
        if type in ("function_call", "custom_tool_call"):
            kind = "function" if type == "function_call" else "custom"
            item.tool = draft.open_tool(None, None, 0, index, kind)
        elif type not in _READ_ITEMS and type not in _KEPT_ITEMS:
            draft.anomaly("unknown_item", type[:100])
        return item

    def _item_of(self, chunk: _Event, *, new: bool) -> tuple[_Item, dict[str, Any]] | None:
        """Return the item that output_item.added (`new`) or .done speaks of, and its body."""
        draft = self.draft
        draft.touch()
        body = chunk.item
        if not isinstance(body, dict):
            if body is None:
                draft.anomaly("missing_item")
            else:
                draft.break_protocol("item is no object")
            return None
        index = chunk.output_index
        if index is None:
            draft.anomaly("missing_output_index")
            index = self._after if new or self._last is None else self._last.index
        elif not _is_index(index):
            draft.break_protocol("output_index is no number")
            return None
        type = _string(body.get("type")) or ""
        item = self._items.get(index)
        if item is not None and (type not in ("", item.type) or (new and (item.done or _other_call(item, body)))):
            draft.anomaly("output_index_reused", f"output_index {index}")  # some servers give all items one index
            item = None
        elif item is not None and new:
            draft.anomaly("repeated_item_added", f"output_index {index}")
        if item is None:
            item = self._begin(index, type)
        self._last = item
        return item, body

    def _item_added(self, chunk: _Event) -> None:
        found = self._item_of(chunk, new=True)
        if found is not None:
            self._describe(*found)

    def _item_done(self, chunk: _Event) -> None:
        found = self._item_of(chunk, new=False)
        if found is None:
            return
        item, body = found
        self._describe(item, body)
        self._check_item(item, body)
        tool = item.tool
        if tool is not None:
            status = body.get("status")
            if status == "completed" or (status not in ("incomplete", "in_progress") and tool.arguments.length):
                self.draft.close_tool(tool)
            # a call without arguments may have been cut off; the terminal event tells

    def _describe(self, item: _Item, body: dict[str, Any]) -> None:
        """Take what an item says of itself, but for its content."""
        own = _READ_ITEMS.get(item.type)
        if own is None:
            item.kept.clear()
            item.kept.update(body)
        else:
            item.kept.update({key: value for key, value in body.items() if key not in own and value is not None})
        item.id = _string(body.get("id")) or item.id
        if item.tool is not None:
            self.draft.tool(item.tool, id=_string(body.get("call_id")), name=_string(body.get("name")))

    def _check_item(self, item: _Item, body: dict[str, Any]) -> None:
        """Compare an item's final body with what came of it."""
        if item.type == "message":
            self._check_parts(item, body.get("content"), "output_text")
        elif item.type == "reasoning":
            self._check_parts(item, body.get("summary"), "summary_text")
            self._check_parts(item, body.get("content"), "reasoning_text")
            encrypted = body.get("encrypted_content")
            if encrypted and not item.encrypted:
                item.encrypted = True
                self.draft.opaque("encrypted", encrypted, 0, item.index)
        elif item.tool is not None:
            self._set_arguments(item.tool, body.get("arguments" if item.type == "function_call" else "input"))
        elif not item.done:
            self.draft.opaque("item", copy.deepcopy(body), 0, item.index, keep=False)
        item.done = True

    def _check_parts(self, item: _Item, bodies: Any, usual: str) -> None:
        if bodies is None:
            return
        if not isinstance(bodies, list):
            self.draft.break_protocol("an item's content is no list")
            return
        known = sorted({key[2] for key in item.texts if (key[1] == "summary") == (usual == "summary_text")})
        numbers = known if len(known) == len(bodies) else range(len(bodies))
        for number, body in zip(numbers, bodies, strict=True):
            self._check_part(item, body, number, usual)

    def _check_part(self, item: _Item, body: Any, number: int, usual: str) -> None:
        if not isinstance(body, dict):
            self.draft.break_protocol("a part of an item is no object")
            return
        form = _PARTS.get(_string(body.get("type")) or usual)
        if form is None:
            self.draft.anomaly("unknown_part", f"output_index {item.index}")
            return
        channel, kind, field = form
        key = channel, kind, number
        self._check_text(item, key, body.get(field))
        annotations = body.get("annotations")
        if isinstance(annotations, list) and annotations:
            text = self._text(item, key)
            if sum(text.annotations.values()) < len(annotations):
                known = Counter(text.annotations)
                for annotation in annotations:
                    word = compact(annotation)
                    if known[word]:
                        known[word] -= 1
                    else:
                        self._cite(item, key, annotation)

    def _check_output(self, bodies: list[Any]) -> None:
        """Compare the terminal event's items with what came of them. An empty list says nothing."""
        draft = self.draft
        if not all(isinstance(body, dict) for body in bodies):
            draft.break_protocol("an entry of output is no object")
            return
        known = sorted(self._all, key=lambda item: item.index)
        types = [_string(body.get("type")) or "" for body in bodies]
        found: list[_Item | None]
        if [item.type for item in known] == types:
            found = list(known)  # ids are not asked: they may change
        else:
            found = self._match(bodies, types, known)
        for place, (body, type, item) in enumerate(zip(bodies, types, found, strict=True)):
            if item is None:
                item = self._begin(place if place not in self._items else self._after, type)
            if not item.done:
                self._describe(item, body)
            self._check_item(item, body)
        if bodies:
            repeated = {id(item) for item in found}
            for item in known:
                if id(item) not in repeated:
                    draft.anomaly("item_not_in_output", f"output_index {item.index}")

    def _match(self, bodies: list[dict[str, Any]], types: list[str], known: list[_Item]) -> list[_Item | None]:
        """Find the known item of each body: by id and type, else the next one of its type."""
        by_id = {(item.type, item.id): item for item in known if item.id}
        ids = [_string(body.get("id")) or "" for body in bodies]
        found = [by_id.pop(names, None) for names in zip(types, ids, strict=True)]
        taken = {id(item) for item in found if item is not None}
        rest: dict[str, deque[_Item]] = {}
        for item in known:
            if id(item) not in taken:
                rest.setdefault(item.type, deque()).append(item)
        return [
            item if item is not None else rest[type].popleft() if rest.get(type) else None
            for item, type in zip(found, types, strict=True)
        ]

    # -- text ------------------------------------------------------------------------------------------------------

    def _text_delta(self, part: str, chunk: _Event) -> None:
        text = chunk.delta
        if type(text) is not str:
            if text is not None:
                self.draft.break_protocol("delta is no string")
            return
        found = self._key_of(part, chunk)
        if found is not None and text:
            self._append(*found, text)

    def _text_done(self, part: str, chunk: _Event) -> None:
        found = self._key_of(part, chunk)
        if found is not None:
            self._check_text(*found, chunk.refusal if part == "refusal" else chunk.text)

    def _part_event(self, kind: str, chunk: _Event) -> None:
        summary = kind.startswith("response.reasoning_summary_part")
        body = chunk.part
        if not isinstance(body, dict):
            if body is not None:
                self.draft.break_protocol("part is no object")
            else:
                self.draft.anomaly("missing_part", kind)
            return
        part = _string(body.get("type")) or ("summary_text" if summary else "output_text")
        form = _PARTS.get(part)
        if form is None:
            self.draft.anomaly("unknown_part", part[:100])
            return
        found = self._key_of(part, chunk)
        if found is None:
            return
        item, key = found
        if kind.endswith(".done"):
            self._check_part(item, body, key[2], part)
            return
        text = body.get(form[2])
        if type(text) is str and text:
            self._append(item, key, text)
        elif text is not None and type(text) is not str:
            self.draft.break_protocol("the text of a part is no string")

    def _key_of(self, part: str, chunk: _Event) -> tuple[_Item, _Key] | None:
        """Return the item and the text within it that an event speaks of."""
        channel, kind, _ = _PARTS[part]
        number = chunk.summary_index if kind == "summary" else chunk.content_index
        if number is None:
            number = 0
        elif not _is_index(number):
            self.draft.break_protocol("content_index is no number")
            return None
        item = self._item(chunk.output_index, "reasoning" if channel == "reasoning" else "message")
        return None if item is None else (item, (channel, kind, number))

    def _text(self, item: _Item, key: _Key) -> _Text:
        text = item.texts.get(key)
        if text is None:
            text = item.texts[key] = _Text()
            self.draft.touch()
        return text

    def _append(self, item: _Item, key: _Key, piece: str) -> None:
        draft = self.draft
        channel, kind, _ = key
        text = self._text(item, key)
        if item.current.get(channel) != key:
            if channel in item.current or item.shares:
                draft.end_part(channel)
            item.current[channel] = key
            draft.touch()
        draft.text(piece, channel, 0, item.index, kind)
        part = draft.growing_part(channel)
        if part is not None and part.block == item.index and part not in text.parts[-1:]:
            text.parts.append(part)
            draft.touch()
        if not text.came:
            text.came = True
            draft.touch()

    def _check_text(self, item: _Item, key: _Key, final: Any) -> None:
        """Compare a text with the wire's repetition of it; see the top of this file."""
        draft = self.draft
        channel, kind, _ = key
        if type(final) is not str:
            if final is not None:
                draft.break_protocol("a final text is no string")
            return
        if not final:
            return
        text = self._text(item, key)
        if not text.came:
            if channel == "reasoning" and final == self._reasoning_but(item, kind):
                draft.anomaly("reasoning_repeated", f"output_index {item.index}")  # as summary and as raw text
            else:
                self._append(item, key, final)
            return
        if channel == "answer" and draft.think_tags:
            return
        known = draft.text_of(text.parts)
        if final == known:
            return
        draft.anomaly("final_text_differs", f"output_index {item.index}")
        if final.startswith(known) and draft.growing_part(channel) is text.parts[-1]:
            self._append(item, key, final[len(known) :])
        else:
            draft.replace_parts(text.parts, final, "final_text")

    def _reasoning_but(self, item: _Item, kind: str | None) -> str:
        """Return an item's reasoning of the other kind."""
        return "".join(self.draft.text_of(text.parts) for key, text in item.texts.items() if key[1] != kind)

    # -- calls and citations ---------------------------------------------------------------------------------------

    def _arguments(self, kind: str, chunk: _Event) -> None:
        draft = self.draft
        draft.touch()
        type, field = _ARGUMENTS[kind]
        item = self._item(chunk.output_index, type)
        if item is None:
            return
        tool = item.tool
        if tool is None:
            draft.break_protocol("arguments for an item that is no call")
            return
        value = getattr(chunk, field)
        if field != "delta":
            self._set_arguments(tool, value)
        elif isinstance(value, str):
            if value and tool.closed:
                draft.break_protocol("arguments for a call after its end")
            elif value:
                draft.tool(tool, value)
        elif value is not None:
            draft.break_protocol("delta is no string")

    def _set_arguments(self, tool: Tool, value: Any) -> None:
        if isinstance(value, dict) and tool.kind == "function":
            value = compact(value)
        if isinstance(value, str):
            if value:
                self.draft.set_arguments(tool, value)
        elif value is not None:
            self.draft.break_protocol("arguments are no string")

    def _annotation_added(self, chunk: _Event) -> None:
        found = self._key_of("output_text", chunk)
        if found is not None:
            self._cite(*found, chunk.annotation)

    def _cite(self, item: _Item, key: _Key, annotation: Any) -> None:
        draft = self.draft
        if not isinstance(annotation, dict):
            draft.anomaly("annotation_no_object", f"output_index {item.index}")
            return
        self._text(item, key).annotations[compact(annotation)] += 1
        start, end = as_count(annotation.get("start_index")), as_count(annotation.get("end_index"))
        if start is None and end is None:
            start = end = as_count(annotation.get("index"))  # a mark, not a span
        if start is not None or end is not None:
            before = sum(
                len(draft.text_of(text.parts))
                for other, text in item.texts.items()
                if other[0] == key[0] and other[2] < key[2]
            )
            start, end = (None if place is None else place + before for place in (start, end))
        file = _string(annotation.get("file_id"))
        draft.cite(
            Citation(
                start,
                end,
                "characters" if start is not None else None,
                _string(annotation.get("url")),
                _string(annotation.get("title")) or _string(annotation.get("filename")),
                None,
                (file,) if file else (),
                block=item.index,
                raw=annotation,
            )
        )

    # -- whole answers and the next request ------------------------------------------------------------------------

    def take_whole(self, document: dict[str, Any]) -> bool:
        """Read a whole `response` object that is completed or incomplete, or failed."""
        if not isinstance(document, dict) or document.get("object") != "response":
            return False
        status = document.get("status")
        if status in ("failed", "cancelled"):
            self._failure(status, document)
            return True
        if status not in ("completed", "incomplete") or not isinstance(document.get("output"), list):
            return False
        self._end(status, document)
        return True

    @classmethod
    def message(cls, turn: FinishedTurn) -> dict[str, Any]:
        """Return {"output": [items in order]}: this API's assistant message is a list of items.

        For the next request, append them to `input`, as one does with `response.output`.
        """
        groups: list[list[Part]] = []
        open: dict[int, list[Part]] = {}
        for part in turn.parts:
            if part.name in ("envelope", "item"):
                open[part.block] = [part]
                groups.append(open[part.block])
            elif part.block in open:
                open[part.block].append(part)
        groups.sort(key=lambda group: group[0].block)
        return {"output": [_item_body(group, turn) for group in groups]}


DECODER: Final = ResponsesDecoder


def usage_of(raw: dict[str, Any]) -> Usage:
    """Return a Responses usage object in levada's form."""
    given, made = raw.get("input_tokens_details"), raw.get("output_tokens_details")
    given = given if isinstance(given, dict) else {}
    made = made if isinstance(made, dict) else {}
    return Usage(
        as_count(raw.get("input_tokens")),
        as_count(raw.get("output_tokens")),
        as_count(made.get("reasoning_tokens")),
        as_count(given.get("cached_tokens")),
        as_count(given.get("cache_write_tokens")),
        as_count(raw.get("total_tokens")),
        copy.deepcopy(raw),
    )


def _item_body(parts: list[Part], turn: FinishedTurn) -> dict[str, Any]:
    """Return one item as the wire has it, from the parts that it became."""
    head, *rest = parts
    body: dict[str, Any] = dict(head.data)
    if head.name == "item":
        return body
    kind = body.get("type")
    if kind == "message":
        body.setdefault("role", "assistant")
        body["content"] = _content(rest, [one for one in turn.citations if one.block == head.block])
    elif kind == "reasoning":
        body["summary"] = [{"type": "summary_text", "text": part.text} for part in rest if part.kind == "summary"]
        raw = [{"type": "reasoning_text", "text": part.text} for part in rest if part.kind == "raw"]
        if raw:
            body["content"] = raw
        for part in rest:
            if part.name == "encrypted":
                body["encrypted_content"] = part.data
    for part in rest:
        call = part.tool_call
        if call is not None:
            body["call_id"], body["name"] = call.id, call.name
            body["arguments" if call.kind == "function" else "input"] = call.arguments
    return body


def _content(parts: list[Part], citations: list[Citation]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    begin = 0
    for part in parts:
        if part.type == "refusal":
            content.append({"type": "refusal", "refusal": part.text})
        elif part.type == "text":
            end = begin + len(part.text)
            within = [
                one.raw for one in citations if begin <= (one.start or 0) < end or (one.start or 0) == end > begin
            ]
            content.append({"type": "output_text", "text": part.text, "annotations": within})
            begin = end
    return content


def _other_call(item: _Item, body: dict[str, Any]) -> bool:
    """Say whether a body is of another call than the item."""
    call_id = _string(body.get("call_id"))
    return bool(call_id and item.tool is not None and item.tool.id and call_id != item.tool.id)


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0


def _string(value: Any) -> str | None:
    return value if type(value) is str else None
