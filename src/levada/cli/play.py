"""`levada play`: show a recorded stream as a person would see it.

Text looks provisional until the provider has finished the turn. On a terminal the turn is painted (painted.py); without
one the answer goes to standard output as it comes, all else to standard error.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from levada.cli.recording import Recording, exit_code, opened, options
from levada.cli.shown import escaped, is_terminal, one_line
from levada.cli.words import call_words, end_words
from levada.deltas import Delta, TextDelta, TextReplaced
from levada.lifecycle import State

if TYPE_CHECKING:
    from levada.turn import Turn

__all__ = ["command"]

_LARGEST_CHUNK: Final = 64 * 1024 * 1024
_LONGEST_CALL: Final = 4000  # characters of a call's arguments
_LONGEST_PIECE: Final = 512  # bytes of a line that are fed at once, so that a long line of many items has its pace too
_CANCELLED: Final = 130  # what a shell says of a process that Ctrl-C ended
_ENDED: Final = (State.FINISHED, State.ERROR, State.CANCELLED)


class _Speed(click.FloatRange):
    """A number of events a second. NaN compares with nothing, so the range alone would let it through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        speed: float = super().convert(value, param, ctx)
        if math.isnan(speed):
            self.fail(f"{value!r} is not a number of events a second.", param, ctx)
        return speed


@click.command("play", short_help="Show a recorded stream as a person would see it.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@options
@click.option(
    "--speed",
    type=_Speed(0, 1_000_000),
    default=50,
    show_default=True,
    metavar="N",
    help="Events a second; 0: all at once.",
)
@click.option(
    "--chunk",
    type=click.IntRange(1, _LARGEST_CHUNK),
    metavar="N",
    help="Feed the stream in chunks of N bytes, however it is cut then.",
)
def command(file: str, dialect: str | None, profile: str | None, framing: str, speed: float, chunk: int | None) -> None:
    """Show the recorded stream FILE (- for standard input) as a person would see it.

    Text is provisional until the provider has finished the turn. Ctrl-C cancels it. Without a terminal the answer goes
    to standard output, everything else to standard error.

    Exit code: 0 finished, 3 cut off, 4 failed otherwise, 130 cancelled, 2 wrong usage or unreadable input.
    """
    turn: Turn | None = None
    screen: Screen | None = None
    try:
        with opened(file) as (name, stream):
            live = file == "-"
            recording = Recording(name, stream, dialect=dialect, profile=profile, framing=framing, prompt=live)
            turn = recording.turn()
            screen = _screen(turn)
            with screen:
                _play(recording, turn, screen, speed, chunk, live)
    except KeyboardInterrupt:
        if turn is None:
            click.echo("cancelled before anything came", err=True)
            sys.exit(_CANCELLED)
        turn.cancel()
    assert turn is not None  # made, or left above
    assert screen is not None  # made right after it
    screen.settle()
    sys.exit(_CANCELLED if turn.state is State.CANCELLED else exit_code(turn))


def _screen(turn: Turn) -> Screen:
    if not is_terminal():
        return Plain(turn)
    from levada.cli.painted import Painted  # noqa: PLC0415  # it imports rich, which plain output does not need

    return Painted(turn)


def _play(recording: Recording, turn: Turn, screen: Screen, speed: float, size: int | None, live: bool) -> None:
    for chunk in _rechunked(recording.chunks, size) if size else recording.chunks:
        for piece in (chunk,) if size else _lines(chunk):
            before = turn.events
            screen.show(turn.feed(piece))
            if speed and turn.state not in _ENDED:
                screen.rest((turn.events - before) / speed)
        if live:
            screen.catch_up()  # before waiting for a server that may take its time
    screen.show(recording.end(turn))


def _lines(chunk: bytes) -> Iterator[bytes]:
    for line in chunk.splitlines(keepends=True):
        for start in range(0, len(line), _LONGEST_PIECE):
            yield line[start : start + _LONGEST_PIECE]


def _rechunked(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        held += chunk
        whole = len(held) - len(held) % size
        for start in range(0, whole, size):
            yield held[start : start + size]
        held = held[whole:]
    if held:
        yield held


class Screen(Protocol):
    """Where a turn is shown."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, deltas: list[Delta]) -> None:
        """Take what is new."""

    def rest(self, seconds: float) -> None:
        """Let time pass."""

    def catch_up(self) -> None:
        """Show all that was taken."""

    def settle(self) -> None:
        """Show how the turn ended, for good."""


# -- without a terminal ------------------------------------------------------------------------------------------------


class Plain:
    """The answer to standard output as it comes; all else, marked, to standard error."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._aside = ""  # the channel whose line is open on standard error
        self._answer_open = False  # the answer's last line is not ended

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, deltas: list[Delta]) -> None:
        """Write what is new of choice 0."""
        for delta in deltas:
            if isinstance(delta, TextReplaced) and delta.choice == 0:
                self._note(f"[{delta.channel} replaced: {one_line(delta.reason or 'no reason told')}]")
                self._end_answer_line()
                self._write(delta.channel, delta.text)
            elif isinstance(delta, TextDelta) and delta.choice == 0:
                self._write(delta.channel, delta.text)

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def catch_up(self) -> None:
        """Nothing is ever held back."""

    def settle(self) -> None:
        """Write the tool calls and the end."""
        self._end_answer_line()
        finished = self._turn.state is State.FINISHED
        for call in self._turn.tool_calls:
            self._note(f"[tool call{'' if finished else ', not to be run'}] {call_words(call, _LONGEST_CALL)}")
        first, *rest = end_words(self._turn)
        self._note(" ".join([f"[{first}]", "; ".join(rest)]).rstrip())

    def _write(self, channel: str, text: str) -> None:
        if not text:
            return
        if channel == "answer":
            self._answer_open = not text.endswith("\n")  # before it is seen, and Ctrl-C may come
            sys.stdout.write(escaped(text))
            sys.stdout.flush()
        else:
            if self._aside != channel:
                self._note(f"[{channel}] ", end="")
                self._aside = channel
            sys.stderr.write(escaped(text))
            sys.stderr.flush()

    def _note(self, words: str, end: str = "\n") -> None:
        """Write a line of its own to standard error."""
        before = "\n" if self._aside else ""
        self._aside = ""
        sys.stderr.write(f"{before}{words}{end}")
        sys.stderr.flush()

    def _end_answer_line(self) -> None:
        if self._answer_open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._answer_open = False
