"""The normal form: whatever the dialect, the cut and the pace of frames, a reader gets the turn's own text and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada import Event, EventParser, State, TransportError, Turn
from levada.deltas import Citation, TextDelta, TextReplaced, ToolCallDelta
from levada.gateway import NormalForm

FIXTURES = Path(__file__).parents[1] / "fixtures"
STREAMS = {
    "anthropic-error.sse": "anthropic",
    "anthropic-tools.sse": "anthropic",
    "anthropic.sse": "anthropic",
    "gemini.json": "gemini",
    "gemini.sse": "gemini",
    "openai_chat-error.sse": "openai_chat",
    "openai_chat-tools.sse": "openai_chat",
    "openai_chat-truncated.sse": "openai_chat",
    "openai_chat.sse": "openai_chat",
    "openai_responses.sse": "openai_responses",
    "vertex_search.json": "vertex_search",
}


class Reader:
    """What a client makes of the events, by docs/normal-form.md alone."""

    def __init__(self) -> None:
        self._parser = EventParser()
        self.events: list[tuple[str, Any]] = []
        self.ids: list[str] = []
        self.states: list[str] = []
        self.text: dict[tuple[int, str], str] = {}
        self.calls: dict[int, dict[str, Any]] = {}
        self.citations: list[Any] = []
        self.references: list[Any] = []
        self.usage: Any = None
        self.error: Any = None
        self.end: Any = None

    def feed(self, frame: bytes) -> None:
        for event in self._parser.feed(frame):
            self.take(event)

    def take(self, event: Event) -> None:
        assert self.end is None, "an event after the end"
        value = event.json()
        self.events.append((event.event, value))
        self.ids.append(event.id)
        match event.event:
            case "state":
                self.states.append(value["state"])
            case "text":
                channel = (value["choice"], value["channel"])
                self.text[channel] = self.text.get(channel, "") + value["text"]
            case "replaced":
                self.text[value["choice"], value["channel"]] = value["text"]
                if not value["text"]:
                    self.citations = [one for one in self.citations if one["choice"] != value["choice"]]
            case "tool_call":
                before = self.calls.get(value["index"], {}).get("arguments", "")
                self.calls[value["index"]] = {**value, "arguments": before + value["arguments"]}
            case "citation":
                self.citations.append(value)
            case "reference":
                self.references.append(value)
            case "usage":
                self.usage = value
            case "error":
                self.error = value
            case "end":
                self.end = value

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def told(turn: Turn, chunks: list[bytes], frames_after: set[int], *, clean: bool = True) -> Reader:
    """Read chunks, and take a frame after those whose number is named; the last one after the end."""
    form, reader = NormalForm(turn, turn_id="t", now_ms=0.0), Reader()
    reader.feed(form.frame(0.0))
    for number, chunk in enumerate(chunks):
        form.take(turn.feed(chunk), 1.0)
        if number in frames_after:
            reader.feed(form.frame(2.0))
    form.take(turn.eof(clean=clean), 3.0)
    reader.feed(form.frame(3.0))
    assert form.frame(4.0) == b""
    return reader


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=30)
@given(data=st.data())
def test_any_cut_and_any_frames_tell_the_turn(name: str, data: st.DataObject) -> None:
    body = (FIXTURES / name).read_bytes()
    places = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=30)))
    chunks = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    turn = Turn(STREAMS[name])
    reader = told(turn, chunks, data.draw(st.sets(st.integers(0, len(chunks)))))
    assert reader.text.get((0, "answer"), "") == turn.answer
    assert reader.text.get((0, "reasoning"), "") == turn.reasoning
    assert [(call["id"], call["name"], call["arguments"], call["complete"]) for call in reader.calls.values()] == [
        (call.id, call.name, call.arguments, call.complete) for call in turn.tool_calls
    ]
    assert [one["references"] for one in reader.citations] == [list(one.references) for one in turn.citations]
    assert [one["id"] for one in reader.references] == [one.id for one in turn.references]
    assert reader.states == ["connecting", "streaming", turn.state.value]
    assert reader.end["state"] == turn.state.value
    assert reader.end["finish_reason"] == (turn.finish_reason if turn.state is State.FINISHED else None)
    assert reader.end["characters"]["answer"] == len(turn.answer)
    assert (reader.error is None) is (turn.state is State.FINISHED)
    assert reader.usage is None or reader.usage["output_tokens"] == (turn.usage and turn.usage.output_tokens)
    assert reader.ids == [str(number) for number in range(1, len(reader.ids) + 1)]


class TestOrder:
    def test_the_first_frame_says_who_is_asked(self) -> None:
        turn, reader = Turn("anthropic"), Reader()
        reader.feed(NormalForm(turn, turn_id="t7", now_ms=0, upstream="claude").frame(0))
        assert reader.events == [
            (
                "state",
                {
                    "state": "connecting",
                    "turn": "t7",
                    "upstream": "claude",
                    "dialect": "anthropic",
                    "profile": "anthropic",
                },
            )
        ]

    def test_within_a_frame_the_kinds_have_their_places(self) -> None:
        reader = told(Turn("vertex_search"), [(FIXTURES / "vertex_search.json").read_bytes()], set())
        kinds = [
            name for number, name in enumerate(reader.names()) if number == 0 or reader.names()[number - 1] != name
        ]
        assert kinds == ["state", "text", "reference", "citation", "finish", "state", "end"]

    def test_one_event_for_each_channel_however_many_deltas(self) -> None:
        reader = told(Turn("openai_chat"), [(FIXTURES / "openai_chat.sse").read_bytes()], set())
        assert reader.names().count("text") == 2

    def test_an_error_stands_before_its_state_and_the_end(self) -> None:
        reader = told(Turn("anthropic"), [(FIXTURES / "anthropic-error.sse").read_bytes()], set())
        assert reader.names()[-3:] == ["error", "state", "end"]
        assert reader.error == {
            "kind": "provider", "type": "overloaded_error", "message": "Overloaded", "retryable": True,
            "retry_after_s": None,
        }  # fmt: skip

    def test_a_turn_that_failed_before_anything_came_never_streamed(self) -> None:
        turn, reader = Turn("anthropic"), Reader()
        form = NormalForm(turn, turn_id="t", now_ms=0)
        turn.fail(TransportError("nobody there"))
        reader.feed(form.frame(5))
        assert reader.states == ["connecting", "error"]
        assert reader.end["first_text_ms"] is None
        assert reader.end["total_ms"] == 5

    def test_a_cancelled_turn_ends_without_error(self) -> None:
        turn, reader = Turn("openai_chat"), Reader()
        form = NormalForm(turn, turn_id="t", now_ms=0)
        form.take(turn.feed(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'), 1)
        turn.cancel()
        reader.feed(form.frame(2))
        assert reader.states == ["connecting", "streaming", "cancelled"]
        assert (reader.error, reader.end["state"]) == (None, "cancelled")


class TestMerging:
    def form(self) -> NormalForm:
        return NormalForm(Turn("openai_chat"), turn_id="t", now_ms=0)

    def read(self, form: NormalForm) -> Reader:
        reader = Reader()
        reader.feed(form.frame(1))
        return reader

    def test_channels_and_choices_that_alternate_are_one_event_each(self) -> None:
        form = self.form()
        for letter in "abc":
            form.take([TextDelta(letter, "reasoning"), TextDelta(letter), TextDelta(letter, "answer", 1)], 1)
        assert self.read(form).text == {(0, "reasoning"): "abc", (0, "answer"): "abc", (1, "answer"): "abc"}

    def test_a_block_that_comes_back_keeps_the_order_of_arrival(self) -> None:
        form = self.form()
        form.take([TextDelta("a", block=0), TextDelta("b", block=1), TextDelta("c", block=0)], 1)
        reader = self.read(form)
        assert [value["block"] for name, value in reader.events if name == "text"] == [0, 1, 0]
        assert reader.text == {(0, "answer"): "abc"}

    def test_replaced_text_takes_the_place_of_what_waits_and_grows_on(self) -> None:
        form = self.form()
        form.take([TextDelta("draft"), TextReplaced("new", reason="final_text"), TextDelta(" text")], 1)
        reader = self.read(form)
        assert "text" not in reader.names()
        assert reader.text == {(0, "answer"): "new text"}

    def test_withdrawn_text_takes_its_citations_along(self) -> None:
        form = self.form()
        form.take([TextDelta("x"), Citation(url="https://a.example"), TextReplaced("")], 1)
        reader = self.read(form)
        assert (reader.text, reader.citations) == ({(0, "answer"): ""}, [])

    def test_what_waits_is_bounded_by_the_text_alone(self) -> None:
        form = self.form()
        form.take((TextDelta("ab", "answer" if n % 2 else "reasoning") for n in range(100_000)), 1)
        form.take((ToolCallDelta(0, "{}", id="c", name="f") for _ in range(100_000)), 1)
        assert form.pending_characters == 400_000
        assert sum(len(run.pieces) for run in form._runs) < 1000
        assert len(form.frame(1)) < 401_000
        assert form.pending_characters == 0

    def test_a_lone_half_of_a_surrogate_pair_meets_the_other_one(self) -> None:
        form = self.form()
        form.take([TextDelta("\ud83d")], 1)
        first = form.frame(1)
        form.take([TextDelta("\ude00")], 1)
        assert b"\\ud83d" in first
        assert b"\\ude00" in form.frame(2)
