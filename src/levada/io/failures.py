"""What an exception of an HTTP client says of a body: broken off, timed out, or failed otherwise.

Known by name, so that no client need be imported; read in aiohttp 3.14, httpx 0.28, httpx2 2.16, requests 2.34 and
urllib3 2.8, and seen through real sockets in tests/live/test_io.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from levada.deltas import Delta
from levada.dialects.failures import is_retryable
from levada.errors import ProviderError, TurnTimeout
from levada.transport import retry_after_s
from levada.turn import Turn

__all__ = ["note_failure"]

# package.class, as in the MRO of the exception
_TIMED_OUT: Final = frozenset(
    {
        "httpx.TimeoutException",
        "httpx2.TimeoutException",
        "requests.Timeout",
        "urllib3.TimeoutError",
    }
)
_BROKEN_OFF: Final = frozenset(
    {
        "aiohttp.ClientPayloadError",
        "aiohttp.ServerDisconnectedError",
        "http.IncompleteRead",
        "httpx.RemoteProtocolError",
        "httpx2.RemoteProtocolError",
        "requests.ChunkedEncodingError",
        "ssl.SSLEOFError",  # TLS without its closing word: anybody may have cut it
        "ssl.SSLZeroReturnError",
        "urllib3.ProtocolError",  # also what http.client and the socket raised while reading
    }
)
_OF_THE_NETWORK: Final = frozenset(
    {
        "aiohttp.ClientError",
        "http.HTTPException",
        "httpx.HTTPError",
        "httpx2.HTTPError",
        "requests.RequestException",
        "urllib3.HTTPError",
    }
)
# what raise_for_status raises
_STATUS: Final = frozenset(
    {"aiohttp.ClientResponseError", "httpx.HTTPStatusError", "httpx2.HTTPStatusError", "requests.HTTPError"}
)
# asyncio.IncompleteReadError is an EOFError
_BREAKS: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError)


def note_failure(turn: Turn, exc: Exception) -> list[Delta]:
    """End `turn` for an exception that its transport raised; return the deltas that only the end completes.

    A timeout makes it kind timeout, an error status that the client raised kind provider. A body that the peer broke
    off or reset is its end, and not a clean one: truncated, or what an error body says so far. Any other failure of the
    network is kind transport. What no HTTP client raises fails the turn in the same way, and is raised again: it is
    somebody's bug.
    """
    if _names(exc) & _STATUS and exc.__cause__ is None:  # with a cause, aiohttp means a response that it cannot read
        response = getattr(exc, "response", exc)
        status = getattr(response, "status_code", None) or getattr(response, "status", None)
        after_s = retry_after_s(getattr(response, "headers", None) or {})
        words = f"HTTP status {status}; let the response through, and its body says more"
        turn.fail(ProviderError(words, str(status), retryable=is_retryable([status]), retry_after_s=after_s))
        return []
    for link in _chain(exc):
        names = _names(link)
        if isinstance(link, TimeoutError) or names & _TIMED_OUT:
            words = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            turn.fail(TurnTimeout(f"{words} (the client's own timeout)", retryable=True))
            return []
        if isinstance(link, _BREAKS) or names & _BROKEN_OFF:
            return turn.eof(clean=False)
    turn.fail(exc)
    if not isinstance(exc, OSError) and not _names(exc) & _OF_THE_NETWORK:
        raise exc
    return []


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it came from; clients wrap the socket's, some of them without `from`."""
    seen: set[int] = set()
    link: BaseException | None = exc
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _names(exc: BaseException) -> set[str]:
    return {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(exc).__mro__}
