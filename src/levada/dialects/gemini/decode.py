"""Google Gemini `streamGenerateContent` to deltas: the Gemini API and Vertex AI, as an event stream or a JSON array.

Events: `data:` alone (`alt=sse`), or the elements of an array; each one JSON object with `candidates`,
`promptFeedback`, `usageMetadata`, `modelVersion`, `responseId`. No event names, no sentinel, no keep-alive.
Terminal: a `finishReason` on every candidate, with or after its last content, and a clean end with no error after it,
and the closing bracket of the array. Or `promptFeedback.blockReason` and a clean end. Some servers put `STOP` on every
chunk, also on empty ones before the text: only one that no content follows counts.
Blocks: the answer's text parts are counted from 0, and so are those of the reasoning. A part goes on over chunks; a
signature, a tool call, any other part, or a second text part in one chunk ends it.
Replay: a thought signature is an opaque part right after the part that it signs. Opaque parts hold the wire's own part.

Ignored on purpose, as nothing depends on them: createTime, modelStatus, safetyRatings, avgLogprobs, logprobsResult,
tokenCount, finishMessage.

Sources: google-genai 3.6.1 types, aiplatform v1 protos, recorded streams, issue threads; read 2026-11-30.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from levada.deltas import Citation, Usage
from levada.dialects.base import Dialect
from levada.dialects.failures import fail_with
from levada.dialects.gemini.arguments import Arguments
from levada.dialects.gemini.sources import references_of, sources_of, supports_of
from levada.dialects.profiles import Profile
from levada.dialects.reading import as_count, read, read_document
from levada.draft import Draft, Tool
from levada.errors import Truncated

if TYPE_CHECKING:
    from levada.finished import FinishedTurn

# Native finish reason -> ours. STOP after a function call is tool_use.
_FINISHES: Final = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "MODEL_ARMOR",
            "ESCALATION",
        ),
        "content_filter",
    ),
    "CONTINUATION": "pause",
    **dict.fromkeys(
        (
            "MALFORMED_FUNCTION_CALL",
            "UNEXPECTED_TOOL_CALL",
            "TOO_MANY_TOOL_CALLS",
            "MISSING_THOUGHT_SIGNATURE",
            "MALFORMED_RESPONSE",
            "NO_IMAGE",
            "LANGUAGE",
            "PUP_LIMITED_DISABLED",
        ),
        "error",
    ),
}
# The same as numbers, which clients that print enums by number put on the wire; seen from Vertex AI, so by its proto
# (google.cloud.aiplatform.v1 Candidate.FinishReason). 0 is unspecified, proto3's way to leave the field out.
_NUMBERS: Final = dict(
    enumerate(
        (
            "STOP",
            "MAX_TOKENS",
            "SAFETY",
            "RECITATION",
            "OTHER",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "MALFORMED_FUNCTION_CALL",
            "MODEL_ARMOR",
        ),
        1,
    )
)

# Keys of a part that are read; any other key makes it a part that is only kept.
_READ: Final = frozenset({"text", "thought", "thoughtSignature", "functionCall"})
# Parts that are known and only kept, to be sent back.
_KEPT: Final = (
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
    "inlineData",
    "fileData",
    "functionResponse",
)
# Opaque parts that stand beside the content and are not sent back.
_BESIDE: Final = ("groundingMetadata", "urlContextMetadata", "continuationToken")


class _Chunk(msgspec.Struct):
    """The keys of a chunk that mean something here. All are Any: a wrong type is dealt with where it is read."""

    candidates: Any = None
    promptFeedback: Any = None  # noqa: N815  # the wire's own names
    usageMetadata: Any = None  # noqa: N815
    modelVersion: Any = None  # noqa: N815
    responseId: Any = None  # noqa: N815
    error: Any = None


class _Candidate:
    """What the dialect remembers of one candidate between chunks."""

    __slots__ = ("arguments", "blocks", "call", "index", "kept", "run", "sources", "unconfirmed")

    def __init__(self, index: int) -> None:
        self.index = index
        self.run: str | None = None  # the channel whose part grows
        self.blocks: dict[str, int] = {}  # by channel, the number of its last part
        self.call: Tool | None = None  # the call that is open
        self.arguments = Arguments()
        self.unconfirmed = False  # content came after the finish reason
        self.sources: dict[str, Citation] = {}  # of all citation metadata, by what they say
        self.kept: dict[str, dict[str, Any]] = {}  # what is kept beside the content, by name


class GeminiDecoder(Dialect):
    """Reads one Gemini stream."""

    __slots__ = (
        "_blocked",
        "_candidates",
    )

    name = "gemini"
    provider = "google"
    framings = ("sse", "json-array")
    text_modes = frozenset({"delta", "cumulative"})
    terminal_signal = "a finishReason for every candidate, then a clean end"
    accepts_unterminated = True
    decoder = msgspec.json.Decoder(_Chunk)
    text_keys = (b'"text":',)

    def __init__(self, draft: Draft, profile: Profile) -> None:
        super().__init__(draft, profile)
        self._candidates: dict[int, _Candidate] = {}
        self._blocked = False  # the prompt was

    def take(self, event: str, data: bytes) -> bool:
        """Read one chunk; say whether it was no keep-alive."""
        draft = self.draft
        if event == "error":
            document = read_document(data)
            fail_with(draft, document if document is not None else data.decode("utf-8", "replace"))
            return True
        if data.strip(b" \t\r\n") == b"[DONE]":
            draft.anomaly("done_sentinel")  # translators add it; it confirms nothing here
            return False
        chunk = read(data, _DECODER, _Chunk, draft)
        if chunk is None:
            return draft.error is not None
        return self._chunks(chunk) if isinstance(chunk, list) else self._chunk(chunk)

    def _chunks(self, chunks: list[Any]) -> bool:
        """Read a list in the place of a chunk: an error in a list of one, seen in the field, or several chunks."""
        opened = False
        for chunk in chunks:
            if not isinstance(chunk, dict):
                self.draft.break_protocol("a chunk is no object")
                return True
            opened |= self._chunk(msgspec.convert(chunk, _Chunk))
        self.draft.anomaly("list_of_chunks")
        return opened

    def _chunk(self, chunk: _Chunk) -> bool:
        draft = self.draft
        draft.name_turn(chunk.responseId, chunk.modelVersion)
        if chunk.error:
            fail_with(draft, chunk.error)
            return True
        opened = False
        candidates = chunk.candidates
        if isinstance(candidates, list):
            for candidate in candidates:
                if not isinstance(candidate, dict):
                    draft.break_protocol("an entry of candidates is no object")
                    return True
                opened |= self._candidate(candidate)
                if draft.error is not None:
                    return True
        elif candidates is not None:
            draft.break_protocol("candidates is no list")
            return True
        if chunk.promptFeedback is not None:
            opened |= self._feedback(chunk.promptFeedback)
        if chunk.usageMetadata is not None:
            opened |= self._usage(chunk.usageMetadata)
        return opened

    def _candidate(self, candidate: dict[str, Any]) -> bool:
        draft = self.draft
        index = candidate.get("index")
        if index is None:
            index = 0  # Vertex AI leaves it out
        if type(index) is not int or index < 0:
            draft.break_protocol("candidates[].index is no number")
            return True
        draft.choice(index)
        known = self._candidates.get(index)
        if known is None:
            known = self._candidates[index] = _Candidate(index)
        content = candidate.get("content")
        opened = False
        if isinstance(content, dict):
            opened = self._parts(content.get("parts"), known)
        elif content is not None:
            draft.break_protocol("candidates[].content is no object")
            return True
        opened |= self._finish(candidate.get("finishReason"), known)
        for name in ("citationMetadata", "groundingMetadata", "urlContextMetadata", "continuationToken"):
            value = candidate.get(name)
            if value:
                opened = True
                self._beside(name, value, known)
        return opened

    # -- parts -----------------------------------------------------------------------------------------------------

    def _parts(self, parts: Any, known: _Candidate) -> bool:
        if parts is None:
            return False
        if not isinstance(parts, list):
            self.draft.break_protocol("content.parts is no list")
            return True
        opened = False
        alone = True  # no text part came before in this chunk
        for part in parts:
            if not isinstance(part, dict):
                self.draft.break_protocol("a part is no object")
                return True
            opened |= self._part(part, known, alone)
            alone = alone and not part.get("text")
        return opened

    def _part(self, part: dict[str, Any], known: _Candidate, alone: bool) -> bool:
        draft = self.draft
        text, call, signature = part.get("text"), part.get("functionCall"), part.get("thoughtSignature")
        if text is not None and type(text) is not str:
            draft.break_protocol("the text of a part is no string")
            return True
        if call is not None and not isinstance(call, dict):
            draft.break_protocol("functionCall is no object")
            return True
        block = 0
        if text:
            block = self._text(text, known, bool(part.get("thought")), alone and not signature)
        if call is not None:
            self._call(call, known)
            block = draft.tools[-1].block if draft.tools else 0
        others = [key for key, value in part.items() if key not in _READ and value is not None]
        if others:
            self._other(part, others, known, beside=bool(text) or call is not None)
        if type(signature) is str and signature:
            if not text and call is None and not others:
                # a part of its own, empty but for its signature: it goes back as it is
                draft.keep(
                    "text", {key: part[key] for key in ("text", "thought") if part.get(key) is not None}, known.index
                )
            draft.opaque("thought_signature", signature, known.index, block)
            known.run = None
        elif signature is not None and signature != "":
            draft.anomaly("signature_no_string", "thoughtSignature")
        return bool(text or call is not None or others or signature)

    def _text(self, text: str, known: _Candidate, thought: bool, goes_on: bool) -> int:
        """Append text to the part that grows, or to a new one; return its block."""
        channel = "reasoning" if thought else "answer"
        if known.run != channel or not goes_on:
            known.run = channel
            known.blocks[channel] = known.blocks.get(channel, -1) + 1
        block = known.blocks[channel]
        self._content(known)
        draft = self.draft
        if channel == "reasoning":
            draft.text(
                text, channel, known.index, block, "summary"
            )  # Google shows summaries of thoughts, never thoughts
        elif draft.text_mode == "cumulative":
            draft.text_so_far(text, channel, known.index, block)
        else:
            draft.text(text, channel, known.index, block)
        return block

    def _other(self, part: dict[str, Any], others: list[str], known: _Candidate, beside: bool) -> None:
        """Keep a part that is neither text nor a call, for the next request."""
        draft = self.draft
        name = next((key for key in others if key in _KEPT), None)
        if name is None or beside:
            draft.anomaly("unknown_part", f"parts[].{others[0]}")
        if beside:
            return
        kept = {key: value for key, value in part.items() if key != "thoughtSignature" and value is not None}
        draft.opaque(name or others[0], kept, known.index)
        known.run = None
        self._content(known)

    def _content(self, known: _Candidate) -> None:
        """Note that content came: a finish reason before it was not the last word."""
        if not known.unconfirmed and self.draft.choice(known.index).finish is not None:
            known.unconfirmed = True
            self.draft.touch()

    # -- function calls --------------------------------------------------------------------------------------------

    def _call(self, call: dict[str, Any], known: _Candidate) -> None:
        """Read a whole function call, or a piece of one whose arguments are streamed.

        A name begins a call. Whatever does not say `willContinue` ends it; where that is missing, the next name or the
        finish does. `functionCall: {}` after the end means nothing.
        """
        draft = self.draft
        name, id, args, pieces = call.get("name"), call.get("id"), call.get("args"), call.get("partialArgs")
        if name is not None and type(name) is not str:
            draft.break_protocol("functionCall.name is no string")
            return
        if id is not None and type(id) is not str:
            draft.anomaly("tool_id_no_string", "functionCall.id")
            id = None
        if pieces is not None and not isinstance(pieces, list):
            draft.break_protocol("functionCall.partialArgs is no list")
            return
        if name:
            same = known.call is not None and bool(id) and known.call.id == id
            if known.call is not None and not same:
                self._close(known, told=False)
            if known.call is None:
                known.call = draft.open_tool(id, name, known.index, len(draft.tools))
                known.arguments = Arguments()
                known.run = None
            self._content(known)
        elif known.call is None:
            if args or pieces:
                draft.break_protocol("functionCall has no name")
            return
        try:
            if args is not None:
                known.arguments.add_whole(args)
            for piece in pieces or ():
                known.arguments.add(piece)
        except ValueError as fault:
            draft.break_protocol(str(fault))
            return
        draft.touch()
        if call.get("willContinue") is not True:
            self._close(known, told=True)

    def _close(self, known: _Candidate, told: bool) -> None:
        """Close the open call. `told`: the provider said so, else what came after it did."""
        call, known.call = known.call, None
        assert call is not None  # the callers looked
        if known.arguments.unfinished:
            if not told:
                self.draft.break_protocol("a string of the arguments was to continue")
                return
            self.draft.anomaly("argument_not_ended", f"tool {call.index}")
        try:
            arguments = known.arguments.text()
        except ValueError:
            self.draft.break_protocol("the arguments cannot be written as JSON")
            return
        self.draft.tool(call, arguments)
        self.draft.close_tool(call)

    # -- what stands beside the content ----------------------------------------------------------------------------

    def _finish(self, native: Any, known: _Candidate) -> bool:
        if native is None or native == "" or (type(native) is int and native == 0):
            return False
        if type(native) not in (str, int):
            self.draft.break_protocol("finishReason is neither string nor number")
            return True
        known.unconfirmed = False
        word = str(native)
        self.draft.finish(word, self.common_finish(word, known.index), known.index)
        return True

    def _feedback(self, feedback: Any) -> bool:
        """Read what became of the prompt: a block reason means that there will be no answer."""
        if not isinstance(feedback, dict):
            self.draft.break_protocol("promptFeedback is no object")
            return True
        reason = feedback.get("blockReason")
        if (
            reason is None
            or reason == ""
            or reason == "BLOCK_REASON_UNSPECIFIED"
            or (reason == 0 and reason is not False)
        ):
            return False
        if type(reason) not in (str, int):
            self.draft.break_protocol("promptFeedback.blockReason is neither string nor number")
            return True
        self._blocked = True
        self.draft.finish(str(reason), "content_filter")
        return True

    def _beside(self, name: str, value: Any, known: _Candidate) -> None:
        draft, choice = self.draft, known.index
        if name == "continuationToken":
            draft.opaque(name, value if type(value) is str else str(value), choice)
            return
        if not isinstance(value, dict):
            draft.anomaly("metadata_unread", f"candidates[].{name}")
            return
        if name == "citationMetadata":
            for citation in sources_of(value, choice, draft):
                key = repr(citation)
                if key not in known.sources:  # they come in pieces, or repeated
                    known.sources[key] = citation
                    draft.cite(citation)
        elif name == "groundingMetadata":
            self._grounding(value, known)
        else:
            self._keep_last(name, value, known)

    def _grounding(self, metadata: dict[str, Any], known: _Candidate) -> None:
        """Read grounding metadata: each replaces the former, list by list; a list that is missing replaces none."""
        draft, choice = self.draft, known.index
        chunks, supports = metadata.get("groundingChunks"), metadata.get("groundingSupports")
        if isinstance(chunks, list) and chunks:
            draft.set_references(references_of(chunks, choice, draft), choice)
        if isinstance(supports, list) and supports:
            citations = supports_of(
                supports,
                choice,
                known.blocks.get("answer", 0),
                lambda block: draft.part_text("answer", choice, block),
                draft,
            )
            draft.set_citations([*known.sources.values(), *citations], choice)
        rest = {
            key: value
            for key, value in metadata.items()
            if key not in ("groundingChunks", "groundingSupports") and value is not None
        }
        if rest:
            self._keep_last("groundingMetadata", rest, known)

    def _keep_last(self, name: str, value: dict[str, Any], known: _Candidate) -> None:
        """Keep an object that later chunks repeat or add to, once."""
        kept = known.kept.get(name)
        if kept is None:
            kept = known.kept[name] = {}
            self.draft.keep(name, kept, known.index)
        if kept != {**kept, **value}:
            kept.update(value)
            self.draft.opaque(name, value, known.index, keep=False)

    def _usage(self, raw: Any) -> bool:
        if not isinstance(raw, dict):
            self.draft.anomaly("usage_no_object", "usageMetadata")
            return False
        before = self.draft.usage
        merged = self.draft.merge_usage(raw)
        self.draft.use(merged, usage_of(merged))
        return self.draft.usage is not before

    # -- how it ends -----------------------------------------------------------------------------------------------

    def common_finish(self, native: str, choice: int) -> str:
        """Return the common word. `stop` after a function call is tool_use; a blocked prompt stays blocked."""
        if self._blocked:
            return "content_filter"
        if native.isascii() and native.isdigit():
            native = _NUMBERS.get(int(native[:4]), "")
        word = _FINISHES.get(native, "other")
        if word == "stop" and any(tool.choice == choice for tool in self.draft.tools):
            return "tool_use"
        return word

    def confirmed_by_end(self, array_closed: bool | None) -> bool:
        """Say whether every candidate was finished and the array, if it is one, was closed."""
        choices = self.draft.choices
        if array_closed is False or not (choices or self._blocked):
            return False
        for known in self._candidates.values():
            if known.unconfirmed and not self._blocked:
                return False
        if not self._blocked and any(choice.finish is None for choice in choices.values()):
            return False
        for known in self._candidates.values():
            if self._is_closed_by_finish(known) and known.arguments.unfinished:
                self.draft.break_protocol("a string of the arguments was to continue")
        return True

    def closing(self) -> None:
        """Close the function calls that are open: the finish completes them, unless it cut them off."""
        for known in self._candidates.values():
            if self._is_closed_by_finish(known):
                self._close(known, told=False)

    def _is_closed_by_finish(self, known: _Candidate) -> bool:
        finish = self.draft.choice(known.index).finish
        return known.call is not None and finish is not None and self.common_finish(finish, known.index) == "tool_use"

    def take_whole(self, document: Any) -> bool:
        """Read a whole answer: one `GenerateContentResponse`, or the list of a stream's chunks."""
        chunks = document if isinstance(document, list) else [document]
        if not chunks or not all(
            isinstance(chunk, dict)
            and not chunk.get("error")
            and (chunk.get("candidates") or chunk.get("promptFeedback"))
            for chunk in chunks
        ):
            return False
        for chunk in chunks:
            self._chunk(msgspec.convert(chunk, _Chunk))
        if self.draft.error is None and not self.confirmed_by_end(None):
            self.draft.fail(
                "a whole answer without a finishReason for every candidate", error=Truncated, retryable=True
            )
        if self.draft.error is None:
            self.draft.confirm()
        return True

    @classmethod
    def message(cls, turn: FinishedTurn) -> dict[str, Any]:
        """Return {"role": "model", "parts": […]} for `contents` of the next request. It holds candidate 0.

        Each signature stands on its own part. Calls that were cut off are left out.
        """
        parts: list[dict[str, Any]] = []
        signed: dict[str, Any] | None = None  # the part that a signature that follows belongs to
        for part in turn.parts:
            if part.choice or (part.type == "opaque" and part.name in _BESIDE):
                continue
            if part.type == "opaque" and part.name == "thought_signature":
                if signed is not None:
                    signed["thoughtSignature"] = part.data
                continue
            signed = None
            if part.type == "text" and part.text:
                signed = {"text": part.text}
            elif part.type == "reasoning" and part.text:
                signed = {"text": part.text, "thought": True}
            elif part.type == "opaque":
                signed = dict(part.data)
            elif part.tool_call is not None and part.tool_call.complete:
                call = part.tool_call
                body: dict[str, Any] = {} if call.id_is_ours else {"id": call.id}
                signed = {"functionCall": {**body, "name": call.name, "args": json.loads(call.arguments or "{}")}}
            if signed is not None:
                parts.append(signed)
        return {"role": "model", "parts": parts}


_DECODER: Final = GeminiDecoder.decoder
DECODER: Final = GeminiDecoder


def usage_of(raw: dict[str, Any]) -> Usage:
    """Return a `usageMetadata` object in levada's form: its candidates' tokens exclude those of thoughts."""
    prompt, tools = as_count(raw.get("promptTokenCount")), as_count(raw.get("toolUsePromptTokenCount"))
    answer, thoughts = as_count(raw.get("candidatesTokenCount")), as_count(raw.get("thoughtsTokenCount"))
    return Usage(
        None if prompt is None else prompt + (tools or 0),
        None if answer is None and thoughts is None else (answer or 0) + (thoughts or 0),
        thoughts,
        as_count(raw.get("cachedContentTokenCount")),
        None,
        as_count(raw.get("totalTokenCount")),
        dict(raw),
    )
