"""The conformance vectors, under every cut, on both backends; and promptness: nothing is handed out late or early."""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from levada import Comment
from tests.oracle import Dispatched, read
from tests.wire import cuts, plain

HERE = Path(__file__).parent


def vectors(name: str) -> list[Any]:
    """Read a file of vectors as pytest parameters."""
    lines = (HERE / name).read_text("ascii").splitlines()
    return [pytest.param(vector, id=vector["name"]) for vector in map(json.loads, lines)]


def chunks_of(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(chunk) for chunk in vector["chunks_hex"]]


@pytest.mark.parametrize("vector", vectors("sse.jsonl"))
class TestEventStreams:
    def test_the_oracle_agrees(self, vector: dict[str, Any]) -> None:
        reading = read(b"".join(chunks_of(vector)))
        check(vector, reading)
        assert [{"event": e.event, "data": e.data, "id": e.id} for e in reading.events] == vector["expect"]["events"]
        assert [i.text for i in reading.items if isinstance(i, Comment)] == vector["expect"]["comments"]

    def test_under_every_cut(self, hotpath: ModuleType, vector: dict[str, Any]) -> None:
        given = chunks_of(vector)
        stream = b"".join(given)
        reading = read(stream)  # test_the_oracle_agrees: this is what the vector expects
        events_due = [due for item, due in zip(reading.items, reading.due, strict=True) if isinstance(item, Dispatched)]
        readings = (("feed", reading.events, events_due), ("feed_all", reading.items, reading.due))
        for name, chunks in [("as given", given), *cuts(stream)]:
            for method, expected, due in readings:
                parser = hotpath.EventParser()
                feed = getattr(parser, method)
                got: list[Any] = []
                size = 0
                for chunk in chunks:
                    got += map(plain, feed(chunk))
                    size += len(chunk)
                    assert len(got) == bisect_right(due, size), f"{method} {name}, after {size} bytes"
                assert got == expected, f"{method} {name}"
                assert parser.close() == reading.remainder, f"{method} {name}"
                assert parser.ignored_lines == reading.ignored_lines, f"{method} {name}"
                check(vector, parser)


def check(vector: dict[str, Any], end: Any) -> None:
    assert end.last_event_id == vector["expect"]["last_event_id"]
    assert end.retry == vector["expect"]["retry"]


@pytest.mark.parametrize("vector", vectors("utf8.jsonl"))
def test_utf8(hotpath: ModuleType, vector: dict[str, Any]) -> None:
    given = chunks_of(vector)
    for name, chunks in [("as given", given), *cuts(b"".join(given))]:
        decoder = hotpath.Utf8Decoder()
        text = "".join(map(decoder.decode, chunks)) + decoder.decode(b"", final=True)
        assert text == vector["expect_text"], name
