"""From what a caller can give to a response that can be read: called, awaited, entered."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

__all__ = ["open_response"]


async def open_response(open_stream: Callable[..., Any], attempt: int, stack: AsyncExitStack) -> Any:
    """Call `open_stream` and return the response that comes of it.

    It gets the number of the attempt where it cannot be called without an argument. It may return a response, chunks of
    bytes, an async context manager, which is entered on `stack`, or an awaitable of any of them.
    """
    given = open_stream(attempt) if _needs_argument(open_stream) else open_stream()
    entered: Any = None
    while True:
        # before the awaitable: what aiohttp's request methods return is both
        if given is not entered and hasattr(type(given), "__aenter__"):
            entered = given
            given = await stack.enter_async_context(given)
        elif inspect.isawaitable(given):
            given = await given
        else:
            return given


def _needs_argument(open_stream: Callable[..., Any]) -> bool:
    """Say whether a call without an argument would fail. One with a default is the caller's own business."""
    try:
        signature = inspect.signature(open_stream)
    except (TypeError, ValueError):  # some built-in callables have none
        return False
    try:
        signature.bind()
    except TypeError:
        return True
    return False
