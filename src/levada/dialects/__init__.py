"""The dialects, by name. Adding a provider touches its own folder and one line of `_ROOMS`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Final

from levada.dialects.base import Dialect
from levada.dialects.profiles import PROFILES, Profile
from levada.errors import UsageError

__all__ = ["DIALECTS", "PROFILES", "Dialect", "Profile", "dialect_named", "profile_named"]

# name -> module; imported at first use, so that a program pays for the dialects that it speaks
_ROOMS: Final = MappingProxyType(
    {
        "openai_chat": "levada.dialects.openai_chat.decode",
        "openai_responses": "levada.dialects.openai_responses.decode",
        "anthropic": "levada.dialects.anthropic.decode",
        "gemini": "levada.dialects.gemini.decode",
        "vertex_search": "levada.dialects.vertex_search.decode",
    }
)
DIALECTS: Final = tuple(_ROOMS)


def dialect_named(name: str) -> type[Dialect]:
    """Return the class of a dialect. Raises UsageError with the names that exist."""
    room = _ROOMS.get(name)
    if room is None:
        profile = PROFILES.get(name) if isinstance(name, str) else None
        hint = f"; {name} is a profile of {profile.dialect}" if profile is not None else ""
        raise UsageError(f"unknown dialect {name!r:.100}{hint}; there are {', '.join(DIALECTS)}")
    found: type[Dialect] = import_module(room).DECODER
    return found


@cache
def _own_profile(dialect: str) -> Profile:
    return Profile(dialect, dialect)


def profile_named(name: str | Profile | None, dialect: str) -> Profile:
    """Return a profile of this dialect; without a name, the dialect's own. Raises UsageError where it does not fit."""
    if name is None:
        return _own_profile(dialect)
    profile = PROFILES.get(name) if isinstance(name, str) else name
    if not isinstance(profile, Profile):
        fitting = ", ".join(known.name for known in PROFILES.values() if known.dialect == dialect) or "none"
        raise UsageError(f"unknown profile {name!r:.100}; for {dialect} there are {fitting}")
    if profile.dialect != dialect:
        raise UsageError(f"profile {profile.name} belongs to dialect {profile.dialect}, not to {dialect}")
    return profile
