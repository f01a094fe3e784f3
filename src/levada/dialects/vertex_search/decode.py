"""Vertex AI Search (Discovery Engine) `:streamAnswer` to deltas.

Elements: one JSON array of `AnswerQueryResponse` = `{answer, session?, answerQueryToken?}`, sent piece by piece; as an
event stream too, should a server do so. They come in no fixed order: references usually first, citations before or
after the text that they cite, steps, related questions and session anywhere.
Terminal: an element with `answer.state` SUCCEEDED, no other state after it, and a clean end; a closing bracket that is
missing is counted. FAILED fails the turn.
Text: `answerText` of a STREAMING element is the next piece; that of SUCCEEDED is the whole answer and replaces what was
streamed, where it differs. Lists of references and citations are joined while streaming, and replaced by those of
SUCCEEDED, where it has them. A citation is handed out once the text that it cites has come.
Offsets are bytes of UTF-8 of the final answer, the end exclusive; int64 are strings, and 0 is left out.
Finish: SUCCEEDED is stop. With `answerSkippedReasons` the reason decides, and is the native word, unless the answer is
a real one: it cites, or it was streamed and the reason is no policy's. What else comes with a reason is an apology.
Exposed as opaque parts under the wire's own names: session, answerQueryToken, steps, relatedQuestions,
answerSkippedReasons, queryUnderstandingInfo, groundingSupports, groundingScore, safetyRatings.

Ignored on purpose: createTime, completeTime, states of single steps. Usage and model are never told.

Sources: google.cloud.discoveryengine.v1 answer.proto; third-party measurements of 2026-06-09; read 2026-11-30.
"""

from __future__ import annotations

import json
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

from levada.deltas import Citation, Reference
from levada.dialects.base import Dialect
from levada.dialects.failures import fail_with
from levada.dialects.profiles import Profile
from levada.dialects.reading import read, read_document
from levada.draft import Draft
from levada.errors import Truncated

if TYPE_CHECKING:
    from levada.finished import FinishedTurn

_STATES: Final = ("STATE_UNSPECIFIED", "IN_PROGRESS", "FAILED", "SUCCEEDED", "STREAMING")  # by number in the proto

_POLICY_REASONS: Final = frozenset(
    {
        "ADVERSARIAL_QUERY_IGNORED",
        "JAIL_BREAKING_QUERY_IGNORED",
        "POTENTIAL_POLICY_VIOLATION",
        "CUSTOMER_POLICY_VIOLATION",
    }
)

# Kept as opaque parts: the last value of each that is not empty, or what lists that come entry by entry add up to.
_OF_ANSWER: Final = (
    "steps",
    "relatedQuestions",
    "answerSkippedReasons",
    "queryUnderstandingInfo",
    "groundingSupports",
    "groundingScore",
    "safetyRatings",
)
_JOINED: Final = ("relatedQuestions", "answerSkippedReasons", "groundingSupports")
_REFERENCE_KINDS: Final = ("chunkInfo", "unstructuredDocumentInfo", "structuredDocumentInfo")


class _Element(msgspec.Struct):
    """The keys of an element that mean something here. All are Any: a wrong type is dealt with where it is read."""

    answer: Any = None
    session: Any = None
    answerQueryToken: Any = None  # noqa: N815  # the wire's own name
    error: Any = None


class SearchDecoder(Dialect):
    """Reads one streamAnswer stream."""

    __slots__ = (
        "_blocks",
        "_citations",
        "_extras",
        "_grew",
        "_joined",
        "_last_piece",
        "_pieces",
        "_references",
        "_size",
        "_state",
        "_steps",
        "_thoughts",
        "_waiting",
    )

    name = "vertex_search"
    provider = "google"
    framings = ("json-array", "sse")
    text_modes = frozenset({"delta", "cumulative", "auto"})
    terminal_signal = "an answer with state SUCCEEDED, then a clean end"
    decoder = msgspec.json.Decoder(_Element)
    text_keys = (b'"answerText":',)

    def __init__(self, draft: Draft, profile: Profile) -> None:
        super().__init__(draft, profile)
        self._state = ""  # the last one that was told
        self._extras: dict[str, Any] = {}
        self._joined: set[tuple[str, str]] = set()  # names and JSON of the entries of joined lists
        self._thoughts: set[str] = set()
        self._steps: dict[str, tuple[int, str]] = {}  # by description, the block and the thought so far
        self._blocks = 0  # of reasoning: one for each step that thought
        self._references: dict[str, Reference] = {}  # by their JSON
        self._citations: set[str] = set()  # their JSON
        self._waiting: list[tuple[int, int, Citation]] = []  # by end, then by arrival: their text has not come
        self._size: int | None = None  # bytes of the answer so far, counted from the first citation on
        # for text_mode "auto": whether each piece so far began with the one before
        self._grew = True
        self._pieces = 0
        self._last_piece = ""

    def take(self, event: str, data: bytes) -> bool:
        """Read one element; say whether it was no keep-alive."""
        draft = self.draft
        if event == "error":
            document = read_document(data)
            fail_with(draft, document if document is not None else data.decode("utf-8", "replace"))
            return True
        element = read(data, _DECODER, _Element, draft)
        if element is None:
            return draft.error is not None
        return self._elements(element) if isinstance(element, list) else self._element(element)

    def _elements(self, elements: list[Any]) -> bool:
        """Read a list in the place of an element, as an event of an event stream may hold."""
        opened = False
        for element in elements:
            if not isinstance(element, dict):
                self.draft.break_protocol("an element is no object")
                return True
            opened |= self._element(msgspec.convert(element, _Element))
        self.draft.anomaly("list_of_elements")
        return opened

    def _element(self, element: _Element) -> bool:
        if element.error:
            fail_with(self.draft, element.error)
            return True
        opened = False
        if isinstance(element.answer, dict):
            opened = self._answer(element.answer)
        elif element.answer is not None:
            self.draft.break_protocol("answer is no object")
            return True
        for name, value in (("session", element.session), ("answerQueryToken", element.answerQueryToken)):
            opened |= self._extra(name, value)
        return opened

    def _answer(self, answer: dict[str, Any]) -> bool:
        draft = self.draft
        state = self._read_state(answer.get("state"))
        text = answer.get("answerText")
        if text is None:
            text = ""
        elif type(text) is not str:
            draft.break_protocol("answer.answerText is no string")
        if draft.error is not None:
            return True
        if state not in ("", self._state) or (text and self._state == "SUCCEEDED"):
            # text without a state after SUCCEEDED: the answer goes on, so it was not the last word
            self._state = state or "STREAMING"
            draft.touch()
        draft.name_turn(answer.get("name"))
        before = draft.effects
        self._read_steps(answer.get("steps"))
        for name in _OF_ANSWER:
            self._extra(name, answer.get(name), join=name in _JOINED and state != "SUCCEEDED")
        references, citations = self._list(answer, "references"), self._list(answer, "citations")
        if state == "SUCCEEDED":
            self._succeed(text, references, citations)
        elif state == "FAILED":
            self._fail(text)
        else:
            self._join_references(references)
            self._text(text)
            self._join_citations(citations)
        return draft.effects > before or bool(state)

    def _read_state(self, state: Any) -> str:
        """Return the state's word, "" where none was told."""
        if state is None or state == "":
            return ""
        if type(state) is int and 0 <= state < len(_STATES):
            state = _STATES[state]
        if type(state) is not str:
            self.draft.break_protocol("answer.state is neither a word nor its number")
            return ""
        if state not in _STATES:
            self.draft.anomaly("unknown_state", "answer.state")
            return ""
        return "" if state == "STATE_UNSPECIFIED" else state

    def _list(self, answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
        entries = answer.get(name)
        if entries is None:
            return []
        if not isinstance(entries, list):
            self.draft.anomaly("metadata_unread", f"answer.{name}")
            return []
        objects = [entry for entry in entries if isinstance(entry, dict)]
        if len(objects) < len(entries):
            self.draft.anomaly("metadata_unread", f"answer.{name}[]")
        return objects

    # -- while streaming -------------------------------------------------------------------------------------------

    def _text(self, text: str) -> None:
        draft = self.draft
        if not text:
            return
        if draft.text_mode == "cumulative":
            draft.text_so_far(text)
        else:
            draft.text(text)
            if draft.text_mode == "auto":
                self._grew = self._grew and text.startswith(self._last_piece)
                self._pieces += 1
                self._last_piece = text
        if self._size is not None:
            draft.touch()
            self._size = self._measure() if draft.text_mode == "cumulative" else self._size + len(text.encode())
            self._release(self._size)

    def _measure(self) -> int:
        return len(self.draft.channel_text("answer").encode())

    def _join_citations(self, entries: list[dict[str, Any]]) -> None:
        if entries and self._size is None:
            self._size = self._measure()
            self.draft.touch()
        for entry in entries:
            key = _json(entry)
            if key not in self._citations:
                self._citations.add(key)
                citation = self._citation(entry)
                heappush(self._waiting, (citation.end or 0, len(self._citations), citation))
        self._release(self._size or 0)

    def _release(self, size: int | None) -> None:
        """Hand out the citations whose text has come, in the order of their ends; all where `size` is None."""
        if self._waiting:
            self.draft.touch()
        while self._waiting and (size is None or self._waiting[0][0] <= size):
            self.draft.cite(heappop(self._waiting)[2])

    def _join_references(self, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            key = _json(entry)
            if key not in self._references:
                self._references[key] = _reference(entry, len(self._references))
                self.draft.refer(self._references[key])

    def _read_steps(self, steps: Any) -> None:
        """Read the steps' thoughts. Steps are repeated with each change; a thought that grew is continued."""
        if steps is None:
            return
        if not isinstance(steps, list):
            self.draft.anomaly("metadata_unread", "answer.steps")
            return
        for step in steps:
            thought = step.get("thought") if isinstance(step, dict) else None
            if type(thought) is not str or not thought:
                if thought is not None and thought != "":
                    self.draft.anomaly("metadata_unread", "answer.steps[].thought")
                continue
            if thought in self._thoughts:
                continue
            self._thoughts.add(thought)
            description = step.get("description")
            title = description if type(description) is str else ""
            block, known = self._steps.get(title, (0, "")) if title else (0, "")
            if not known or not thought.startswith(known):
                block, known = self._blocks, ""
                self._blocks += 1
            if title:
                self._steps[title] = block, thought
            self.draft.text(thought[len(known) :], "reasoning", 0, block, "plan")

    def _extra(self, name: str, value: Any, *, join: bool = False) -> bool:
        """Keep what is neither text nor a source: the last one that is not empty, or the lists so far joined."""
        if not value:
            return False
        if join and isinstance(value, list):
            entries = {(name, _json(entry)): entry for entry in value}
            value = [entry for key, entry in entries.items() if key not in self._joined]
            if not value:
                return False
            self._joined.update(entries)
            known = self._extras.get(name)
            self._extras[name] = known if isinstance(known, list) else []
            self._extras[name] += value
        elif value != self._extras.get(name):
            self._extras[name] = list(value) if isinstance(value, list) else value
        else:
            return False
        self.draft.opaque(name, value, keep=False)
        return True

    # -- how it ends -----------------------------------------------------------------------------------------------

    def _succeed(self, text: str, references: list[dict[str, Any]], citations: list[dict[str, Any]]) -> None:
        """Take the whole answer. A second one would be taken the same way: the last wins."""
        draft = self.draft
        known = draft.channel_text("answer")
        reasons = _words(self._extras.get("answerSkippedReasons"))
        if text and not known:
            draft.text(text)
        elif text:
            if text != known:
                if not (draft.text_mode == "auto" and self._grew and self._last_piece == text):
                    draft.anomaly("final_text_differs", "answer.answerText")  # nor were the pieces the text so far
                draft.replace(text, reason="final_text")
        elif reasons:
            self._waiting = []
            if known:
                draft.replace("", reason=reasons[0])  # skipped: what was streamed is no answer
        else:
            draft.anomaly("final_text_missing", "answer.answerText")
            if draft.text_mode == "auto" and self._grew and self._pieces > 1 and known != self._last_piece:
                draft.replace(self._last_piece, reason="cumulative_text")
        if references:
            draft.set_references([_reference(entry, number) for number, entry in enumerate(references)])
        if citations:
            self._waiting = []
            draft.set_citations([self._citation(entry) for entry in citations])
        self._release(None)
        size = self._measure()
        for citation in draft.citations:
            if citation.end is not None and citation.end > size:
                draft.anomaly("citation_past_text", "answer.citations")
        native = self._native(reasons, bool(known) and text == known)
        draft.finish(native, self.common_finish(native, 0))

    def _native(self, reasons: list[str], streamed: bool) -> str:
        """Return the word that decides the finish: a reason for which the answer was skipped, or the state."""
        if not reasons:
            return "SUCCEEDED"
        policy = next((reason for reason in reasons if reason in _POLICY_REASONS), None)
        cites = bool(self.draft.citations or self._extras.get("groundingSupports"))
        if self.draft.channel_text("answer") and (cites or (streamed and policy is None)):
            return "SUCCEEDED"
        return policy or reasons[0]

    def _fail(self, text: str) -> None:
        """Take a failure. It may carry the text up to there, which was streamed already or was not."""
        draft = self.draft
        known = draft.channel_text("answer")
        if text.startswith(known):
            draft.text(text[len(known) :])
        draft.finish("FAILED", "error")
        reasons = ", ".join(_words(self._extras.get("answerSkippedReasons")))
        draft.fail(f"the provider failed to answer{': ' + reasons if reasons else ''}", "FAILED")

    def common_finish(self, native: str, choice: int) -> str:
        """Return the common word for a state or a reason."""
        if native in ("SUCCEEDED", "FAILED"):
            return "stop" if native == "SUCCEEDED" else "error"
        return "content_filter" if native in _POLICY_REASONS else "other"

    def confirmed_by_end(self, array_closed: bool | None) -> bool:
        """Say whether the last state was SUCCEEDED. A bracket that is missing is counted, and no more."""
        if self._state != "SUCCEEDED":
            return False
        if array_closed is False:
            self.draft.anomaly("array_not_closed")
        return True

    def closing(self) -> None:
        """Keep what was exposed on the way, as parts."""
        for name, value in self._extras.items():
            self.draft.keep(name, value)

    def take_whole(self, document: Any) -> bool:
        """Read a whole answer: the response of `:answer`, or the list of a stream's elements."""
        elements = document if isinstance(document, list) else [document]
        if not elements or not all(
            isinstance(element, dict) and isinstance(element.get("answer"), dict) and not element.get("error")
            for element in elements
        ):
            return False
        for element in elements:
            self._element(msgspec.convert(element, _Element))
        if self.draft.error is None and self._state != "SUCCEEDED":
            self.draft.fail("a whole answer whose state is not SUCCEEDED", error=Truncated, retryable=True)
        if self.draft.error is None:
            self.draft.confirm()
        return True

    def _citation(self, entry: dict[str, Any]) -> Citation:
        start, end = self._offset(entry.get("startIndex")), self._offset(entry.get("endIndex"))
        sources = entry.get("sources")
        names = tuple(
            str(source["referenceId"])
            for source in (sources if isinstance(sources, list) else ())
            if isinstance(source, dict) and type(source.get("referenceId")) in (str, int)
        )
        if end is None:
            return Citation(references=names, raw=entry)
        return Citation(start or 0, end, "bytes", references=names, raw=entry)

    def _offset(self, value: Any) -> int | None:
        """Return an int64, which the wire writes as a string; None where there is none."""
        if type(value) is str and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
        if type(value) is int and value >= 0:
            return value
        if value is not None:
            self.draft.anomaly("citation_offset", "answer.citations[]")
        return None

    @classmethod
    def message(cls, turn: FinishedTurn) -> dict[str, Any]:
        """Return {"role": "assistant", "content": …}, for a chat API of another kind.

        The API itself takes no messages: it keeps the history, and the next request names the session, which is the
        opaque part `session`.
        """
        return {"role": "assistant", "content": turn.answer}


_DECODER: Final = SearchDecoder.decoder
DECODER: Final = SearchDecoder


def _reference(entry: dict[str, Any], number: int) -> Reference:
    """Return a reference; citations call it by its place in the list."""
    body: dict[str, Any] = next((entry[kind] for kind in _REFERENCE_KINDS if isinstance(entry.get(kind), dict)), {})
    document = body.get("documentMetadata")
    described = document if isinstance(document, dict) else body
    texts = [body.get("content")]
    chunks = body.get("chunkContents")
    if isinstance(chunks, list):
        texts += [chunk.get("content") for chunk in chunks if isinstance(chunk, dict)]
    text = "\n\n".join(text for text in texts if type(text) is str and text)
    return Reference(
        str(number), _string(described.get("title")), _string(described.get("uri")), text or None, raw=entry
    )


def _words(value: Any) -> list[str]:
    return [str(word) for word in (value if isinstance(value, list) else [value]) if word]


def _json(value: Any) -> str:
    """Return `value` as JSON, to know it again."""
    return json.dumps(value, sort_keys=True)


def _string(value: Any) -> str | None:
    return value if type(value) is str else None
