"""Runs the gateway under uvicorn, with what uvicorn leaves open: a time limit on heads, clients that take nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from levada.gateway.app import ABORT, Gateway
from levada.gateway.config import Config

__all__ = ["Server", "listen", "serve"]

_WRITE_BUFFER: Final = 32 * 1024  # bytes: what waits beyond it waits in the turn, where text merges into one frame

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

        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {})[ABORT] = transport.abort
            await app(scope, receive, send)

        self.app = with_abort
        self._head_timer: asyncio.TimerHandle | None = None
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

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
            self._head_timer = self.loop.call_later(self.header_s, self.transport.abort)

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
