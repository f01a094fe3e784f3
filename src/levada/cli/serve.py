"""`levada serve`: run the gateway."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from levada.cli.exits import Unusable
from levada.errors import UsageError

if TYPE_CHECKING:
    from levada.gateway.config import Config

__all__ = ["command"]

DEMO_LINGER_S: Final = 30.0
_EXTRA: Final = ("starlette", "uvicorn", "aiohttp")


@click.command("serve", short_help="Run the gateway and its page.")
@click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False),
    envvar="LEVADA_GATEWAY_CONFIG",
    help="The configuration, a TOML file.  [env: LEVADA_GATEWAY_CONFIG]",
)
@click.option("--demo", is_flag=True, help="Play recorded streams: an upstream of our own, in the same process.")
@click.option("--host", default="127.0.0.1", show_default=True, envvar="LEVADA_GATEWAY_HOST", help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    envvar="LEVADA_GATEWAY_PORT",
    help="The port; 0 takes a free one.",
)
@click.option("--verbose", is_flag=True, help="Log each turn's end, never its text.")
def command(path: str | None, demo: bool, host: str, port: int, verbose: bool) -> None:
    """Run the gateway: POST /turns asks an upstream and answers in one normal form; / is a page that shows it.

    Give --config, or --demo, or both. Ctrl-C or SIGTERM tells the open turns, and ends.

    Exit code: 0 ended, 2 usage, a configuration that makes no sense, an address that is taken.
    """
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise Unusable(f"the gateway needs {' and '.join(missing)}: pip install 'levada[gateway]'")
    if path is None and not demo:
        raise click.UsageError("say --config FILE, or --demo to play recorded streams")
    from levada.gateway.config import Config, load  # noqa: PLC0415  # only now it is known to be there

    try:
        config = load(path) if path is not None else Config(upstreams={})
    except UsageError as error:
        raise Unusable(str(error)) from error
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("levada").setLevel(logging.INFO if verbose else logging.WARNING)
    asyncio.run(_serve(config, demo, host, port))


async def _serve(config: Config, demo: bool, host: str, port: int) -> None:
    from levada.gateway.demo import DemoUpstream  # noqa: PLC0415  # as above
    from levada.gateway.server import listen, serve  # noqa: PLC0415

    try:
        listener = listen(host, port)
    except OSError as error:
        raise Unusable(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listener.getsockname()[1]}/"
    if host not in ("0.0.0.0", "::"):
        config = replace(config, allowed_hosts=(*config.allowed_hosts, name))
    async with AsyncExitStack() as stack:
        if demo:
            upstream = await stack.enter_async_context(DemoUpstream())
            config = replace(config, upstreams={**upstream.upstreams(), **config.upstreams})
            if config.live.linger_s is None:  # so that a reload of the page is part of the demo
                config = replace(config, live=replace(config.live, linger_s=DEMO_LINGER_S))
        await serve(config, listener, ready=lambda: click.echo(f"levada gateway on {url} (Ctrl-C ends it)"))
