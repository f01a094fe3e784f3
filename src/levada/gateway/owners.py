"""Whose turn it is: a header of the person's own proxy, or a token that only they know.

The log keeps no more than a digest of it (levada.live), so that nobody who reads it can act as somebody else.
"""

from __future__ import annotations

import re
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Final

from msgspec import Struct
from starlette.datastructures import Headers

from levada.gateway.refused import Refused

__all__ = ["COOKIE", "HEADER", "Owner", "owner_of"]

HEADER: Final = "levada-owner"
COOKIE: Final = "levada_owner"  # for EventSource, which sends no headers

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,128}")
_NAME_LIMIT: Final = 256


class Owner(Struct, frozen=True):
    """`name`: who it is to the log. `token`: what the client sends; None where its browser or a proxy does."""

    name: str
    token: str | None = None
    new: bool = False  # made up just now: the client does not know it yet

    def headers(self) -> list[tuple[str, str]]:
        """Return what an answer tells the client: its token, and once the cookie."""
        if self.token is None:
            return []
        told = [(HEADER, self.token)]
        if self.new:
            # Strict: no other site's page can make a browser send it; HttpOnly: no script can read it
            told.append(("set-cookie", f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict"))
        return told


def owner_of(headers: Headers, owner_header: str | None, *, make: bool = False) -> Owner | None:
    """Return whose request it is; None for nobody's, unless `make` makes a new owner up.

    `owner_header`: the header that names a person; nothing else counts then.
    Raises Refused: 401 where that header is missing or comes twice, 400 for a token that is none.
    """
    if owner_header is not None:
        names = headers.getlist(owner_header)
        name = names[0].strip() if len(names) == 1 else ""  # of two, one may be the client's own
        if not name or len(name) > _NAME_LIMIT:
            raise Refused(
                401, "no_owner", f"the header {owner_header}, which says whose turn it is, is missing or comes twice"
            )
        return Owner(f"header:{name}")
    token = headers.get(HEADER)
    if token is not None:
        if not _TOKEN.fullmatch(token):
            raise Refused(400, "bad_request", f"{HEADER} is a token of 16 to 128 letters, digits and . _ ~ -")
        return Owner(f"token:{token}", token)
    kept = _cookie(headers.get("cookie", ""))
    if kept is not None:
        return Owner(f"token:{kept}")
    if not make:
        return None
    token = secrets.token_urlsafe(24)
    return Owner(f"token:{token}", token, new=True)


def _cookie(text: str) -> str | None:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None and _TOKEN.fullmatch(found.value) else None
