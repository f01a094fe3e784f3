"""Our own fixture streams hold what they are there to show: users and tests of later layers rely on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from levada import EventParser, JsonArray, JsonLines

FIXTURES = Path(__file__).parent / "fixtures"

ACCENTS = (0x00C0, 0x00FF)
CJK = (0x3040, 0x9FFF)
FOUR_BYTES = (0x10000, 0x10FFFF)


def items(name: str) -> list[Any]:
    """Return the JSON documents of a fixture, in order; `[DONE]` as it is."""
    raw = (FIXTURES / name).read_bytes()
    match Path(name).suffix:
        case ".sse":
            texts = [event.data for event in EventParser().feed(raw)]
            return [text if text == "[DONE]" else json.loads(text) for text in texts]
        case ".json":
            return [json.loads(item) for item in JsonArray().feed(raw)]
        case _:
            return [json.loads(item) for item in JsonLines().feed(raw)]


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
class TestEveryFixture:
    def test_it_has_the_size_of_a_short_answer(self, name: str) -> None:
        assert 18 <= len(items(name)) <= 60

    def test_its_text_has_accents_cjk_and_a_four_byte_character(self, name: str) -> None:
        text = (FIXTURES / name).read_text("utf-8")
        wanted = [ACCENTS, CJK] if name == "openai_chat-truncated.sse" else [ACCENTS, CJK, FOUR_BYTES]
        for low, high in wanted:
            assert any(low <= ord(character) <= high for character in text)


class TestTerminalSignals:
    """providers.md, section 3: what confirms the turn, and what must not be there."""

    def test_openai_chat_ends_with_usage_on_the_finish_chunk_and_done(self) -> None:
        *_, finish, done = items("openai_chat.sse")
        assert finish["choices"][0]["finish_reason"] == "stop"
        assert finish["usage"]["total_tokens"] == 112
        assert done == "[DONE]"

    def test_openai_chat_tools_has_a_usage_chunk_of_its_own(self) -> None:
        *_, finish, usage, done = items("openai_chat-tools.sse")
        assert finish["choices"][0]["finish_reason"] == "tool_calls"
        assert usage["choices"] == []
        assert done == "[DONE]"

    def test_openai_chat_truncated_is_cut_inside_an_event(self) -> None:
        parser = EventParser()
        events = parser.feed((FIXTURES / "openai_chat-truncated.sse").read_bytes())
        assert parser.close().raw.startswith(b"data: {")
        assert all(event.json()["choices"][0]["finish_reason"] is None for event in events)

    def test_openai_chat_error_ends_with_an_error_object(self) -> None:
        assert set(items("openai_chat-error.sse")[-1]) == {"error"}

    def test_openai_responses_is_completed(self) -> None:
        events = items("openai_responses.sse")
        assert events[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert events[-1]["response"]["output"][1]["content"][0]["text"] == "".join(deltas)

    @pytest.mark.parametrize(("name", "reason"), [("anthropic.sse", "end_turn"), ("anthropic-tools.sse", "tool_use")])
    def test_anthropic_stops(self, name: str, reason: str) -> None:
        *_, delta, stop = items(name)
        assert delta["delta"]["stop_reason"] == reason
        assert stop == {"type": "message_stop"}

    def test_anthropic_names_each_event_by_its_type(self) -> None:
        for name in ("anthropic.sse", "anthropic-tools.sse", "anthropic-error.sse"):
            for event in EventParser().feed((FIXTURES / name).read_bytes()):
                assert event.event == event.json()["type"]

    def test_anthropic_error_is_overloaded(self) -> None:
        assert items("anthropic-error.sse")[-1]["error"]["type"] == "overloaded_error"

    @pytest.mark.parametrize("name", ["gemini.sse", "gemini.json"])
    def test_gemini_stops_at_its_last_chunk_only(self, name: str) -> None:
        reasons = [item["candidates"][0].get("finishReason") for item in items(name)]
        assert reasons == [None] * (len(reasons) - 1) + ["STOP"]

    def test_vertex_search_succeeds_with_the_text_of_its_pieces(self) -> None:
        *streamed, last = (item["answer"] for item in items("vertex_search.json"))
        assert last["state"] == "SUCCEEDED"
        assert last["answerText"] == "".join(answer.get("answerText", "") for answer in streamed)

    def test_vertex_search_cites_whole_sentences_by_their_bytes(self) -> None:
        answer = items("vertex_search.json")[-1]["answer"]
        raw = answer["answerText"].encode()
        for citation in answer["citations"]:
            raw[int(citation.get("startIndex", 0)) : int(citation["endIndex"])].decode()

    def test_ollama_is_done(self) -> None:
        lines = items("ollama.ndjson")
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        assert lines[-1]["done_reason"] == "stop"


class TestTools:
    @pytest.mark.parametrize("name", ["openai_chat-tools.sse", "anthropic-tools.sse"])
    def test_the_fragments_of_each_call_are_one_json_object(self, name: str) -> None:
        calls: dict[int, str] = {}
        for item in items(name):
            if item == "[DONE]":
                continue
            for choice in item.get("choices", ()):
                for call in choice["delta"].get("tool_calls", ()):
                    calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
            if item.get("type") == "content_block_delta" and item["delta"]["type"] == "input_json_delta":
                calls[item["index"]] = calls.get(item["index"], "") + item["delta"]["partial_json"]
        assert len(calls) == 2
        assert all(json.loads(arguments) for arguments in calls.values())
