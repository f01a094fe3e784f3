"""The command line: `levada COMMAND`. This module needs the standard library alone; the rest needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]

# What the extra `cli` brings, by import name.
_EXTRA = ("click", "rich")


def main() -> None:
    """Run the command line of this process and exit, with the codes that docs/cli.md lists."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        print(f"levada: the command line needs {' and '.join(missing)}: pip install 'levada[cli]'", file=sys.stderr)
        sys.exit(2)
    from levada.cli.group import levada  # noqa: PLC0415  # it imports click

    levada(prog_name="levada")
