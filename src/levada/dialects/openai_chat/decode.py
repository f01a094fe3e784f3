"""OpenAI Chat Completions, and the many servers that speak it, to deltas.

Events: `data:` alone, each one JSON object (`chat.completion.chunk`), then the sentinel `data: [DONE]`.
Terminal: `[DONE]` after a finish reason for every choice seen, and no error before it.
Order: role chunk, content and tool chunks, finish chunk (`delta: {}`), usage chunk (`choices: []`), `[DONE]`.
Servers differ in where reasoning stands, how tool calls are cut, when usage comes, whether the sentinel comes: the
profile says (profiles.py), the rest is tolerated here for all.

Sources: openai-python 3.57.0 types, vercel/ai and litellm sources, recorded streams; read 2026-11-30.
"""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import Any, Final

import msgspec

from levada.deltas import Citation, Reference, Usage
from levada.dialects.base import Dialect
from levada.dialects.failures import fail_with
from levada.dialects.profiles import Profile
from levada.dialects.reading import as_count, compact, read, read_document
from levada.draft import Draft, Tool

# Native finish reason -> ours. OpenAI's own, then those of compatible servers.
_FINISHES: Final = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "content_filter",
    "error": "error",  # OpenRouter, Mistral
    "insufficient_system_resource": "error",  # DeepSeek: the answer is cut
    "model_length": "length",  # Mistral
    "sensitive": "content_filter",  # Zhipu
    "network_error": "error",  # Zhipu
    "abort": "error",  # vLLM, SGLang
    "eos_token": "stop",  # Hugging Face TGI
    "stop_sequence": "stop",
    "eos": "stop",
}

_EMPTY: Final[Any] = MappingProxyType({})  # stands for a dict that most turns do not need


class _Chunk(msgspec.Struct):
    """The keys of a chunk that mean something here. All are Any: a wrong type is dealt with where it is read."""

    id: Any = None
    object: Any = None
    type: Any = None  # "error", of a flat error object
    model: Any = None
    choices: Any = None
    usage: Any = None
    error: Any = None
    message: Any = None  # of a flat error object
    code: Any = None
    x_groq: Any = None
    citations: Any = None
    search_results: Any = None


_RECENT_DETAILS: Final = 64  # of reasoning_details, in which a fragment's beginning is looked for


class ChatDecoder(Dialect):
    """Reads one Chat Completions stream."""

    __slots__ = ("_details", "_last", "_slots")

    name = "openai_chat"
    provider = "openai"
    terminals = frozenset({"strict", "done", "finish_reason"})
    text_modes = frozenset({"delta", "cumulative"})
    terminal_signal = "data: [DONE]"
    needs_all_finishes = True
    decoder = msgspec.json.Decoder(_Chunk)
    text_keys = (b'"content":', b'"reasoning_content":', b'"reasoning":', b'"text":')
    noise_keys = (b'"obfuscation":',)

    def __init__(self, draft: Draft, profile: Profile) -> None:
        super().__init__(draft, profile)
        self._slots: dict[tuple[int, int], Tool] = _EMPTY  # by choice and the wire's index
        self._last: dict[int, Tool] = _EMPTY  # by choice, the call that the last fragment belonged to
        self._details: dict[int, list[dict[str, Any]]] = _EMPTY  # by choice, OpenRouter's reasoning_details, merged

    def take(self, event: str, data: bytes) -> bool:
        """Read one event; say whether it was no keep-alive."""
        draft = self.draft
        if data.startswith(b"[DONE]") and data.strip(b" \t\r\n") == b"[DONE]":
            draft.confirm()
            return True
        if event == "error":
            document = read_document(data)
            fail_with(draft, document if document is not None else data.decode("utf-8", "replace"))
            return True
        chunk = read(data, _DECODER, _Chunk, draft)
        if chunk is None:
            return draft.error is not None
        if isinstance(chunk, list):
            if any(isinstance(item, dict) and item.get("error") for item in chunk):
                fail_with(draft, chunk)
                return True
            draft.anomaly("not_an_object")
            return False
        return self._chunk(chunk)

    def _chunk(self, chunk: _Chunk) -> bool:
        draft = self.draft
        if chunk == _Chunk(type=chunk.type) and chunk.type != "error":
            draft.anomaly("unknown_event")  # not a key of this wire: another dialect's, it may be
            return False
        draft.name_turn(chunk.id, chunk.model)
        if chunk.error or chunk.object == "error" or chunk.type == "error":
            # a flat object carries its own message: vLLM {"object":"error","message"}, xAI {"code","error": "text"}
            flat = not isinstance(chunk.error, (dict, list))
            whole = {"message": chunk.message or chunk.error, "code": chunk.code} if flat else chunk.error
            fail_with(draft, whole)
            return True
        opened = False
        choices = chunk.choices
        if isinstance(choices, list):
            for choice in choices:
                if not isinstance(choice, dict):
                    draft.break_protocol("an entry of choices is no object")
                    return True
                opened |= self._choice(choice, chunk)
        elif choices is not None:
            draft.break_protocol("choices is no list")
            return True
        if chunk.usage is not None:
            opened |= self._usage(chunk.usage)
        groq = chunk.x_groq
        if isinstance(groq, dict):
            if groq.get("usage") is not None:
                self._usage(groq["usage"])
            if groq.get("error"):
                fail_with(draft, groq["error"])
                return True
        if chunk.citations or chunk.search_results:
            self._references(chunk)
        if chunk.object in self.profile.terminal_objects and any(c.finish for c in draft.choices.values()):
            draft.confirm()
        return opened

    def _choice(self, choice: dict[str, Any], chunk: _Chunk) -> bool:
        draft = self.draft
        index = choice.get("index")
        if index is None:
            index = 0
        if type(index) is not int or index < 0:
            draft.break_protocol("choices[].index is no number")
            return True
        if choice.get("error"):
            fail_with(draft, choice["error"])
            return True
        delta = choice.get("delta")
        if not delta and (chunk.object == "chat.completion" or not draft.channel_text("answer", index)):
            # a server that answers a streamed request with one whole chunk; Perplexity repeats the message beside the
            # deltas, where text has come already
            delta = choice.get("message") or delta
        if delta is None and choice.get("text") is not None:
            delta = {"content": choice["text"]}  # the older /v1/completions, which some servers still stream
        opened = False
        if isinstance(delta, dict):
            opened = self._delta(delta, index)
        elif delta is not None:
            draft.break_protocol("choices[].delta is no object")
            return True
        if choice.get("usage") is not None:
            self._usage(choice["usage"])  # Moonshot, older versions
        finish = choice.get("finish_reason")
        if finish is None or finish == "":
            if not opened:
                draft.choice(index)
            return opened
        if not isinstance(finish, str):
            draft.break_protocol("finish_reason is no string")
            return True
        if (
            finish == "content_filter"
            and choice.get("delta") is None
            and (self.profile.withdraws_filtered or _filtered(choice.get("content_filter_results")))
        ):
            draft.replace("", "answer", index, reason="content_filter")
        draft.finish(finish, self.common_finish(finish, index), index)
        return True

    def _delta(self, delta: dict[str, Any], index: int) -> bool:
        draft = self.draft
        before = draft.effects
        content = delta.get("content")
        reasoning = self._reasoning(delta, index)
        if reasoning:
            draft.text(reasoning, "reasoning", index)
        if type(content) is str:
            self._text(content, index)
        elif content is not None:
            self._content_parts(content, index)
        refusal = delta.get("refusal")
        if type(refusal) is str:
            draft.text(refusal, "refusal", index)
        elif refusal is not None:
            draft.break_protocol("delta.refusal is no string")
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                self._tool_fragment(call, index)
        elif calls is not None:
            draft.break_protocol("delta.tool_calls is no list")
        legacy = delta.get("function_call")
        if isinstance(legacy, dict):
            self._tool_fragment({"index": 0, "function": legacy}, index)
        elif legacy is not None:
            draft.break_protocol("delta.function_call is no object")
        annotations = delta.get("annotations")
        if isinstance(annotations, list):
            for annotation in annotations:
                self._annotation(annotation, index)
        for name in ("executed_tools", "audio"):
            if delta.get(name):
                draft.opaque(name, delta[name], index)
        return draft.effects > before or bool(delta.get("role"))

    def _text(self, content: str, index: int) -> None:
        if self.draft.text_mode == "cumulative":
            if content:
                self.draft.text_so_far(content, "answer", index)
        else:
            self.draft.text(content, "answer", index)

    def _reasoning(self, delta: dict[str, Any], index: int) -> str:
        """Return the first non-empty reasoning string, by the profile's order; two are the same text twice."""
        found = ""
        for field in self.profile.reasoning_fields:
            if field == "reasoning_details":
                details = delta.get(field)
                if isinstance(details, list):
                    from_details = self._reasoning_details(details, index)
                    found = found or from_details
                continue
            value = delta.get(field)
            if type(value) is str:
                found = found or value
            elif value is not None:
                self.draft.break_protocol(f"delta.{field} is no string")
        return found

    def _reasoning_details(self, details: list[Any], index: int) -> str:
        """Merge OpenRouter's structured reasoning for the next request; return the text that it carries."""
        text = ""
        merged = self._details.get(index)
        for entry in details:
            if not isinstance(entry, dict):
                self.draft.anomaly("reasoning_detail_no_object", "delta.reasoning_details")
                continue
            if merged is None:
                merged = []
                self._details = {**self._details, index: merged}
                self.draft.keep("reasoning_details", merged, index)
            for key in ("text", "summary"):
                if type(entry.get(key)) is str:
                    text += entry[key]
            _merge_detail(merged, entry)
            self.draft.opaque("reasoning_details", entry, index, keep=False)
        return text

    def _content_parts(self, content: Any, index: int) -> None:
        """Read content that is a list of parts, as Mistral's is."""
        if not isinstance(content, list):
            self.draft.break_protocol("delta.content is neither string nor list")
            return
        for part in content:
            if isinstance(part, str):
                self._text(part, index)
                continue
            if not isinstance(part, dict):
                self.draft.break_protocol("a part of delta.content is no object")
                continue
            kind = part.get("type")
            if kind in ("text", "output_text"):
                if type(part.get("text")) is str:
                    self._text(part["text"], index)
                elif part.get("text") is not None:
                    self.draft.break_protocol("the text of a part of delta.content is no string")
            elif kind == "thinking":
                thinking = part.get("thinking")
                for inner in thinking if isinstance(thinking, list) else [{"type": "text", "text": thinking}]:
                    if isinstance(inner, dict) and type(inner.get("text")) is str:
                        self.draft.text(inner["text"], "reasoning", index)
                    else:
                        self.draft.anomaly("thinking_part_unknown", "delta.content")
            elif kind == "reference":
                ids = part.get("reference_ids")
                at = len(self.draft.channel_text("answer", index))
                names = tuple(str(one) for one in ids) if isinstance(ids, list) else ()
                self.draft.cite(Citation(at, at, "characters", references=names, choice=index, raw=part))
            else:
                self.draft.anomaly("unknown_part", "delta.content")

    def _tool_fragment(self, call: Any, index: int) -> None:
        """Route one fragment to its call. Servers leave out, repeat, change and reuse ids and indexes."""
        draft = self.draft
        if not isinstance(call, dict):
            draft.break_protocol("an entry of delta.tool_calls is no object")
            return
        function = call.get("function")
        kind = "function"
        if call.get("type") == "custom" or (function is None and isinstance(call.get("custom"), dict)):
            function, kind = call.get("custom"), "custom"
        if function is None:
            # some servers leave the wrapper out
            function = {key: call[key] for key in ("name", "arguments") if key in call}
        if not isinstance(function, dict):
            draft.break_protocol("tool_calls[].function is no object")
            return
        arguments = function.get("input" if kind == "custom" else "arguments")
        if isinstance(arguments, dict):
            arguments = compact(arguments)  # whole, as an object: some servers of open models
        elif arguments is None:
            arguments = ""
        elif type(arguments) is not str:
            draft.break_protocol("tool_calls[].function.arguments is no string")
            return
        id, name, slot = call.get("id"), function.get("name"), call.get("index")
        id = id if type(id) is str else ""
        name = name if type(name) is str else ""
        if not id and not name and not arguments:
            return  # nothing in it
        tool = self._route(slot, id, name, index)
        if tool is None:
            tool = draft.open_tool(choice=index, block=len(draft.tools), kind=kind)
            if type(slot) is int:
                self._slots = self._slots or {}
                self._slots[index, slot] = tool
        self._last = self._last or {}
        self._last[index] = tool
        if id and tool.id and id != tool.id:
            draft.anomaly("tool_id_drifts", f"tool_calls[{tool.index}].id")
        draft.tool(tool, arguments, id=id, name=name)
        extra = call.get("extra_content")
        if extra:
            draft.opaque("extra_content", extra, index, tool.block)  # Gemini's thought signatures

    def _route(self, slot: Any, id: str, name: str, index: int) -> Tool | None:
        last = self._last.get(index)
        if type(slot) is not int:
            # no index: a new id is a new call, anything else goes on with the last one (Mistral, Gemini)
            if id:
                return next((tool for tool in self.draft.tools if tool.choice == index and tool.id == id), None)
            return None if name and last is not None and last.name else last
        tool = self._slots.get((index, slot))
        if tool is None:
            # an index never seen, without id and name: the index drifted, the fragment goes on with the last call
            if last is not None and not id and not name and (last.name or last.arguments.length):
                self.draft.anomaly("tool_index_drifts", f"tool_calls[{last.index}].index")
                return last
            return None
        if id and tool.id and id != tool.id and name and tool.name:
            return None  # the same index with another id and a name: the next call (servers that send 0 for all)
        return tool

    def _annotation(self, annotation: Any, index: int) -> None:
        if not isinstance(annotation, dict):
            self.draft.anomaly("annotation_no_object", "delta.annotations")
            return
        inner = annotation.get("url_citation")
        body = inner if isinstance(inner, dict) else {}
        start, end = as_count(body.get("start_index")), as_count(body.get("end_index"))
        self.draft.cite(
            Citation(
                start,
                end,
                "characters" if start is not None else None,
                _string(body.get("url")),
                _string(body.get("title")),
                _string(body.get("content")),
                choice=index,
                raw=annotation,
            )
        )

    def _references(self, chunk: _Chunk) -> None:
        """Read the sources that Perplexity and xAI list on top: `[n]` in the text is the nth of them."""
        results = chunk.search_results if isinstance(chunk.search_results, list) else None
        entries = results or (chunk.citations if isinstance(chunk.citations, list) else [])
        known = {reference.id for reference in self.draft.references}
        for number, entry in enumerate(entries, 1):
            if str(number) in known:
                continue  # repeated on every chunk
            if isinstance(entry, str):
                self.draft.refer(Reference(str(number), url=entry, raw=entry))
            elif isinstance(entry, dict):
                self.draft.refer(
                    Reference(
                        str(number),
                        _string(entry.get("title")),
                        _string(entry.get("url")),
                        _string(entry.get("snippet")),
                        raw=entry,
                    )
                )

    def _usage(self, raw: Any) -> bool:
        if not isinstance(raw, dict):
            self.draft.anomaly("usage_no_object", "usage")
            return False
        merged = self.draft.merge_usage(raw)
        self.draft.use(merged, usage_of(merged, self.profile.usage_rule))
        return True

    def common_finish(self, native: str, choice: int) -> str:
        """Return the common word; `stop` after a refusal is refusal."""
        word = _FINISHES.get(native, "other")
        return "refusal" if word == "stop" and self.draft.channel_text("refusal", choice) else word

    def is_terminal(self, data: str) -> bool:
        """Say whether an event whose blank line never came is `[DONE]`."""
        return data.strip() == "[DONE]"

    def closing(self) -> None:
        """Close the tool calls where the finish says that the model was done: a filter or a limit may have cut them."""
        reasons = self.finish_reasons()
        for tool in self.draft.tools:
            if not tool.name:
                self.draft.break_protocol("a tool call never got its name")
            elif reasons.get(tool.choice) in ("stop", "tool_use"):
                self.draft.close_tool(tool)

    def take_whole(self, document: Any) -> bool:
        """Read a whole `chat.completion` object; the document may be anything that JSON can be."""
        if not isinstance(document, dict):
            return False
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices or document.get("error"):
            return False
        if not all(isinstance(choice, dict) and isinstance(choice.get("message"), dict) for choice in choices):
            return False
        self._chunk(msgspec.convert({**document, "object": "chat.completion"}, _Chunk))
        self.draft.confirm()
        return True

    @classmethod
    def message(cls, turn: Any) -> dict[str, Any]:
        """Return {"role": "assistant", …} for `messages` of the next request. It holds choice 0."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.answer or None}
        if turn.refusal:
            message["refusal"] = turn.refusal
        extras = {
            part.block: part.data
            for part in turn.parts
            if part.type == "opaque" and part.name == "extra_content" and part.choice == 0
        }
        calls = []
        for call in turn.tool_calls:
            if call.choice:
                continue
            body = {"name": call.name, "input" if call.kind == "custom" else "arguments": call.arguments}
            entry: dict[str, Any] = {"id": call.id, "type": call.kind, call.kind: body}
            if call.block in extras:
                entry["extra_content"] = extras[call.block]
            calls.append(entry)
        if calls:
            message["tool_calls"] = calls
        for part in turn.parts:
            if part.type == "opaque" and part.name == "reasoning_details" and part.choice == 0:
                message["reasoning_details"] = part.data
        return message


_DECODER: Final = ChatDecoder.decoder
DECODER: Final = ChatDecoder


def usage_of(raw: dict[str, Any], rule: str = "standard") -> Usage:
    """Return a Chat usage object in levada's form. Also for servers that rename its parts (DeepSeek, Mistral)."""
    prompt = raw.get("prompt_tokens_details") or raw.get("prompt_token_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = raw.get("completion_tokens_details")
    completion = completion if isinstance(completion, dict) else {}
    reasoning = as_count(completion.get("reasoning_tokens"))
    if reasoning is None:
        reasoning = as_count(raw.get("reasoning_tokens"))
    output = as_count(raw.get("completion_tokens"))
    if rule == "reasoning_apart" and output is not None and reasoning is not None:
        output += reasoning  # xAI: completion_tokens exclude reasoning
    cached = next(
        (
            count
            for count in (
                as_count(prompt.get("cached_tokens")),
                as_count(raw.get("prompt_cache_hit_tokens")),
                as_count(raw.get("num_cached_tokens")),
                as_count(raw.get("cached_tokens")),
            )
            if count is not None
        ),
        None,
    )
    return Usage(
        as_count(raw.get("prompt_tokens")),
        output,
        reasoning,
        cached,
        as_count(prompt.get("cache_write_tokens")),
        as_count(raw.get("total_tokens")),
        copy.deepcopy(raw),
    )


def _merge_detail(merged: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    """Add a fragment of reasoning_details to the entry that it continues: the same index and type, text or summary."""
    last = next(
        (
            known
            for known in reversed(merged[-_RECENT_DETAILS:])
            if known.get("type") == entry.get("type") and known.get("index") == entry.get("index")
        ),
        None,
    )
    if last is None or entry.get("type") == "reasoning.encrypted":
        merged.append({key: value for key, value in entry.items() if value is not None})
        return
    for key, value in entry.items():
        if value is None or value == "":
            continue
        if key in ("text", "summary") and isinstance(value, str) and isinstance(last.get(key), str):
            last[key] += value
        else:
            last[key] = value


def _filtered(results: Any) -> bool:
    return isinstance(results, dict) and any(
        isinstance(verdict, dict) and verdict.get("filtered") is True for verdict in results.values()
    )


def _string(value: Any) -> str | None:
    return value if type(value) is str else None
