"""Anthropic Messages: providers.md, sections 3, 4, 5, 6.4 and 10."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada import Opaque, ToolCallDelta, Turn
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
USAGE = {"input_tokens": 7, "output_tokens": 1}
OVERLOADED: Any = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}
SEARCH: Any = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "水"}}
SEARCH_RESULT: Any = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [
        {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "e", "page_age": None}
    ],
}
WEB_CITATION: Any = {
    "type": "web_search_result_location",
    "url": "https://a",
    "title": "A",
    "encrypted_index": "e",
    "cited_text": "Agua.",
}
WHOLE: Any = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "Hm", "signature": "s"},
        {"type": "text", "text": "Olá"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    ],
    "stop_reason": "tool_use",
    "usage": USAGE,
}
STOP = event({"type": "message_stop"})
PING = event({"type": "ping"})


def fed(*pieces: bytes, clean: bool | None = True, **options: Any) -> Turn:
    return fed_to("anthropic", *pieces, clean=clean, **options)


def start(id: str | None = "msg_1", **more: Any) -> bytes:
    message: dict[str, Any] = {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": USAGE,
    }
    return event({"type": "message_start", "message": message | more})


def begin(index: int | None, kind: str, **fields: Any) -> bytes:
    return event({"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}})


def delta(index: int | None, kind: str, **fields: Any) -> bytes:
    return event({"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}})


def end(index: int | None) -> bytes:
    return event({"type": "content_block_stop", "index": index})


def finish(reason: str | None = "end_turn", usage: Any = None, **more: Any) -> bytes:
    return event({"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": usage})


def say(text: str, index: int = 0) -> bytes:
    return begin(index, "text", text="") + delta(index, "text_delta", text=text) + end(index)


def call(index: int, *fragments: str, id: str = "t1", name: str = "f", input: Any = None) -> bytes:
    pieces = [delta(index, "input_json_delta", partial_json=fragment) for fragment in fragments]
    return begin(index, "tool_use", id=id, name=name, input=input or {}) + b"".join(pieces) + end(index)


def opaque(turn: Turn, name: str) -> list[Any]:
    return [part.data for part in turn.parts if part.name == name]


class TestEnd:
    """Section 3: message_stop alone confirms."""

    def test_message_stop_finishes(self) -> None:
        turn = fed(start(), say("Olá"), finish(), STOP, clean=None)
        assert turn.state == "finished"
        assert turn.result().answer == "Olá"
        assert (turn.id, turn.model, turn.finish_reason, turn.native_finish_reason) == (
            "msg_1",
            "m",
            "stop",
            "end_turn",
        )

    @pytest.mark.parametrize(
        "rest", [b"", finish(), finish() + STOP[:-1], finish() + STOP[:-2], end(0), b"data: [DONE]\n\n"]
    )
    def test_nothing_else_does(self, rest: bytes) -> None:
        turn = fed(start(), say("Hi"), rest)
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    def test_a_stop_reason_and_a_clean_end_do_where_the_caller_says_so(self) -> None:
        stream = start(), say("Hi"), finish()
        assert fed(*stream, terminal="finish_reason").state == "finished"
        assert fed(*stream, terminal="finish_reason", clean=False).state == "error"
        assert fed(start(), say("Hi"), terminal="finish_reason").state == "error"
        # a stop reason in message_start says nothing of what was to follow
        assert fed(start(stop_reason="end_turn"), say("Hi"), terminal="finish_reason").state == "error"

    def test_a_terminal_event_whose_name_and_type_differ_is_damaged(self) -> None:
        for damage in (
            event({"type": "message_stop"}, "message_stoq"),
            event({"type": "message_stoq"}, "message_stop"),
            event({}, "message_stop"),
            STOP.replace(b"event:", b"evemt:"),
        ):
            assert fed(start(), say("Hi"), finish(), damage).state == "error"

    def test_events_without_a_name_are_read_by_their_type(self) -> None:
        stream = start() + say("Hi") + finish() + STOP
        nameless = b"".join(line + b"\n" for line in stream.split(b"\n") if not line.startswith(b"event:"))
        turn = fed(nameless)
        assert (turn.state, turn.answer) == ("finished", "Hi")
        turn = Turn("anthropic")
        for document in (b'{"type":"message_start","message":{"id":"x"}}', b'{"type":"message_stop"}'):
            turn.feed_event(document)
        assert turn.state == "finished"

    def test_message_stop_without_a_message_is_no_answer(self) -> None:
        turn = fed(STOP)
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    def test_message_stop_without_a_stop_reason_is_counted(self) -> None:
        turn = fed(start(), say("Hi"), STOP)
        assert (turn.state, turn.finish_reason, turn.native_finish_reason) == ("finished", "other", None)
        assert turn.anomalies.counts == {"missing_stop_reason": 1}

    @pytest.mark.parametrize(
        ("native", "common"),
        [
            ("end_turn", "stop"),
            ("stop_sequence", "stop"),
            ("max_tokens", "length"),
            ("model_context_window_exceeded", "length"),
            ("tool_use", "tool_use"),
            ("pause_turn", "pause"),
            ("refusal", "refusal"),
            ("compaction", "pause"),
            ("new_in_2027", "other"),
        ],
    )
    def test_stop_reasons(self, native: str, common: str) -> None:
        turn = fed(start(), say("Hi"), finish(native), STOP)
        assert (turn.finish_reason, turn.native_finish_reason) == (common, native)

    def test_the_last_message_delta_counts_and_null_overwrites_nothing(self) -> None:
        turn = fed(start(), say("Hi"), finish("end_turn"), finish("max_tokens"), finish(None), STOP)
        assert turn.native_finish_reason == "max_tokens"

    def test_a_refusal_may_have_no_block(self) -> None:
        turn = fed(start(), finish("refusal", stop_details={"type": "refusal", "category": "bio"}), STOP)
        assert (turn.state, turn.answer, turn.finish_reason, turn.parts) == ("finished", "", "refusal", ())


class TestErrors:
    """Section 5."""

    @pytest.mark.parametrize("before", [b"", PING, start() + say("Hi"), start() + say("Hi") + finish()])
    @pytest.mark.parametrize(
        "error",
        [
            event(OVERLOADED),
            event(OVERLOADED, None),
            event({"error": OVERLOADED}, None),
            event({"error": OVERLOADED["error"]}, "error"),
            event({"type": "error", "error": {"error": OVERLOADED}}),
        ],
    )
    def test_an_error_at_any_time_in_any_nesting(self, before: bytes, error: bytes) -> None:
        turn = fed(before, error, STOP)
        assert turn.error is not None
        assert (turn.error.kind, turn.error.type, turn.error.message) == ("provider", "overloaded_error", "Overloaded")
        assert turn.error.retryable

    def test_an_error_that_is_no_json(self) -> None:
        turn = fed(start(), b"event: error\ndata: upstream died\n\n")
        assert turn.error is not None
        assert turn.error.message == "upstream died"

    def test_json_in_place_of_a_stream(self) -> None:
        turn = Turn("anthropic")
        turn.head(529, "application/json")
        turn.feed(json.dumps(OVERLOADED).encode())
        turn.eof(clean=True)
        assert turn.error is not None
        assert (turn.error.type, turn.error.retryable) == ("overloaded_error", True)


class TestKeepAlives:
    @pytest.mark.parametrize(
        "quiet",
        [PING, b": ping\n\n", event({"type": "vertex_event"}), event({"type": "new_event", "x": 1}), b"data: null\n\n"],
    )
    def test_they_open_nothing(self, quiet: bytes) -> None:
        assert fed(quiet, clean=None).state == "connecting"

    def test_unknown_events_are_counted_and_pings_are_not(self) -> None:
        turn = fed(PING, start(), PING, event({"type": "new_event"}), say("Hi"), PING, finish(), PING, STOP)
        assert (turn.state, turn.answer) == ("finished", "Hi")
        assert turn.anomalies.counts == {"unknown_event": 1}
        assert turn.anomalies.first[0].path == "new_event"

    def test_a_ping_between_two_texts_changes_nothing(self) -> None:
        pieces = [delta(0, "text_delta", text=text) for text in "abcdef"]
        turn = fed(start(), begin(0, "text"), PING.join(pieces), end(0), finish(), STOP)
        assert turn.answer == "abcdef"


class TestMessageStart:
    def test_a_repeated_one_is_ignored_and_counted(self) -> None:
        turn = fed(start(), start(), say("Hi"), start(), finish(), STOP)
        assert (turn.answer, turn.anomalies.counts) == ("Hi", {"repeated_message_start": 2})

    def test_another_id_is_a_second_message_spliced_in(self) -> None:
        for before in (b"", say("Hi"), begin(0, "text")):
            turn = fed(start("a"), before, start("b"), finish(), STOP)
            assert turn.error is not None
            assert turn.error.kind == "protocol"

    def test_a_second_message_without_ids_shows_by_its_blocks(self) -> None:
        turn = fed(start(None), say("Hi"), start(None), say("Hi"), finish(), STOP)
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    @pytest.mark.parametrize("first", [0, 1])
    def test_it_may_bring_tool_calls(self, first: int) -> None:
        whole = {"type": "tool_use", "id": "t0", "name": "g", "input": {"a": 1}, "caller": {"type": "direct"}}
        turn = fed(start(content=[whole]), say("Hi", first), call(first + 1, "{}"), finish("tool_use"), STOP)
        assert [(one.id, one.arguments, one.complete) for one in turn.tool_calls] == [
            ("t0", '{"a":1}', True),
            ("t1", "{}", True),
        ]
        assert turn.result().message()["content"] == [
            whole,
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
        ]

    def test_a_call_that_it_brought_is_not_made_twice(self) -> None:
        whole = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
        turn = fed(start(content=[whole], stop_reason="tool_use"), call(0, '{"a":1}'), STOP)
        assert [one.arguments for one in turn.tool_calls] == ['{"a":1}']
        assert turn.finish_reason == "tool_use"


class TestText:
    def test_several_blocks_are_one_answer(self) -> None:
        turn = fed(start(), say("One. ", 0), say(" Two.\n", 1), finish(), STOP)
        assert turn.answer == "One.  Two.\n"
        assert [(part.text, part.block) for part in turn.parts] == [("One. ", 0), (" Two.\n", 1)]

    def test_blocks_may_end_late_and_take_turns(self) -> None:
        turn = fed(
            start(),
            begin(0, "text", text=""),
            begin(1, "text", text=""),
            delta(1, "text_delta", text="b"),
            delta(0, "text_delta", text="a"),
            delta(1, "text_delta", text="b"),
            finish(),
            end(0),
            end(1),
            STOP,
        )
        assert (turn.state, turn.answer, turn.anomalies.total) == ("finished", "bab", 0)
        assert turn.result().message()["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "bb"}]

    def test_text_at_the_start_of_a_block_counts(self) -> None:
        turn = fed(start(), begin(0, "text", text="He"), delta(0, "text_delta", text="y"), end(0), finish(), STOP)
        assert turn.answer == "Hey"

    @pytest.mark.parametrize(
        "loss",
        [
            delta(0, "text_delta", text="x"),  # for a block that never began
            begin(1, "text", text=""),  # after a gap
            say("a") + say("b"),  # twice the same block
            begin(0, "text", text="") + delta(0, "text_delta", text=["x"]),
            begin(0, "text", text="") + event({"type": "content_block_delta", "index": 0, "delta": "x"}),
            begin(0, "text", text="") + delta("0", "text_delta", text="x"),  # type: ignore[arg-type]
            event({"type": "content_block_start", "index": 0, "content_block": None}),
            event({"delta": {"type": "text_delta", "text": "x"}, "index": 0}, None),
            event({"type": "content_block_deltq", "index": 0, "delta": {"text": "x"}}, "content_block_delta"),
            event({"type": ["content_block_delta"], "index": 0}, None),
            event({"type": "message_delta", "delta": {"stop_reason": 1}}),
            event({"type": "message_start", "message": {"id": "msg_1", "content": "x"}}),
            begin(0, "tool_use", id="t", name=None),
            begin(0, "tool_use", id="t", name="f", input=[1]),
            call(0, "{}") + delta(0, "input_json_delta", partial_json="}"),
            b'event: content_block_delta\ndata: {"type":"content_block_delta","ind\n\n',
        ],
    )
    def test_what_may_have_lost_text_or_arguments_breaks_the_protocol(self, loss: bytes) -> None:
        first = b"" if b"message_start" in loss else start()
        turn = fed(first, loss, finish(), STOP)
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    @pytest.mark.parametrize(
        ("odd", "name"),
        [
            (begin(None, "text") + delta(None, "text_delta", text="Hi") + end(None), "missing_index"),
            (
                begin(0, "text") + event({"type": "content_block_delta", "index": 0, "delta": {"text": "Hi"}}) + end(0),
                "",
            ),
            (begin(0, "text") + begin(0, "text") + delta(0, "text_delta", text="Hi") + end(0), "repeated_block_start"),
            (say("Hi") + end(0), "repeated_block_stop"),
            (say("Hi")[: -len(end(0))], "block_left_open"),
            (begin(0, "text") + end(0) + delta(0, "text_delta", text="Hi"), "delta_after_stop"),
            (say("Hi") + delta(0, "new_delta", x=1), "unknown_delta"),
            (say("Hi") + begin(1, "new_block", x=1) + end(1), "unknown_block"),
            (say("Hi") + b"data: [DONE]\n\n", "done_sentinel"),
            (
                event({"index": 0, "content_block": {"type": "text", "text": "Hi"}}, "content_block_start"),
                "missing_type",
            ),
            (event({"type": "message_delta", "usage": 3}) + say("Hi"), "usage_no_object"),
        ],
    )
    def test_what_is_only_odd_is_counted(self, odd: bytes, name: str) -> None:
        turn = fed(start(), odd, finish(), STOP)
        assert (turn.state, turn.answer) == ("finished", "Hi")
        assert (name or "missing_delta_type") in turn.anomalies.counts

    def test_most_deltas_are_read_by_a_stencil_also_where_blanks_pad_them(self) -> None:
        turn = Turn("anthropic")
        turn.feed(start() + begin(0, "text", text=""))
        for number in range(40):
            event = delta(0, "text_delta", text=f"{number} ").replace(b"}}", b"}" + b" " * (number % 7) + b"}")
            turn.feed(event)
        assert turn._stencils
        assert turn._stencil_tries == _STENCIL_TRIES
        assert turn.answer == "".join(f"{number} " for number in range(40))


class TestReasoning:
    def test_its_signature_is_opaque_and_goes_back_with_it(self) -> None:
        turn = fed(
            start(),
            begin(0, "thinking", thinking="", signature=""),
            delta(0, "thinking_delta", thinking="Hm"),
            delta(0, "signature_delta", signature="c2ln"),
            end(0),
            say("Ok", 1),
            finish(),
            STOP,
        )
        assert (turn.reasoning, turn.answer, opaque(turn, "signature")) == ("Hm", "Ok", ["c2ln"])
        part = next(part for part in turn.parts if part.name == "signature")
        assert (part.provider, part.model, part.block) == ("anthropic", "m", 0)
        assert turn.result().message() == {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "c2ln"},
                {"type": "text", "text": "Ok"},
            ],
        }

    def test_omitted_thinking_is_its_signature_alone(self) -> None:
        turn = fed(start(), begin(0, "thinking", thinking="", signature="c2ln"), end(0), say("Ok", 1), finish(), STOP)
        assert (turn.reasoning, opaque(turn, "signature")) == ("", ["c2ln"])
        assert turn.result().message()["content"][0] == {"type": "thinking", "thinking": "", "signature": "c2ln"}

    def test_a_signature_may_come_after_its_block(self) -> None:
        turn = fed(
            start(),
            begin(0, "thinking", thinking="Hm"),
            end(0),
            delta(0, "signature_delta", signature="s"),
            finish(),
            STOP,
        )
        assert opaque(turn, "signature") == ["s"]

    def test_redacted_thinking_is_kept_and_shown_to_nobody(self) -> None:
        turn = fed(start(), begin(0, "redacted_thinking", data="b3Bh"), end(0), say("Ok", 1), finish(), STOP)
        assert (turn.reasoning, turn.answer, opaque(turn, "redacted")) == ("", "Ok", ["b3Bh"])
        assert turn.result().message()["content"][0] == {"type": "redacted_thinking", "data": "b3Bh"}

    def test_thinking_without_a_signature_does_not_go_back(self) -> None:
        turn = fed(start(), begin(0, "thinking", thinking="Hm"), end(0), say("Ok", 1), finish(), STOP)
        assert turn.reasoning == "Hm"
        assert turn.result().message()["content"] == [{"type": "text", "text": "Ok"}]


class TestCalls:
    def test_fragments_are_joined_and_closed_by_their_block(self) -> None:
        pieces = start(), call(0, "", '{"a"', ":1}"), call(1, "[1", "]", id="t2"), finish("tool_use"), STOP
        turn = fed(*pieces)
        assert [(one.id, one.name, one.arguments, one.complete) for one in turn.tool_calls] == [
            ("t1", "f", '{"a":1}', True),
            ("t2", "f", "[1]", True),
        ]
        given = [one for one in deltas_of("anthropic", *pieces) if isinstance(one, ToolCallDelta) and one.index == 0]
        assert [(one.id, one.arguments, one.complete) for one in given] == [
            ("t1", "", False),
            (None, '{"a"', False),
            (None, ":1}", False),
            (None, "", True),
        ]

    def test_no_fragment_is_an_empty_object_once_the_stop_reason_says_that_nothing_was_cut(self) -> None:
        stream = start() + call(0, "")
        assert fed(stream, clean=None).tool_calls[0].complete is False
        for reason in ("tool_use", "end_turn"):
            turn = fed(stream, finish(reason), STOP)
            assert (turn.tool_calls[0].arguments, turn.tool_calls[0].complete) == ("{}", True)
        turn = fed(stream, finish("max_tokens"), STOP)
        assert (turn.tool_calls[0].arguments, turn.tool_calls[0].complete) == ("", False)

    def test_arguments_that_length_cut_off_are_not_complete(self) -> None:
        turn = fed(start(), call(0, '{"a":'), finish("max_tokens"), STOP)
        assert (turn.state, turn.tool_calls[0].arguments, turn.tool_calls[0].complete) == ("finished", '{"a":', False)

    def test_a_block_left_open_with_half_its_arguments_is_not_complete(self) -> None:
        stream = call(0, '{"a":')[: -len(end(0))]
        turn = fed(start(), stream, finish("tool_use"), STOP)
        assert turn.tool_calls[0].complete is False

    @pytest.mark.parametrize("given", [{"a": 1}, '{"a":1}'])
    def test_input_may_be_filled_at_the_start(self, given: Any) -> None:
        turn = fed(start(), call(0, "", input=given), finish("tool_use"), STOP)
        assert turn.tool_calls[0].arguments == '{"a":1}'

    def test_input_at_the_start_is_not_added_to_fragments(self) -> None:
        turn = fed(start(), call(0, '{"a": 1}', input={"a": 1}), finish("tool_use"), STOP)
        assert turn.tool_calls[0].arguments == '{"a": 1}'

    def test_a_call_without_id_gets_one(self) -> None:
        turn = fed(start(), call(0, "{}", id=""), finish("tool_use"), STOP)
        assert turn.tool_calls[0].id
        assert turn.tool_calls[0].id_is_ours


class TestServerSide:
    """Blocks that are kept whole: for the next request, not for the person."""

    def searched(self) -> bytes:
        return (
            start()
            + event({"type": "content_block_start", "index": 0, "content_block": SEARCH | {"input": {}}})
            + delta(0, "input_json_delta", partial_json="")
            + delta(0, "input_json_delta", partial_json='{"query": "')
            + delta(0, "input_json_delta", partial_json='水"}')
            + end(0)
            + event({"type": "content_block_start", "index": 1, "content_block": SEARCH_RESULT})
            + end(1)
        )

    def test_a_search_and_its_results(self) -> None:
        turn = fed(self.searched(), say("So.", 2), finish(), STOP)
        assert (turn.answer, turn.tool_calls) == ("So.", ())
        assert [(part.type, part.name, part.data) for part in turn.parts[:2]] == [
            ("opaque", "server_tool_use", SEARCH),
            ("opaque", "web_search_tool_result", SEARCH_RESULT),
        ]
        assert [(one.id, one.title, one.url, one.block) for one in turn.references] == [
            ("https://a", "A", "https://a", 1)
        ]
        content = turn.result().message()["content"]
        assert content == [SEARCH, SEARCH_RESULT, {"type": "text", "text": "So."}]

    def test_each_is_handed_out_at_its_end(self) -> None:
        given = [one for one in deltas_of("anthropic", self.searched()) if isinstance(one, Opaque)]
        assert [(one.name, one.data) for one in given] == [
            ("server_tool_use", SEARCH),
            ("web_search_tool_result", SEARCH_RESULT),
        ]

    def test_a_search_that_failed_has_no_references(self) -> None:
        failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
        turn = fed(start(), begin(0, "web_search_tool_result", content=failed), end(0), finish("pause_turn"), STOP)
        assert (turn.references, turn.finish_reason) == ((), "pause")

    @pytest.mark.parametrize(
        "kind",
        [
            "web_fetch_tool_result",
            "code_execution_tool_result",
            "bash_code_execution_tool_result",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "mcp_tool_use",
            "mcp_tool_result",
            "container_upload",
            "advisor_tool_result",
        ],
    )
    def test_the_others(self, kind: str) -> None:
        turn = fed(start(), begin(0, kind, content=[1]), end(0), say("Ok", 1), finish(), STOP)
        assert turn.result().message()["content"][0] == {"type": kind, "content": [1]}
        assert turn.anomalies.total == 0

    def test_a_fallback_changes_the_model(self) -> None:
        block = {"from": {"model": "m"}, "to": {"model": "n"}}
        turn = fed(start(), begin(0, "fallback", **block), end(0), say("Ok", 1), finish(), STOP)
        assert turn.model == "n"
        assert turn.parts[-1].model == "n"
        assert turn.result().message()["content"][0] == {"type": "fallback", **block}

    def test_a_compaction_goes_back_with_all_it_has(self) -> None:
        turn = fed(
            start(),
            begin(0, "compaction", content=None, signature="s"),
            delta(0, "compaction_delta", content="Sum", encrypted_content=None),
            delta(0, "compaction_delta", content="mary", encrypted_content="e"),
            end(0),
            say("Ok", 1),
            finish(),
            STOP,
        )
        assert opaque(turn, "compaction") == ["Summary"]
        block = {"type": "compaction", "content": "Summary", "signature": "s", "encrypted_content": "e"}
        assert turn.result().message()["content"][0] == block

    def test_what_a_call_needs_besides_is_kept(self) -> None:
        caller = {"type": "code_execution_20260120", "tool_id": "s1"}
        stream = begin(0, "tool_use", id="t", name="f", input={}, caller=caller) + end(0)
        turn = fed(start(), stream, finish("tool_use"), STOP)
        assert turn.result().message()["content"][0]["caller"] == caller

    def test_a_container_is_kept_beside_the_message(self) -> None:
        container = {"id": "c1", "expires_at": "2026-12-01T00:00:00Z"}
        turn = fed(start(), say("Ok"), finish("end_turn", container=container), STOP)
        assert opaque(turn, "container") == [container]
        assert turn.result().message()["content"] == [{"type": "text", "text": "Ok"}]


class TestCitations:
    def test_they_cite_the_source_and_their_span_is_the_block(self) -> None:
        turn = fed(
            start(),
            say("See: ", 0),
            begin(1, "text", text="", citations=[]),
            delta(1, "text_delta", text="Água."),
            delta(1, "citations_delta", citation=WEB_CITATION),
            end(1),
            finish(),
            STOP,
        )
        [citation] = turn.citations
        assert (citation.start, citation.end, citation.unit, citation.block) == (None, None, None, 1)
        assert (citation.url, citation.title, citation.cited_text) == ("https://a", "A", "Agua.")
        assert (citation.references, citation.raw) == (("https://a",), WEB_CITATION)
        assert turn.result().message()["content"][1] == {"type": "text", "text": "Água.", "citations": [WEB_CITATION]}

    def test_of_documents_and_search_results(self) -> None:
        page = {"type": "page_location", "document_title": "D", "cited_text": "x", "start_page_number": 1}
        found = {"type": "search_result_location", "source": "https://s", "title": "S", "cited_text": "y"}
        turn = fed(start(), begin(0, "text", text="a", citations=[page, found]), end(0), finish(), STOP)
        assert [(one.url, one.title, one.references) for one in turn.citations] == [
            (None, "D", ()),
            ("https://s", "S", ()),
        ]


class TestUsage:
    def test_all_input_is_input(self) -> None:
        usage = {
            "input_tokens": 9,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 20,
            "output_tokens": 1,
        }
        later = {"output_tokens": 16, "output_tokens_details": {"thinking_tokens": 5}, "input_tokens": None}
        turn = fed(start(usage=usage), say("x"), finish("end_turn", later), STOP)
        assert turn.usage is not None
        assert turn.usage.input_tokens == 129
        assert (turn.usage.cache_read_tokens, turn.usage.cache_write_tokens) == (100, 20)
        assert (turn.usage.output_tokens, turn.usage.reasoning_tokens, turn.usage.total_tokens) == (16, 5, None)
        assert turn.usage.raw == usage | {"output_tokens": 16, "output_tokens_details": {"thinking_tokens": 5}}

    def test_message_delta_overwrites_and_nothing_is_summed(self) -> None:
        stream = start(), say("x"), finish(None, {"output_tokens": 5}), finish("end_turn", {"output_tokens": 8})
        turn = fed(*stream, STOP)
        assert turn.usage is not None
        assert (turn.usage.input_tokens, turn.usage.output_tokens) == (7, 8)


class TestWholeAnswer:
    def played(self, document: Any, status: int = 200) -> Turn:
        turn = Turn("anthropic")
        turn.head(status, "application/json")
        turn.feed(json.dumps(document).encode())
        turn.eof(clean=True)
        return turn

    def test_it_is_read_as_one(self) -> None:
        turn = self.played(WHOLE)
        assert (turn.state, turn.reasoning, turn.answer, turn.finish_reason) == ("finished", "Hm", "Olá", "tool_use")
        assert (turn.tool_calls[0].arguments, turn.tool_calls[0].complete) == ("{}", True)
        assert turn.result().message() == {"role": "assistant", "content": WHOLE["content"]}

    @pytest.mark.parametrize("document", [[], {}, {"type": "message"}, {"content": []}, 7, {"type": "completion"}])
    def test_other_json_is_none(self, document: Any) -> None:
        turn = self.played(document)
        assert turn.error is not None
        assert turn.error.kind == "protocol"


@pytest.mark.parametrize("name", ["anthropic.sse", "anthropic-tools.sse", "anthropic-error.sse"])
def test_our_fixtures(name: str) -> None:
    turn = fed((FIXTURES / name).read_bytes())
    assert turn.anomalies.total == 0
    assert (turn.state, turn.finish_reason) == {
        "anthropic.sse": ("finished", "stop"),
        "anthropic-tools.sse": ("finished", "tool_use"),
        "anthropic-error.sse": ("error", None),
    }[name]


# -- any valid stream, any cut, any damage ---------------------------------------------------------------------------


@st.composite
def messages(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a valid stream, and what they amount to."""
    documents: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "model": "m", "content": None, "usage": USAGE}}
    ]
    answer, reasoning, calls, content = "", "", [], []
    kinds = draw(st.lists(st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "server"]), max_size=5))
    for index, kind in enumerate(kinds):
        pieces = draw(texts)
        whole = "".join(pieces)
        given: list[dict[str, Any]] = []
        if kind == "text":
            body: dict[str, Any] = {"type": "text", "text": draw(st.sampled_from(["", None]))}
            given = [{"type": "text_delta", "text": piece} for piece in pieces]
            answer += whole
            content.append({"type": "text", "text": whole})
        elif kind == "thinking":
            body = {"type": "thinking", "thinking": ""}
            given = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            given.append({"type": "signature_delta", "signature": "c2ln"})
            reasoning += whole
            content.append({"type": "thinking", "thinking": whole, "signature": "c2ln"})
        elif kind == "redacted_thinking":
            body = {"type": "redacted_thinking", "data": "x"}
            content.append(body)
        else:
            value = draw(json_objects)
            words = json.dumps(value) if value else ""
            at = draw(st.integers(0, len(words)))
            given = [{"type": "input_json_delta", "partial_json": part} for part in ("", words[:at], words[at:])]
            body = {"type": "tool_use", "id": f"t{index}", "name": "f", "input": draw(st.sampled_from([{}, None]))}
            if kind == "server":
                body["type"] = "mcp_tool_use"
                content.append(body | {"input": value or body["input"]})
            else:
                calls.append((f"t{index}", words or "{}"))
                content.append(body | {"input": value})
        documents.append({"type": "content_block_start", "index": index, "content_block": body})
        documents += [{"type": "content_block_delta", "index": index, "delta": one} for one in given]
        documents.append({"type": "content_block_stop", "index": index})
    native, common = draw(st.sampled_from([("end_turn", "stop"), ("tool_use", "tool_use"), ("pause_turn", "pause")]))
    closing = {"stop_reason": native, "stop_sequence": None}
    documents.append({"type": "message_delta", "delta": closing, "usage": {"output_tokens": 9, "input_tokens": None}})
    documents.append({"type": "message_stop"})
    expect = {"answer": answer, "reasoning": reasoning, "calls": calls, "content": content, "finish_reason": common}
    return documents, expect


EXTRA: list[dict[str, Any]] = [
    {"type": "ping"},
    {"type": "vertex_event"},
    {"type": "new_event", "delta": {"text": "x"}},
]


@given(st.data())
def test_any_valid_stream_gives_its_answer_under_any_cut(data: st.DataObject) -> None:
    documents, expect = data.draw(messages())
    named, spaced = data.draw(st.booleans()), data.draw(st.booleans())
    odd = data.draw(sprinkled(documents, EXTRA))
    stream = b"".join(event(one, "" if named else None, spaced) for one in odd)
    turn = Turn("anthropic")
    given_deltas = [one for chunk in data.draw(cuts(stream)) for one in turn.feed(chunk)]
    assert turn.state == "finished"
    assert (turn.answer, turn.reasoning, turn.finish_reason) == (
        expect["answer"],
        expect["reasoning"],
        expect["finish_reason"],
    )
    assert [(one.id, one.arguments) for one in turn.tool_calls] == expect["calls"]
    assert all(one.complete for one in turn.tool_calls)
    assert turn.result().message() == {"role": "assistant", "content": expect["content"]}
    assert turn.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (7, 9)
    assert turn.anomalies.total == sum(one["type"] == "new_event" for one in odd)
    assert_deltas_are_the_turn(turn, given_deltas)


@given(st.data(), st.integers(0, 2**32))
def test_damage_never_raises_and_never_finishes_what_lost_its_end(data: st.DataObject, seed: int) -> None:
    documents, _ = data.draw(messages())
    stream = b"".join(map(event, documents))
    rnd = random.Random(seed)
    for chunks in ([damaged(stream, rnd, rnd.randint(1, 12))], data.draw(cuts(damaged(stream, rnd, 3)))):
        assert_same("anthropic", chunks)
        turn = fed(*chunks)
        assert turn.state in ("finished", "error")
        assert isinstance(turn.parts, tuple)
        if turn.state == "finished":
            assert isinstance(turn.result().message()["content"], list)
    body, last = stream[: -len(STOP)], bytearray(STOP)
    last[rnd.randrange(len(last) - 1)] ^= 1 << rnd.randrange(8)
    turn = fed(body, bytes(last))
    if json_of(bytes(last)) != {"type": "message_stop"}:
        assert turn.state == "error"


def json_of(block: bytes) -> Any:
    """What a block's data says to a lenient reader, None where its frame or its name was damaged."""
    lines = block.split(b"\n")
    if lines[0] != b"event: message_stop" or len(lines) != 4 or not lines[1].startswith(b"data: "):
        return None
    try:
        return json.loads(lines[1][6:])
    except ValueError:
        return None
