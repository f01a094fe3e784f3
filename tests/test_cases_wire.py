"""The cases from the field that concern the wire: faults that people met in public, on both backends, re-cut."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from levada import EventTooLarge, encode_event, encode_json
from tests.wire import cut_at, cuts, events

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "cases.jsonl").read_text().splitlines()]


def cases(layer: str, *, without: str = "") -> pytest.MarkDecorator:
    """Parametrize a test by the cases of a layer."""
    chosen = [case for case in CASES if case["layer"] == layer and case["id"] != without]
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in chosen])


def given(case: dict[str, Any]) -> list[bytes]:
    """Return the chunks of a case: text or hexadecimal bytes."""
    return [bytes.fromhex(chunk["hex"]) if isinstance(chunk, dict) else chunk.encode() for chunk in case["chunks"]]


@cases("sse")
def test_sse(hotpath: ModuleType, case: dict[str, Any]) -> None:
    expect = case["expect"]
    chunks_as_given = given(case)
    for name, chunks in [("as given", chunks_as_given), *cuts(b"".join(chunks_as_given))]:
        parser = hotpath.EventParser(**case.get("options", {}))
        if expect.get("error") == "event_too_large":
            with pytest.raises(EventTooLarge):
                list(map(parser.feed, chunks))
            continue
        got = [event for chunk in chunks for event in parser.feed(chunk)]
        assert [{"event": event.event, "data": event.data, "id": event.id} for event in got] == expect["events"], name
        assert parser.retry == expect["retry"], name
        assert bool(parser.close()) is expect["incomplete"], name
        if "unknown_field_lines" in expect:  # only what a case lists is checked
            assert parser.ignored_lines == expect["unknown_field_lines"], name


@cases("utf8")
def test_utf8(hotpath: ModuleType, case: dict[str, Any]) -> None:
    chunks_as_given = given(case)
    for name, chunks in [("as given", chunks_as_given), *cuts(b"".join(chunks_as_given))]:
        decoder = hotpath.Utf8Decoder()
        text = "".join(map(decoder.decode, chunks))
        assert bool(decoder.pending) is case["expect"].get("incomplete", False), name
        assert text + decoder.decode(b"", final=True) == case["expect"]["text"], name


@cases("encode", without="C178")
def test_encode(hotpath: ModuleType, case: dict[str, Any]) -> None:
    event, options = case["event"], case.get("options", {})
    wire = encode_json(event["json"], **options) if "json" in event else encode_event(event["data"])
    assert wire == case["expect"]["wire"].encode()
    for name, chunks in cuts(wire):
        [again] = hotpath.EventParser().feed(b"".join(chunks))
        assert (again.json() == event["json"]) if "json" in event else (again.data == event["data"]), name


def test_c178_what_would_break_the_frame_is_an_error() -> None:
    [case] = [case for case in CASES if case["id"] == "C178"]
    assert case["expect"]["or_error"]
    with pytest.raises(ValueError, match="event contains a line end"):
        encode_event(**case["event"])
    for name in ("event", "id", "data"):  # each of the three alone is reason enough
        with pytest.raises(ValueError, match=name):
            encode_event(**{"data": "", name: case["event"][name]})


@cases("perf", without="C203")  # that one is a matter of turns
def test_perf_many_events(hotpath: ModuleType, case: dict[str, Any]) -> None:
    """The growth is test_growth.py's."""
    gen = case["gen"]
    event = b"data: " + b"x" * gen["data_bytes_each"] + b"\n\n"
    for chunks in ([event * gen["events"]], [event] * gen["events"]):
        got = events(hotpath, *chunks)
        assert len(got) == case["expect"]["events"]
        assert {item.data for item in got} == {"x" * gen["data_bytes_each"]}


@cases("transport")
def test_transport_one_large_event(hotpath: ModuleType, case: dict[str, Any]) -> None:
    gen = case["gen"]
    stream = b"data: " + b"x" * gen["data_bytes"] + b"\n\n"
    for size in (gen["chunk_bytes"], 1_021, len(stream)):
        [event] = events(hotpath, *cut_at(stream, *range(size, len(stream), size)))
        assert len(event.data) == case["expect"]["data_bytes"]
