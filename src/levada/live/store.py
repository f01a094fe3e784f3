"""What a store of live turns has to do. `LiveLog` and `Writer` do the rest, once for all stores.

Rules every store keeps:
- Each call is atomic, and safe to repeat when nobody knows whether it was done.
- A lease that ran out counts from when somebody notices. Whoever does writes the terminal entry in the same step, so
  all readers get the same one, and from then on the old writer is fenced. `write` and `renew` notice nothing: a late
  producer goes on as long as nobody was told that it is gone.
- The clock is the store's, not its clients'. A client only counts how long it has seen one and the same lease.
- What the store does not answer in time, or not at all, raises Away; the caller tries again.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from levada.live.topics import Topics
from levada.live.values import Batch, Cursor, End, Entry, Signals

__all__ = ["Away", "Page", "Store"]


class Away(Exception):  # never leaves the package
    """The store is not there. `reason`: in words that name no host and no file."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Page(NamedTuple):
    """A part of a turn. `entries`: the next ones, oldest first; none where the page was asked to tell the state only.

    `token`: the writer's. `last`: the number of the turn's newest entry. `end`: how it ended, or None. `lease_s`: how
    many seconds of the lease are left; inf after the end. `lease`: when it ends by the store's clock, `lease_of_s`: for
    how long the producer takes it.
    """

    token: int
    last: int
    end: End | None
    stop: str | None
    lease_s: float
    lease: float
    lease_of_s: float
    entries: list[Entry]


class Store(Protocol):
    """Where live turns are kept."""

    name: str  # for messages
    topics: Topics  # told of what is new

    async def check(self) -> None:
        """Raise Away unless the store answers."""

    async def aclose(self) -> None:
        """Let go of everything."""

    async def start(self, turn_id: str, digest: bytes, attempt: str) -> int:
        """Make the turn, take its lease, return its token: larger than that of any earlier turn of this id.

        `attempt`: names the call, so that a repeated one returns the same token. Raises TurnExists, LiveLimit.
        """

    async def write(self, turn_id: str, token: int, batch: Batch) -> Signals:
        """Write a batch and take the lease again, unless the batch ends the turn.

        A batch that was written before changes nothing: a copy may arrive long after later batches, and after the end,
        where an attempt was given up and its bytes were still under way.

        Raises Fenced. Where the store has not what went before the batch, it ends the turn as entries_lost first.
        """

    async def renew(self, turn_id: str, token: int) -> Signals:
        """Take the lease again. Raises Fenced."""

    async def page(
        self, turn_id: str, digest: bytes, after: Cursor, *, mark: bool, entries: bool = True, stale: float = 0
    ) -> Page:
        """Return what comes after the cursor; `mark` says that a reader is there. Notices a lease that ran out.

        `stale`: the `lease` of a page that was read longer ago than the lease is for: where it is still that one, it
        ran out, whatever the store's clock says, which may have stepped back.

        Raises UnknownTurn, EntryGone, UnknownEntry.
        """

    async def stop(self, turn_id: str, digest: bytes, by: str) -> End | None:
        """Ask the producer to stop; return how the turn had ended, or None: it was asked. Raises UnknownTurn."""
