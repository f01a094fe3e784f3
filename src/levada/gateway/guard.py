"""Answers only what was meant for this gateway, and says on every answer what a browser may do with it."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.gateway import assets
from levada.gateway.refused import Refused

__all__ = ["Guard"]


class Guard:
    """ASGI middleware, plain, so that a stream passes as it comes.

    A page of another site must not start turns: the Host has to be one of ours (a name of the attacker's own may point
    to 127.0.0.1), and so has the Origin where there is one.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...], max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes
        self._allowed = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on what may pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _head_bytes(scope) > self._max_header_bytes:
            await Refused(431, "too_large", "the head is too large", connection="close").response()(
                scope, receive, send
            )
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        if "*" not in self._allowed and _without_port(host) not in self._allowed:
            refused = Refused(421, "unknown_host", "this gateway does not answer to that name; see allowed_hosts")
            await refused.response()(scope, receive, send)
            return
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            await Refused(403, "foreign_origin", "a page of another origin may not ask").response()(
                scope, receive, send
            )
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *assets.SECURITY_HEADERS]
            await send(message)

        await self._app(scope, receive, send_guarded)


def _head_bytes(scope: Scope) -> int:
    """Return how long a request's head is: its first line and its fields, as they are written without padding."""
    target = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    fields = sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    return len(scope["method"]) + target + len(" ? HTTP/1.1\r\n") + fields


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()
