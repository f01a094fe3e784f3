"""Text from a stream, made fit for a terminal: nothing in it is a command, and it is no markup."""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["escaped", "is_terminal", "is_unicode", "one_line"]

# Written as JSON writes them: control characters, the separators that some readers take for line ends, and the marks
# that change the direction of text (Unicode TR9, 2, and the deprecated ones beside them), for they make a line read as
# another one. The joiners stay: emoji and several scripts need them.
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x2070))
_CONTROLS: Final = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *_DIRECTIONS)}
_CONTROLS.update({ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"})
_IN_LINES: Final = {code: escape for code, escape in _CONTROLS.items() if code not in (ord("\t"), ord("\n"))}


def one_line(text: str) -> str:
    """Return `text` as one line."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def escaped(text: str) -> str:
    """Return `text` with its lines and tabs; every other control character and mark of direction is an escape."""
    return text if text.isprintable() else text.translate(_IN_LINES)


def is_terminal() -> bool:
    """Say whether a person watches standard output on something that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def is_unicode() -> bool:
    """Say whether standard output can show every character."""
    return (sys.stdout.encoding or "").lower().replace("_", "-") in ("utf-8", "utf8")
