"""What transports tell: how a body ends, when to ask again, and the whole text so far, where that is all they have."""

from __future__ import annotations

from collections.abc import Mapping

from levada.errors import TransportRewound

__all__ = ["CumulativeText", "retry_after_s", "tells_its_end"]


def tells_its_end(http_version: str, headers: Mapping[str, str]) -> bool:
    """Say whether a response's HTTP framing tells a whole body from one cut off: what `eof(clean=…)` asks for.

    `http_version`: as "HTTP/1.1"; `headers`: with lower-case names, or a mapping that ignores case.
    From HTTP/2 on every body tells (END_STREAM). In HTTP/1 it needs a last coding of chunked, or else a content length;
    without them the body goes on until the connection closes, and any cut looks like its end. A client that raises for
    a body shorter than told has to be asked as well. Source: RFC 9112, 6.3, and 8.
    """
    if http_version[:6] >= "HTTP/2":
        return True
    coding = headers.get("transfer-encoding")
    if coding is not None:
        return coding.rpartition(",")[2].strip().lower() == "chunked"
    return "content-length" in headers


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return after how many seconds a response wants to be asked for again, None where it does not say.

    `headers`: with lower-case names, or a mapping that ignores case. `retry-after-ms` comes first, as the clients of
    OpenAI and Anthropic read it. A date in `retry-after` counts from the response's own `date`: the server's clock is
    the one that set both, and ours may be wrong. Source: RFC 9110, 10.2.3.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # text and framing are to be imported quickly

    try:
        then, now = (parsedate_to_datetime(headers.get(name) or "") for name in ("retry-after", "date"))
        return max((then - now).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):  # no date; one with a zone, one without
        return None


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
