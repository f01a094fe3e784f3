"""What dialects share whose events have a name that their data repeats as `type`: Anthropic, OpenAI Responses, Cohere.

Rules this file keeps:
- The type is what counts; a missing or generic event name is tolerated, a missing type is read from the name.
- A terminal signal is damaged, and confirms nothing, where its name and its type contradict each other, where it lacks
  its type, and where it lacks its name in a stream that names its events.
- An event that names content and whose type is no known content may have lost text: that breaks the protocol.
- An error is one wherever it stands: as the event's name, as the type, as an `error` object in any event.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from levada.dialects.base import Dialect
from levada.dialects.failures import fail_with
from levada.dialects.profiles import Profile
from levada.dialects.reading import read, read_document
from levada.draft import Draft


class NamedEvent(msgspec.Struct):
    """The keys that all these events have."""

    type: Any = None
    error: Any = None


class NamedDialect(Dialect):
    """The base of dialects with named events."""

    __slots__ = ("_named",)

    shape: ClassVar[type[NamedEvent]]  # all that the dialect looks at; `decoder` decodes it
    content_events: ClassVar[frozenset[str]]  # those that carry text, arguments or a finish
    terminal_events: ClassVar[frozenset[str]]
    keep_alives: ClassVar[frozenset[str]]

    def __init__(self, draft: Draft, profile: Profile) -> None:
        super().__init__(draft, profile)
        self._named = False  # an event had a name

    def take(self, event: str, data: bytes) -> bool:
        """Read one event; say whether it was no keep-alive."""
        draft = self.draft
        if event == "error":
            document = read_document(data)
            fail_with(draft, document if document is not None else data.decode("utf-8", "replace"))
            return True
        if data.startswith(b"[DONE]") and data.strip(b" \t\r\n") == b"[DONE]":
            draft.anomaly("done_sentinel")  # some gateways add one; it says nothing here
            return False
        decoder = self.decoder
        assert decoder is not None  # every dialect with named events has one
        chunk = read(data, decoder, self.shape, draft)
        if chunk is None:
            return draft.error is not None
        if isinstance(chunk, list):
            if any(isinstance(item, dict) and item.get("error") for item in chunk):
                fail_with(draft, chunk)
                return True
            draft.anomaly("not_an_object")
            return False
        kind = chunk.type
        if chunk.error or kind == "error":
            fail_with(draft, read_document(data))
            return True
        if kind == event:
            self._named = True
        elif not self._agree(chunk, event):
            return draft.error is not None
        kind = chunk.type
        if kind in self.keep_alives:
            return False
        return self.read_event(kind, chunk)

    def _agree(self, chunk: NamedEvent, event: str) -> bool:
        """Settle the type of an event whose name is not its type; say whether it may be read."""
        draft = self.draft
        kind = chunk.type
        if kind is None or kind == "":
            if event in self.content_events or event in self.keep_alives:
                draft.anomaly("missing_type", event)
                chunk.type = event
                return event not in self.terminal_events
            if self.has_content(chunk):
                draft.break_protocol("an event without a type")
            else:
                draft.anomaly("unknown_event", event)
            return False
        if type(kind) is not str:
            draft.break_protocol("type is no string")
            return False
        if event == "message":  # no name: the type alone tells
            if self._named and kind in self.terminal_events:
                draft.anomaly("missing_event_name", kind)
                return False
            return True
        draft.anomaly("event_name_differs", f"{event}: {kind}"[:200])
        if event in self.content_events and kind not in self.content_events:
            draft.break_protocol("an event's name and its type contradict each other")
            return False
        return kind not in self.terminal_events

    def is_terminal(self, data: str) -> bool:
        """Say whether an event whose blank line never came is the terminal event."""
        document = read_document(data)
        return isinstance(document, dict) and document.get("type") in self.terminal_events

    def has_content(self, chunk: Any) -> bool:
        """Say whether an event without a type has something that may be text."""
        raise NotImplementedError

    def read_event(self, kind: str, chunk: Any) -> bool:
        """Read one event of a type; say whether it was no keep-alive."""
        raise NotImplementedError
