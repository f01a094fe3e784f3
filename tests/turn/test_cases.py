"""Faults that people met in public, as small streams: the cases of tests/cases/cases.jsonl for our dialects."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import levada
from levada import Turn

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "cases.jsonl").read_text().splitlines()]
OURS = [
    case
    for case in CASES
    if case["layer"].startswith("dialect:") and case["layer"].removeprefix("dialect:") in levada.DIALECTS
]


def bytes_of(case: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(chunk["hex"]) if isinstance(chunk, dict) else chunk.encode() for chunk in case["chunks"]]


def forms(chunks: list[bytes]) -> list[list[bytes]]:
    """The stream as given, whole, byte by byte, cut in two everywhere (a sample), and at random."""
    whole = b"".join(chunks)
    rnd = random.Random(7)
    cuts = [sorted(rnd.sample(range(len(whole) + 1), min(6, len(whole)))) for _ in range(5)]
    many = [[whole[a:b] for a, b in zip([0, *cut], [*cut, len(whole)], strict=True)] for cut in cuts]
    twos = [[whole[:at], whole[at:]] for at in range(0, len(whole), 11)]
    return [chunks, [whole], [whole[at : at + 1] for at in range(len(whole))], *many, *twos]


def play(case: dict[str, Any], chunks: list[bytes], options: dict[str, Any]) -> Turn:
    turn = Turn(case["layer"].removeprefix("dialect:"), framing=case.get("framing"), **options)
    if "http" in case:
        turn.head(case["http"]["status"], case["http"]["content_type"])
    for chunk in chunks:
        turn.feed(chunk)
    turn.eof(clean=True)
    return turn


def opaque(turn: Turn, *names: str) -> list[Any]:
    return [part.data for part in turn.parts if part.name in names]


def check(turn: Turn, expect: dict[str, Any]) -> None:
    for key, value in expect.items():
        if key in ("answer", "reasoning", "refusal", "finish_reason", "state"):
            assert getattr(turn, key) == value, key
        elif key == "finish_reason_raw":
            assert turn.native_finish_reason == value
        elif key == "error":
            assert turn.error is not None
            for field, word in value.items():
                assert getattr(turn.error, field) == word, field
        elif key == "tool_calls":
            assert len(turn.tool_calls) == len(value)
            for call, wanted in zip(turn.tool_calls, value, strict=True):
                assert call.id
                for field, word in wanted.items():
                    assert getattr(call, field) == word, field
        elif key == "usage":
            assert turn.usage is not None
            for field, count in value.items():
                assert getattr(turn.usage, field) == count, field
        elif key == "anomalies":
            assert turn.anomalies.total == value
        elif key == "signatures":
            assert opaque(turn, "signature", "thought_signature") == value
        elif key == "redacted":
            assert opaque(turn, "redacted") == value
        elif key == "compaction":
            found = opaque(turn, "compaction")
            assert (found[0] if found else None) == value
        elif key == "reasoning_details":
            assert opaque(turn, "reasoning_details") == [value]
        else:
            pytest.fail(f"nobody checks {key!r}")


@pytest.mark.parametrize("case", OURS, ids=[case["id"] for case in OURS])
def test_a_case_from_the_field(case: dict[str, Any]) -> None:
    options = dict(case.get("options", {}))
    settings = [(options, case["expect"])]
    if "alt" in case:
        settings.append((options | case["alt"]["options"], case["alt"]["expect"]))
    for setting, expect in settings:
        for chunks in forms(bytes_of(case)):
            check(play(case, chunks, setting), expect)
