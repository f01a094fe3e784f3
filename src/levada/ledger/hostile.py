"""Any Python text and any JSON to text that every database takes, and back, without loss.

PostgreSQL refuses U+0000 in text, and no database driver encodes lone surrogates; models and servers send both. Each
becomes U+001A (SUBSTITUTE: "in place of a character that cannot be represented") and four hex digits, and so does
U+001A itself. All other text is stored as it is, so that SQL reads and searches it. It is one form for every database:
a dump of one goes into another.

NaN and the infinities, which JSON does not have and Python's servers send, become strings of U+001A and their name.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from levada.errors import LedgerError

__all__ = ["json_from", "json_to", "text_from", "text_to"]

_HOSTILE: Final = re.compile("[\x00\x1a\ud800-\udfff]")
_SUBSTITUTE: Final = re.compile("\x1a([0-9a-f]{4})")
# in JSON text the control characters are escaped already; the first branch keeps \\u0000 (a backslash, and text) whole
_HOSTILE_JSON: Final = re.compile(r"\\(?:\\|u(0000|001a))|([\ud800-\udfff])")
# a U+001A of the text has four digits behind it, so a string that begins with one and a name is a number
_SUBSTITUTE_JSON: Final = re.compile(r'\\(?:\\|u001a([0-9a-f]{4}))|"\\u001a(NaN|-?Infinity)"')
_NOT_FINITE: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(NaN|-?Infinity)')


def text_to(text: str) -> str:
    """Return what to store for `text`."""
    if "\x00" not in text and "\x1a" not in text and not _has_surrogates(text):
        return text
    return _HOSTILE.sub(lambda found: f"\x1a{ord(found[0]):04x}", text)


def text_from(stored: str) -> str:
    """Return the text that `text_to` was given."""
    return _SUBSTITUTE.sub(lambda found: chr(int(found[1], 16)), stored) if "\x1a" in stored else stored


def json_to(value: Any, *, finite: bool = False) -> str:
    """Return JSON text for `value`, safe in a column of type json, and after a cast to jsonb too.

    Raises LedgerError where it is nested too deep; TypeError and ValueError for what JSON cannot say; of numbers that
    are not finite only where `finite` asks for it.
    """
    try:
        return _safe(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    except RecursionError:
        raise LedgerError("a document of the turn is nested too deep to be stored") from None
    except ValueError:
        if finite:
            raise
    text = _safe(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return _NOT_FINITE.sub(lambda found: f'"\\u001a{found[1]}"' if found[1] else found[0], text)


def _safe(text: str) -> str:
    if "\\u0000" not in text and "\\u001a" not in text and not _has_surrogates(text):
        return text

    def substitute(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"\\u001a{found[1]}"
        return f"\\u001a{ord(found[2]):04x}" if found[2] is not None else found[0]

    return _HOSTILE_JSON.sub(substitute, text)


def json_from(stored: str) -> Any:
    """Return the value that `json_to` was given."""

    def restore(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[2] or found[0]
        # a surrogate as itself: of two escapes next to each other, JSON makes one character
        return chr(int(found[1], 16)) if found[1][0] == "d" else f"\\u{found[1]}"

    return json.loads(_SUBSTITUTE_JSON.sub(restore, stored) if "u001a" in stored else stored)


def _has_surrogates(text: str) -> bool:
    """Say whether UTF-8 cannot say `text`. To try is twenty times as fast as to look for them with `re`."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
