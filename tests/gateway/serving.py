"""A gateway on loopback in a thread of its own, with the demo's upstream or any other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from levada.gateway.config import Config, Limits, LiveSettings, Upstream
from levada.gateway.demo import SCENARIOS, DemoUpstream, Scenario
from levada.gateway.server import Server, listen

T = TypeVar("T")


class Running:
    """`with Running() as gateway`: the demo; `upstreams`, `limits` and `live` change the configuration."""

    server: Server
    demo: DemoUpstream
    url: str

    def __init__(
        self,
        *,
        upstreams: dict[str, Upstream] | None = None,
        scenarios: dict[str, Scenario] = SCENARIOS,
        limits: Limits | None = None,
        live: LiveSettings | None = None,
        change: Callable[[Upstream], Upstream] = lambda upstream: upstream,
    ) -> None:
        limits, live = limits or Limits(shutdown_s=3), live or LiveSettings()
        self._config = Config(upstreams=upstreams or {}, limits=limits, live=live)
        self._scenarios = scenarios
        self._change = change
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="gateway", daemon=True)
        self._loop: asyncio.AbstractEventLoop

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        listener = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with DemoUpstream(self._scenarios) as self.demo:
            played = {name: self._change(upstream) for name, upstream in self.demo.upstreams().items()}
            config = replace(self._config, upstreams={**played, **self._config.upstreams})
            self.server = Server(config, ready=self._ready.set)
            await self.server.serve(sockets=[listener])

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the gateway did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join(15)
        assert not self._thread.is_alive(), "the gateway did not end"

    def stop(self) -> None:
        """Ask it to end, as a signal would."""
        self.server.should_exit = True

    def call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run something in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @property
    def turns(self) -> int:
        """How many turns run."""
        return len(self.server.gateway.turns)
