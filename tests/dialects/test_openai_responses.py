"""OpenAI Responses: providers.md, sections 3, 4, 5, 6.3 and 10."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada import Opaque, TextDelta, TextReplaced, Turn
from levada.turn import _STENCIL_TRIES
from tests.dialects.streams import (
    assert_deltas_are_the_turn,
    cuts,
    damaged,
    event,
    json_objects,
    sprinkled,
    texts,
)
from tests.dialects.streams import deltas as deltas_of
from tests.dialects.streams import fed as fed_to
from tests.turn.test_stencils import assert_same

FIXTURES = Path(__file__).parents[1] / "fixtures"
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 16,
}


def fed(*pieces: bytes, clean: bool | None = True, **options: Any) -> Turn:
    return fed_to("openai_responses", *pieces, clean=clean, **options)


def ev(type: str, **fields: Any) -> bytes:
    return event({"type": f"response.{type}", **fields})


def created(id: str | None = "r1") -> bytes:
    return ev("created", response={"id": id, "object": "response", "model": "m", "status": "in_progress", "output": []})


def completed(output: Any = None, **more: Any) -> bytes:
    return ev("completed", response={"id": "r1", "status": "completed", "output": output, **more})


def incomplete(reason: str | None, output: Any = None) -> bytes:
    details = None if reason is None else {"reason": reason}
    return ev("incomplete", response={"status": "incomplete", "incomplete_details": details, "output": output})


def added(index: int | None, type: str, **fields: Any) -> bytes:
    return ev("output_item.added", output_index=index, item={"type": type, **fields})


def done(index: int | None, type: str, **fields: Any) -> bytes:
    return ev("output_item.done", output_index=index, item={"type": type, **fields})


def text(piece: str, index: int = 0, part: int = 0, **more: Any) -> bytes:
    return ev("output_text.delta", output_index=index, content_index=part, delta=piece, **more)


def text_done(final: Any, index: int = 0, part: int = 0) -> bytes:
    return ev("output_text.done", output_index=index, content_index=part, text=final)


def message(*parts: str, index: int = 0) -> bytes:
    """A message item with one content part each, streamed and repeated as the wire does."""
    pieces = [added(index, "message", id=f"msg_{index}", role="assistant", status="in_progress", content=[])]
    for part, whole in enumerate(parts):
        pieces += [text(whole, index, part), text_done(whole, index, part)]
    content = [{"type": "output_text", "text": whole, "annotations": []} for whole in parts]
    fields = {"id": f"msg_{index}", "role": "assistant", "status": "completed", "content": content}
    return b"".join(pieces) + done(index, "message", **fields)


def call(index: int, *fragments: str, id: str = "k1", name: str = "f", status: str | None = "completed") -> bytes:
    begin = added(index, "function_call", id="fc_1", call_id=id, name=name, arguments="")
    pieces = [ev("function_call_arguments.delta", output_index=index, delta=fragment) for fragment in fragments]
    whole = "".join(fragments)
    pieces.append(ev("function_call_arguments.done", output_index=index, arguments=whole))
    fields = {"id": "fc_1", "call_id": id, "name": name, "arguments": whole, "status": status}
    return begin + b"".join(pieces) + done(index, "function_call", **fields)


def opaque(turn: Turn, name: str) -> list[Any]:
    return [part.data for part in turn.parts if part.name == name]


class TestEnd:
    """Section 3: response.completed or response.incomplete confirms."""

    def test_completed_finishes(self) -> None:
        turn = fed(created(), message("Olá"), completed(usage=USAGE), clean=None)
        assert turn.state == "finished"
        assert turn.result().answer == "Olá"
        assert (turn.id, turn.model) == ("r1", "m")
        assert (turn.finish_reason, turn.native_finish_reason) == ("stop", "completed")
        assert turn.anomalies.total == 0

    @pytest.mark.parametrize("rest", [b"", completed()[:-1], b"data: [DONE]\n\n", ev("in_progress", response={})])
    def test_nothing_else_does(self, rest: bytes) -> None:
        turn = fed(created(), message("Hi"), rest)
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    @pytest.mark.parametrize("cut_at", ["output_text.done", "output_item.done", "completed"])
    def test_a_stream_that_ends_before_an_event_is_truncated(self, cut_at: str) -> None:
        stream = created() + message("Hi") + completed()
        turn = fed(stream[: stream.index(f"event: response.{cut_at}".encode())])
        assert (turn.state, turn.answer) == ("error", "Hi")

    @pytest.mark.parametrize(
        ("reason", "common"),
        [
            ("max_output_tokens", "length"),
            ("content_filter", "content_filter"),
            ("max_messages", "pause"),
            ("steered", "pause"),
            (None, "other"),
            ("new_in_2027", "other"),
        ],
    )
    def test_incomplete_says_why(self, reason: str | None, common: str) -> None:
        turn = fed(created(), message("Hi"), incomplete(reason))
        assert (turn.state, turn.finish_reason, turn.native_finish_reason) == ("finished", common, "incomplete")

    def test_what_it_holds_tells_the_finish_reason(self) -> None:
        refusal = ev("refusal.delta", output_index=0, content_index=0, delta="No.")
        assert fed(created(), added(0, "message"), refusal, completed()).finish_reason == "refusal"
        assert fed(created(), message("Hi"), call(1, "{}"), completed()).finish_reason == "tool_use"
        assert fed(created(), added(0, "message"), refusal, call(1, "{}"), completed()).finish_reason == "tool_use"

    def test_a_terminal_event_whose_name_and_type_differ_is_damaged(self) -> None:
        terminal = {"type": "response.completed", "response": {}}
        for damage in (
            event(terminal, "response.complfted"),
            event(terminal | {"type": "response.complfted"}, "response.completed"),
            event({"response": {}}, "response.completed"),
            event(terminal).replace(b"event:", b"evemt:"),
        ):
            assert fed(created(), message("Hi"), damage).state == "error"

    def test_events_without_a_name_are_read_by_their_type(self) -> None:
        stream = created() + message("Hi") + completed()
        nameless = b"".join(line + b"\n" for line in stream.split(b"\n") if not line.startswith(b"event:"))
        assert fed(nameless).state == "finished"

    def test_a_terminal_event_that_contradicts_itself(self) -> None:
        turn = fed(created(), message("Hi"), completed(status="incomplete"))
        assert (turn.state, turn.native_finish_reason) == ("finished", "incomplete")
        assert turn.anomalies.counts == {"status_differs": 1}
        assert fed(created(), message("Hi"), completed(status="in_progress")).finish_reason == "stop"

    def test_done_after_it_is_only_counted(self) -> None:
        turn = fed(created(), message("Hi"), completed(), b"data: [DONE]\n\n")
        assert (turn.state, turn.anomalies.counts) == ("finished", {"after_end": 1})

    def test_most_deltas_are_read_by_a_stencil_whatever_their_number_and_padding(self) -> None:
        turn = Turn("openai_responses")
        turn.feed(created() + added(0, "message"))
        for number in range(40):
            noise: dict[str, Any] = {
                "sequence_number": number,
                "obfuscation": "x" * (number % 5),
                "item_id": f"i{number}",
            }
            turn.feed(text(f"{number} ", **noise))
        assert turn._stencils
        assert turn._stencil_tries == _STENCIL_TRIES
        assert turn.answer == "".join(f"{number} " for number in range(40))


class TestErrors:
    """Section 5."""

    def test_failed(self) -> None:
        error = {"code": "server_error", "message": "oops"}
        turn = fed(created(), message("Hi"), ev("failed", response={"status": "failed", "error": error}))
        assert turn.error is not None
        assert (turn.error.kind, turn.error.type, turn.error.message) == ("provider", "server_error", "oops")
        assert turn.error.retryable

    @pytest.mark.parametrize(
        "error",
        [
            {"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None},
            {"type": "error", "error": {"type": "rate_limit_exceeded", "message": "slow down"}},
            {"error": {"code": "rate_limit_exceeded", "message": "slow down"}},
        ],
    )
    def test_an_error_event_flat_or_nested(self, error: dict[str, Any]) -> None:
        for piece in (event(error), event(error, None), event(error, "error")):
            turn = fed(created(), piece, completed())
            assert turn.error is not None
            assert (turn.error.type, turn.error.message, turn.error.retryable) == (
                "rate_limit_exceeded",
                "slow down",
                True,
            )

    def test_failed_after_an_error_fills_what_that_left_empty(self) -> None:
        later = {"code": "server_error", "message": "the model crashed"}
        turn = fed(event({"type": "error"}), ev("failed", response={"error": later}))
        assert turn.error is not None
        assert (turn.error.type, turn.error.message) == ("server_error", "the model crashed")

    @pytest.mark.parametrize("status", ["failed", "cancelled"])
    @pytest.mark.parametrize("name", ["created", "in_progress", "completed", "incomplete", "failed", "cancelled"])
    def test_a_status_of_failed_or_cancelled_in_any_event(self, status: str, name: str) -> None:
        turn = fed(created(), message("Hi"), ev(name, response={"id": "r1", "status": status}))
        assert turn.error is not None
        assert turn.error.kind == "provider"
        assert turn.error.type in (status, name)

    @pytest.mark.parametrize(
        "loss",
        [
            created("r2"),  # a second response, after items
            created(None),
            ev("output_text.delta", output_index=0, delta=["x"]),
            ev("output_text.delta", output_index="0", delta="x"),
            ev("output_text.delta", output_index=0, content_index=-1, delta="x"),
            ev("output_text.done", output_index=0, text=3),
            ev("content_part.done", output_index=0, part="x"),
            ev("output_item.done", output_index=0, item=[]),
            done(0, "message", content="x"),
            done(0, "message", content=["x"]),
            ev("completed", response=[]),
            completed(["x"]),
            completed("x"),
            ev("function_call_arguments.delta", output_index=0, delta="{}"),  # for a message
            call(1, "{}") + ev("function_call_arguments.delta", output_index=1, delta="}"),
            added(1, "function_call", call_id="k"),  # without a name to the end
            event({"delta": "x", "output_index": 0}, None),
            event({"type": "response.output_text.deltb", "delta": "x"}, "response.output_text.delta"),
            b"event: response.output_text.delta\ndata: {\n\n",
        ],
    )
    def test_what_may_have_lost_text_or_arguments_breaks_the_protocol(self, loss: bytes) -> None:
        turn = fed(created(), message("Hi"), loss, completed())
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    @pytest.mark.parametrize(
        ("odd", "name"),
        [
            (message("Hi") + event({"type": "response.new_event", "delta": "x"}), "unknown_event"),
            (message("Hi") + added(1, "new_item"), "unknown_item"),
            (message("Hi") + ev("content_part.added", output_index=0, part={"type": "new"}), "unknown_part"),
            (text("Hi"), "item_not_begun"),
            (ev("output_text.delta", delta="Hi"), "missing_output_index"),
            (added(0, "message") + added(0, "message") + text("Hi"), "repeated_item_added"),
            (created() + message("Hi"), "repeated_response_created"),
            (message("Hi") + b"data: [DONE]\n\n", "done_sentinel"),
            (message("Hi") + ev("output_item.done", output_index=1, item=None), "missing_item"),
            (message("Hi") + event({"type": "response.in_progress"}), "missing_response"),
        ],
    )
    def test_what_is_only_odd_is_counted(self, odd: bytes, name: str) -> None:
        turn = fed(created(), odd, completed())
        assert (turn.state, turn.answer) == ("finished", "Hi")
        assert name in turn.anomalies.counts


class TestIdsAndIndexes:
    def test_ids_that_change_on_every_event_mean_nothing(self) -> None:
        number = iter(range(100))
        stream = created() + message("Hello", " you") + call(1, "{", "}") + completed(usage=USAGE)
        events = [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]
        for document in events:
            document["item_id"] = f"id{next(number)}"
            for key in ("item", "response"):
                if key in document:
                    document[key]["id"] = f"id{next(number)}"
        turn = fed(*map(event, events))
        assert (turn.state, turn.answer, turn.anomalies.total) == ("finished", "Hello you", 0)
        assert [one.id for one in turn.tool_calls] == ["k1"]

    def test_indexes_may_have_gaps(self) -> None:
        final = [{"type": "message", "content": [{"type": "output_text", "text": whole}]} for whole in ("a", "b")]
        turn = fed(created(), message("a", index=2), message("b", index=7), completed(final))
        assert (turn.answer, turn.anomalies.total) == ("ab", 0)
        assert [part.block for part in turn.parts if part.type == "text"] == [2, 7]

    def test_items_and_parts_may_take_turns(self) -> None:
        turn = fed(
            created(),
            added(0, "message"),
            added(1, "message"),
            text("a", 0, 0),
            text("b", 1, 0),
            text("c", 0, 0),
            text("d", 0, 1),
            text("e", 1, 0),
            text("f", 0, 0),
            text("g", 0, 1),
            text_done("acf", 0, 0),
            text_done("dg", 0, 1),
            text_done("be", 1, 0),
            completed(),
        )
        assert (turn.state, turn.answer, turn.anomalies.total) == ("finished", "abcdefg", 0)

    def test_servers_that_give_every_item_the_same_index(self) -> None:
        turn = fed(created(), message("Hi"), call(0, '{"a":1}'), call(0, "{}", id="k2"), message("Bye"), completed())
        assert turn.answer == "HiBye"
        assert [(one.id, one.arguments) for one in turn.tool_calls] == [("k1", '{"a":1}'), ("k2", "{}")]
        assert turn.anomalies.counts == {"output_index_reused": 3}
        kinds = [item["type"] for item in turn.result().message()["output"]]
        assert kinds == ["message", "function_call", "function_call", "message"]


class TestRepetitions:
    """Every text is said up to five times: they are compared, and never added."""

    def final(self, whole: Any) -> list[Any]:
        return [{"type": "message", "content": [{"type": "output_text", "text": whole}]}]

    @pytest.mark.parametrize("said", [text_done(""), text_done(None), done(0, "message", content=None), b""])
    def test_an_empty_one_says_nothing(self, said: bytes) -> None:
        turn = fed(created(), added(0, "message"), text("Hello"), said, completed([]))
        assert (turn.answer, turn.anomalies.total) == ("Hello", 0)

    @pytest.mark.parametrize("output", [None, []])
    def test_an_answer_is_rebuilt_where_the_terminal_event_has_no_output(self, output: Any) -> None:
        turn = fed(created(), message("Hello"), call(1, "{}"), completed(output))
        assert (turn.answer, turn.tool_calls[0].arguments) == ("Hello", "{}")
        assert len(turn.result().message()["output"]) == 2

    def test_where_no_delta_came_the_first_one_is_the_text(self) -> None:
        part = {"type": "output_text", "text": "Hello"}
        begin = created() + added(0, "message")
        for piece in (
            text_done("Hello"),
            ev("content_part.done", output_index=0, content_index=0, part=part),
            done(0, "message", content=[part]),
            b"",
        ):
            given = deltas_of("openai_responses", begin, piece, completed(self.final("Hello")))
            assert [one.text for one in given if isinstance(one, TextDelta)] == ["Hello"]
        assert fed(created(), completed(self.final("Hello"))).answer == "Hello"

    def test_what_deltas_lack_at_the_end_is_added(self) -> None:
        stream = created(), added(0, "message"), text("Hel"), text_done("Hello"), completed()
        given = [one for one in deltas_of("openai_responses", *stream) if isinstance(one, (TextDelta, TextReplaced))]
        assert [one.text for one in given] == ["Hel", "lo"]
        turn = fed(*stream)
        assert (turn.state, turn.answer) == ("finished", "Hello")
        assert turn.anomalies.counts == {"final_text_differs": 1}

    def test_what_differs_is_replaced_by_the_final_text(self) -> None:
        stream = created(), added(0, "message"), text("Hallo"), text_done("Hello"), text("!"), completed()
        given = [one for one in deltas_of("openai_responses", *stream) if isinstance(one, (TextDelta, TextReplaced))]
        assert given == [
            TextDelta("Hallo"),
            TextReplaced("Hello", reason="final_text"),
            TextDelta("!"),
        ]
        assert fed(*stream).answer == "Hello!"

    def test_a_replacement_leaves_the_other_items_alone(self) -> None:
        stream = created(), message("One. "), added(1, "message"), text("Tow. ", 1), message("Three.", index=2)
        turn = fed(*stream, text_done("Two. ", 1), completed())
        assert (turn.state, turn.answer) == ("finished", "One. Two. Three.")
        assert [(part.text, part.block) for part in turn.parts if part.type == "text"] == [
            ("One. ", 0),
            ("Two. ", 1),
            ("Three.", 2),
        ]
        last = next(
            one
            for one in deltas_of("openai_responses", *stream, text_done("Two. ", 1))
            if isinstance(one, TextReplaced)
        )
        assert (last.text, last.block) == ("One. Two. Three.", 1)

    def test_text_goes_on_after_a_replacement_before_it(self) -> None:
        turn = fed(
            created(),
            added(0, "message"),
            text("a"),
            added(1, "message"),
            text("x", 1),
            text_done("AA"),
            text("y", 1),
            text_done("xy", 1),
            completed(),
        )
        assert (turn.answer, turn.anomalies.counts) == ("AAxy", {"final_text_differs": 1})

    def test_the_terminal_event_has_the_last_word(self) -> None:
        turn = fed(created(), message("Hallo"), completed(self.final("Hello")))
        assert turn.answer == "Hello"

    def test_its_items_are_matched_by_order_and_type_where_some_were_not_streamed(self) -> None:
        reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
        turn = fed(created(), message("Hi"), completed([reasoning, *self.final("Hi")]))
        assert (turn.answer, turn.reasoning, turn.anomalies.total) == ("Hi", "Hm", 0)
        turn = fed(created(), message("Hi"), call(1, "{}"), completed(self.final("Hi")))
        assert (turn.answer, turn.anomalies.counts) == ("Hi", {"item_not_in_output": 1})

    def test_with_think_tags_the_deltas_hold(self) -> None:
        whole = "<think>Hm</think>Hi"
        turn = fed(created(), message(whole), completed(self.final(whole)), think_tags=("think",))
        assert (turn.reasoning, turn.answer) == ("Hm", "Hi")
        turn = fed(created(), completed(self.final(whole)), think_tags=("think",))
        assert (turn.reasoning, turn.answer) == ("Hm", "Hi")


class TestReasoning:
    def test_summary_and_raw_text_are_told_apart(self) -> None:
        turn = fed(
            created(),
            added(0, "reasoning", id="rs_1", summary=[]),
            ev(
                "reasoning_summary_part.added",
                output_index=0,
                summary_index=0,
                part={"type": "summary_text", "text": ""},
            ),
            ev("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="One"),
            ev("reasoning_summary_text.delta", output_index=0, summary_index=1, delta="Two"),
            ev("reasoning_text.delta", output_index=0, content_index=0, delta="raw"),
            ev("reasoning_text.done", output_index=0, content_index=0, text="raw"),
            completed(),
        )
        assert turn.reasoning == "OneTworaw"
        assert [(part.text, part.kind) for part in turn.parts if part.type == "reasoning"] == [
            ("One", "summary"),
            ("Two", "summary"),
            ("raw", "raw"),
        ]
        [item] = turn.result().message()["output"]
        assert item == {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "One"}, {"type": "summary_text", "text": "Two"}],
            "content": [{"type": "reasoning_text", "text": "raw"}],
        }

    def test_only_the_encrypted_content_of_the_finished_item_counts(self) -> None:
        stream = (
            created(),
            added(0, "reasoning", id="rs_1", summary=[], encrypted_content="partial"),
            done(0, "reasoning", id="rs_1", summary=[], encrypted_content="whole", status=None),
            completed([{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "other"}]),
        )
        turn = fed(*stream)
        assert (turn.reasoning, opaque(turn, "encrypted")) == ("", ["whole"])
        assert [one.data for one in deltas_of("openai_responses", *stream) if isinstance(one, Opaque)] == ["whole"]
        assert turn.result().message() == {
            "output": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "whole"}]
        }

    def test_a_server_that_repeats_raw_reasoning_as_summary_does_not_double_it(self) -> None:
        raw = ev("reasoning_text.delta", output_index=0, content_index=0, delta="Hm")
        summary = [{"type": "summary_text", "text": "Hm"}]
        turn = fed(created(), added(0, "reasoning"), raw, done(0, "reasoning", summary=summary), completed())
        assert (turn.reasoning, turn.anomalies.counts) == ("Hm", {"reasoning_repeated": 1})


class TestCalls:
    def test_two_calls_that_take_turns(self) -> None:
        fragments = [(0, '{"x":'), (1, '{"y":'), (0, "1}"), (1, "2}")]
        turn = fed(
            created(),
            added(0, "function_call", call_id="k1", name="a", arguments=""),
            added(1, "function_call", call_id="k2", name="b", arguments=""),
            *[ev("function_call_arguments.delta", output_index=at, delta=piece) for at, piece in fragments],
            completed(),
        )
        assert [(one.id, one.name, one.arguments, one.complete) for one in turn.tool_calls] == [
            ("k1", "a", '{"x":1}', True),
            ("k2", "b", '{"y":2}', True),
        ]

    def test_the_final_arguments_hold(self) -> None:
        for before, missing in (("", '{"a":1}'), ('{"a"', ":1}"), ('{"a":2}', "")):
            stream = created() + added(0, "function_call", call_id="k", name="f")
            stream += ev("function_call_arguments.delta", output_index=0, delta=before)
            turn = fed(stream, ev("function_call_arguments.done", output_index=0, arguments='{"a":1}'), completed())
            assert turn.tool_calls[0].arguments == '{"a":1}'
            assert turn.anomalies.counts == ({} if missing else {"arguments_differ": 1})

    def test_a_call_that_only_the_terminal_event_has(self) -> None:
        item = {"type": "function_call", "id": "fc", "call_id": "k", "name": "f", "arguments": '{"a":1}'}
        turn = fed(created(), completed([item]))
        assert [(one.id, one.name, one.arguments) for one in turn.tool_calls] == [("k", "f", '{"a":1}')]
        assert turn.finish_reason == "tool_use"

    @pytest.mark.parametrize("status", ["completed", None, "in_progress"])
    def test_no_arguments_are_an_empty_object_once_the_response_is_complete(self, status: str | None) -> None:
        turn = fed(created(), call(0, status=status), completed())
        assert (turn.tool_calls[0].arguments, turn.tool_calls[0].complete) == ("{}", True)

    @pytest.mark.parametrize("arguments", ["", '{"a":'])
    def test_arguments_that_length_cut_off_are_not_complete(self, arguments: str) -> None:
        turn = fed(created(), call(0, arguments, status="incomplete"), incomplete("max_output_tokens"))
        assert (turn.state, turn.tool_calls[0].complete) == ("finished", False)
        assert turn.tool_calls[0].arguments == arguments

    def test_a_custom_tool_takes_free_text(self) -> None:
        turn = fed(
            created(),
            added(0, "custom_tool_call", id="ctc", call_id="k", name="patch", input=""),
            ev("custom_tool_call_input.delta", output_index=0, delta="*** "),
            ev("custom_tool_call_input.delta", output_index=0, delta="Begin"),
            ev("custom_tool_call_input.done", output_index=0, input="*** Begin"),
            done(0, "custom_tool_call", id="ctc", call_id="k", name="patch", input="*** Begin", status="completed"),
            completed(),
        )
        [one] = turn.tool_calls
        assert (one.kind, one.arguments, one.complete) == ("custom", "*** Begin", True)
        assert turn.result().message()["output"] == [
            {
                "type": "custom_tool_call",
                "id": "ctc",
                "status": "completed",
                "call_id": "k",
                "name": "patch",
                "input": "*** Begin",
            }
        ]


class TestCitations:
    def test_they_are_counted_in_characters_of_the_block(self) -> None:
        first = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 0, "end_index": 4}
        second = {"type": "file_citation", "file_id": "f1", "filename": "b.txt", "index": 2}
        stream = (
            created(),
            added(0, "message"),
            text("Água"),
            ev("output_text.annotation.added", output_index=0, content_index=0, annotation_index=0, annotation=first),
            text("水!", 0, 1),
            ev("output_text.annotation.added", output_index=0, content_index=1, annotation_index=0, annotation=second),
        )
        content = [
            {"type": "output_text", "text": "Água", "annotations": [first]},
            {"type": "output_text", "text": "水!", "annotations": [second]},
        ]
        final: dict[str, Any] = {"type": "message", "id": "msg", "role": "assistant", "content": content}
        turn = fed(*stream, done(0, **final), completed([final]))
        assert [(one.start, one.end, one.unit, one.url, one.title, one.references) for one in turn.citations] == [
            (0, 4, "characters", "https://a", "A", ()),
            (6, 6, "characters", None, "b.txt", ("f1",)),
        ]
        assert turn.anomalies.total == 0
        assert turn.result().message()["output"] == [final]

    def test_those_that_only_the_final_item_has_are_added(self) -> None:
        one = {"type": "url_citation", "url": "https://a"}
        part = {"type": "output_text", "text": "Hi", "annotations": [one, one]}
        streamed = ev("output_text.annotation.added", output_index=0, content_index=0, annotation=one)
        turn = fed(
            created(), added(0, "message"), text("Hi"), streamed, done(0, "message", content=[part]), completed()
        )
        assert [(found.url, found.unit) for found in turn.citations] == [("https://a", None)] * 2


class TestServerSide:
    def test_an_item_of_a_server_tool_goes_back_whole(self) -> None:
        whole: dict[str, Any] = {
            "type": "web_search_call",
            "id": "ws",
            "status": "completed",
            "action": {"query": "水"},
        }
        stream = (
            created(),
            added(0, "web_search_call", id="ws", status="in_progress"),
            ev("web_search_call.in_progress", output_index=0),
            ev("web_search_call.searching", output_index=0),
            done(0, **whole),
            message("So.", index=1),
        )
        turn = fed(*stream, completed())
        assert (turn.answer, turn.tool_calls, turn.anomalies.total) == ("So.", (), 0)
        assert opaque(turn, "item") == [whole]
        assert [one.data for one in deltas_of("openai_responses", *stream) if isinstance(one, Opaque)] == [whole]
        output = turn.result().message()["output"]
        assert output[0] == whole
        assert output[1] == {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "So.", "annotations": []}],
        }

    @pytest.mark.parametrize(
        "name",
        [
            "file_search_call.searching",
            "code_interpreter_call_code.delta",
            "image_generation_call.partial_image",
            "mcp_call_arguments.delta",
            "mcp_call.failed",
            "mcp_list_tools.completed",
            "shell_call_command.delta",
            "shell_call_output_content.delta",
            "apply_patch_call_operation_diff.delta",
            "audio.transcript.delta",
            "compaction.compacting",
            "steer.accepted",
        ],
    )
    def test_progress_at_the_server_is_neither_text_nor_odd(self, name: str) -> None:
        turn = fed(created(), message("Hi"), ev(name, delta={"stdout": "x"}), ev(name, delta="x"), completed())
        assert (turn.answer, turn.anomalies.total) == ("Hi", 0)

    def test_commentary_is_answer_too_and_goes_back_with_its_phase(self) -> None:
        first = [added(0, "message", phase="commentary"), text("Looking. "), done(0, "message", phase="commentary")]
        turn = fed(created(), *first, message("Done.", index=1), completed())
        assert turn.answer == "Looking. Done."
        assert turn.result().message()["output"][0]["phase"] == "commentary"


class TestUsage:
    def test_it_comes_with_the_terminal_event(self) -> None:
        turn = fed(created(), message("Hi"), completed(usage=USAGE))
        usage = turn.usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (9, 7, 5)
        assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.total_tokens) == (4, 1, 16)
        assert usage.raw == USAGE


class TestWholeAnswer:
    def played(self, document: Any) -> Turn:
        turn = Turn("openai_responses")
        turn.head(200, "application/json")
        turn.feed(json.dumps(document).encode())
        turn.eof(clean=True)
        return turn

    def test_it_is_read_as_one(self) -> None:
        content = [{"type": "output_text", "text": "Olá", "annotations": []}]
        output = [{"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}]
        turn = self.played({"id": "r", "object": "response", "status": "completed", "output": output, "error": None})
        assert (turn.state, turn.answer, turn.finish_reason) == ("finished", "Olá", "stop")
        assert turn.result().message() == {"output": output}

    @pytest.mark.parametrize("status", ["failed", "cancelled"])
    def test_a_failed_one_is_an_error_of_the_provider(self, status: str) -> None:
        turn = self.played({"object": "response", "status": status, "output": [], "error": None})
        assert turn.error is not None
        assert (turn.error.kind, turn.error.type) == ("provider", status)

    @pytest.mark.parametrize(
        "document",
        [[], {}, {"object": "response"}, {"object": "response", "status": "in_progress", "output": []}, "x"],
    )
    def test_other_json_is_none(self, document: Any) -> None:
        turn = self.played(document)
        assert turn.error is not None
        assert turn.error.kind == "protocol"


def test_our_fixture() -> None:
    turn = fed((FIXTURES / "openai_responses.sse").read_bytes())
    assert (turn.state, turn.finish_reason, turn.anomalies.total) == ("finished", "stop", 0)
    assert [item["type"] for item in turn.result().message()["output"]] == ["reasoning", "message"]


# -- any valid stream, any cut, any damage ---------------------------------------------------------------------------


@st.composite
def responses(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a valid stream, and what they amount to."""
    documents: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r1", "model": "m", "status": "in_progress", "output": None}}
    ]

    def say(type: str, **fields: Any) -> None:
        documents.append({"type": f"response.{type}", **fields})

    answer, reasoning, refusal, calls, output = "", "", "", [], []
    kinds = draw(st.lists(st.sampled_from(["message", "reasoning", "function_call", "server"]), max_size=4))
    index = -1
    for kind in kinds:
        index += draw(st.integers(1, 3))
        said = draw(st.booleans())  # whether the .done events come
        head: dict[str, Any] = {"type": kind, "id": f"i{index}"}
        where: dict[str, Any] = {"output_index": index, "item_id": draw(st.sampled_from([f"i{index}", "x", None]))}
        if kind == "message":
            say("output_item.added", item=head | {"content": draw(st.sampled_from([[], None]))}, **where)
            content: list[dict[str, Any]] = []
            for part in range(draw(st.integers(1, 2))):
                at = where | {"content_index": part if part else draw(st.sampled_from([0, None]))}
                pieces = draw(texts)
                whole = "".join(pieces)
                refuses = draw(st.booleans())
                name, field = ("refusal", "refusal") if refuses else ("output_text", "text")
                body: dict[str, Any] = {"type": name, field: whole}
                if draw(st.booleans()):
                    say("content_part.added", part=body | {field: ""}, **at)
                for piece in pieces:
                    say(f"{name}.delta", delta=piece, **at)
                if said:
                    say(f"{name}.done", **{field: whole}, **at)
                    say("content_part.done", part=body, **at)
                if refuses:
                    refusal += whole
                else:
                    answer += whole
                    body["annotations"] = []
                content.append(body)
            item = head | {"role": "assistant", "content": content}
        elif kind == "reasoning":
            say("output_item.added", item=head | {"summary": [], "encrypted_content": "early"}, **where)
            whole = "".join(pieces := draw(texts))
            for piece in pieces:
                say("reasoning_summary_text.delta", summary_index=0, delta=piece, **where)
            reasoning += whole
            item = head | {"summary": [{"type": "summary_text", "text": whole}], "encrypted_content": "e"}
        elif kind == "function_call":
            arguments = json.dumps(draw(json_objects))
            at_byte = draw(st.integers(0, len(arguments)))
            item = head | {"call_id": f"k{index}", "name": "f", "arguments": arguments}
            say("output_item.added", item=item | {"arguments": ""}, **where)
            if draw(st.booleans()):
                for piece in (arguments[:at_byte], arguments[at_byte:]):
                    say("function_call_arguments.delta", delta=piece, **where)
            if said:
                say("function_call_arguments.done", arguments=arguments, **where)
            calls.append((f"k{index}", arguments))
        else:
            item = head | {"type": "web_search_call", "action": {"query": "水"}}
            say("output_item.added", item=head | {"type": "web_search_call"}, **where)
            say("web_search_call.searching", **where)
        say("output_item.done", item=item, **where)
        output.append(item)
    said_again = draw(st.sampled_from([None, [], output]))
    say("completed", response={"status": "completed", "output": said_again, "usage": USAGE, "error": None})
    for number, document in enumerate(documents):
        document["sequence_number"] = number
    finish = "tool_use" if calls else "refusal" if refusal else "stop"
    return documents, {
        "answer": answer,
        "reasoning": reasoning,
        "refusal": refusal,
        "calls": calls,
        "output": output,
        "finish_reason": finish,
    }


EXTRA: list[dict[str, Any]] = [
    {"type": "keepalive"},
    {"type": "response.new_event", "delta": "x", "output_index": 0},
    {"type": "response.in_progress", "response": {"status": "in_progress"}},
]


@given(st.data())
def test_any_valid_stream_gives_its_answer_under_any_cut(data: st.DataObject) -> None:
    documents, expect = data.draw(responses())
    named, spaced = data.draw(st.booleans()), data.draw(st.booleans())
    odd = data.draw(sprinkled(documents, EXTRA))
    stream = b"".join(event(one, "" if named else None, spaced) for one in odd)
    turn = Turn("openai_responses")
    given_deltas = [one for chunk in data.draw(cuts(stream)) for one in turn.feed(chunk)]
    assert turn.state == "finished"
    for channel in ("answer", "reasoning", "refusal", "finish_reason"):
        assert getattr(turn, channel) == expect[channel]
    assert [(one.id, one.arguments) for one in turn.tool_calls] == expect["calls"]
    assert all(one.complete for one in turn.tool_calls)
    assert turn.result().message() == {"output": expect["output"]}
    assert turn.anomalies.total == sum(one["type"] == "response.new_event" for one in odd)
    assert not any(isinstance(one, TextReplaced) for one in given_deltas)
    assert_deltas_are_the_turn(turn, given_deltas)


@given(st.data(), st.integers(0, 2**32))
def test_damage_never_raises_and_never_finishes_what_lost_its_end(data: st.DataObject, seed: int) -> None:
    documents, _ = data.draw(responses())
    stream = b"".join(map(event, documents))
    rnd = random.Random(seed)
    for chunks in ([damaged(stream, rnd, rnd.randint(1, 12))], data.draw(cuts(damaged(stream, rnd, 3)))):
        assert_same("openai_responses", chunks)
        turn = fed(*chunks)
        assert turn.state in ("finished", "error")
        assert isinstance(turn.parts, tuple)
        if turn.state == "finished":
            assert isinstance(turn.result().message()["output"], list)
    last = event(documents[-1])
    signal = last.index(b'"response"')  # behind it, damage is not to the signal
    broken = bytearray(last)
    broken[rnd.randrange(signal - 1)] ^= 1 << rnd.randrange(8)
    turn = fed(stream[: -len(last)], bytes(broken))
    assert turn.state == "error"
