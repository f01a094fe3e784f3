"""Responses of the aiohttp client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from levada.transport import tells_its_end

__all__ = ["AiohttpBody", "fits"]


def fits(response: Any) -> bool:
    """Say whether this is a ClientResponse."""
    # `status` first: requests.Response has none, and its `content` reads the whole body
    return hasattr(response, "status") and hasattr(getattr(response, "content", None), "iter_any")


class AiohttpBody:
    """A ClientResponse that was not read."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def head(self) -> tuple[int, Mapping[str, str]]:
        return self._response.status, self._response.headers

    def __aiter__(self) -> AsyncIterator[bytes]:
        # unzipped by aiohttp (auto_decompress); all that has arrived, in one piece
        return aiter(self._response.content.iter_any())

    def whole(self) -> bool:
        """aiohttp raises ClientPayloadError for a body shorter than its framing says.

        A body that only the connection's close ends is quiet in every case: even a reset shows as the end (3.14).
        """
        version = self._response.version
        return tells_its_end(f"HTTP/{version.major}" if version is not None else "", self._response.headers)

    async def close(self) -> bool:
        self._response.close()  # not release: that would keep a connection whose body goes on
        return True

    def closed(self) -> bool:
        return bool(self._response.closed)
