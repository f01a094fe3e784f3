"""Says from its first bytes which dialect a stream speaks, how it is framed and, where the bytes tell, who sent it.

Rules this file keeps:
- Pure: no input raises, no more than the first 64 KiB are looked at, once.
- A rule fires on what was seen to be there, never on what is not there yet: so a beginning of a stream gives None or
  what the whole of it gives. The exceptions (error objects) look at documents whose end was seen.
- The keys decide, never text that a model wrote.
- A profile is named only by marks that no other server of docs/dialects.md makes. It is a hint for reading: what was
  only detected must not loosen what finishes a turn (docs/turns.md); `Detected.habits` sees to that.

Sources: providers' documentation and SDKs, and recorded streams, read 2026-11-30.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from levada._wire import Comment
from levada.dialects import DIALECTS, PROFILES, Profile
from levada.sse import Event, EventParser

# 64 KiB: twice the largest first event in the field, that of a Responses stream, which repeats instructions and tools.
MOST_BYTES: Final = 64 * 1024
_DEEPEST: Final = 8  # of the keys that mean something here; what lies deeper is passed over


class Detected(Struct, frozen=True, gc=False):
    """What a stream is. `framing` is what `Turn` takes; a body that is no stream has its dialect's default one.

    `profile`: a server's name (levada.PROFILES), or None where the bytes do not tell.
    """

    dialect: str
    framing: str
    profile: str | None = None

    @property
    def habits(self) -> Profile | None:
        """The profile for `Turn(profile=…)`, strict: a turn finishes by what it would finish by without detection."""
        if self.profile is None:
            return None
        return structs.replace(PROFILES[self.profile], terminal="strict", terminal_objects=())


def detect(content_type: str | None, first_bytes: bytes | bytearray | memoryview) -> Detected | None:
    """Return what a stream is from its first bytes, or None while, or where, they do not tell.

    `content_type`: the HTTP header, or None. It can only exclude: the bytes decide, since servers mislabel them.
    `first_bytes`: as many as there are; the more, the surer. Only the first 64 KiB are looked at.
    """
    data = bytes(memoryview(first_bytes)[:MOST_BYTES])
    if _bare(content_type) in _OTHER_TYPES:
        return None
    first = data.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")[:1]
    found = _in_json(data) if first and first in b"[{" else None
    if found is None:
        found = _in_events(data)  # a JSON error may stand before the events
    return found if found is not None and found.dialect in DIALECTS else None


# Types that no dialect here is sent as: whatever the bytes look like, they are something else.
_OTHER_TYPES: Final = frozenset(
    {"text/html", "application/vnd.amazon.eventstream", "application/x-ndjson", "application/jsonl"}
)


def _bare(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def _in_json(data: bytes) -> Detected | None:
    """Judge a JSON array, or one object: a stream of one item, an error, a whole answer."""
    document = Document(data.decode("utf-8", "replace").lstrip("\ufeff"))
    dialect = _dialect_of("", document)
    if dialect in _ARRAYS:
        return None if document.rest and not document.is_array else Detected(dialect, "json-array")
    if dialect is None or document.is_array or document.rest:
        return None
    return Detected(dialect, "sse")


_ARRAYS: Final = ("gemini", "vertex_search")  # the dialects that are streamed as a JSON array too


def _in_events(data: bytes) -> Detected | None:
    """Judge an event stream; an event that is cut off tells what its beginning tells."""
    dialect = None
    marks: set[str] = set()
    for item in EventParser().feed_all(data + b"\n\n"):
        if isinstance(item, Comment):
            if item.text.strip() == "OPENROUTER PROCESSING":
                marks.add("openrouter")
        elif isinstance(item, Event):
            document = Document(item.data)
            if dialect is None:
                dialect = _dialect_of(item.event, document)
                if dialect is not None and dialect not in _PROFILED:
                    break
            marks.update(_marks(document))
    if dialect is None:
        return None
    profile = marks.pop() if len(marks) == 1 else None  # two servers' marks: a gateway, or one that we do not know
    if profile is not None and PROFILES[profile].dialect != dialect:
        profile = None
    return Detected(dialect, "sse", profile)


_PROFILED: Final = frozenset(profile.dialect for profile in PROFILES.values())


# -- dialects ----------------------------------------------------------------------------------------------------------

# `type` of an event's data, and its `event:` name
_ANTHROPIC: Final = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }
)
_CHAT_OBJECTS: Final = frozenset(
    {"chat.completion.chunk", "chat.completion", "chat.completion.done", "chat.reasoning", "chat.reasoning.done"}
)
# Keys that one dialect alone has, by their path.
_KEYS: Final = MappingProxyType(
    {
        "choices.delta": "openai_chat",
        "candidates.content": "gemini",
        "candidates.finishReason": "gemini",
        "promptFeedback.blockReason": "gemini",
        "usageMetadata.promptTokenCount": "gemini",
        "modelVersion": "gemini",
        # not `answer.state` alone: streamAssist has it, and is another message
        "answer.answerText": "vertex_search",
        "answer.references": "vertex_search",
        "answer.citations": "vertex_search",
        "answer.steps": "vertex_search",
        "answer.queryUnderstandingInfo": "vertex_search",
        "answer.relatedQuestions": "vertex_search",
        "answer.answerSkippedReasons": "vertex_search",
        "answer.groundingSupports": "vertex_search",
        "answerQueryToken": "vertex_search",
    }
)


def _dialect_of(event: str, document: Document) -> str | None:
    facts = document.facts
    kind = document.text("type")
    if kind in _ANTHROPIC or event in _ANTHROPIC:
        return "anthropic"
    if kind.startswith("response.") or event.startswith("response."):
        return "openai_responses"
    if kind == "error":
        return _typed_error(document)
    if kind == "message" and document.text("role") == "assistant" and "content" in facts:
        return "anthropic"  # a whole answer
    what = document.text("object")
    if what in _CHAT_OBJECTS:
        return "openai_chat"
    if what == "response":
        return "openai_responses"  # a whole answer
    if document.text("answer.state") == "STREAMING":
        return "vertex_search"
    for path, dialect in _KEYS.items():
        if path in facts:
            return dialect
    return _untyped_error(document)


def _typed_error(document: Document) -> str | None:
    """Judge `{"type":"error",…}`: Anthropic's nests its words; that of Responses has a number, code or param."""
    facts = document.facts
    if "sequence_number" in facts or "error.param" in facts or ("code" in facts and "param" in facts):
        return "openai_responses"
    if document.whole and document.text("error.message") and document.text("error.type") and "error.code" not in facts:
        return "anthropic"
    return None


def _untyped_error(document: Document) -> str | None:
    """Judge an error object without `type`. All of it must have been seen: its last key may be the telling one."""
    facts = document.facts
    if document.text("object") == "error" and document.text("message"):
        return "openai_chat"  # vLLM, older
    if not document.whole or not facts.get("error"):
        return None
    if _RPC_STATUS.fullmatch(document.text("error.status")) and "error.message" in facts:
        return "gemini"  # Google's shape, the same for all of its services
    if document.text("error.error.message") and document.text("error.type") == "error":
        return "anthropic"  # nested once more, by compatible servers
    if document.text("error.message") and any(f"error.{key}" in facts for key in ("type", "code", "param")):
        return "openai_chat"
    if document.text("error") and document.text("code"):
        return "openai_chat"  # xAI
    return None


_RPC_STATUS: Final = re.compile("[A-Z][A-Z_]+")


# -- profiles ----------------------------------------------------------------------------------------------------------

# Keys that one server alone sends, by their path.
_MARKS: Final = MappingProxyType(
    {
        "x_groq": "groq",
        "choices.matched_stop": "sglang",
        "choices.delta.graph_data": "writer",
        "choices.delta.tool_calls.extra_content.google": "gemini_openai",
        "usage.search_context_size": "perplexity",
    }
)
_PERPLEXITY_OBJECTS: Final = ("chat.completion.done", "chat.reasoning", "chat.reasoning.done")
_DEEPSEEK: Final = re.compile("fp_[0-9a-f]+_prod[0-9]*_fp8_kvcache.*")
_PRICE: Final = re.compile("[1-9][0-9]*")
_VLLM_ID: Final = re.compile("chat-[0-9a-f]{32}")
_ZAI_ID: Final = re.compile("20[0-9]{12}[0-9a-f]{16}")  # the time to the second, then hex
_DASHSCOPE_KEYS: Final = ["choices", "object", "usage", "created", "system_fingerprint", "model", "id"]


def _marks(document: Document) -> Iterator[str]:
    """Name the servers whose marks one chat chunk bears."""
    facts, text = document.facts, document.text
    for path, profile in _MARKS.items():
        if path in facts:
            yield profile
    if "choices.native_finish_reason" in facts and text("provider"):
        yield "openrouter"
    if ("prompt_filter_results" in facts or "prompt_annotations" in facts) and "object" in facts and "model" in facts:
        yield "azure"  # GitHub Copilot sends the filter's results without these two
    if text("object") in _PERPLEXITY_OBJECTS or (facts.get("citations") == facts.get("search_results") == "["):
        yield "perplexity"
    fingerprint = text("system_fingerprint")
    if fingerprint == "fp_ollama":
        yield "ollama_v1"
    elif fingerprint.startswith("vllm-") or ("choices.stop_reason" in facts and _VLLM_ID.fullmatch(text("id"))):
        yield "vllm"
    elif _DEEPSEEK.fullmatch(fingerprint):
        yield "deepseek"
    if _PRICE.fullmatch(facts.get("usage.cost_in_usd_ticks", "")):
        yield "xai"  # 0 where somebody else serves its models
    model = text("model")
    if model.startswith("glm-") and _ZAI_ID.fullmatch(text("id")):
        yield "zai"
    if document.whole and "choices" in facts:  # else a key that seems to be missing may still come
        if model.startswith(("kimi-", "moonshot-")) and ("object" not in facts or "choices.usage" in facts):
            yield "moonshot"
        keys = [path for path in facts if "." not in path]
        if keys == _DASHSCOPE_KEYS and text("id").startswith("chatcmpl-"):
            yield "dashscope"


# -- reading a JSON document that may be cut off -----------------------------------------------------------------------

_TOKEN: Final = re.compile(r'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^ \t\r\n{}\[\],:"]+)', re.DOTALL)


class Document:
    """The keys of a JSON document, of as much of it as there is. Never raises; what is no JSON has no keys.

    `facts`: by path ("choices.delta.content"; arrays leave no trace in it), the first scalar there: text with a quote
    in front, a number or word as it stands, "{" or "[" for an object or array, "" where it has not come. In the order
    of the document.
    `whole`: its end was seen. `rest`: something came after the end. `is_array`: it is an array.
    """

    __slots__ = ("facts", "is_array", "rest", "whole")

    def __init__(self, source: str) -> None:
        self.facts: dict[str, str] = {}
        self.whole = self.rest = self.is_array = False
        # the open brackets, each with the path of what is in it; None: too deep, or a name that no path can have
        stack: list[tuple[str, str | None]] = []
        path: str | None = ""
        key: str | None = None  # the string before a colon that has not come
        at = 0
        while match := _TOKEN.match(source, at):
            at = match.end()
            token = match[1]
            if self.whole:
                self.rest = True
                return
            if token in "{[":
                if not stack:
                    self.is_array = token == "["
                self._note(path, token)
                stack.append((token, path))
            elif token in "}]":
                if not stack:
                    return
                _, path = stack.pop()
                self.whole = not stack
            elif not stack:
                return  # a bare scalar
            elif token == ",":
                path = stack[-1][1]
            elif token == ":":
                path = _joined(stack[-1][1], key, len(stack))
                self._note(path, "")
            elif stack[-1][0] == "{" and path == stack[-1][1]:
                key = token  # a name; its value would stand at a path of its own
            elif token[0] == '"':
                self._note(path, token[:-1])
            elif at < len(source):  # else it may go on
                self._note(path, token)
        self.rest = self.whole and source[at:].strip() != ""

    def text(self, path: str) -> str:
        """Return the text at a path; "" where there is none. Escapes stay as they are: no word here has one."""
        fact = self.facts.get(path, "")
        return fact[1:] if fact[:1] == '"' else ""

    def _note(self, path: str | None, fact: str) -> None:
        if path and not self.facts.get(path):
            self.facts[path] = fact


def _joined(path: str | None, key: str | None, depth: int) -> str | None:
    if path is None or key in (None, '""') or depth > _DEEPEST or "." in key or "\\" in key:
        return None
    name = key.strip('"')
    return f"{path}.{name}" if path else name
