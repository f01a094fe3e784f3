"""Runs the gateway under uvicorn, with what uvicorn leaves open: limits on heads, clients that take nothing, and those
that close their writing side."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from levada.gateway.app import ABORT, Gateway
from levada.gateway.config import Config
from levada.gateway.refused import Refused
from levada.gateway.telling import HALF_CLOSED

__all__ = ["Server", "listen", "serve"]

_WRITE_BUFFER: Final = 32 * 1024  # bytes: what waits beyond it waits in the turn, where text merges into one frame

_PIECE: Final = 4096  # bytes: by so much a head may exceed its limit before it is noticed here, and not in the guard
_TICK_S: Final = 0.1


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, which also drops a client that does not end its head, and lets the application drop one."""

    header_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        super().connection_made(transport)
        held = transport.get_extra_info("socket")
        if held is not None and held.family in (socket.AF_INET, socket.AF_INET6):
            held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(_WRITE_BUFFER)
        app: ASGIApp = self.app
        self._half_closed = asyncio.Event()

        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {}).update({ABORT: transport.abort, HALF_CLOSED: self._half_closed})
            await app(scope, receive, send)

        self.app = with_abort
        self._head_timer: asyncio.TimerHandle | None = None
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        # h11 counts a head that has not ended: in pieces, so that one that comes at once is counted too
        while data and self.conn.their_state is h11.IDLE:
            super().data_received(data[:_PIECE])
            if self.transport.is_closing():
                return
            data = data[_PIECE:]
        if data:
            super().data_received(data)
        self._watch_head()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks for it
        """Keep the connection of a client that has sent its whole request and closed its side: it may wait for us.

        One that has gone looks the same; HALF_CLOSED says so to the application, whose next words would tell.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.conn.their_state not in (h11.DONE, h11.MUST_CLOSE):
            return False
        cycle.keep_alive = False  # nothing can be asked on it any more
        self._half_closed.set()
        return True

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or a head that is too large; called where h11 has raised."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        too_large = "the head is larger than max_header_bytes, or no HTTP"
        words = {431: ("too_large", too_large)}
        self._refuse(status, *words.get(status, ("bad_request", "the request is no HTTP that this gateway reads")))

    def _refuse(self, status: int, type: str, message: str) -> None:
        """Answer in the place of the application, and close."""
        response = Refused(status, type, message, connection="close").response()
        head = h11.Response(status_code=status, headers=response.raw_headers, reason=HTTPStatus(status).phrase.encode())
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """Start the timer where a head is awaited: at the beginning, and once its first byte has come."""
        awaited = self.conn.their_state is h11.IDLE and (self.cycle is None or self.timeout_keep_alive_task is None)
        if not awaited or self.transport.is_closing():
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.header_s, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.conn.trailing_data[0]:
            self._refuse(408, "timeout", f"the head did not come within {self.header_s:g} s")
        else:
            self.transport.abort()  # nothing was asked

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    """uvicorn's server, which tells the open turns before it waits for them."""

    def __init__(self, config: Config, *, ready: Callable[[], object] = lambda: None) -> None:
        self.gateway = Gateway(config)
        self._ready = ready
        limits = config.limits
        super().__init__(
            uvicorn.Config(
                self.gateway.app,
                loop="asyncio",
                http=type("Protocol", (_Protocol,), {"header_s": limits.header_s}),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.max_connections,
                timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]  # it is given to call_later
                timeout_graceful_shutdown=limits.shutdown_s,  # type: ignore[arg-type]  # to wait_for
                h11_max_incomplete_event_size=limits.max_header_bytes,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at a signal in good order; uvicorn raises it again afterwards, which would be a death by signal."""
        if threading.current_thread() is not threading.main_thread():
            yield  # whoever runs us in another thread sets should_exit
            return
        former = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in former.items():
                signal.signal(sig, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let turns end for a while, tell the others, then let uvicorn wait for their connections."""
        self.gateway.draining = True
        ends_s = asyncio.get_running_loop().time() + self.gateway.config.limits.drain_s
        while self.gateway.turns and asyncio.get_running_loop().time() < ends_s and not self.force_exit:
            await asyncio.sleep(_TICK_S)
        self.gateway.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises OSError where the address is taken or is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)


async def serve(config: Config, listener: socket.socket, *, ready: Callable[[], object] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM, then end in good order. `ready` is called once requests are answered."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    await Server(config, ready=ready).serve(sockets=[listener])
