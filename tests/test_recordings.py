"""Recorded streams of real providers: as many events, items or lines as the recording is known to hold, in any cut.

The recordings belong to others and are not part of this repository; see tests/shared.py.
"""

from __future__ import annotations

import json
from itertools import chain
from random import Random
from types import ModuleType
from typing import Any

import pytest

from levada import JsonLines
from tests.oracle import Item, read
from tests.shared import RECORDED
from tests.wire import bytewise, cut_at, plain

EXPECTED = RECORDED / "expected.jsonl"
RECORDINGS = [json.loads(line) for line in EXPECTED.read_text("utf-8").splitlines()] if EXPECTED.is_file() else []

if not RECORDINGS:
    pytest.skip(f"no recordings at {RECORDED}; set LEVADA_SHARED", allow_module_level=True)


def recordings(suffix: str) -> pytest.MarkDecorator:
    """Parametrize a test by the recordings of one kind of file."""
    chosen = [each for each in RECORDINGS if each["file"].endswith(suffix)]
    return pytest.mark.parametrize("recording", [pytest.param(each, id=each["file"]) for each in chosen])


def ways(recording: dict[str, Any]) -> list[list[bytes]]:
    """Return a recording whole, cut at random as reads may fall, in crumbs, and byte by byte."""
    stream = (RECORDED / recording["file"]).read_bytes()
    random = Random(recording["sha256"])
    few, many = (sorted(random.sample(range(len(stream) + 1), min(n, len(stream)))) for n in (9, len(stream) // 9))
    return [[stream], cut_at(stream, *few), cut_at(stream, *many), bytewise(stream)]


@recordings(".sse")
def test_event_streams(hotpath: ModuleType, recording: dict[str, Any]) -> None:
    first: list[Item] | None = None
    for chunks in ways(recording):
        got = list(map(plain, chain.from_iterable(map(hotpath.EventParser().feed, chunks))))
        assert len(got) == recording["events"]
        first = first or read(b"".join(chunks)).events  # type: ignore[assignment]  # list is invariant
        assert got == first


@recordings(".json")
def test_json_arrays(hotpath: ModuleType, recording: dict[str, Any]) -> None:
    for chunks in ways(recording):
        reader = hotpath.JsonArray()
        got = [json.loads(item) for chunk in chunks for item in reader.feed(chunk)]
        assert len(got) == recording["events"]
        whole = json.loads(b"".join(chunks))
        assert got == (whole if isinstance(whole, list) else [whole])
        assert reader.closed
        assert not reader.close()


@recordings(".ndjson")
def test_json_lines(recording: dict[str, Any]) -> None:
    for chunks in ways(recording):
        reader = JsonLines()
        got = [line for chunk in chunks for line in reader.feed(chunk)] + reader.close()
        assert len(got) == recording["events"]
        assert all(isinstance(json.loads(line), dict) for line in got)
