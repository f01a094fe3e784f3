"""Responses of httpx and httpx2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from levada.transport import tells_its_end

__all__ = ["AsyncHttpxBody", "HttpxBody"]


class _Httpx:
    def __init__(self, response: Any) -> None:
        self._response = response

    @staticmethod
    def fits(response: Any) -> bool:
        return hasattr(response, "aiter_bytes") and hasattr(response, "http_version")

    def head(self) -> tuple[int, Mapping[str, str]]:
        return self._response.status_code, self._response.headers

    def whole(self) -> bool:
        """httpx raises RemoteProtocolError for a body shorter than its framing says, HTTP/2 included."""
        return tells_its_end(self._response.http_version, self._response.headers)

    def closed(self) -> bool:
        return bool(self._response.is_closed)


class HttpxBody(_Httpx):
    """A response of `Client.stream`, or one that was read already."""

    def __iter__(self) -> Iterator[bytes]:
        # not iter_raw: a gzipped stream has to be unzipped. Without a chunk size each read comes as it arrived.
        return iter(self._response.iter_bytes())

    def close(self) -> bool:
        self._response.close()
        return True


class AsyncHttpxBody(_Httpx):
    """A response of `AsyncClient.stream`."""

    @staticmethod
    def fits(response: Any) -> bool:
        # the response of a sync client has the same methods; they raise when called
        return _Httpx.fits(response) and hasattr(getattr(response, "stream", None), "__aiter__")

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._response.aiter_bytes())

    async def close(self) -> bool:
        await self._response.aclose()
        return True
