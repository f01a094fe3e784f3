"""The same recording through a transport that hands out bytes and one that hands out the whole text so far."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import levada
from levada import CumulativeText, TransportError, Turn
from levada.transport import retry_after_s, tells_its_end
from tests.shared import RECORDED

LISTING = RECORDED / "expected.jsonl"
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


class TestWhenToAskAgain:
    """RFC 9110, 10.2.3; and the clients of OpenAI and Anthropic for milliseconds."""

    DATE = "Sun, 06 Nov 1994 08:49:37 GMT"

    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({"retry-after": "7"}, 7.0),
            ({"retry-after": "0.5"}, 0.5),
            ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
            ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
            ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": DATE}, 30.0),
            ({"retry-after": "Sun, 06 Nov 1994 08:48:37 GMT", "date": DATE}, 0.0),
            ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT"}, None),
            ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": "Sun, 06 Nov 1994 08:49:37"}, None),
            *(({"retry-after": odd}, None) for odd in ("", "-1", "nan", "inf", "1e999", "later")),
            ({}, None),
        ],
    )
    def test_the_head_says(self, headers: dict[str, str], seconds: float | None) -> None:
        assert retry_after_s(headers) == seconds
        turn = Turn("openai_chat")
        turn.head(429, "application/json", headers)
        turn.feed(b'{"error":{"message":"slow down"}}')
        turn.eof(clean=True)
        assert turn.error is not None
        assert turn.error.retry_after_s == seconds

    def test_also_where_the_body_was_lost(self) -> None:
        turn = Turn("openai_chat")
        turn.head(503, "application/json", {"retry-after": "7"})
        turn.fail(ConnectionResetError("reset"))
        assert turn.error == TransportError("ConnectionResetError: reset", retryable=True, retry_after_s=7.0)

    def test_a_good_status_asks_for_no_wait(self) -> None:
        turn = Turn("openai_chat")
        turn.head(200, "text/event-stream", {"retry-after": "7"})
        turn.fail(ConnectionResetError("reset"))
        assert turn.error is not None
        assert turn.error.retry_after_s is None
