"""The page's files, held in memory, and what a browser may do with them: nothing but run our own script and ask us."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["SECURITY_HEADERS", "routes"]

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # innerHTML and its kin throw, also in a script of ours
        "trusted-types 'none'",
    ]
)
SECURITY_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def routes() -> Iterator[Route]:
    """Yield a route for each file; index.html is the root."""
    for file in files("levada.gateway").joinpath("page").iterdir():
        name, dot, ending = file.name.rpartition(".")
        kind = _TYPES.get(dot + ending)
        if kind is not None and name:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            yield Route(path, _file(file.read_bytes(), kind))


def _file(body: bytes, kind: str):  # type: ignore[no-untyped-def]
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers={**headers, "content-type": kind})

    return serve
