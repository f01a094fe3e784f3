"""Validators, on real turns: bytes of several wires in, reasons out."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levada import FinishedTurn, Turn, UsageError
from levada.ledger.anomalies import HARMLESS, TOUCHING
from levada.ledger.checks import MOST_REASON_CHARS, MOST_REASONS, Validator, bounded, reasons_of
from levada.ledger.validators import (
    answer_matches,
    finish_reason_in,
    intact,
    intact_but,
    no_unfinished_tool_call,
    not_empty,
    valid_tool_arguments,
)
from tests.dialects.streams import event, fed

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


def chat(
    *deltas: dict[str, Any], finish: str = "stop", between: bytes = b"", terminal: str | None = None
) -> FinishedTurn:
    """A finished turn of Chat; `between`: bytes before the finish."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    stream = b"".join(event(chunk, name=None) for chunk in chunks) + between
    stream += event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, name=None) + b"data: [DONE]\n\n"
    return fed("openai_chat", stream, terminal=terminal).result()


def said(text: str) -> FinishedTurn:
    return chat({"content": text})


def against(turn: FinishedTurn, *validators: Validator, released: str | None = None) -> tuple[str, ...]:
    return bounded(reasons_of(validators, turn, turn.answer if released is None else released))


def called(*arguments: str, finish: str = "tool_calls", kind: str = "function") -> FinishedTurn:
    calls = [
        {
            "index": n,
            "id": f"c{n}",
            "type": kind,
            kind: {"name": "f", "arguments" if kind == "function" else "input": a},
        }
        for n, a in enumerate(arguments)
    ]
    return chat({"tool_calls": calls}, finish=finish)


def message(*blocks: bytes, stop: str = "end_turn") -> bytes:
    """A whole message of Anthropic around the events of its blocks."""
    start = event({"type": "message_start", "message": {"id": "m", "model": "claude", "content": []}})
    end = event({"type": "message_delta", "delta": {"stop_reason": stop}}) + event({"type": "message_stop"})
    return start + b"".join(blocks) + end


def text_block(text: str, *, stop: bool = True) -> bytes:
    events = event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    events += event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
    return events + event({"type": "content_block_stop", "index": 0}) * stop


def responses(deltas: str, final: str) -> bytes:
    """A response of one message, whose final text may be another one than its deltas."""
    item = {"type": "message", "id": "i", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": final, "annotations": []}
    place = {"item_id": "i", "output_index": 0, "content_index": 0}
    done = {**item, "content": [part]}
    response = {"id": "r", "model": "gpt", "status": "completed", "output": [done]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r", "model": "gpt", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": {"type": "output_text", "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": deltas},
        {"type": "response.output_text.done", **place, "text": final},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": response},
    ]
    return b"".join(event(one) for one in events)


def vertex(*elements: dict[str, Any]) -> bytes:
    return json.dumps([{"answer": element} for element in elements]).encode()


class TestIntact:
    """No anomaly that touches content; the final texts of the wire are the sum of the deltas."""

    @pytest.mark.parametrize(
        ("name", "dialect"),
        [
            ("openai_chat.sse", "openai_chat"),
            ("openai_chat-tools.sse", "openai_chat"),
            ("openai_responses.sse", "openai_responses"),
            ("anthropic.sse", "anthropic"),
            ("anthropic-tools.sse", "anthropic"),
            ("gemini.sse", "gemini"),
            ("gemini.json", "gemini"),
            ("vertex_search.json", "vertex_search"),
        ],
    )
    def test_a_recorded_turn_is(self, name: str, dialect: str) -> None:
        turn = fed(dialect, (FIXTURES / name).read_bytes()).result()
        checks: list[Validator] = [
            intact,
            not_empty,
            valid_tool_arguments,
            no_unfinished_tool_call,
            finish_reason_in("stop", "tool_use"),
        ]
        assert against(turn, *checks) == ()

    def test_a_final_text_that_is_not_the_sum_of_its_deltas_is_not(self) -> None:
        assert intact(fed("openai_responses", responses("Olá", "Olá")).result()) == []
        (reason,) = intact(fed("openai_responses", responses("Olá", "Oi, segredo")).result())
        assert reason.startswith("not intact: the final text is not the sum of its deltas (final_text_differs, 1 times")
        assert "segredo" not in reason

    def test_nor_is_one_of_vertex(self) -> None:
        whole = fed("vertex_search", vertex({"answerText": "Olá "}, {"answerText": "mundo"},
                                            {"state": "SUCCEEDED", "answerText": "Olá mundo"}))  # fmt: skip
        assert intact(whole.result()) == []
        other = fed("vertex_search", vertex({"answerText": "Olá "}, {"state": "SUCCEEDED", "answerText": "Adeus"}))
        assert [reason.split("(")[1][:18] for reason in intact(other.result())] == ["final_text_differs"]

    def test_a_keep_alive_in_the_place_of_data_is_harmless(self) -> None:
        turn = chat({"content": "a"}, between=b"data: : keepalive\n\n")
        assert (turn.anomalies.counts, intact(turn)) == ({"not_json": 1}, [])

    def test_a_line_that_is_no_field_is_not(self) -> None:
        (reason,) = intact(chat({"content": "a"}, between=b'dta: {"choices":[]}\n\n'))
        assert "(stray_line, 1 times, first at event" in reason

    def test_a_list_that_the_wire_does_not_know_is_not(self) -> None:
        turn = chat({"content": "a"}, between=b'data: [{"choices":[{"index":0,"delta":{"content":"b"}}]}]\n\n')
        assert (turn.answer, len(intact(turn))) == ("a", 1)

    def test_a_block_that_never_ended_is_not(self) -> None:
        assert intact(fed("anthropic", message(text_block("a"))).result()) == []
        (reason,) = intact(fed("anthropic", message(text_block("a", stop=False))).result())
        assert "block_left_open" in reason

    def test_what_comes_after_the_end_is_harmless(self) -> None:
        turn = fed("openai_chat", b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
                   b'data: [DONE]\n\ndata: {"choices":[]}\n\n')  # fmt: skip
        assert (dict(turn.result().anomalies.counts), intact(turn.result())) == ({"after_end": 1}, [])

    def test_an_anomaly_that_nobody_decided_about_touches_content(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turn = Turn("openai_chat")
        turn._draft.anomaly("new_in_a_later_version", "somewhere")
        turn.feed(b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
        turn.eof(clean=True)
        assert intact(turn.result()) == [
            "not intact: an anomaly that this version does not know (new_in_a_later_version, 1 times, first at event 0)"
        ]

    def test_a_server_may_be_known_for_one(self) -> None:
        turn = chat({"content": "a"}, between=b"hello there\n\ndata: 5\n\n")
        assert len(intact(turn)) == 2
        assert [reason.split("(")[1][:13] for reason in intact_but("stray_line")(turn)] == ["not_an_object"]  # type: ignore[union-attr]
        assert intact_but("stray_line", "not_an_object")(turn) == []
        with pytest.raises(UsageError, match="no such anomaly: 'stray_lines'"):
            intact_but("stray_lines")


class TestTheTableOfAnomalies:
    def test_it_has_each_name_of_the_sources_once(self) -> None:
        sources = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "levada").rglob("*.py"))
        named = set(re.findall(r"\banomaly\(\s*\"([a-z0-9_]+)\"", sources))
        assert named == TOUCHING.keys() | HARMLESS.keys()
        assert not TOUCHING.keys() & HARMLESS.keys()

    def test_no_name_is_made_at_run_time(self) -> None:
        """Else the test above would not see it."""
        sources = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "levada").rglob("*.py"))
        assert re.findall(r"\.anomaly\((?!\s*\")", sources) == []

    def test_each_has_a_reason(self) -> None:
        assert all(len(reason) > 3 for reason in (*TOUCHING.values(), *HARMLESS.values()))


class TestNotEmpty:
    def test_an_answer_or_a_call_is_enough(self) -> None:
        assert against(said("a"), not_empty) == ()
        assert against(called("{}"), not_empty) == ()

    @pytest.mark.parametrize("text", ["", " \n\t", "\u3000\u2003"])
    def test_white_space_is_none(self, text: str) -> None:
        assert against(said(text), not_empty) == ("empty: no answer and no tool call",)

    def test_nor_is_reasoning_or_a_refusal(self) -> None:
        assert against(chat({"reasoning_content": "hm"}), not_empty)
        assert against(chat({"refusal": "no"}), not_empty)

    def test_what_was_released_counts(self) -> None:
        assert against(said("a"), not_empty, released="  ") == ("empty: no answer and no tool call",)
        assert against(said(""), not_empty, released="a") == ()


class TestValidToolArguments:
    @pytest.mark.parametrize("arguments", ["{}", '{"a":[1,{"b":null}]}', ' {"a": "água"} '])
    def test_an_object_is(self, arguments: str) -> None:
        assert valid_tool_arguments(called(arguments)) == []

    @pytest.mark.parametrize(
        "arguments", ["[]", "null", '"x"', '{"a":', '{"a":1}}', '{"a":NaN}', '{"a":"\\ud800"}', '{"a":' * 3000]
    )
    def test_anything_else_is_not(self, arguments: str) -> None:
        reasons = valid_tool_arguments(called("{}", arguments))
        assert reasons == ["the arguments of tool call 2 of 2 are no JSON object"]

    def test_the_free_text_of_a_custom_tool_is(self) -> None:
        turn = called("SELECT 1", kind="custom")
        assert [call.kind for call in turn.tool_calls] == ["custom"]
        assert valid_tool_arguments(turn) == []


class TestNoUnfinishedToolCall:
    def test_whole_calls_pass(self) -> None:
        assert no_unfinished_tool_call(called('{"a":1}', "{}")) == []

    def test_a_call_that_length_cut_off_does_not(self) -> None:
        assert no_unfinished_tool_call(called("{}", '{"a":', finish="length")) == ["tool call 2 of 2 is not complete"]

    def test_nor_one_in_a_block_that_never_ended(self) -> None:
        start = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        block = event({"type": "content_block_start", "index": 0, "content_block": start})
        block += event({"type": "content_block_delta", "index": 0,
                        "delta": {"type": "input_json_delta", "partial_json": '{"a":'}})  # fmt: skip
        turn = fed("anthropic", message(block, stop="tool_use"))
        if turn.state == "finished":  # else it is not even a turn to validate
            assert no_unfinished_tool_call(turn.result()) == ["tool call 1 of 1 is not complete"]


class TestFinishReason:
    def test_the_named_ones_pass(self) -> None:
        check = finish_reason_in("stop", "tool_use")
        assert check(said("a")) is None
        assert check(called("{}")) is None
        assert check(chat({"content": "a"}, finish="length")) == "finish reason length, not stop or tool_use"

    def test_a_finish_that_nobody_named_is_other(self) -> None:
        stream = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\ndata: [DONE]\n\n'
        turn = fed("openai_chat", stream, terminal="done").result()
        assert finish_reason_in("stop")(turn) == "finish reason other, not stop"
        assert finish_reason_in("other")(turn) is None

    @pytest.mark.parametrize(
        ("words", "match"), [((), "allows nothing"), (("end_turn",), "'end_turn'; there are stop")]
    )
    def test_a_word_that_is_none_is_a_usage_error(self, words: tuple[str, ...], match: str) -> None:
        with pytest.raises(UsageError, match=match):
            finish_reason_in(*words)


PRICE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "price": {"type": "number", "minimum": 0}},
    "required": ["name", "price"],
    "additionalProperties": False,
}


class TestAnswerMatches:
    def test_json_that_matches_passes(self) -> None:
        assert against(said(' {"name": "Água", "price": 1.5}\n'), answer_matches(PRICE)) == ()

    @pytest.mark.parametrize(
        ("answer", "reasons"),
        [
            ('{"name": "secret", "price": "secret"}', ["/properties/price/type"]),
            ('{"name": "secret", "price": -7}', ["/properties/price/minimum"]),
            ('{"name": "secret"}', ["/required"]),
            ('{"name": "x", "price": 1, "secret": 2}', ["/additionalProperties"]),
            ('["secret"]', ["/type"]),
        ],
    )
    def test_the_reason_names_the_schema_and_not_the_answer(self, answer: str, reasons: list[str]) -> None:
        found = against(said(answer), answer_matches(PRICE))
        assert list(found) == [f"the answer does not match its schema at {place}" for place in reasons]

    @pytest.mark.parametrize(
        "answer",
        [
            "",
            "secret",
            '{"name": "secret"',
            '```json\n{"name": "secret", "price": 1}\n```',
            '{"price": NaN}',
            "1" * 5000,
        ],
    )
    def test_text_around_it_is_not_json(self, answer: str) -> None:
        assert against(said(answer), answer_matches({})) == ("the answer is not JSON",)

    def test_it_is_asked_of_what_was_released(self) -> None:
        check = answer_matches({"const": 2})
        assert against(said("1"), check, released="2") == ()
        assert against(said("2"), check, released="1") == ("the answer does not match its schema at /const",)

    def test_reasons_are_bounded(self) -> None:
        found = against(said(json.dumps([7] * 10_000)), answer_matches({"items": {"type": "null"}}))
        assert (len(found), found[-1]) == (6, "and at more places")

        deep: dict[str, Any] = {"type": "null"}
        for _ in range(60):
            deep = {"properties": {"a" * 50: deep}}
        answer: Any = 1
        for _ in range(60):
            answer = {"a" * 50: answer}
        (reason,) = against(said(json.dumps(answer)), answer_matches(deep))
        assert len(reason) < 300

    def test_nesting_without_end_is_a_reason(self) -> None:
        check = answer_matches({"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"})
        assert against(said("[[[]]]"), check) == ()
        for depth in (300, 100_000):
            assert all("nested too deeply" in reason for reason in against(said("[" * depth + "]" * depth), check))

    def test_a_ref_leads_into_the_schema_or_to_a_metaschema(self) -> None:
        inner = {"$id": "https://example.org/inner", "type": "integer"}
        check = answer_matches({"$defs": {"inner": inner}, "items": {"$ref": "https://example.org/inner"}})
        assert against(said("[1]"), check) == ()
        assert against(said('["a"]'), check) == ("the answer does not match its schema at /items/type",)
        assert (
            against(said('{"type": "null"}'), answer_matches({"$ref": "https://json-schema.org/draft/2020-12/schema"}))
            == ()
        )

    @pytest.mark.parametrize(
        "ref", ["http://127.0.0.1:9/x.json", "https://example.org/x", "file:///etc/passwd", "#/nope"]
    )
    def test_a_ref_that_leads_out_of_it_is_a_usage_error_and_never_fetched(
        self, ref: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("it tried to connect")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr("urllib.request.urlopen", refuse)
        for schema in ({"$ref": ref}, {"anyOf": [{"properties": {"a": {"items": {"$ref": ref}}}}]}):
            with pytest.raises(UsageError, match="nothing is fetched"):
                answer_matches(schema)

    @pytest.mark.parametrize(
        "schema", [{"type": "nothing"}, {"minimum": "1"}, 7, {"$schema": "https://example.org/x", "type": 7}]
    )
    def test_what_is_no_schema_is_a_usage_error(self, schema: Any) -> None:
        with pytest.raises(UsageError):
            answer_matches(schema)

    def test_other_drafts_are_told_by_the_schema(self) -> None:
        old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}
        assert against(said("1"), answer_matches(old)) == ("the answer does not match its schema at /minimum",)

    def test_it_is_compiled_once_of_a_copy(self) -> None:
        schema: dict[str, Any] = {"type": "string"}
        check = answer_matches(schema)
        schema["type"] = "null"
        assert against(said('"a"'), check) == ()


class TestAsking:
    def test_every_validator_is_asked_in_order(self) -> None:
        def no(turn: FinishedTurn) -> str:
            return "no"

        def two(turn: FinishedTurn) -> tuple[str, ...]:
            return "one", "two"

        assert against(said(""), no, intact, two, not_empty) == (
            "no", "one", "two", "empty: no answer and no tool call",
        )  # fmt: skip

    def test_none_and_an_empty_list_have_nothing_to_say(self) -> None:
        checks: list[Callable[[FinishedTurn], Any]] = [lambda turn: None, lambda turn: [], lambda turn: iter(())]
        assert against(said("a"), *checks) == ()

    def test_a_reason_without_words_is_one(self) -> None:
        assert against(said("a"), lambda turn: "") == ("refused without a word",)

    @pytest.mark.parametrize("wrong", [True, False, 7, b"no", {"no": 1}, ["no", 7]])
    def test_anything_else_is_a_usage_error(self, wrong: Any) -> None:
        """False may mean either: it is never guessed."""
        with pytest.raises(UsageError, match="a reason"):
            against(said("a"), lambda turn: wrong)

    def test_nor_does_a_coroutine_pass(self) -> None:
        async def later(turn: FinishedTurn) -> None: ...

        with pytest.raises(UsageError, match="not coroutine"):
            against(said("a"), later)  # type: ignore[arg-type]  # that is the point

    def test_what_is_kept_is_bounded(self) -> None:
        reasons = against(said("a"), lambda turn: ["x" * 10_000] * 1000)
        assert (len(reasons), {len(reason) for reason in reasons[:-1]}) == (MOST_REASONS, {MOST_REASON_CHARS + 1})
        assert reasons[-1] == f"and {1000 - MOST_REASONS + 1} more reasons"

    def test_an_exception_comes_through(self) -> None:
        with pytest.raises(ZeroDivisionError):
            against(said("a"), lambda turn: str(1 / 0))
