"""The gateway as an ASGI application: starts turns, tells them, cancels them.

Rules this file keeps:
- A turn lives as long as its client's request: a client that is gone or takes nothing closes its upstream.
- Nothing grows without a limit: bodies, turns, what waits for a slow client (docs/gateway.md lists them).
- Middleware is plain ASGI, so that a stream passes as it comes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.errors import ProviderError, TransportError
from levada.gateway import assets
from levada.gateway.config import Config, Upstream
from levada.gateway.frames import Frames
from levada.gateway.normal import HEADERS
from levada.lifecycle import State

__all__ = ["ABORT", "Gateway"]

# An extension of the scope, from server.py: a callable that drops the connection without waiting for what was written.
ABORT: Final = "levada.abort"

_REMEMBERED: Final = 1024  # turns that have ended, so that a late DELETE is no error

_log = logging.getLogger("levada.gateway")


class Refused(Exception):
    """A request that starts no turn: the HTTP status, our word for it, and why."""

    def __init__(self, status: int, type: str, message: str, **headers: str) -> None:
        super().__init__(status, type, message)
        self.status, self.type, self.message, self.headers = status, type, message, headers

    def response(self) -> JSONResponse:
        """Return the answer."""
        body = {"error": {"type": self.type, "message": self.message}}
        return JSONResponse(body, self.status, {name.replace("_", "-"): text for name, text in self.headers.items()})


class Gateway:
    """The gateway of one process. `app` is the ASGI application; mount it, or run it with levada.gateway.serve."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.turns: dict[str, Frames] = {}
        self.draining = False
        self._busy: Counter[str] = Counter()  # turns by upstream
        self._ended: deque[tuple[str, State]] = deque(maxlen=_REMEMBERED)
        self._session: aiohttp.ClientSession | None = None
        routes = [
            Route("/turns", _Turns(self), methods=["POST"]),
            Route("/turns/{turn}", self._cancel, methods=["DELETE"]),
            Route("/healthz", self._health),
        ]
        if config.page:
            routes += [Route("/upstreams", self._upstreams), *assets.routes()]
        guard = Middleware(_Guard, config.allowed_hosts, config.limits.max_header_bytes)
        self.app = Starlette(routes=routes, middleware=[guard], lifespan=self._lifespan)

    def close(self) -> None:
        """Start no turn any more, and tell every open one that it ends here."""
        self.draining = True
        for frames in list(self.turns.values()):
            frames.fail(TransportError("this gateway shuts down", type="shutdown", retryable=True))

    # -- turns -----------------------------------------------------------------------------------------------------

    def start(self, name: str | None, request: Mapping[str, Any]) -> Frames:
        """Return the frames of a new turn, counted until `end`. Raises Refused."""
        if self.draining:
            raise Refused(503, "shutdown", "this gateway shuts down", retry_after="1")
        known = self.config.upstreams
        if name is None and len(known) == 1:
            name = next(iter(known))
        if name is None or name not in known:
            raise Refused(404, "unknown_upstream", f"there is no upstream {name!r:.100}; there are {', '.join(known)}")
        upstream, limits = known[name], self.config.limits
        if len(self.turns) >= limits.max_turns or self._busy[name] >= upstream.max_turns:
            raise Refused(503, "busy", "as many turns run as this gateway allows", retry_after="1")
        frames = Frames(
            self._open(name, upstream, request),
            upstream.turn(),
            upstream=name,
            timeouts=upstream.timeouts.timeouts(),
            interval_s=limits.interval_s,
            heartbeat_s=limits.heartbeat_s,
        )
        self.turns[frames.turn_id] = frames
        self._busy[name] += 1
        return frames

    def end(self, frames: Frames) -> None:
        """Note that a turn is over and its upstream closed."""
        if self.turns.pop(frames.turn_id, None) is None:
            return
        name = frames.upstream or ""
        self._busy[name] -= 1
        self._ended.append((frames.turn_id, frames.turn.state))
        error = frames.turn.error
        what = frames.turn.state.value if error is None else f"{error.kind} {error.type or ''}".rstrip()
        _log.info("turn %s of %s: %s", frames.turn_id, name, what)

    @asynccontextmanager
    async def _open(
        self, name: str, upstream: Upstream, request: Mapping[str, Any]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request, and give the response."""
        assert self._session is not None  # the lifespan has begun
        key = self.config.keys.get(name)
        headers = {"accept": "text/event-stream, application/json", **upstream.headers, **dict([key] if key else [])}
        # not followed: a redirect would carry the key to another host
        posting = self._session.post(upstream.url, json=upstream.body(request), headers=headers, allow_redirects=False)
        async with asyncio.timeout(upstream.timeouts.first_byte_s):
            response = await posting
        async with response:
            if response.status in (401, 403):  # its words may quote the key
                words = "the upstream refused this gateway's credentials"
                raise ProviderError(words, type=str(response.status))
            yield response

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, connect=self.config.limits.connect_s)
        # no limit of connections: that of turns is one; no cookies: one client's are not another's
        connector = aiohttp.TCPConnector(limit=0)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=jar) as self._session:
            yield
            self.close()
            await asyncio.gather(*(frames.closed() for frames in self.turns.values()))

    # -- small endpoints -------------------------------------------------------------------------------------------

    async def _cancel(self, request: Request) -> Response:
        turn_id = request.path_params["turn"]
        frames = self.turns.get(turn_id)
        if frames is not None:
            frames.cancel()
            await frames.closed()
            state: State | None = frames.turn.state
        else:
            state = next((state for known, state in self._ended if known == turn_id), None)
        if state is None:
            return Refused(404, "unknown_turn", "there is no such turn").response()
        closed = frames.upstream_closed if frames is not None else None
        return JSONResponse({"turn": turn_id, "state": state.value, "upstream_closed": closed})

    async def _health(self, _request: Request) -> Response:
        body = {"status": "draining" if self.draining else "ok", "turns": len(self.turns)}
        return JSONResponse(body, 503 if self.draining else 200, {"cache-control": "no-store"})

    async def _upstreams(self, _request: Request) -> Response:
        """Tell the page what it can ask; no URL, no header."""
        known = self.config.upstreams.items()
        names = ("dialect", "profile", "title", "note", "group")
        rows = [{"name": name, **{field: getattr(upstream, field) for field in names}} for name, upstream in known]
        return JSONResponse({"upstreams": rows}, headers={"cache-control": "no-store"})


class _Turns:
    """POST /turns, as plain ASGI: it needs `receive` while it sends, to see the client go."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._gateway.config.limits
        try:
            body = await _read_body(scope, receive, limits.max_body_bytes, limits.body_s)
            frames = self._gateway.start(*_parsed(body))
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        except ConnectionError:
            return  # the client went before it had asked
        telling = asyncio.create_task(self._tell(frames, scope, send))
        leaving = asyncio.create_task(_wait_until_gone(receive))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if frames.ended:  # uvicorn calls a whole answer gone, too; the rest of the upstream's is still read
                await asyncio.wait({telling})
            if telling.done():
                telling.result()
        finally:
            for task in (telling, leaving):
                task.cancel()
            try:
                await frames.aclose()
            finally:
                self._gateway.end(frames)

    async def _tell(self, frames: Frames, scope: Scope, send: Send) -> None:
        headers = {**HEADERS, "levada-turn": frames.turn_id}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        send_s = self._gateway.config.limits.send_s
        try:
            async with asyncio.timeout(send_s):
                await send({"type": "http.response.start", "status": 200, "headers": raw})
            async for frame in frames:
                async with asyncio.timeout(send_s):
                    await send({"type": "http.response.body", "body": frame, "more_body": not frames.ended})
        except TimeoutError:
            _log.info("turn %s: the client takes nothing; dropped", frames.turn_id)
            frames.turn.cancel()
            abort = scope.get("extensions", {}).get(ABORT)
            if abort is not None:
                abort()


class _Guard:
    """Answers only what was meant for this gateway, and says on every answer what a browser may do with it.

    A page of another site must not start turns: the Host has to be one of ours (a name of the attacker's own may point
    to 127.0.0.1), and so has the Origin where there is one.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...], max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes
        self._allowed = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._max_header_bytes:
            # the server's own limit counts heads that come in pieces alone
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


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def _parsed(body: bytes) -> tuple[str | None, dict[str, Any]]:
    """Return the upstream's name and the request out of the body of POST /turns. Raises Refused."""
    try:
        document = json.loads(body)
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


async def _read_body(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
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


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
