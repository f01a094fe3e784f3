"""What differs between transports: here, those that hand out the whole text so far instead of chunks."""

from __future__ import annotations

from levada.errors import TransportRewound

__all__ = ["CumulativeText"]


class CumulativeText:
    """The text so far, again and again, to only what is new: for clients that report a growing response text.

    Feed what comes out to `EventParser.feed_text`, and nothing is read twice.
    """

    __slots__ = ("_seen", "_spent")

    def __init__(self) -> None:
        self._seen = ""
        self._spent: TransportRewound | None = None

    def feed(self, text_so_far: str, /) -> str:
        """Return what `text_so_far` adds to what was fed before, "" where nothing.

        Raises TransportRewound where it is shorter than before or differs in what was taken; spent then.
        """
        if not isinstance(text_so_far, str):
            raise TypeError(f"feed() takes str, not {type(text_so_far).__name__}")
        if self._spent is not None:
            raise TransportRewound(*self._spent.args)
        if not text_so_far.startswith(self._seen):
            pairs = zip(text_so_far, self._seen, strict=False)
            first = next((n for n, (now, then) in enumerate(pairs) if now != then), len(text_so_far))
            self._spent = TransportRewound(first, len(self._seen))
            self._seen = ""
            raise TransportRewound(*self._spent.args)
        new = text_so_far[len(self._seen) :]
        self._seen = text_so_far
        return new
