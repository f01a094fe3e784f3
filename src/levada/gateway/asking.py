"""What a client asks with: the body of POST /turns, within limits of size and time."""

from __future__ import annotations

import asyncio
import json
from math import isfinite
from typing import Any

from starlette.types import Receive, Scope

from levada.gateway.refused import Refused

__all__ = ["parsed", "read_body"]


def parsed(body: bytes) -> tuple[str | None, dict[str, Any]]:
    """Return the upstream's name and the request out of the body of POST /turns. Raises Refused."""
    try:
        document = json.loads(body, parse_constant=_no_number, parse_float=_number)
    except _NoNumberError:
        words = "NaN, Infinity and numbers beyond 1.8e308 are no JSON, or none that a provider could read"
        raise Refused(400, "bad_request", words) from None
    except (ValueError, RecursionError):
        raise Refused(400, "bad_request", "the body is no JSON") from None
    if not isinstance(document, dict) or not isinstance(document.get("request"), dict):
        raise Refused(400, "bad_request", 'the body is an object with "request", an object, and "upstream", a name')
    unknown = sorted(set(document) - {"upstream", "request"})
    if unknown:
        raise Refused(400, "bad_request", f"unknown field {unknown[0]!r:.100}")
    name = document.get("upstream")
    if name is not None and not isinstance(name, str):
        raise Refused(400, "bad_request", "upstream is a name")
    return name, document["request"]


class _NoNumberError(ValueError):
    """What Python's reader takes for a number, and JSON does not."""


def _no_number(_text: str) -> None:
    raise _NoNumberError


def _number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise _NoNumberError
    return value


async def read_body(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
    """Return the body. Raises Refused, and ConnectionError where the client has gone."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    # no page can send this type to us unasked: the browser asks first, and is not answered
    if headers.get(b"content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "bad_request", "content-type must be application/json")
    too_large = Refused(413, "too_large", f"the body is larger than {limit} bytes", connection="close")
    length = headers.get(b"content-length", "0")
    if not length.isdigit() or len(length) > 18 or int(length) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                body += message.get("body", b"")
                if len(body) > limit:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, "timeout", f"the body did not come within {seconds:g} s", connection="close") from None
