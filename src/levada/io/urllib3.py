"""Responses of urllib3, and of requests, which wrap them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from levada.transport import tells_its_end

__all__ = ["RequestsBody", "Urllib3Body"]

_READ_SIZE: Final = 64 * 1024  # at most, in bytes; a read brings what has arrived


class Urllib3Body:
    """A urllib3.HTTPResponse made with preload_content=False. Needs urllib3 2.1 or newer, for `read1`."""

    def __init__(self, response: Any) -> None:
        self._response = response

    @staticmethod
    def fits(response: Any) -> bool:
        return hasattr(response, "read1") and hasattr(response, "length_remaining")

    def head(self) -> tuple[int, Mapping[str, str]]:
        return self._response.status, self._response.headers

    def __iter__(self) -> Iterator[bytes]:
        # not `stream`: it waits until its amount is full where the body is not chunked
        return iter(lambda: self._response.read1(_READ_SIZE, decode_content=True), b"")

    def whole(self) -> bool:
        """urllib3 raises IncompleteRead or ProtocolError for a short body, unless told enforce_content_length=False."""
        response = self._response
        left = response.length_remaining
        return not left and tells_its_end(f"HTTP/{response.version / 10:g}", response.headers)

    def close(self) -> bool:
        self._response.close()
        return True

    def closed(self) -> bool:
        return bool(self._response.closed)


class RequestsBody(Urllib3Body):
    """A requests.Response made with stream=True, or one that was read already."""

    def __init__(self, response: Any) -> None:
        super().__init__(response.raw)
        self._outer = response

    @staticmethod
    def fits(response: Any) -> bool:
        return hasattr(response, "iter_content") and hasattr(response, "raw")

    def __iter__(self) -> Iterator[bytes]:
        # iter_content would wait as `stream` does, and drop what came before a body broke off
        return iter([self._outer.content]) if self._response.closed else super().__iter__()

    def close(self) -> bool:
        self._outer.close()
        return super().close()
