"""The same recording through a transport that hands out bytes and one that hands out the whole text so far."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import levada
from levada import CumulativeText, Turn
from levada.transport import tells_its_end

SHARED = Path(os.environ.get("LEVADA_SHARED") or Path(__file__).parents[3] / "shared")
LISTING = SHARED / "recorded" / "expected.jsonl"
ROWS = [json.loads(line) for line in LISTING.read_text().splitlines()] if LISTING.exists() else []
ROWS = [row for row in ROWS if row["dialect"] in levada.DIALECTS]
FIELDS = (
    "state",
    "error",
    "choices",
    "parts",
    "tool_calls",
    "usage",
    "model",
    "id",
    "citations",
    "references",
    "anomalies",
    "native_finish_reason",
)


def turn_of(row: dict[str, Any]) -> Turn:
    turn = Turn(row["dialect"])
    if "status" in row:
        turn.head(row["status"], "application/json")
    return turn


def value(turn: Turn) -> dict[str, Any]:
    return {name: getattr(turn, name) for name in FIELDS}


@pytest.mark.skipif(not ROWS, reason=f"no recordings at {LISTING}")
@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_the_text_so_far_gives_the_turn_that_bytes_give(row: dict[str, Any]) -> None:
    data = (LISTING.parent / row["file"]).read_bytes()
    text = data.decode()
    rnd = random.Random(row["file"])
    by_bytes = turn_of(row)
    places = sorted(rnd.sample(range(len(data) + 1), min(60, len(data) + 1)))
    for begin, end in zip([0, *places], [*places, len(data)], strict=True):
        by_bytes.feed(data[begin:end])
    by_bytes.eof(clean=True)
    by_text, growing = turn_of(row), CumulativeText()
    places = sorted(rnd.choices(range(len(text) + 1), k=60))  # a place may come twice: nothing new then
    for end in [*places, len(text)]:
        by_text.feed_text(growing.feed(text[:end]))
    by_text.eof(clean=True)
    assert value(by_text) == value(by_bytes)


class TestTheEndOfABody:
    """RFC 9112, 6.3: where a body ends."""

    @pytest.mark.parametrize(
        ("version", "headers", "tells"),
        [
            ("HTTP/1.1", {"transfer-encoding": "chunked"}, True),
            ("HTTP/1.1", {"transfer-encoding": "gzip, Chunked"}, True),
            ("HTTP/1.1", {"transfer-encoding": "gzip"}, False),
            ("HTTP/1.1", {"transfer-encoding": "gzip", "content-length": "7"}, False),
            ("HTTP/1.1", {"content-length": "7"}, True),
            ("HTTP/1.0", {"content-length": "7"}, True),
            ("HTTP/1.1", {}, False),
            ("HTTP/1.0", {}, False),
            ("", {}, False),
            ("HTTP/2", {}, True),
            ("HTTP/3", {}, True),
        ],
    )
    def test_is_told_by_the_framing_alone(self, version: str, headers: dict[str, str], tells: bool) -> None:
        assert tells_its_end(version, headers) is tells
