"""`levada cut`: prove that no cut of a recorded stream changes its turn.

What must not change: the deltas, joined where a cut may part them, and everything that the turn says at its end. The
stream is cut in two at every position, at random into many chunks, and into single bytes, on both backends: on this
process's own here, on the other one in a process of its own beside it.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from levada._backend import BACKEND
from levada.cli.exits import Unusable
from levada.cli.recording import Recording, opened, options
from levada.cli.shown import one_line
from levada.deltas import Delta, TextDelta, ToolCallDelta
from levada.turn import Turn

__all__ = ["Report", "command", "prove"]

_LARGEST_FILE: Final = 64 * 1024 * 1024
# Bytes fed for each kind of cut, ten seconds' work or a few times that: above it, cuts are sampled. --all lifts it.
_BUDGET: Final = {"cython": 256 * 1024 * 1024, "python": 32 * 1024 * 1024}
_SINGLES: Final = 4 * 1024 * 1024  # bytes that are fed one by one, at most; the rest follows in one chunk
_EDGE: Final = 64  # positions at each end of the stream that no sample leaves out
_SIZES: Final = (1, 2, 3, 7, 20, 100, 1000, 5000)  # of chunks in many cuts, so that some are small and most bytes pass


@click.command("cut", short_help="Prove that no cut of a recorded stream changes its turn.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@options
@click.option(
    "--random", "many", type=click.IntRange(0), default=100, show_default=True, metavar="N", help="Random many-cuts."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Of the random cuts and samples.")
@click.option("--all", "everything", is_flag=True, help="Sample nothing, however long it takes.")
@click.option("--here", is_flag=True, hidden=True, help="This backend alone, and its report as JSON.")
def command(
    file: str,
    dialect: str | None,
    profile: str | None,
    framing: str,
    many: int,
    seed: int,
    everything: bool,
    here: bool,
) -> None:
    """Prove that no cut of the recorded stream FILE (- for standard input) changes its turn.

    Cuts it in two at every position, at random into many chunks, and into single bytes, on both backends, and compares
    the deltas and the end. Large files are sampled, and the output says so.

    Exit code: 0 no cut changes anything, 1 one does (the first is shown), 2 wrong usage or unreadable input.
    """
    with opened(file) as (name, stream):
        recording = Recording(name, stream, dialect=dialect, profile=profile, framing=framing)
        data = _whole(recording)
    recording.turn()  # settings that make no sense are found here, once
    work = Work(data, many, seed, everything)
    if here:
        print(msgspec.json.encode(prove(recording, work)).decode())
        return
    other = _Other(_arguments(recording, dialect, profile, framing, work), data)
    try:
        mine = prove(recording, work, progress=sys.stderr.isatty())
        reports = [mine, *other.report()]
    finally:
        other.stop()
    print(f"{one_line(name)}: {len(data):,} bytes, {recording.wire}, {mine.events:,} events, {mine.end}")
    for report in reports:
        print(f"  {report.backend}: {report.words(len(data))}")
    different = any(report.difference for report in reports)
    if len(reports) == 1:
        print(f"  {other.backend}: not tried, {other.why_not}")
    elif reports[0].digest == reports[1].digest:
        print("  both backends give the same turn")
    else:
        print("  THE BACKENDS DIFFER: the same whole stream gives two different turns")
        different = True
    sys.exit(different)


def _whole(recording: Recording) -> bytes:
    chunks, size = [], 0
    for chunk in recording.chunks:
        size += len(chunk)
        if size > _LARGEST_FILE:
            raise Unusable(f"{recording.name}: larger than {_LARGEST_FILE} bytes, which is more than cut holds")
        chunks.append(chunk)
    return b"".join(chunks)


class Report(msgspec.Struct):
    """What one backend found."""

    backend: str
    digest: str  # of the deltas and the end of the whole stream
    end: str
    events: int
    twos: int = 0  # cuts in two that were tried
    many: int = 0
    singles: int = 0  # bytes that were fed one by one
    difference: str = ""  # the first one, in words

    def words(self, size: int) -> str:
        """Return the report as a sentence about a stream of `size` bytes."""
        if self.difference:
            return f"DIFFERENT {self.difference}"
        every = "all" if self.twos == size + 1 else f"a sample of {self.twos:,} of {size + 1:,}"
        bytes_ = "byte by byte" if self.singles == size else f"the first {self.singles:,} bytes one by one"
        return f"{every} cuts in two, {self.many:,} random many-cuts, {bytes_}: always the same"


class Work:
    """The cuts of one stream, the same on every backend with the same budget."""

    def __init__(self, data: bytes, many: int, seed: int, everything: bool, budget: int | None = None) -> None:
        self.data = data
        self.many = many
        self.seed = seed
        self.everything = everything
        size = len(data)
        budget = _BUDGET[BACKEND] if budget is None else budget
        affordable = size + 1 if everything else max(budget // max(size, 1), 2 * _EDGE)
        self.positions: list[int] = list(range(size + 1))
        if affordable < size + 1:
            edges = {*range(_EDGE), *range(size + 1 - _EDGE, size + 1)}
            inner = random.Random(seed).sample(range(_EDGE, size + 1 - _EDGE), affordable - len(edges))
            self.positions = sorted(edges.union(inner))
        self.rounds = many if everything else min(many, max(budget // max(size, 1), 1))
        self.singles = size if everything else min(size, _SINGLES)

    def __len__(self) -> int:
        return len(self.positions) + self.rounds + 1

    def cuts(self) -> Iterator[tuple[str, str, list[bytes]]]:
        """Give each way of cutting: its kind, where it cuts in words, and the chunks."""
        data = self.data
        yield (
            "singles",
            "byte by byte",
            [*(data[at : at + 1] for at in range(self.singles)), data[self.singles :]],
        )
        for at in self.positions:
            yield "twos", f"cut in two at byte {at:,}, {_around(data, at)}", [data[:at], data[at:]]
        for number in range(self.rounds):
            rnd = random.Random(f"{self.seed} {number}")
            ends = [0]
            while ends[-1] < len(data):
                ends.append(min(ends[-1] + rnd.choice(_SIZES), len(data)))
            shown = ", ".join(f"{end:,}" for end in ends[1:9]) + (", …" if len(ends) > 9 else "")
            place = f"in random cut {number + 1} of --seed {self.seed}, at bytes {shown}"
            yield "many", place, [data[a:b] for a, b in pairwise(ends)]


def prove(recording: Recording, work: Work, *, progress: bool = False) -> Report:
    """Try every cut of `work` on this backend, up to the first that makes a difference."""
    return prove_turns(recording.turn, recording.end, work, progress=progress)


def prove_turns(
    make: Callable[[], Turn], end: Callable[[Turn], list[Delta]], work: Work, *, progress: bool = False
) -> Report:
    """Do as `prove`, with turns that `make` makes and `end` ends."""
    whole = _play(make(), end, [work.data])
    digest = hashlib.sha256(repr(whole).encode("utf-8", "backslashreplace")).hexdigest()
    deltas, facts = whole
    error = facts.get("error")
    report = Report(BACKEND, digest, f"error: {error[0]}" if error else str(facts.get("state")), facts.get("events", 0))
    cuts: AbstractContextManager[Iterable[tuple[str, str, list[bytes]]]] = nullcontext(work.cuts())
    if progress:
        cuts = click.progressbar(work.cuts(), length=len(work), label="cutting", file=sys.stderr)
    with cuts as each:
        for kind, place, chunks in each:
            found = _play(make(), end, chunks)
            if found != whole:
                report.difference = f"when {place}: {_difference(found, (deltas, facts))}"
                return report
            setattr(report, kind, len(chunks) - 1 if kind == "singles" else getattr(report, kind) + 1)
    return report


# -- what a turn gave --------------------------------------------------------------------------------------------------

Outcome = tuple[list[Any], dict[str, Any]]


def _play(turn: Turn, end: Callable[[Turn], list[Delta]], chunks: list[bytes]) -> Outcome:
    """Feed one way of cutting; return the joined deltas, and what the turn says at its end."""
    deltas: list[Any] = []
    try:
        for chunk in chunks:
            deltas += turn.feed(chunk)
        deltas += end(turn)
        return _joined(deltas), _facts(turn)
    except Exception as error:  # that would be our own bug, and what cut is there to find
        return _joined(deltas), {"raised": f"{type(error).__name__}: {error}"}


def _joined(deltas: list[Any]) -> list[Any]:
    """Join neighbours that a cut may have parted: text of one place, arguments of one call."""
    joined: list[Any] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, TextDelta):
            place: tuple[object, ...] = ("text", delta.channel, delta.choice, delta.block, delta.kind)
            if type(last) is list and last[0] == place:
                last[1].append(delta.text)
            else:
                joined.append([place, [delta.text]])
        elif isinstance(delta, ToolCallDelta) and not delta.id and not delta.complete:
            place = ("arguments", delta.index, delta.choice, delta.block, delta.kind)
            if type(last) is list and last[0] == place:
                last[1].append(delta.arguments)
            else:
                joined.append([place, [delta.arguments]])
        else:
            joined.append(delta)
    return [(item[0], "".join(item[1])) if type(item) is list else item for item in joined]


def _facts(turn: Turn) -> dict[str, Any]:
    error = turn.error
    return {
        "state": turn.state.value,
        "error": None if error is None else (error.kind, error.type, error.message, error.retryable, error.raw),
        "choices": turn.choices,
        "tool calls": turn.tool_calls,
        "parts": turn.parts,
        "citations": turn.citations,
        "references": turn.references,
        "usage": turn.usage,
        "id": turn.id,
        "model": turn.model,
        "anomalies": turn.anomalies,
        "events": turn.events,
    }


def _difference(found: Outcome, whole: Outcome) -> str:
    """Return the first thing that differs, in words."""
    for name in {**whole[1], **found[1]}:
        one, other = whole[1].get(name), found[1].get(name)
        if one != other:
            return f"{name} was {_short(one)}, became {_short(other)}"
    for number, (one, other) in enumerate(zip(whole[0], found[0], strict=False)):
        if one != other:
            return f"delta {number + 1} was {_short(one)}, became {_short(other)}"
    return f"{len(whole[0])} deltas became {len(found[0])}"


def _short(value: object) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 300 else f"{text[:300]}…"


def _around(data: bytes, at: int) -> str:
    return f"between {data[max(at - 20, 0) : at]!r} and {data[at : at + 20]!r}"


# -- the other backend -------------------------------------------------------------------------------------------------


def _arguments(recording: Recording, dialect: str | None, profile: str | None, framing: str, work: Work) -> list[str]:
    said = {"--dialect": dialect, "--profile": profile, "--framing": framing}
    arguments = [f"{option}={value}" for option, value in said.items() if value is not None]
    arguments += [f"--random={work.many}", f"--seed={work.seed}"]
    return [*arguments, *(["--all"] if work.everything else []), "-"]


class _Other:
    """The same proof on the other backend, in a process of its own."""

    def __init__(self, arguments: list[str], data: bytes) -> None:
        self.backend = "python" if BACKEND == "cython" else "cython"
        self.why_not = ""
        self._process: subprocess.Popen[bytes] | None = None
        if self.backend == "cython" and find_spec("levada._hotpath_c") is None:
            self.why_not = "the extension was not built"
            return
        source = str(Path(__file__).parents[2])
        path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "levada", "cut", "--here", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LEVADA_BACKEND": self.backend, "PYTHONPATH": path},
        )
        assert self._process.stdin is not None  # a pipe was asked for
        try:
            self._process.stdin.write(data)  # it reads all before it writes anything
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # what it has to say is on its stderr
        self._process.stdin = None

    def report(self) -> list[Report]:
        """Wait for it; return its report, or nothing where that backend is not there."""
        if self._process is None:
            return []
        out, err = self._process.communicate()
        try:
            return [msgspec.json.decode(out, type=Report)]
        except msgspec.DecodeError:
            last = one_line((err.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1])
            return [Report(self.backend, "", "", 0, difference=f"in that it failed to run: {last}")]

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process is not None:
            self._process.kill()  # does nothing where it has ended
            self._process.communicate()
