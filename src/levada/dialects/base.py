"""What every dialect is: a reader of one provider family's events that tells a Draft what they mean.

A dialect lives in a folder of its own (`decode.py`: wire to deltas). Its module documents its events, its terminal
signal, its sources and their date on top. It keeps no text: the draft does. It never raises for what the peer sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from levada.draft import Draft

if TYPE_CHECKING:
    from levada.dialects.profiles import Profile
    from levada.finished import FinishedTurn


class Dialect:
    """The base of all dialects. One instance reads one turn; thousands may be alive, hence slots."""

    __slots__ = ("draft", "profile")

    name: ClassVar[str]
    provider: ClassVar[str]  # the provenance of parts, unless the profile has a name of its own
    framings: ClassVar[tuple[str, ...]] = ("sse",)  # the first is the default
    terminals: ClassVar[frozenset[str]] = frozenset({"strict"})  # what `terminal=` may be
    text_modes: ClassVar[frozenset[str]] = frozenset({"delta"})  # what `text_mode=` may be
    terminal_signal: ClassVar[str]  # in words, for the message of a truncated turn
    accepts_unterminated: ClassVar[bool] = (
        False  # an event without its blank line counts at the end, if it is whole JSON
    )
    needs_all_finishes: ClassVar[bool] = False  # the terminal signal counts only after a finish reason for every choice

    # for stencils: reads all that the dialect looks at; where its text may stand; what means nothing to it
    decoder: ClassVar[msgspec.json.Decoder[Any] | None] = None
    text_keys: ClassVar[tuple[bytes, ...]] = ()
    noise_keys: ClassVar[tuple[bytes, ...]] = ()

    def __init__(self, draft: Draft, profile: Profile) -> None:
        self.draft = draft
        self.profile = profile

    def take(self, event: str, data: bytes) -> bool:
        """Read one event (its type and data) or one JSON item (type "message"); say whether it was no keep-alive."""
        raise NotImplementedError

    def common_finish(self, native: str, choice: int) -> str:
        """Return the common word for a native finish reason; "other" for one that is not known, never "stop"."""
        raise NotImplementedError

    def is_terminal(self, data: str) -> bool:
        """Say whether an event without its blank line is the terminal signal: it confirms nothing and loses nothing."""
        return False

    def closing(self) -> None:
        """Do what is left before the turn is finished: close tool calls that their finish completed."""

    def confirmed_by_end(self, array_closed: bool | None) -> bool:
        """Say whether a clean end confirms the turn, in a dialect without a terminal event.

        `array_closed`: for JSON arrays, whether the closing bracket came; None in other framings.
        """
        return False

    def take_whole(self, document: dict[str, Any]) -> bool:
        """Read a whole, non-streamed answer and confirm it; return False, having done nothing, where it is none."""
        return False

    @classmethod
    def message(cls, turn: FinishedTurn) -> dict[str, Any]:
        """Return the provider's own assistant message for the next request."""
        raise NotImplementedError

    def finish_reasons(self) -> Mapping[int, str | None]:
        """Return the common finish reason of each choice seen, None where none came."""
        return {
            index: None if choice.finish is None else self.common_finish(choice.finish, index)
            for index, choice in self.draft.choices.items()
        }
