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
from levada.io.stream import AsyncTurnStream, TurnStream
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
    response: Any, turn: Turn, *, timeouts: Timeouts | None = None, clean: bool | None = None
) -> TurnStream:
    """Read a response into `turn`; iterate over what comes back for the deltas, a list for each chunk that made some.

    `response`: of httpx, httpx2, requests (with stream=True) or urllib3 (with preload_content=False), or an iterable of
    bytes. The list is empty where a chunk ended the turn without a delta. `timeouts` are looked at whenever the client
    returns; only the client's own read timeout ends a wait. `clean`: what a quiet end of the body means; None asks the
    HTTP framing, and takes an iterable's for a cut. Raises UsageError for what is no such thing.
    """
    for adapter in (httpx.HttpxBody, urllib3.RequestsBody, urllib3.Urllib3Body):
        if adapter.fits(response):
            return TurnStream(adapter(response), turn, timeouts, clean)
    if isinstance(response, Iterable):
        return TurnStream(plain.Chunks(response), turn, timeouts, clean)
    better = "; use astream_turn" if isinstance(response, AsyncIterable) or aiohttp.fits(response) else ""
    raise UsageError(f"cannot read a {type(response).__name__}: no response of a known client, no iterable{better}")


def astream_turn(
    response: Any, turn: Turn, *, timeouts: Timeouts | None = None, clean: bool | None = None
) -> AsyncTurnStream:
    """Do as `stream_turn` does, under asyncio; here `timeouts` end a wait by themselves.

    `response`: of aiohttp, or of the async clients of httpx or httpx2, or an async iterable of bytes. Use it in an
    `async with` statement where the reader may stop early or be cancelled between two chunks: only that closes at once.
    """
    if httpx.HttpxBody.fits(response):
        return AsyncTurnStream(httpx.AsyncHttpxBody(response), turn, timeouts, clean)
    if aiohttp.fits(response):
        return AsyncTurnStream(aiohttp.AiohttpBody(response), turn, timeouts, clean)
    if isinstance(response, AsyncIterable):
        return AsyncTurnStream(plain.AsyncChunks(response), turn, timeouts, clean)
    better = "; use stream_turn" if isinstance(response, Iterable) else ""
    raise UsageError(
        f"cannot read a {type(response).__name__}: no response of a known client, no async iterable{better}"
    )


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
