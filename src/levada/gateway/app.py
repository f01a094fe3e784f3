"""The gateway as an ASGI application: starts turns, tells them, cancels them.

Rules this file keeps:
- A turn belongs to the gateway (producer.py); who asked reads the live log as everybody does (telling.py).
- A turn is its owner's: to all others it does not exist.
- Nothing grows without a limit: bodies, turns, what waits for a slow client (docs/gateway.md lists them).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import aiohttp
from starlette.applications import Starlette
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from levada.errors import ProviderError, TransportError, UsageError
from levada.gateway import assets
from levada.gateway.asking import parsed, read_body
from levada.gateway.config import Config, Upstream
from levada.gateway.frames import Frames
from levada.gateway.guard import Guard
from levada.gateway.normal import HEADERS
from levada.gateway.owners import Owner, owner_of
from levada.gateway.producer import Producer
from levada.gateway.refused import Refused
from levada.gateway.telling import ABORT, Telling
from levada.lifecycle import ENDS, State
from levada.live import EntryGone, LiveLimit, LiveLog, LiveLogError, LiveLogUnavailable, UnknownEntry

__all__ = ["ABORT", "Gateway"]

_REMEMBERED: Final = 1024  # turns of this process that have ended, so that a late DELETE is no error
_CHECK_S: Final = 2.0  # how long a live log may take at the start before somebody is told
_STOP_S: Final = 3.0  # how long DELETE waits for a producer elsewhere to have stopped

_log = logging.getLogger("levada.gateway")


class Gateway:
    """The gateway of one process. `app` is the ASGI application; mount it, or run it with levada.gateway.serve."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.turns: dict[str, Producer] = {}  # those whose upstream this process reads
        self.tellings: set[Telling] = set()
        self.draining = False
        self._busy: Counter[str] = Counter()  # turns by upstream
        self._ended: deque[tuple[str, str, State]] = deque(maxlen=_REMEMBERED)  # turn, owner, how
        self._session: aiohttp.ClientSession | None = None
        self._live: LiveLog | None = None
        routes = [
            Route("/turns", _Turns(self), methods=["POST"]),
            Route("/turns/{turn}/events", _Events(self), methods=["GET"]),
            Route("/turns/{turn}", self._cancel, methods=["DELETE"]),
            Route("/healthz", self._health),
        ]
        if config.page:
            routes += [Route("/upstreams", self._upstreams), *assets.routes()]
        guard = Middleware(Guard, config.allowed_hosts, config.limits.max_header_bytes)
        told: Any = {HTTPException: _told}
        self.app = Starlette(routes=routes, middleware=[guard], exception_handlers=told, lifespan=self._lifespan)
        self.app.router.redirect_slashes = False  # an address is right or wrong

    @property
    def live(self) -> LiveLog:
        """The log of live turns. Raises Refused before the first and after the last request."""
        if self._live is None:
            raise Refused(503, "shutdown", "this gateway shuts down", retry_after="1")
        return self._live

    def close(self) -> None:
        """Start no turn any more, tell every open one that it ends here, and send other readers elsewhere."""
        self.draining = True
        for producer in list(self.turns.values()):
            producer.frames.fail(TransportError("this gateway shuts down", type="shutdown", retryable=True))
        for telling in self.tellings:
            if telling.turn_id not in self.turns:
                telling.stop()

    # -- turns -----------------------------------------------------------------------------------------------------

    async def start(self, name: str | None, request: Mapping[str, Any], owner: Owner) -> Producer:
        """Start a turn; it goes on by itself. Raises Refused."""
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
        )
        producer = Producer(frames, owner.name, linger_s=self.config.live.lingers_s, ended=self._end)
        self.turns[producer.turn_id] = producer
        self._busy[name] += 1
        try:
            producer.begin(await self.live.start(producer.turn_id, owner.name))
        except BaseException:
            self._forget(producer)
            raise
        return producer

    def _forget(self, producer: Producer) -> None:
        del self.turns[producer.turn_id]
        self._busy[producer.frames.upstream or ""] -= 1

    def _end(self, producer: Producer) -> None:
        """Note that a turn is over and its upstream closed."""
        self._forget(producer)
        self._ended.append((producer.turn_id, producer.owner, producer.state))
        error = producer.error
        what = producer.state.value if error is None else f"{error.kind} {error.type or ''}".rstrip()
        _log.info("turn %s of %s: %s", producer.turn_id, producer.frames.upstream, what)

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
        limits, live = self.config.limits, self.config.live
        timeout = aiohttp.ClientTimeout(total=None, connect=limits.connect_s)
        # no limit of connections: that of turns is one; no cookies: one client's are not another's
        connector = aiohttp.TCPConnector(limit=0)
        jar = aiohttp.DummyCookieJar()
        # not entered, which would wait for the store: while it is away, requests are told so
        self._live = LiveLog.open(live.url, **live.options())
        checking = asyncio.create_task(self._check(), name="levada check of the live log")
        try:
            async with aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=jar) as self._session:
                yield
                self.close()
                if self.turns:  # a log that is away is not waited for
                    closing = [asyncio.create_task(producer.closed()) for producer in self.turns.values()]
                    await asyncio.wait(closing, timeout=limits.shutdown_s)
        finally:
            checking.cancel()
            await asyncio.wait({checking})
            log, self._live = self._live, None
            await log.aclose()

    async def _check(self) -> None:
        """Say soon in the log file what nobody would see before the first request; the store may come later."""
        live = self.config.live
        options = live.options()
        patience_s = options["patience_s"]
        options["patience_s"] = _CHECK_S if patience_s is None else min(patience_s, _CHECK_S)
        log = LiveLog.open(live.url, **options)
        try:
            await log.check()
        except LiveLogError as error:
            _log.warning("no turn can be started until the live log answers; each request tries it again: %s", error)
        finally:
            await log.aclose()

    # -- small endpoints -------------------------------------------------------------------------------------------

    async def _cancel(self, request: Request) -> Response:
        turn_id = request.path_params["turn"]
        try:
            owner = owner_of(request.headers, self.config.live.owner_header)
            if owner is None:
                raise _unknown()
            state, closed = await self._stop(turn_id, owner.name)
        except Refused as refused:
            return refused.response()
        except (LiveLogError, UsageError) as error:
            return _refused(error).response()
        return JSONResponse({"turn": turn_id, "state": state.value, "upstream_closed": closed})

    async def _stop(self, turn_id: str, owner: str) -> tuple[State, bool | None]:
        """Stop a turn, here or elsewhere; return its state, and whether its upstream is known to be closed."""
        producer = self.turns.get(turn_id)
        if producer is not None and producer.owner == owner:
            producer.frames.cancel()
            await producer.closed()
            return producer.state, producer.frames.upstream_closed
        for known, whose, state in self._ended:
            if (known, whose) == (turn_id, owner):
                return state, None
        state = await self.live.stop(turn_id, owner, by="DELETE")
        if state not in ENDS:
            now = await self.live.look(turn_id, owner)
            state = now.state  # it may have stopped already
        if state not in ENDS:
            entries = self.live.read(turn_id, owner, after=now.last_id)
            try:
                async with asyncio.timeout(_STOP_S), aclosing(entries):
                    async for entry in entries:
                        state = entry.state or state
            except TimeoutError:
                pass  # it was asked
        return state, None

    async def _health(self, _request: Request) -> Response:
        body = {"status": "draining" if self.draining else "ok", "turns": len(self.turns)}
        return JSONResponse(body, 503 if self.draining else 200, {"cache-control": "no-store"})

    async def _upstreams(self, _request: Request) -> Response:
        """Tell the page what it can ask; no URL, no header."""
        known = self.config.upstreams.items()
        names = ("dialect", "profile", "title", "note", "group", "demo")
        rows = [{"name": name, **{field: getattr(upstream, field) for field in names}} for name, upstream in known]
        live = {"linger_s": self.config.live.lingers_s, "heartbeat_s": self.config.limits.heartbeat_s}
        return JSONResponse({"upstreams": rows, "live": live}, headers={"cache-control": "no-store"})


class _Stream:
    """What both streams of a turn do, as plain ASGI: they need `receive` while they send, to see the client go."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send, Headers(scope=scope))
        except Refused as refused:
            await refused.response()(scope, receive, send)
        except (LiveLogError, UsageError) as error:
            await _refused(error).response()(scope, receive, send)
        except ConnectionError:
            pass  # the client went before it had asked

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        raise NotImplementedError

    async def _tell(self, turn_id: str, owner: Owner, after: str, scope: Scope, receive: Receive, send: Send) -> bool:
        gateway = self._gateway
        producer = gateway.turns.get(turn_id)
        leave = producer.read() if producer is not None else lambda: None
        try:
            entries = gateway.live.read(turn_id, owner.name, after)
            telling = Telling(turn_id, entries, gateway.config.limits, owner.headers(), leave)
            gateway.tellings.add(telling)
            try:
                await telling.run(scope, receive, send)
            finally:
                gateway.tellings.discard(telling)
        finally:
            leave()
        return telling.began


class _Turns(_Stream):
    """POST /turns."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        gateway, limits = self._gateway, self._gateway.config.limits
        body = await read_body(scope, receive, limits.max_body_bytes, limits.body_s)
        owner = owner_of(headers, gateway.config.live.owner_header, make=True)
        assert owner is not None  # it was made
        producer = await gateway.start(*parsed(body), owner)
        began = False
        try:
            began = await self._tell(producer.turn_id, owner, "", scope, receive, send)
        finally:
            if not began:
                producer.frames.cancel()  # nobody knows its id


class _Events(_Stream):
    """GET /turns/{turn}/events."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        gateway, turn_id = self._gateway, scope["path_params"]["turn"]
        owner = owner_of(headers, gateway.config.live.owner_header)
        if owner is None:
            raise _unknown()
        # an EventSource that connects again says where it was in the header; its address is the first one's
        after = headers.get("last-event-id") or QueryParams(scope["query_string"]).get("after", "")
        known = await gateway.live.look(turn_id, owner.name, after)
        if known.state in ENDS and after == known.last_id:
            # nothing comes any more: 204 makes an EventSource stop asking
            await Response(status_code=204, headers={"cache-control": "no-store"})(scope, receive, send)
        elif gateway.draining and turn_id not in gateway.turns:
            raise Refused(503, "shutdown", "this gateway shuts down", retry_after="1")
        elif scope["method"] == "HEAD":
            await Response(headers={**HEADERS, "levada-turn": turn_id})(scope, receive, send)
        else:
            await self._tell(turn_id, owner, after, scope, receive, send)


async def _told(_request: Request, error: HTTPException) -> Response:
    """Answer what no route takes."""
    words = {404: ("not_found", "there is nothing at this address"), 405: ("bad_request", "not with this method")}
    type, message = words.get(error.status_code, ("bad_request", error.detail))
    response = Refused(error.status_code, type, message).response()
    response.headers.update(error.headers or {})
    return response


def _unknown() -> Refused:
    return Refused(404, "unknown_turn", "there is no such turn, or it is another's, or it is no longer kept")


def _refused(error: LiveLogError | UsageError) -> Refused:
    """Return how a failure of the live log is answered."""
    match error:
        case LiveLogUnavailable():
            return Refused(503, "live_log_unavailable", "the live log does not answer; try again", retry_after="1")
        case LiveLimit():
            return Refused(
                503, "busy", f"as many turns are kept as the live log allows ({error.limit})", retry_after="1"
            )
        case EntryGone():
            return Refused(
                410, "gone", f"events after {error.after!r} are no longer kept, only those after {error.oldest}"
            )
        case UnknownEntry() if error.reason == "from the future":
            return Refused(410, "gone", "the live log has lost the event of that id")
        case UnknownEntry():
            return Refused(400, "bad_request", f"that is no id of an event of this turn: it is {error.reason}")
        case UsageError():
            return Refused(503, "shutdown", "this gateway shuts down", retry_after="1")
        case _:
            return _unknown()
