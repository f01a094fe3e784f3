"""Real provider streams against what a correct reader makes of them; in ../shared/recorded, not ours to copy."""

from __future__ import annotations

import json
import os
import random
from functools import cache
from typing import Any

import pytest

import levada
from levada import Turn
from levada.deltas import TextDelta, TextReplaced, ToolCallDelta
from tests.shared import RECORDED

ALL_CUTS = os.environ.get("LEVADA_CUTS") == "all"  # `make cuts`: every place, where the slice takes a few


def recordings() -> list[dict[str, Any]]:
    listing = RECORDED / "expected.jsonl"
    if not listing.exists():
        return []
    rows = [json.loads(line) for line in listing.read_text().splitlines()]
    return [row for row in rows if row["dialect"] in levada.DIALECTS]


ROWS = recordings()
each_recording = pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])


@cache
def body(file: str) -> bytes:
    return (RECORDED / file).read_bytes()


def framing_of(row: dict[str, Any]) -> str:
    return {"sse": "sse", "json": "json-array", "ndjson": "ndjson"}[row["file"].rsplit(".", 1)[1]]


def play(row: dict[str, Any], chunks: list[bytes], **options: Any) -> tuple[Turn, list[Any]]:
    turn = Turn(row["dialect"], **options)
    if "status" in row:
        turn.head(row["status"], "application/json")
    deltas = []
    for chunk in chunks:
        deltas += turn.feed(chunk)
    deltas += turn.eof(clean=True)
    return turn, deltas


def coalesced(deltas: list[Any]) -> list[Any]:
    """Join neighbours of one channel and block, so that cuts cannot be seen."""
    joined: list[Any] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, TextDelta):
            key = (delta.channel, delta.choice, delta.block, delta.kind)
            if isinstance(last, tuple) and last[0] == key:
                joined[-1] = (key, last[1] + delta.text)
            else:
                joined.append((key, delta.text))
        else:
            joined.append(delta)
    return joined


def summary(turn: Turn) -> dict[str, Any]:
    error = turn.error
    return {
        "state": turn.state,
        "error": error and (error.kind, error.type, error.message),
        "choices": turn.choices,
        "parts": turn.parts,
        "usage": turn.usage,
        "model": turn.model,
        "citations": turn.citations,
        "references": turn.references,
        "anomalies": turn.anomalies,
    }


def same_arguments(ours: str, theirs: str) -> bool:
    if ours == theirs or (theirs == "" and ours == "{}"):
        return True
    try:
        return bool(json.loads(ours) == json.loads(theirs))
    except ValueError:
        return False


def random_cuts(data: bytes, seed: int) -> list[bytes]:
    rnd = random.Random(seed)
    chunks, at = [], 0
    while at < len(data):
        size = rnd.choice((1, 2, 3, 7, 20, 100, 1000, 5000))
        chunks.append(data[at : at + size])
        at += size
    return chunks


@pytest.mark.skipif(not ROWS, reason=f"no recordings at {RECORDED}")
def test_the_recordings_are_there() -> None:
    assert len(ROWS) > 90


@each_recording
def test_a_recording_gives_what_its_provider_sent(row: dict[str, Any]) -> None:
    expect = row["expect"]
    outcome = expect["outcome"]
    turn, _ = play(row, [body(row["file"])])
    assert turn.answer == expect["answer"]
    if row["vendor"] == "snowflake":
        # its reasoning stands in reasoning_details alone, which the expectation's plain sum left out (providers.md 6.2)
        assert turn.reasoning == "15 * 27 = 405"
    else:
        assert turn.reasoning == expect["reasoning"]
    assert turn.refusal == (expect.get("refusal") or "")
    calls = [call for call in turn.tool_calls if call.choice == 0]
    assert [call.name for call in calls] == [call["name"] for call in expect["tool_calls"]]
    for ours, theirs in zip(calls, expect["tool_calls"], strict=True):
        assert same_arguments(ours.arguments, theirs["arguments"])
        assert ours.id == theirs["id"] or (theirs["id"] is None and ours.id_is_ours)
        assert ours.complete
    native = expect["finish_reason_native"]
    if outcome != "error":
        assert turn.native_finish_reason == (None if native is None else str(native))
    if expect.get("model"):
        assert turn.model is not None
    if expect.get("usage"):
        assert turn.usage is not None
    if outcome == "error":
        assert turn.state == "error"
        assert turn.error is not None
        assert turn.error.kind == "provider"
    elif row["vendor"] == "gpustack":
        assert turn.error is not None  # a stray `error:` line is its only sign of failure
        assert turn.error.kind == "provider"
    elif outcome == "finished" and row["vendor"] != "snowflake":
        assert turn.state == "finished"
        assert turn.result().answer == expect["answer"]
        assert isinstance(turn.result().message(), dict)
    else:
        assert turn.error is not None
        assert turn.error.kind == "truncated"


@each_recording
def test_a_looser_terminal_finishes_what_never_got_its_signal(row: dict[str, Any]) -> None:
    """Under its own name alone: `finish_reason` where the signal is missing, `done` where the finish reason is."""
    loose = {"finished_no_done": "finish_reason"}.get(row["expect"]["outcome"])
    if row["vendor"] == "snowflake":
        loose = "done"
    if loose is None:
        return
    turn, _ = play(row, [body(row["file"])], terminal=loose)
    assert turn.result().answer == row["expect"]["answer"]
    unclean = Turn(row["dialect"], terminal=loose)
    unclean.feed(body(row["file"]))
    unclean.eof(clean=False)
    assert (unclean.state == "finished") == (loose == "done")


@each_recording
def test_no_cut_of_a_recording_changes_the_turn(row: dict[str, Any]) -> None:
    data = body(row["file"])
    whole, deltas = play(row, [data])
    forms = [random_cuts(data, seed) for seed in range(3)]
    if len(data) < 60_000:
        forms.append([data[at : at + 1] for at in range(len(data))])
    if ALL_CUTS and len(data) < 20_000:
        forms += [[data[:at], data[at:]] for at in range(len(data))]
    for chunks in forms:
        turn, again = play(row, chunks)
        assert summary(turn) == summary(whole)
        assert coalesced(again) == coalesced(deltas)


@each_recording
def test_the_joined_deltas_are_the_channels(row: dict[str, Any]) -> None:
    turn, deltas = play(row, [body(row["file"])])
    channels: dict[tuple[int, str], str] = {}
    arguments: dict[int, str] = {}
    for delta in deltas:
        if isinstance(delta, TextDelta):
            key = delta.choice, delta.channel
            channels[key] = channels.get(key, "") + delta.text
        elif isinstance(delta, TextReplaced):
            channels[delta.choice, delta.channel] = delta.text
        elif isinstance(delta, ToolCallDelta):
            arguments[delta.index] = arguments.get(delta.index, "") + delta.arguments
    for choice in turn.choices:
        assert channels.get((choice.index, "answer"), "") == choice.answer
        assert channels.get((choice.index, "reasoning"), "") == choice.reasoning
        assert channels.get((choice.index, "refusal"), "") == choice.refusal
    assert [arguments.get(index) for index in range(len(turn.tool_calls))] == [
        call.arguments for call in turn.tool_calls
    ]


@each_recording
def test_a_cut_off_recording_is_never_finished_and_its_text_is_a_beginning(row: dict[str, Any]) -> None:
    data = body(row["file"])
    whole, deltas = play(row, [data])
    replaced = any(isinstance(delta, TextReplaced) for delta in deltas)
    rnd = random.Random(row["sha256"])
    places = sorted({0, len(data) - 1, *(rnd.randrange(len(data)) for _ in range(12))}) if data else []
    if ALL_CUTS:
        places = list(range(len(data)))
    for place in places:
        turn, _ = play(row, [data[:place]])
        if turn.state == "finished":
            # only bytes after the terminal signal may be missing: nothing of the answer
            assert summary(turn)["choices"] == summary(whole)["choices"]
            assert whole.state == "finished"
            if row["dialect"] != "gemini":  # the others have a terminal event
                rest = Turn(row["dialect"])
                rest.feed(data[:place])
                assert rest.state == "finished"
        if not replaced:
            assert whole.answer.startswith(turn.answer)
            assert whole.reasoning.startswith(turn.reasoning)
