"""Any chunks of bytes. A quiet end says nothing of them: it is taken for a cut unless the caller knows better."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from inspect import isawaitable
from typing import Any

__all__ = ["AsyncChunks", "Chunks"]


class _Plain:
    def head(self) -> None:
        return None

    def whole(self) -> bool:
        return False

    def closed(self) -> None:
        return None


class Chunks(_Plain):
    """An iterable of bytes: a list, a generator, a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._iterator: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        self._iterator = iter(self._chunks)
        return self._iterator

    def close(self) -> bool:
        closers = [close for owner in (self._iterator, self._chunks) if (close := getattr(owner, "close", None))]
        for close in closers:
            close()
        return bool(closers)


class AsyncChunks(_Plain):
    """An async iterable of bytes. Closed by `aclose`, or `close` where it has no other."""

    def __init__(self, chunks: AsyncIterable[bytes]) -> None:
        self._chunks = chunks
        self._iterator: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._iterator = aiter(self._chunks)
        return self._iterator

    async def close(self) -> bool:
        closers: list[Any] = []
        for owner in (self._iterator, self._chunks):
            closers.append(getattr(owner, "aclose", None) or getattr(owner, "close", None))
        closers = [close for close in closers if close is not None]
        for close in closers:
            closing = close()
            if isawaitable(closing):
                await closing
        return bool(closers)
