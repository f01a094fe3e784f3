"""A recorded stream: where its bytes come from, what it speaks, and the turn that reads it. For check, play and cut."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, BinaryIO, Final, TypeVar

import click

from levada.cli.exits import Unusable
from levada.detection import MOST_BYTES, Detected, detect
from levada.dialects import DIALECTS, PROFILES, Profile, dialect_named
from levada.errors import Truncated, UsageError
from levada.sse import Comment, EventParser
from levada.turn import Turn

__all__ = ["FAILED", "FINISHED", "TRUNCATED", "Recording", "exit_code", "opened", "options"]

_READ_BYTES: Final = 64 * 1024  # the usual size of a pipe

FINISHED, TRUNCATED, FAILED = 0, 3, 4  # exit codes, the worst wins

_Command = TypeVar("_Command", bound=Callable[..., Any])


def options(command: _Command) -> _Command:
    """Give a command the options that say what a stream is."""
    for option in (
        click.option(
            "--framing",
            type=click.Choice(["auto", "sse", "ndjson", "json-array", "aws-eventstream"]),
            default="auto",
            show_default=True,
            help="How the stream is framed; auto decides from the first bytes.",
        ),
        click.option(
            "--profile",
            type=click.Choice(sorted(PROFILES)),
            metavar="P",
            help=f"The server's habits: {', '.join(sorted(PROFILES))}. By default detected, and then never looser.",
        ),
        click.option(
            "--dialect",
            type=click.Choice(DIALECTS),
            metavar="D",
            help=f"The stream's dialect: {', '.join(DIALECTS)}. By default detected.",
        ),
    ):
        command = option(command)
    return command


def exit_code(turn: Turn) -> int:
    """Return the exit code that says how a turn ended."""
    if turn.error is None:
        return FINISHED
    return TRUNCATED if turn.error.kind == "truncated" else FAILED


class Recording:
    """A stream that is read once, as it comes.

    `dialect` and `profile` are what was said, or else what was detected; `dialect` is None where the input is certain
    to be no turn of any dialect (empty, HTML). `prompt`: begin as soon as the dialect is known, with less to tell the
    profile from.
    Raises Unusable where the input cannot be read or its dialect cannot be told.
    """

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        *,
        dialect: str | None = None,
        profile: str | None = None,
        framing: str = "auto",
        content_type: str | None = None,
        status: int | None = None,
        prompt: bool = False,
    ) -> None:
        self.name = name
        self._file = file
        self._said = profile
        self._head = content_type, status
        first = self._peek(content_type, prompt)
        self.chunks: Iterator[bytes] = chain([first] if first else [], self._read())
        found = detect(content_type, first)
        if dialect is None and found is None and profile is not None:
            dialect = PROFILES[profile].dialect
        if dialect is not None and found is not None and found.dialect != dialect:
            found = None  # what was said holds
        self.detected: Detected | None = found
        self.empty = dialect is None and found is None and self._at_end and _is_silent(first)
        self._certain = self.empty or _first_byte(first) == b"<" or (status is not None and not 200 <= status < 300)
        self.dialect = dialect if dialect is not None else found.dialect if found is not None else None
        if self.dialect is None and not self._certain:
            known = ", ".join(DIALECTS)
            raise Unusable(f"{name}: {_what(first)} show none of {known}; say which it is: --dialect D")
        self.framing = framing if framing != "auto" else found.framing if found is not None else None
        self._bare_json = _first_byte(first) == b"{" and not _has_events(first)

    @property
    def profile(self) -> str | Profile | None:
        """The profile to read with: the one that was said, or the detected one, which never finishes a turn earlier."""
        if self._said is not None:
            return self._said
        return self.detected.habits if self.detected is not None else None

    @property
    def looser(self) -> str | None:
        """The option that would accept a finish reason and a clean end without the terminal signal, if there is one."""
        name = None if self._said or self.detected is None else self.detected.profile
        if name is not None and (PROFILES[name].terminal != "strict" or PROFILES[name].terminal_objects):
            return f"--profile {name}"
        if self.dialect is not None and "finish_reason" in dialect_named(self.dialect).terminals:
            return "--terminal finish_reason"
        return None

    @property
    def wire(self) -> str:
        """What the stream is, in words."""
        if self.dialect is None:
            return "no dialect"
        framing = f" over {self.framing}" if self.framing else ""
        profile = self._said or (self.detected.profile if self.detected is not None else None)
        named = "" if profile is None else f", {profile}" if self._said else f", {profile} (detected)"
        return f"{self.dialect}{framing}{named}"

    def turn(self, **settings: Any) -> Turn:
        """Return a new turn for this stream. Raises Unusable for settings that make no sense together."""
        content_type, status = self._head
        dialect = self.dialect or DIALECTS[0]  # any will do for what none can read
        try:
            turn = Turn(dialect, profile=self.profile if self.dialect else None, framing=self.framing, **settings)
            if status is None and content_type is None and self._is_body(dialect):
                content_type = "application/json"  # read as one, of any size
            if status is not None or content_type is not None:
                turn.head(200 if status is None else status, content_type)
        except UsageError as error:
            raise Unusable(f"{self.name}: {error}") from error  # what makes no sense for one file may for the next
        return turn

    def end(self, turn: Turn, *, clean: bool = True) -> list[Any]:
        """End a turn that was fed all chunks; return its last deltas."""
        if self.empty:
            turn.fail(Truncated("the stream ended before anything came", retryable=True))
        return turn.eof(clean=clean) if turn.error is None else []

    def _is_body(self, dialect: str) -> bool:
        """Say whether this is a JSON body, an error or a whole answer, where an event stream would have come."""
        expected = self.framing in (None, "sse") and dialect_named(dialect).framings == ("sse",)
        return expected and self._bare_json

    def _read(self) -> Iterator[bytes]:
        """Read what there is, as soon as there is something."""
        read: Callable[[int], bytes] = getattr(self._file, "read1", self._file.read)
        try:
            while chunk := read(_READ_BYTES):
                yield chunk
        except OSError as error:
            raise Unusable(f"{self.name}: cannot read: {error.strerror or error}") from error

    def _peek(self, content_type: str | None, prompt: bool) -> bytes:
        """Read all that detection looks at, or, if `prompt`, until the dialect is known; note whether the end came."""
        self._at_end = False
        taken = b""
        for chunk in self._read():
            taken += chunk
            if len(taken) >= MOST_BYTES:
                return taken
            if prompt and b"\n" in chunk and detect(content_type, taken) is not None:
                return taken
        self._at_end = True
        return taken


@contextmanager
def opened(path: str) -> Iterator[tuple[str, BinaryIO]]:
    """Open a file, or standard input for `-`; give its name and itself. Raises Unusable where that fails."""
    if path == "-":
        yield "-", sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below; only opening it may fail in this way
    except OSError as error:
        raise Unusable(f"{path}: cannot read: {error.strerror or error}") from error
    with file:
        yield path, file


def _has_events(data: bytes) -> bool:
    return bool(EventParser().feed(data + b"\n\n"))


def _is_silent(data: bytes) -> bool:
    """Say whether there is nothing but comments."""
    return all(isinstance(item, Comment) for item in EventParser().feed_all(data + b"\n\n"))


def _first_byte(data: bytes) -> bytes:
    return data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def _what(first: bytes) -> str:
    if first[:4].translate(None, bytes((*range(9, 14), *range(32, 256)))):
        return "its first bytes, which are binary,"
    return f"its {len(first):,} bytes" if len(first) < MOST_BYTES else f"its first {MOST_BYTES:,} bytes"
