"""The five states of a turn, as a table.

Rules this file keeps:
- FINISHED has one way in: TERMINAL, from STREAMING. Whoever sends it has checked every rule of docs/turns.md.
- FINISHED, ERROR and CANCELLED have no way out.
- A signal that the table does not know changes nothing: after an end it is counted, elsewhere it is our own bug.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """Where a turn is."""

    CONNECTING = "connecting"  # nothing but keep-alives has come
    STREAMING = "streaming"  # text is provisional
    FINISHED = "finished"  # its provider said so: it may be stored and acted upon
    ERROR = "error"  # it ended badly
    CANCELLED = "cancelled"  # we stopped it


class Signal(Enum):
    """What happens to a turn."""

    OPENED = "opened"  # the first event that is no keep-alive
    DELTA = "delta"  # any later event
    TERMINAL = "terminal"  # the dialect's terminal signal, every rule checked
    FAILED = "failed"  # an error: the provider's, the transport's, a limit's
    CANCEL = "cancel"  # our caller stopped it
    CLOSED = "closed"  # the stream ended without the terminal signal


TRANSITIONS: Final = MappingProxyType(
    {
        State.CONNECTING: MappingProxyType(
            {
                Signal.OPENED: State.STREAMING,
                Signal.FAILED: State.ERROR,
                Signal.CANCEL: State.CANCELLED,
                Signal.CLOSED: State.ERROR,
            }
        ),
        State.STREAMING: MappingProxyType(
            {
                Signal.DELTA: State.STREAMING,
                Signal.TERMINAL: State.FINISHED,
                Signal.FAILED: State.ERROR,
                Signal.CANCEL: State.CANCELLED,
                Signal.CLOSED: State.ERROR,
            }
        ),
        State.FINISHED: MappingProxyType({}),
        State.ERROR: MappingProxyType({}),
        State.CANCELLED: MappingProxyType({}),
    }
)

ENDS: Final = frozenset(state for state, moves in TRANSITIONS.items() if not moves)


class Lifecycle:
    """One turn's state. All moves go through `move`, which looks the table up."""

    __slots__ = ("after_end", "state")

    def __init__(self) -> None:
        self.state = State.CONNECTING
        self.after_end = 0  # signals that came after the end

    @property
    def ended(self) -> bool:
        """Whether the turn has ended, in whatever way."""
        return self.state in ENDS

    def move(self, signal: Signal) -> bool:
        """Make the move for `signal`; return False, and count, where the turn had already ended.

        Raises RuntimeError for a move that the table does not know in a turn that goes on: that is our own bug.
        """
        after = TRANSITIONS[self.state].get(signal)
        if after is not None:
            self.state = after
            return True
        if not self.ended:
            raise RuntimeError(f"no transition for {signal.name} in {self.state.name}: a bug in levada")
        self.after_end += 1
        return False
