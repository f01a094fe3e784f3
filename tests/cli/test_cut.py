"""`levada cut`: that every cut of a stream gives the same turn, and that it would say so if one did not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import levada
from levada import Turn
from levada.cli.cut import Report, Work, prove_turns
from levada.cli.group import levada as group
from levada.deltas import Delta

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHAT = FIXTURES / "openai_chat.sse"

SMALL = (
    'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Olá 🌊"}}]}\r\n\r\n'
    'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","function":{"name":"f","arguments":"{"}}]}'
    '}]}\n\ndata: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
).encode()

both = pytest.mark.skipif(find_spec("levada._hotpath_c") is None, reason="the extension was not built")


def run(*args: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(group, ["cut", *args], input=stdin)


def eof(turn: Turn) -> list[Delta]:
    return turn.eof(clean=True)


def prove(make: Callable[[], Any], work: Work | None = None) -> Report:
    return prove_turns(make, eof, work or Work(SMALL, 20, 0, False))


class TestCommand:
    @both
    def test_every_cut_gives_the_same_turn_on_both_backends(self) -> None:
        got = run("--random", "20", "-", stdin=SMALL)
        every = "all cuts in two, 20 random many-cuts, byte by byte: always the same"
        assert got.exit_code == 0
        other = "python" if levada.BACKEND == "cython" else "cython"
        assert got.stdout == (
            f"-: {len(SMALL)} bytes, openai_chat over sse, 5 events, finished\n"
            f"  {levada.BACKEND}: {every}\n"
            f"  {other}: {every}\n"
            "  both backends give the same turn\n"
        )

    def test_a_backend_that_is_not_there_is_said_not_to_be_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("levada.cli.cut.BACKEND", "python")
        monkeypatch.setattr("levada.cli.cut.find_spec", lambda _: None)
        got = run("--random", "1", "-", stdin=SMALL)
        assert got.exit_code == 0
        assert "  cython: not tried, the extension was not built\n" in got.stdout

    def test_a_backend_that_does_not_run_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("levada.cli.cut.sys.executable", "/bin/false")
        got = run("--random", "1", "-", stdin=SMALL)
        assert got.exit_code == 1
        assert "DIFFERENT in that it failed to run: it said nothing\n" in got.stdout

    def test_streams_that_end_badly_are_cut_too(self) -> None:
        got = run("--random", "5", "-", stdin=SMALL[:200])
        assert got.exit_code == 0
        assert ", error: truncated\n" in got.stdout
        got = run("--random", "5", "-", stdin=b"")
        assert (got.exit_code, got.stdout.splitlines()[0]) == (0, "-: 0 bytes, no dialect, 0 events, error: truncated")

    def test_large_files_are_sampled_and_the_output_says_so(self) -> None:
        text = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 200_000 + b'"}}]}\n\n'
        got = run("--random", "2", "-", stdin=text + SMALL)
        assert got.exit_code == 0
        assert f"  {levada.BACKEND}: a sample of " in got.stdout

    def test_wrong_usage_is_2(self, tmp_path: Path) -> None:
        for args in ([], [str(tmp_path)], ["absent"], ["--random", "-1", str(CHAT)]):
            assert run(*args).exit_code == 2, args
        assert run("-", stdin=b"hello").exit_code == 2
        assert run("--framing", "ndjson", "-", stdin=SMALL).exit_code == 2

    @both
    def test_it_is_the_same_from_the_other_side(self) -> None:
        env = {**os.environ, "LEVADA_BACKEND": "python"}
        command = [sys.executable, "-m", "levada", "cut", "--random", "3", "-"]
        got = subprocess.run(command, input=SMALL, capture_output=True, env=env, check=True, timeout=120)
        lines = got.stdout.decode().splitlines()
        assert [line.split(":")[0] for line in lines[1:3]] == ["  python", "  cython"]
        assert lines[3] == "  both backends give the same turn"

    def test_the_other_process_reports_in_json(self) -> None:
        got = run("--here", "--random", "1", "-", stdin=SMALL)
        report = json.loads(got.stdout)
        assert (report["backend"], report["twos"], report["difference"]) == (levada.BACKEND, len(SMALL) + 1, "")


class Wrong:
    """A turn with something wrong with it."""

    def __init__(self) -> None:
        self._turn = Turn("openai_chat")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)


class LosesATail(Wrong):
    """Forgets the last byte of a chunk that ends inside an event."""

    def feed(self, chunk: bytes) -> list[Delta]:
        return self._turn.feed(chunk if chunk.endswith(b"\n") else chunk[:-1])


class Raises(Wrong):
    """Raises for a chunk that begins in the middle of a character."""

    def feed(self, chunk: bytes) -> list[Delta]:
        if chunk[:1] == b"\xa1":
            raise RuntimeError("no")
        return self._turn.feed(chunk)


class DoublesADelta(Wrong):
    """Hands out what came in small chunks twice, though the turn itself is right."""

    def feed(self, chunk: bytes) -> list[Delta]:
        return self._turn.feed(chunk) * (2 if len(chunk) < 10 else 1)


class TestDifferences:
    def test_none_is_found_where_there_is_none(self) -> None:
        report = prove(lambda: Turn("openai_chat"))
        assert (report.twos, report.many, report.singles, report.difference) == (len(SMALL) + 1, 20, len(SMALL), "")

    def test_the_first_one_is_said_with_its_place(self) -> None:
        report = prove(LosesATail)
        assert report.difference.startswith("when byte by byte: state was 'finished', became 'error'")

    def test_of_a_cut_in_two_has_its_position(self) -> None:
        at = SMALL.index(b"\xa1")
        report = prove(Raises)
        assert report.difference.startswith("when byte by byte: state was 'finished', became None")
        report = prove(Raises, work=NoSingles(SMALL))
        assert f"when cut in two at byte {at}, between " in report.difference
        assert (report.twos, report.many) == (at, 0)

    def test_of_a_delta_is_found_though_the_end_is_the_same(self) -> None:
        report = prove(DoublesADelta)
        assert "delta 1 was ((" in report.difference

    def test_between_the_backends_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("levada.cli.cut._Other.report", lambda _: [Report("other", "x", "finished", 5)])
        got = run("--random", "1", "-", stdin=SMALL)
        assert got.exit_code == 1
        assert "THE BACKENDS DIFFER" in got.stdout


class NoSingles(Work):
    """Only cuts in two and many-cuts."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, 3, 0, False)

    def cuts(self) -> Any:
        return (cut for cut in super().cuts() if cut[0] != "singles")


class TestWork:
    def test_every_way_of_cutting_is_the_whole_stream(self) -> None:
        for _, place, chunks in Work(SMALL, 10, 1, False).cuts():
            assert b"".join(chunks) == SMALL, place

    def test_a_sample_has_both_edges_and_is_the_same_for_the_same_seed(self) -> None:
        data = bytes(10_000)
        work = Work(data, 100, 1, False, budget=2_000_000)
        assert len(work.positions) == 200
        assert work.positions[:64] == list(range(64))
        assert work.positions[-64:] == list(range(9937, 10_001))
        assert work.positions == Work(data, 100, 1, False, budget=2_000_000).positions
        assert work.positions != Work(data, 100, 2, False, budget=2_000_000).positions

    def test_all_samples_nothing(self) -> None:
        work = Work(bytes(10_000), 100, 1, True, budget=1)
        assert (len(work.positions), work.rounds, work.singles) == (10_001, 100, 10_000)

    def test_its_length_is_the_number_of_cuts(self) -> None:
        work = Work(SMALL, 7, 0, False)
        assert len(work) == len(list(work.cuts()))
