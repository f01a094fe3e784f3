"""Anthropic Messages, and the servers that speak it, to deltas.

Events: `event:` equal to `data.type`; servers that leave the name out are read by the type alone.
Terminal: `message_stop`. A stop reason, the end of a block, the end of the stream confirm nothing.
Order: message_start, then per block content_block_start, content_block_delta*, content_block_stop, with indexes from 0
without a gap; message_delta (stop reason, usage; the last one counts), message_stop. `ping`, `vertex_event` and
comments are keep-alives. `error` may come at any time, also first; some servers nest it twice.

What loses text, arguments or a finish breaks the protocol: a second message spliced in, a block that begins twice or
after a gap, a delta for a block that never began, a wrong type in one of these fields. What is only odd is counted.

What stands where:
- text blocks: the answer; `block` is the wire's index. A citation's span is its whole block, so `unit` is None.
- thinking: the reasoning; its signature is the opaque part "signature" of the same block.
- redacted_thinking: the opaque part "redacted". compaction: "compaction", its text or None.
- tool_use: a tool call. Its `{}` without fragments comes with the stop reason, as `max_tokens` may have cut them off.
- server tools, their results and all other blocks: an opaque part named like the block's type, whole, its input put
  together; the results of a web search are references too, called by their address.
- fields of a block that this file does not know or that only the next request needs (`caller`, the encrypted content of
  a compaction): the opaque part "extras" of that block. The container's id and end: the opaque part "container".

Sources: anthropic-python 2.14.0 types and stream helpers, vercel/ai and pydantic-ai sources, recorded streams; read
2026-11-30. Anthropic pads events with blanks before the last braces.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from levada.deltas import Citation, Reference, Usage
from levada.dialects.named import NamedDialect, NamedEvent
from levada.dialects.profiles import Profile
from levada.dialects.reading import as_count, compact, is_deep, read_document
from levada.draft import Draft, Tool

if TYPE_CHECKING:
    from levada.deltas import Part
    from levada.finished import FinishedTurn

_FINISHES: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_use",
    "pause_turn": "pause",
    "refusal": "refusal",
    "compaction": "pause",  # beta
}

# Blocks that are read, with the fields that are; whatever else such a block has is kept as "extras".
_READ_BLOCKS: Final = {
    "text": frozenset({"type", "text", "citations"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "compaction": frozenset({"type", "content"}),
}
# Blocks that are kept whole for the next request. Others are kept as well, and counted.
_KEPT_BLOCKS: Final = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "mcp_tool_listing",
        "container_upload",
        "advisor_tool_result",
        "fallback",
    }
)
# Where the type of a delta is missing, its field tells.
_FIELD_OF_DELTA: Final = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "partial_json": "input_json_delta",
    "signature": "signature_delta",
    "citation": "citations_delta",
}


class _Event(NamedEvent):
    """The keys of an event that mean something here. All are Any: a wrong type is dealt with where it is read."""

    index: Any = None
    delta: Any = None
    content_block: Any = None
    message: Any = None
    usage: Any = None
    context_management: Any = None


class _Block:
    """A content block that came or is coming."""

    __slots__ = (
        "fragments",
        "index",
        "kept",
        "open",
        "repeated",
        "signature",
        "start_input",
        "tool",
        "touched",
        "type",
    )

    def __init__(self, index: int, type: str) -> None:
        self.index = index
        self.type = type
        self.open = True
        self.touched = False  # a delta came
        self.repeated = False  # the same call as one that came whole in message_start
        self.tool: Tool | None = None
        self.start_input = ""  # the input that came with content_block_start, as JSON text
        self.kept: dict[str, Any] | None = None  # a block that is kept whole
        self.fragments: list[str] = []  # of a kept block's input, a signature or a compaction
        self.signature = ""  # as content_block_start had it


class AnthropicDecoder(NamedDialect):
    """Reads one Messages stream."""

    __slots__ = (
        "_blocks",
        "_container",
        "_empty",
        "_id",
        "_last",
        "_next",
        "_offset",
        "_start_reason",
        "_started",
        "_whole",
    )

    name = "anthropic"
    provider = "anthropic"
    terminals = frozenset({"strict", "finish_reason"})
    terminal_signal = "message_stop"
    shape = _Event
    content_events = frozenset(
        {
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        }
    )
    terminal_events = frozenset({"message_stop"})
    keep_alives = frozenset({"ping", "vertex_event"})
    decoder = msgspec.json.Decoder(_Event)
    text_keys = (b'"text":', b'"text": ', b'"thinking":', b'"thinking": ')

    def __init__(self, draft: Draft, profile: Profile) -> None:
        super().__init__(draft, profile)
        self._started = False
        self._id: str | None = None
        self._blocks: dict[int, _Block] = {}
        self._next = 0  # the index that the next block must have
        self._whole = 0  # how many blocks message_start brought
        self._offset = 0  # added to the wire's index
        self._last: _Block | None = None  # the block that began last
        self._empty: list[Tool] = []  # ended calls without arguments, until the stop reason says that nothing was cut
        self._start_reason: str | None = None  # a stop reason in message_start
        self._container: Any = None

    # -- events ----------------------------------------------------------------------------------------------------

    def has_content(self, chunk: _Event) -> bool:
        """Say whether an event without a type has something that may be text."""
        return chunk.delta is not None or chunk.content_block is not None or chunk.message is not None

    def read_event(self, kind: str, chunk: _Event) -> bool:
        """Read one event of a type; say whether it was no keep-alive."""
        if kind == "content_block_delta":
            self._delta(chunk)
        elif kind == "content_block_start":
            self._start(chunk)
        elif kind == "content_block_stop":
            self._stop(chunk)
        elif kind == "message_delta":
            self._message_delta(chunk)
        elif kind == "message_start":
            self._message_start(chunk.message)
        elif kind == "message_stop":
            self._message_stop()
        else:
            self.draft.anomaly("unknown_event", kind)
            return False
        return True

    # -- the message -----------------------------------------------------------------------------------------------

    def _message_start(self, message: Any) -> None:
        draft = self.draft
        draft.touch()
        if not isinstance(message, dict):
            if message is not None:
                draft.break_protocol("message is no object")
            else:
                draft.anomaly("missing_message", "message_start")
            message = {}
        id = _string(message.get("id"))
        if self._started or self._blocks:
            if id and self._id and id != self._id:
                draft.break_protocol("a second message began inside the first")
            else:
                draft.anomaly("repeated_message_start")
            return
        self._started = True
        self._id = id
        draft.name_turn(id, message.get("model"))
        self._whole_content(message.get("content"))
        self._whole = self._next
        reason = message.get("stop_reason")
        if isinstance(reason, str):
            self._start_reason = reason
        if message.get("usage") is not None:
            self._usage(message["usage"])

    def _whole_content(self, content: Any) -> None:
        """Read blocks that came whole: in message_start (tool calls by programs) or in an answer that is no stream."""
        if content is None:
            return
        if not isinstance(content, list):
            self.draft.break_protocol("content is no list")
            return
        for body in content:
            if not isinstance(body, dict):
                self.draft.break_protocol("an entry of content is no object")
                return
            self._end(self._begin(body, self._next))

    def _message_delta(self, chunk: _Event) -> None:
        draft = self.draft
        draft.touch()
        body = chunk.delta
        if isinstance(body, dict):
            self._finish(body.get("stop_reason"))
            container = body.get("container")
            if container and container != self._container:
                self._container = container
                draft.opaque("container", container)
            if body.get("stop_details"):
                draft.opaque("stop_details", body["stop_details"], keep=False)
        elif body is not None:
            draft.break_protocol("delta is no object")
            return
        if chunk.usage is not None:
            self._usage(chunk.usage)
        if chunk.context_management:
            draft.opaque("context_management", chunk.context_management, keep=False)

    def _finish(self, reason: Any) -> None:
        draft = self.draft
        if reason is None or reason == "":
            return
        if type(reason) is not str:
            draft.break_protocol("stop_reason is no string")
            return
        draft.finish(reason, self.common_finish(reason, 0))
        self._close_empty()

    def _close_empty(self) -> None:
        """Give `{}` to ended calls without arguments, once a stop reason says that nothing was cut off."""
        if self.finish_reasons().get(0) not in (None, "length"):
            for tool in self._empty:
                self.draft.close_tool(tool)
            self._empty = []

    def _message_stop(self) -> None:
        draft = self.draft
        if not self._started and not self._blocks:
            draft.break_protocol("message_stop without a message")
            return
        if self._start_reason is not None and not self.finish_reasons().get(0):
            self._finish(self._start_reason)
        if not self.finish_reasons().get(0):
            draft.anomaly("missing_stop_reason")
        draft.confirm()

    def _usage(self, raw: Any) -> None:
        if not isinstance(raw, dict):
            self.draft.anomaly("usage_no_object", "usage")
            return
        merged = self.draft.merge_usage(raw)
        self.draft.use(merged, usage_of(merged))

    # -- blocks ----------------------------------------------------------------------------------------------------

    def _start(self, chunk: _Event) -> None:
        draft = self.draft
        draft.touch()
        body = chunk.content_block
        if not isinstance(body, dict):
            draft.break_protocol("content_block is no object")
            return
        index = chunk.index
        if index is None:
            draft.anomaly("missing_index", "content_block_start")
            index = self._next - self._offset
        elif type(index) is not int:
            draft.break_protocol("index is no number")
            return
        if index == 0 and self._next == self._whole:
            self._offset = self._whole  # the wire does not count the blocks of message_start
        index += self._offset
        known = self._blocks.get(index)
        if known is not None and known.open and not known.touched and known.type == body.get("type"):
            draft.anomaly("repeated_block_start", f"block {index}")
        elif index != self._next:
            what = "begins twice" if known is not None else f"begins where block {self._next} is due"
            draft.break_protocol(f"block {index} {what}")
        else:
            self._begin(body, index)

    def _begin(self, body: dict[str, Any], index: int) -> _Block:
        """Read the beginning of a block, which may be all of it."""
        draft = self.draft
        kind = body.get("type")
        if type(kind) is not str:
            kind = ""
        block = self._blocks[index] = self._last = _Block(index, kind)
        self._next = index + 1
        if kind == "text":
            draft.text(self._text(body, "text"), "answer", 0, index)
            citations = body.get("citations")
            for citation in citations if isinstance(citations, list) else ():
                self._cite(citation, index)
        elif kind == "thinking":
            draft.text(self._text(body, "thinking"), "reasoning", 0, index)
            block.signature = _string(body.get("signature")) or ""
        elif kind == "redacted_thinking":
            if type(body.get("data")) is str:
                draft.opaque("redacted", body["data"], 0, index)
            else:
                draft.anomaly("missing_data", f"block {index}")
        elif kind == "tool_use":
            self._begin_tool(body, block)
        elif kind == "compaction":
            if type(body.get("content")) is str:
                block.fragments.append(body["content"])
        else:
            self._keep(body, block)
        own = _READ_BLOCKS.get(kind)
        if own is not None:
            extras = {key: value for key, value in body.items() if key not in own and value is not None}
            if extras:
                draft.keep("extras", extras, 0, index)
        return block

    def _begin_tool(self, body: dict[str, Any], block: _Block) -> None:
        draft = self.draft
        id, name = _string(body.get("id")), _string(body.get("name"))
        if not name:
            draft.break_protocol("tool_use without a name")
            return
        whole = [known.tool for known in self._blocks.values() if known.index < self._whole]
        if id and any(tool is not None and tool.id == id for tool in whole):
            draft.anomaly("repeated_tool_use", f"block {block.index}")
            block.repeated = True
            return
        given = body.get("input")
        if isinstance(given, dict):
            block.start_input = compact(given) if given else ""
        elif type(given) is str:
            block.start_input = given
        elif given is not None:
            draft.break_protocol("input is no object")
            return
        block.tool = draft.open_tool(id, name, 0, block.index)

    def _keep(self, body: dict[str, Any], block: _Block) -> None:
        draft = self.draft
        block.kept = dict(body)
        draft.keep(block.type or "block", block.kept, 0, block.index)
        if block.type not in _KEPT_BLOCKS:
            draft.anomaly("unknown_block", block.type)
        elif block.type == "fallback":
            to = body.get("to")
            if isinstance(to, dict):
                draft.name_turn(None, to.get("model"))
        elif block.type == "web_search_tool_result":
            results = body.get("content")  # an object where the search failed
            for result in results if isinstance(results, list) else ():
                url = _string(result.get("url")) if isinstance(result, dict) else None
                if url:
                    draft.refer(Reference(url, _string(result.get("title")), url, block=block.index, raw=result))

    def _delta(self, chunk: _Event) -> None:
        draft = self.draft
        body = chunk.delta
        if not isinstance(body, dict):
            if body is not None:
                draft.break_protocol("delta is no object")
            else:
                draft.anomaly("missing_delta", "content_block_delta")
            return
        block = self._block(chunk.index, "content_block_delta")
        if block is None:
            return
        if not block.touched:
            block.touched = True
            draft.touch()
        kind = body.get("type")
        if kind == "text_delta":
            draft.text(self._text(body, "text"), "answer", 0, block.index)
        elif kind == "thinking_delta":
            draft.text(self._text(body, "thinking"), "reasoning", 0, block.index)
        elif kind == "input_json_delta":
            self._fragment(self._text(body, "partial_json"), block)
        else:
            self._rare_delta(kind, body, block)
            return
        if not block.open:
            draft.anomaly("delta_after_stop", f"block {block.index}")

    def _rare_delta(self, kind: Any, body: dict[str, Any], block: _Block) -> None:
        draft = self.draft
        draft.touch()
        if kind == "signature_delta":
            if block.type != "thinking":
                draft.keep("extras", {"signature": self._text(body, "signature")}, 0, block.index)
            elif block.open:
                block.fragments.append(self._text(body, "signature"))
            elif not block.fragments and not block.signature:
                draft.opaque("signature", self._text(body, "signature"), 0, block.index)  # after the block's end
            else:
                draft.anomaly("delta_after_stop", f"block {block.index}")
        elif kind == "citations_delta":
            self._cite(body.get("citation"), block.index)
        elif kind == "compaction_delta":
            if block.type != "compaction" or not block.open:
                draft.anomaly("unexpected_delta", f"block {block.index}")
                return
            block.fragments.append(self._text(body, "content"))
            if body.get("encrypted_content") is not None:
                draft.keep("extras", {"encrypted_content": body["encrypted_content"]}, 0, block.index)
        elif kind is None or kind == "":
            field = next((name for name in _FIELD_OF_DELTA if body.get(name) is not None), None)
            draft.anomaly("missing_delta_type", f"block {block.index}")
            if field is not None:
                self._delta(_Event(index=block.index - self._offset, delta={**body, "type": _FIELD_OF_DELTA[field]}))
        else:
            draft.anomaly("unknown_delta", str(kind)[:100])

    def _fragment(self, fragment: str, block: _Block) -> None:
        """Add to the input of a client's tool, which is a call, or of a server's, which is kept."""
        draft = self.draft
        draft.touch()
        if not fragment or block.repeated:
            return
        if block.tool is None:
            if block.kept is None or not block.open:
                draft.anomaly("unexpected_delta", f"block {block.index}")
            else:
                block.fragments.append(fragment)
        elif block.tool.closed or not block.open:
            draft.break_protocol(f"arguments for block {block.index} after its end")
        else:
            draft.tool(block.tool, fragment)

    def _stop(self, chunk: _Event) -> None:
        self.draft.touch()
        block = self._block(chunk.index, "content_block_stop")
        if block is None:
            return
        if block.open:
            self._end(block)
        else:
            self.draft.anomaly("repeated_block_stop", f"block {block.index}")

    def _end(self, block: _Block) -> None:
        """Take the end of a block: what only now is whole goes out."""
        draft = self.draft
        block.open = False
        tool = block.tool
        if block.type == "thinking":
            signature = "".join(block.fragments) or block.signature
            if signature:
                draft.opaque("signature", signature, 0, block.index)
        elif block.type == "compaction":
            draft.opaque("compaction", "".join(block.fragments) or None, 0, block.index)
        elif tool is not None:
            if not tool.arguments.length and block.start_input:
                draft.tool(tool, block.start_input)
            if tool.arguments.length:
                draft.close_tool(tool)
            else:
                self._empty.append(tool)
                self._close_empty()
        elif block.kept is not None:
            text = "".join(block.fragments)
            if text:
                given = read_document(text)
                if isinstance(given, dict) and not is_deep(given):
                    block.kept["input"] = given
                else:
                    block.kept["input"] = text
                    draft.anomaly("input_no_object", f"block {block.index}")
            draft.opaque(block.type or "block", copy.deepcopy(block.kept), 0, block.index, keep=False)

    def closing(self) -> None:
        """End the blocks that the provider left open. A call is left open whose arguments are no whole JSON."""
        for block in self._blocks.values():
            if not block.open:
                continue
            self.draft.anomaly("block_left_open", f"block {block.index}")
            tool = block.tool
            if tool is None or read_document(tool.arguments.text()) is not None:
                self._end(block)
        self._close_empty()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _block(self, index: Any, event: str) -> _Block | None:
        """Return the block that an event speaks of; without an index, the one that began last."""
        block: _Block | None = None
        if type(index) is int:
            block = self._blocks.get(index + self._offset)
        elif index is None:
            self.draft.anomaly("missing_index", event)
            block = self._last
        if block is None:
            self.draft.break_protocol(f"{event} for a block that never began")
        return block

    def _text(self, body: dict[str, Any], key: str) -> str:
        """Return a text field; "" where it is null or missing. A wrong type breaks the protocol."""
        text = body.get(key)
        if type(text) is str:
            return text
        if text is not None:
            self.draft.break_protocol(f"{key} is no string")
        return ""

    def _cite(self, citation: Any, index: int) -> None:
        if not isinstance(citation, dict):
            self.draft.anomaly("citation_no_object", f"block {index}")
            return
        url = _string(citation.get("url"))
        self.draft.cite(
            Citation(
                None,
                None,
                None,
                url or _string(citation.get("source")),
                _string(citation.get("title")) or _string(citation.get("document_title")),
                _string(citation.get("cited_text")),
                (url,) if url else (),
                block=index,
                raw=citation,
            )
        )

    def common_finish(self, native: str, choice: int) -> str:
        """Return the common word."""
        return _FINISHES.get(native, "other")

    # -- whole answers and the next request ------------------------------------------------------------------------

    def take_whole(self, document: dict[str, Any]) -> bool:
        """Read a whole `message` object."""
        if not isinstance(document, dict) or document.get("type") != "message":
            return False
        if not isinstance(document.get("content"), list):
            return False
        self._message_start(document)
        self._message_stop()
        return True

    @classmethod
    def message(cls, turn: FinishedTurn) -> dict[str, Any]:
        """Return {"role": "assistant", "content": [blocks in order]} for `messages` of the next request.

        Thinking without a signature is left out, as the API takes none. Arguments that are no JSON object become {}.
        """
        blocks: dict[int, list[Part]] = {}
        for part in turn.parts:
            if part.name != "container":
                blocks.setdefault(part.block, []).append(part)
        content = []
        for index in sorted(blocks):
            citations = [citation.raw for citation in turn.citations if citation.block == index]
            body = _block_of(blocks[index], citations)
            if body is not None:
                content.append(body)
        return {"role": "assistant", "content": content}


DECODER: Final = AnthropicDecoder


def usage_of(raw: dict[str, Any]) -> Usage:
    """Return an Anthropic usage object in levada's form: all input is input, cache reads and cache writes together."""
    read = as_count(raw.get("cache_read_input_tokens"))
    written = as_count(raw.get("cache_creation_input_tokens"))
    given = as_count(raw.get("input_tokens"))
    details = raw.get("output_tokens_details")
    return Usage(
        None if given is None else given + (read or 0) + (written or 0),
        as_count(raw.get("output_tokens")),
        as_count(details.get("thinking_tokens")) if isinstance(details, dict) else None,
        read,
        written,
        None,
        copy.deepcopy(raw),
    )


def _block_of(parts: list[Part], citations: list[Any]) -> dict[str, Any] | None:
    """Return one content block as the wire has it, from the parts that it became; None where nothing can go back."""
    text = "".join(part.text for part in parts if part.type == "text")
    thinking = "".join(part.text for part in parts if part.type == "reasoning")
    call = next((part.tool_call for part in parts if part.tool_call is not None), None)
    opaque = {part.name: part.data for part in parts if part.type == "opaque"}
    body: dict[str, Any]
    if call is not None:
        body = {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)}
    elif "signature" in opaque:
        body = {"type": "thinking", "thinking": thinking, "signature": opaque["signature"]}
    elif "redacted" in opaque:
        body = {"type": "redacted_thinking", "data": opaque["redacted"]}
    elif "compaction" in opaque:
        body = {"type": "compaction", "content": opaque["compaction"]}
    elif text:
        body = {"type": "text", "text": text}
        if citations:
            body["citations"] = citations
    else:
        return next((data for name, data in opaque.items() if name != "extras"), None)
    for part in parts:
        if part.name == "extras":
            body.update(part.data)
    return body


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _string(value: Any) -> str | None:
    return value if type(value) is str else None
