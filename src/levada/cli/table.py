"""A table of texts, whose last column has what is left of a line."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from rich.cells import cell_len, set_cell_size

from levada.cli.shown import is_terminal, is_unicode, one_line

__all__ = ["print_table"]

_BLOCK: Final = 500  # rows that are laid out together, so that a table of any length needs little memory
_PREVIEW: Final = 60  # columns of the last text where no terminal says how many fit
_LEAST: Final = 10  # columns of it, however narrow the terminal is


def print_table(names: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """Print rows under their names, each on one line; "-" stands for None and an empty text."""
    columns = shutil.get_terminal_size().columns if is_terminal() else None
    longest = columns or 4 * _PREVIEW  # characters of a cell: nothing beyond them is shown
    source = iter(rows)
    lines: list[Sequence[str]] = [names]
    widths = [0] * len(names)
    while lines:
        lines += [[one_line((text or "-")[:longest]) for text in row] for row in islice(source, _BLOCK)]
        widths = [max(width, *(cell_len(line[at]) for line in lines)) for at, width in enumerate(widths)]
        room = _PREVIEW
        if columns is not None:
            room = max(columns - sum(widths[:-1]) - 2 * (len(names) - 1), _LEAST)
        for *before, last in lines:
            cells = [set_cell_size(text, width) for text, width in zip(before, widths, strict=False)]
            print("  ".join([*cells, _cut(last, room)]).rstrip())
        lines = []
        if (more := next(source, None)) is not None:
            lines = [[one_line((text or "-")[:longest]) for text in more]]


def _cut(text: str, room: int) -> str:
    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1).rstrip() + ("…" if is_unicode() else "~")
