"""Adapters: the response of an HTTP client, or any chunks of bytes, read into a turn.

    with client.stream("POST", url, json=body) as response:
        for deltas in stream_turn(response, turn, timeouts=Timeouts(idle_s=30)):
            ...
    turn.result()

Rules they keep (docs/transports.md):
- The turn gets the head, every chunk as the client gives it (unzipped, nothing else undone), and one truthful end.
- What the peer does ends in `turn.state` and `turn.error`; only our caller's mistakes and unknown exceptions raise.
- Whoever stops before the turn has ended cancels it. The response is closed in every case.

No HTTP client is imported here: an adapter knows its client by the attributes of the response.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any

from levada.errors import UsageError
from levada.finished import FinishedTurn
from levada.io import aiohttp, httpx, plain, urllib3
from levada.io.failures import note_failure
from levada.io.stream import AsyncBody, AsyncTurnStream, Body, TurnStream
from levada.io.threaded import ThreadBody
from levada.timeouts import Timeouts
from levada.turn import Turn

__all__ = [
    "AsyncTurnStream",
    "Timeouts",
    "TurnStream",
    "acollect",
    "astream_turn",
    "collect",
    "note_failure",
    "stream_turn",
]


def stream_turn(
    response: Any,
    turn: Turn,
    *,
    timeouts: Timeouts | None = None,
    clean: bool | None = None,
    started_s: float | None = None,
) -> TurnStream:
    """Read a response into `turn`; iterate over what comes back for the deltas, a list for each chunk that made some.

    `response`: of httpx, httpx2, requests (with stream=True) or urllib3 (with preload_content=False), or an iterable of
    bytes. The list is empty where a chunk ended the turn without a delta. `timeouts` are looked at whenever the client
    returns; only the client's own read timeout ends a wait. `clean`: what a quiet end of the body means; None asks the
    HTTP framing, and takes an iterable's for a cut. `started_s`: when the waiting began, by time.monotonic(); None: at
    the first read. Raises UsageError for what is no such thing.
    """
    body = _body(response)
    if body is not None:
        return TurnStream(body, turn, timeouts, clean, started_s)
    better = "; use astream_turn" if isinstance(response, AsyncIterable) or aiohttp.fits(response) else ""
    raise UsageError(f"cannot read a {type(response).__name__}: no response of a known client, no iterable{better}")


def astream_turn(
    response: Any,
    turn: Turn,
    *,
    timeouts: Timeouts | None = None,
    clean: bool | None = None,
    started_s: float | None = None,
) -> AsyncTurnStream:
    """Do as `stream_turn` does, under asyncio; here `timeouts` end a wait by themselves.

    `response`: of aiohttp, or of the async clients of httpx or httpx2, or an async iterable of bytes. Use it in an
    `async with` statement where the reader may stop early or be cancelled between two chunks: only that closes at once.
    """
    body = _async_body(response)
    if body is not None:
        return AsyncTurnStream(body, turn, timeouts, clean, started_s)
    better = "; use stream_turn" if isinstance(response, Iterable) or httpx.HttpxBody.fits(response) else ""
    raise UsageError(
        f"cannot read a {type(response).__name__}: no response of a known client, no async iterable{better}"
    )


def astream_any(
    response: Any, turn: Turn, *, timeouts: Timeouts | None, clean: bool | None, started_s: float | None
) -> AsyncTurnStream:
    """Do as `astream_turn` does; here what `stream_turn` takes will do as well, and is read by a thread of its own."""
    body = None if _async_body(response) is not None else _body(response)
    if body is not None:
        return AsyncTurnStream(ThreadBody(body), turn, timeouts, clean, started_s)
    return astream_turn(response, turn, timeouts=timeouts, clean=clean, started_s=started_s)


def _body(response: Any) -> Body | None:
    for adapter in (httpx.HttpxBody, urllib3.RequestsBody, urllib3.Urllib3Body):
        if adapter.fits(response):
            return adapter(response)
    return plain.Chunks(response) if isinstance(response, Iterable) else None


def _async_body(response: Any) -> AsyncBody | None:
    if httpx.AsyncHttpxBody.fits(response):
        return httpx.AsyncHttpxBody(response)
    if aiohttp.fits(response):
        return aiohttp.AiohttpBody(response)
    return plain.AsyncChunks(response) if isinstance(response, AsyncIterable) else None


def collect(response: Any, turn: Turn, *, timeouts: Timeouts | None = None, clean: bool | None = None) -> FinishedTurn:
    """Read a response to its end and return the finished turn, or raise as `Turn.result` does."""
    with stream_turn(response, turn, timeouts=timeouts, clean=clean) as stream:
        for _ in stream:
            pass
    return turn.result()


async def acollect(
    response: Any, turn: Turn, *, timeouts: Timeouts | None = None, clean: bool | None = None
) -> FinishedTurn:
    """Do as `collect` does, under asyncio."""
    async with astream_turn(response, turn, timeouts=timeouts, clean=clean) as stream:
        async for _ in stream:
            pass
    return turn.result()
