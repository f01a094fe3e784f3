"""The reference gateway: turns over HTTP, told in levada's normal form, and a page that shows them.

`NormalForm` and `Frames` need no more than levada itself and go into a gateway of your own; `Gateway`, `serve` and the
rest need the extra `gateway` (starlette, uvicorn, aiohttp).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from levada.gateway.frames import Frames
from levada.gateway.normal import HEADERS, NormalForm

if TYPE_CHECKING:
    from levada.gateway.app import Gateway
    from levada.gateway.config import Config, Limits, LiveSettings, Upstream, load
    from levada.gateway.server import listen, serve

__all__ = [
    "HEADERS",
    "Config",
    "Frames",
    "Gateway",
    "Limits",
    "LiveSettings",
    "NormalForm",
    "Upstream",
    "listen",
    "load",
    "serve",
]

_AT_FIRST_USE = {
    "Gateway": "levada.gateway.app",
    **dict.fromkeys(("Config", "Limits", "LiveSettings", "Upstream", "load"), "levada.gateway.config"),
    **dict.fromkeys(("listen", "serve"), "levada.gateway.server"),
}


def __getattr__(name: str) -> Any:
    """Import a name at first use: two of them need no web framework."""
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_AT_FIRST_USE[name]), name)
