"""Gemini streamGenerateContent: providers.md 3, 4, 5, 6.5 and 10, bytes in, values out."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any, ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada import Citation, Finish, Opaque, Reference, TextDelta, ToolCallDelta, Turn, Usage
from levada.dialects.gemini.decode import usage_of
from tests.dialects.google import (
    FRAMINGS,
    array,
    assert_cuts_change_nothing,
    assert_never_whole_when_cut_off,
    deltas_of,
    fed,
    framed,
    opaque,
    play,
    sse,
)
from tests.turn.test_stencils import assert_same

ERROR: Final = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}


def chunk(*parts: Any, finish: Any = None, index: int | None = None, **beside: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}}
    if index is not None:
        candidate["index"] = index
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [{**candidate, **beside}], "modelVersion": "gemini-3", "responseId": "r1"}


def text(words: str, **keys: Any) -> dict[str, Any]:
    return {"text": words, **keys}


def call(**keys: Any) -> dict[str, Any]:
    return {"functionCall": keys}


def piece(path: str, **value: Any) -> dict[str, Any]:
    return call(partialArgs=[{"jsonPath": path, **value}], willContinue=True)


STOP = chunk(finish="STOP")


def calls(turn: Turn) -> list[tuple[str, str, bool]]:
    return [(one.name, one.arguments, one.complete) for one in turn.tool_calls]


@pytest.mark.parametrize("framing", FRAMINGS)
class TestTheTerminalSignal:
    """providers.md 3: a finishReason on every candidate and a clean end, and the closing bracket of an array."""

    def test_a_finish_reason_and_a_clean_end_finish(self, framing: str) -> None:
        turn = fed("gemini", chunk(text("Olá")), chunk(text("!"), finish="STOP"), framing=framing)
        assert turn.state == "finished"
        assert (turn.answer, turn.finish_reason, turn.native_finish_reason) == ("Olá!", "stop", "STOP")
        assert (turn.model, turn.id) == ("gemini-3", "r1")
        assert turn.anomalies.total == 0

    def test_a_finish_reason_alone_does_not(self, framing: str) -> None:
        assert fed("gemini", chunk(text("a"), finish="STOP"), framing=framing, clean=None).state == "streaming"

    def test_a_finish_reason_and_a_reset_do_not(self, framing: str) -> None:
        turn = fed("gemini", chunk(text("a"), finish="STOP"), framing=framing, clean=False)
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    def test_a_clean_end_without_a_finish_reason_does_not(self, framing: str) -> None:
        turn = fed("gemini", chunk(text("a")), framing=framing)
        assert turn.error is not None
        assert turn.error.kind == "truncated"
        assert "finishReason" in turn.error.message

    def test_nothing_at_all_does_not(self, framing: str) -> None:
        turn = fed("gemini", framing=framing)
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    def test_every_candidate_needs_one(self, framing: str) -> None:
        chunks = [chunk(text("a"), index=0), chunk(text("b"), index=1)]
        assert fed("gemini", *chunks, chunk(index=0, finish="STOP"), framing=framing).state == "error"
        both = [chunk(index=0, finish="STOP"), chunk(index=1, finish="MAX_TOKENS")]
        turn = fed("gemini", *chunks, *both, framing=framing)
        assert turn.state == "finished"
        assert [(one.answer, one.finish_reason) for one in turn.choices] == [("a", "stop"), ("b", "length")]

    def test_stop_on_every_chunk_is_held_to_the_end(self, framing: str) -> None:
        many = [chunk(text(""), finish="STOP"), chunk(text("a"), finish="STOP"), chunk(text("b"), finish="STOP")]
        turn = fed("gemini", *many, framing=framing)
        assert (turn.state, turn.answer, turn.finish_reason) == ("finished", "ab", "stop")

    def test_content_after_a_finish_reason_needs_another(self, framing: str) -> None:
        # seen behind a translator: empty chunks with STOP before the text, and two after it (kelivo issue 1003)
        before = [chunk(finish="STOP"), chunk(finish="STOP"), chunk(text("Hel"))]
        assert fed("gemini", *before, framing=framing).state == "error"
        assert fed("gemini", *before, chunk(text("lo"), finish="STOP"), framing=framing).answer == "Hello"
        assert fed("gemini", *before, chunk(text("lo")), STOP, framing=framing).state == "finished"
        assert fed("gemini", *before, STOP, chunk(call(name="f")), framing=framing).state == "error"

    def test_the_last_finish_reason_counts(self, framing: str) -> None:
        turn = fed("gemini", chunk(text("a"), finish="STOP"), chunk(text("b"), finish="MAX_TOKENS"), framing=framing)
        assert (turn.answer, turn.finish_reason) == ("ab", "length")

    def test_what_is_no_content_may_follow(self, framing: str) -> None:
        late = [
            {"usageMetadata": {"totalTokenCount": 3}},
            chunk(text("")),
            chunk(groundingMetadata={"webSearchQueries": ["q"]}),
        ]
        assert fed("gemini", chunk(text("a"), finish="STOP"), *late, framing=framing).state == "finished"

    def test_a_blocked_prompt_is_content_filter(self, framing: str) -> None:
        blocked = {"promptFeedback": {"blockReason": "OTHER", "blockReasonMessage": "no"}, "modelVersion": "m"}
        turn = fed("gemini", blocked, framing=framing)
        assert (turn.state, turn.answer) == ("finished", "")
        assert (turn.finish_reason, turn.native_finish_reason) == ("content_filter", "OTHER")
        assert fed("gemini", blocked, framing=framing, clean=False).state == "error"

    def test_a_blocked_prompt_stays_blocked(self, framing: str) -> None:
        blocked = {"promptFeedback": {"blockReason": "SAFETY"}}
        assert (
            fed("gemini", blocked, chunk(text("a"), finish="STOP"), framing=framing).finish_reason == "content_filter"
        )

    @pytest.mark.parametrize(
        "feedback", [{}, {"safetyRatings": []}, {"blockReason": "BLOCK_REASON_UNSPECIFIED"}, {"blockReason": 0}]
    )
    def test_feedback_without_a_reason_blocks_nothing(self, framing: str, feedback: dict[str, Any]) -> None:
        assert fed("gemini", {"promptFeedback": feedback}, framing=framing).state == "error"
        assert fed("gemini", {"promptFeedback": feedback}, STOP, framing=framing).finish_reason == "stop"


class TestFramings:
    """providers.md 2."""

    def test_an_array_needs_its_bracket(self) -> None:
        turn, _ = play("gemini", array(chunk(text("a"), finish="STOP"), closed=False))
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    def test_the_first_byte_tells_the_framing(self) -> None:
        assert play("gemini", array(chunk(text("a"), finish="STOP")))[0].state == "finished"
        assert play("gemini", sse(chunk(text("a"), finish="STOP")))[0].state == "finished"

    def test_one_bare_object_is_a_whole_answer(self) -> None:
        turn, _ = play("gemini", json.dumps(chunk(text("a"), finish="STOP")).encode())
        assert (turn.state, turn.answer) == ("finished", "a")

    def test_bytes_after_the_array_break_the_protocol(self) -> None:
        turn, _ = play("gemini", array(chunk(text("a"), finish="STOP")) + b"x")
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    def test_a_last_event_without_its_blank_line_is_taken(self) -> None:
        for end in (b"", b"\n", b"\r\n", b"\r"):
            turn, _ = play("gemini", sse(chunk(text("a"))) + b"data: " + json.dumps(STOP).encode() + end)
            assert turn.state == "finished"

    def test_a_last_event_that_was_cut_off_confirms_nothing(self) -> None:
        done = sse(chunk(text("a"), finish="STOP"))
        for rest in (b'data: {"error": {"code": 5', b'{\n  "error": {\n', b'{\n  "error": {\n    "co', b"dat", b"data"):
            turn, _ = play("gemini", done + rest)
            assert turn.error is not None
            assert turn.error.kind == "truncated", rest
        assert play("gemini", done + b": bye")[0].state == "finished"

    def test_a_done_sentinel_is_counted_and_confirms_nothing(self) -> None:
        turn, _ = play("gemini", sse(chunk(text("a")), b"[DONE]"))
        assert turn.state == "error"
        turn, _ = play("gemini", sse(chunk(text("a"), finish="STOP"), b"[DONE]"))
        assert (turn.state, turn.anomalies.counts) == ("finished", {"done_sentinel": 1})

    def test_a_byte_order_mark_cr_and_crlf(self) -> None:
        stream = sse(chunk(text("água 水 😀")), STOP)
        for lines in (stream, stream.replace(b"\r\n", b"\n"), stream.replace(b"\r\n", b"\r"), b"\xef\xbb\xbf" + stream):
            assert play("gemini", lines)[0].answer == "água 水 😀"
            assert_cuts_change_nothing("gemini", lines)

    def test_separators_of_lines_inside_json_stay_in_the_text(self) -> None:
        odd = "a\u2028b\u0085c\x7f"
        assert play("gemini", sse(chunk(text(odd), finish="STOP")))[0].answer == odd


class TestFinishReasons:
    """providers.md 4."""

    @pytest.mark.parametrize(
        ("native", "ours"),
        [
            ("STOP", "stop"),
            ("MAX_TOKENS", "length"),
            ("SAFETY", "content_filter"),
            ("RECITATION", "content_filter"),
            ("IMAGE_RECITATION", "content_filter"),
            ("MODEL_ARMOR", "content_filter"),
            ("ESCALATION", "content_filter"),
            ("CONTINUATION", "pause"),
            ("OTHER", "other"),
            ("IMAGE_OTHER", "other"),
            ("FINISH_REASON_UNSPECIFIED", "other"),
            ("TOMORROW", "other"),
            (1, "stop"),
            (2, "length"),
            (3, "content_filter"),
            (6, "content_filter"),
            (99, "other"),
            ("1", "stop"),
        ],
    )
    def test_a_native_word_and_ours(self, native: str | int, ours: str) -> None:
        turn = fed("gemini", chunk(text("a"), finish=native))
        assert (turn.state, turn.finish_reason, turn.native_finish_reason) == ("finished", ours, str(native))

    @pytest.mark.parametrize("native", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "NO_IMAGE", "LANGUAGE", 9])
    def test_a_finish_that_is_an_error(self, native: str | int) -> None:
        turn = fed("gemini", chunk(text("a"), finish=native))
        assert turn.error is not None
        assert (turn.error.kind, turn.error.type) == ("provider", str(native))

    def test_stop_after_a_call_in_any_chunk_is_tool_use(self) -> None:
        turn = fed("gemini", chunk(call(name="f", args={})), chunk(text("done")), STOP)
        assert (turn.finish_reason, turn.native_finish_reason) == ("tool_use", "STOP")

    def test_none_empty_and_zero_are_no_finish(self) -> None:
        for finish in ("", 0):
            assert fed("gemini", chunk(text("a"), finish=finish)).state == "error"
        assert (
            fed("gemini", {"candidates": [{"finishReason": None, "content": {"parts": [text("a")]}}]}).state == "error"
        )

    def test_a_safety_cut_has_no_content(self) -> None:
        turn = fed("gemini", chunk(text("a")), {"candidates": [{"finishReason": "SAFETY", "safetyRatings": []}]})
        assert (turn.state, turn.finish_reason, turn.answer) == ("finished", "content_filter", "a")


class TestErrors:
    """providers.md 5."""

    @pytest.mark.parametrize("clean", [True, False])
    def test_an_error_chunk(self, clean: bool) -> None:
        for stream in (
            sse(chunk(text("a")), ERROR),
            sse(chunk(text("a"), finish="STOP"), ERROR),
            sse(chunk(text("a"), finish="STOP"), [ERROR]),
            sse(chunk(text("a"), finish="STOP")) + b"event: error\n" + sse(ERROR),
            array(chunk(text("a"), finish="STOP"), ERROR),
            array(ERROR),
            json.dumps(ERROR).encode(),
        ):
            turn, _ = play("gemini", stream, clean=clean)
            assert turn.error is not None
            assert (turn.error.kind, turn.error.type, turn.error.message, turn.error.retryable) == (
                "provider",
                "UNAVAILABLE",
                "overloaded",
                True,
            )

    @pytest.mark.parametrize("indent", [None, 2])
    @pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n"])
    def test_a_bare_error_after_stop(self, indent: int | None, end: str) -> None:
        bare = json.dumps(ERROR, indent=indent) + end
        stream = sse(chunk(text("a"), finish="STOP")) + bare.encode()
        turn, _ = play("gemini", stream)
        assert turn.error is not None
        assert (turn.error.kind, turn.error.type) == ("provider", "UNAVAILABLE")
        assert turn.answer == "a"
        assert_cuts_change_nothing("gemini", stream)

    def test_a_json_error_body_and_a_page(self) -> None:
        turn = Turn("gemini")
        turn.head(404, "application/json; charset=UTF-8")
        turn.feed(json.dumps({"error": {"code": 404, "message": "no model", "status": "NOT_FOUND"}}).encode())
        turn.eof(clean=True)
        assert turn.error is not None
        assert (turn.error.kind, turn.error.type, turn.error.message) == ("provider", "NOT_FOUND", "no model")
        turn = Turn("gemini")
        turn.head(200, "text/html")
        turn.feed(b"<html>")
        turn.eof(clean=True)
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    def test_an_empty_body_and_only_comments(self) -> None:
        for body in (b"", b"\r\n", b": hi\n\n: ho\n"):
            turn, _ = play("gemini", body)
            assert turn.error is not None
            assert turn.error.kind == "truncated"


class TestParts:
    """providers.md 6.5: parts."""

    def test_thoughts_are_reasoning(self) -> None:
        turn = fed("gemini", chunk(text("Hm. ", thought=True), text("Sim."), finish="STOP"))
        assert (turn.reasoning, turn.answer) == ("Hm. ", "Sim.")
        assert [(part.type, part.text, part.kind) for part in turn.parts] == [
            ("reasoning", "Hm. ", "summary"),
            ("text", "Sim.", None),
        ]

    def test_content_or_parts_may_be_missing_or_empty(self) -> None:
        odd = [{"candidates": [{}]}, {"candidates": [{"content": {}}]}, {"candidates": []}, {"candidates": None}, {}]
        odd += [chunk(), {"candidates": [{"content": {"parts": None, "role": "model"}, "index": None}]}, chunk({})]
        assert fed("gemini", *odd, chunk(text("Later"), finish="STOP")).answer == "Later"

    def test_nothing_is_trimmed(self) -> None:
        assert (
            fed("gemini", chunk(text("\n")), chunk(text("  a ")), chunk(text("\n"), finish="STOP")).answer == "\n  a \n"
        )

    def test_a_part_goes_on_over_chunks(self) -> None:
        turn = fed("gemini", chunk(text("a")), chunk(text("b")), chunk(text("")), chunk(text("c"), finish="STOP"))
        assert [(part.text, part.block) for part in turn.parts] == [("abc", 0)]

    def test_text_parts_that_something_parts_are_counted(self) -> None:
        turn = fed("gemini", chunk(text("a")), chunk(call(name="f")), chunk(text("b"), text("c"), finish="STOP"))
        assert [(part.type, part.text, part.block) for part in turn.parts if part.type == "text"] == [
            ("text", "a", 0),
            ("text", "b", 1),
            ("text", "c", 2),
        ]
        assert turn.answer == "abc"

    def test_server_side_parts_are_kept_as_they_came(self) -> None:
        parts = [
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}},
            {"inlineData": {"mimeType": "image/png", "data": "AA=="}, "thought": True},
            {"fileData": {"fileUri": "gs://x"}},
            {"toolCall": {"id": "t"}, "thoughtSignature": "c2ln"},
            {"toolResponse": {"id": "t"}},
        ]
        turn, deltas = play("gemini", sse(chunk(*parts), chunk(text("a"), finish="STOP")))
        assert turn.anomalies.total == 0
        assert [delta.name for delta in deltas if isinstance(delta, Opaque)] == [
            "executableCode",
            "codeExecutionResult",
            "inlineData",
            "fileData",
            "toolCall",
            "thought_signature",
            "toolResponse",
        ]
        assert turn.answer == "a"
        assert turn.result().message() == {"role": "model", "parts": [*parts, {"text": "a"}]}

    def test_an_unknown_part_is_kept_and_counted(self) -> None:
        turn = fed("gemini", chunk({"hologram": {"x": 1}}), chunk(text("a", colour="red"), finish="STOP"))
        assert turn.anomalies.counts == {"unknown_part": 2}
        assert opaque(turn, "hologram") == [{"hologram": {"x": 1}}]

    @pytest.mark.parametrize(
        "bad",
        [
            {"candidates": {}},
            {"candidates": [None]},
            {"candidates": ["a"]},
            {"candidates": [{"index": "0"}]},
            {"candidates": [{"index": -1}]},
            {"candidates": [{"content": "a"}]},
            {"candidates": [{"content": {"parts": "a"}}]},
            {"candidates": [{"content": {"parts": ["a"]}}]},
            chunk({"text": 1}),
            chunk({"text": ["a"]}),
            chunk({"functionCall": "f"}),
            chunk(call(name=1)),
            chunk(call(args={"a": 1})),
            chunk(call(name="f", args="{}")),
            chunk(call(name="f", partialArgs={})),
            chunk(finish=["STOP"]),
            chunk(finish=True),
            chunk(finish=1.5),
            {"promptFeedback": "SAFETY"},
            {"promptFeedback": {"blockReason": ["SAFETY"]}},
            b'{"candidates": [{"content": {"parts": [{"text": "a"}]',
        ],
    )
    def test_what_may_have_lost_something_breaks_the_protocol(self, bad: Any) -> None:
        turn = fed("gemini", chunk(text("a")), bad, STOP)
        assert turn.error is not None
        assert turn.error.kind == "protocol"
        assert turn.answer == "a"

    @pytest.mark.parametrize(
        "odd",
        [
            {"usageMetadata": [1]},
            {"usageMetadata": {"promptTokenCount": "many"}},
            {"modelVersion": 3, "responseId": []},
            chunk(text("", thoughtSignature=7)),
            chunk(groundingMetadata=[1]),
            chunk(groundingMetadata={"groundingChunks": [None], "groundingSupports": [7, {"segment": 1}]}),
            chunk(citationMetadata={"citations": [1]}),
            chunk(groundingMetadata={"groundingChunks": {}, "groundingSupports": "x"}),
            b"[]",
            b"3",
            b"null",
            b"hello",
        ],
    )
    def test_what_loses_nothing_is_tolerated(self, odd: Any) -> None:
        turn = fed("gemini", chunk(text("a")), odd, STOP)
        assert (turn.state, turn.answer) == ("finished", "a")

    def test_duplicate_keys_and_lone_surrogates(self) -> None:
        turn = fed("gemini", b'{"candidates":[{"content":{"parts":[{"text":"x","text":"a\\ud83d"}]}}]}', STOP)
        assert (turn.state, turn.answer) == ("finished", "a\ufffd")

    @pytest.mark.parametrize("depth", [90, 150, 500, 990, 5_000, 100_000])
    def test_deep_nesting_raises_nothing(self, depth: int) -> None:
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        for part in (b'{"functionCall":{"name":"f","args":' + deep + b"}}", b'{"hologram":' + deep + b"}"):
            turn = fed("gemini", b'{"candidates":[{"content":{"parts":[' + part + b"]}}]}", STOP)
            assert turn.parts is not None
            assert (turn.state == "finished") == (depth == 90)
        for name in (b"groundingMetadata", b"citationMetadata", b"urlContextMetadata"):
            turn = fed("gemini", b'{"candidates":[{"' + name + b'":' + deep + b"}]}", STOP)
            assert turn.state in ("finished", "error")
            assert turn.parts is not None


class TestSignatures:
    """Never merged, never trimmed, back on the part that they came with."""

    def test_on_an_empty_part_at_the_end(self) -> None:
        turn = fed("gemini", chunk(text("Hi")), chunk(text("", thoughtSignature="c2ln"), finish="STOP"))
        assert opaque(turn, "thought_signature") == ["c2ln"]
        assert turn.result().message()["parts"] == [{"text": "Hi"}, {"text": "", "thoughtSignature": "c2ln"}]

    def test_on_nothing_at_all(self) -> None:
        turn = fed("gemini", chunk({"thoughtSignature": "c2ln"}), chunk(text("Hi"), finish="STOP"))
        assert turn.result().message()["parts"] == [{"thoughtSignature": "c2ln"}, {"text": "Hi"}]

    def test_on_text_which_is_then_a_part_of_its_own(self) -> None:
        chunks = [chunk(text("a")), chunk(text("b", thoughtSignature="s1")), chunk(text("c"), finish="STOP")]
        turn = fed("gemini", *chunks)
        assert turn.answer == "abc"
        assert turn.result().message()["parts"] == [
            {"text": "a"},
            {"text": "b", "thoughtSignature": "s1"},
            {"text": "c"},
        ]

    def test_on_a_thought_and_on_calls(self) -> None:
        parts = [
            text("Hm", thought=True, thoughtSignature="s0"),
            call(id="7", name="f", args={"a": 1}) | {"thoughtSignature": "s1"},
            call(name="g", args={}),
        ]
        turn = fed("gemini", chunk(*parts, finish="STOP"))
        assert turn.result().message() == {"role": "model", "parts": parts}
        assert [part.type for part in turn.parts] == ["reasoning", "opaque", "tool", "opaque", "tool"]
        assert all(part.provider == "google" and part.model == "gemini-3" for part in turn.parts)

    def test_of_other_candidates_stay_with_them(self) -> None:
        turn = fed(
            "gemini",
            chunk(text("b"), index=1),
            chunk(text("a", thoughtSignature="s0"), index=0, finish="STOP"),
            chunk(text("", thoughtSignature="s1"), index=1, finish="STOP"),
        )
        assert turn.result().message()["parts"] == [{"text": "a", "thoughtSignature": "s0"}]
        assert [part.choice for part in turn.parts if part.name == "thought_signature"] == [0, 1]

    def test_grounding_is_not_sent_back(self) -> None:
        grounding = {"webSearchQueries": ["q"], "searchEntryPoint": {"renderedContent": "<p>"}}
        turn = fed("gemini", chunk(text("a"), groundingMetadata=grounding), chunk(text("b"), finish="STOP"))
        assert opaque(turn, "groundingMetadata") == [grounding]
        assert turn.result().message()["parts"] == [{"text": "ab"}]


class TestWholeCalls:
    def test_arguments_are_compact_json_in_the_order_of_the_wire(self) -> None:
        turn = fed("gemini", chunk(call(name="w", args={"y": "é", "x": [1, 2.5, None]}), finish="STOP"))
        assert calls(turn) == [("w", '{"y":"é","x":[1,2.5,null]}', True)]
        assert turn.tool_calls[0].id_is_ours

    def test_without_arguments(self) -> None:
        for none in (call(name="f"), call(name="f", args=None), call(name="f", args={}), call(name="f", id=None)):
            assert calls(fed("gemini", chunk(none, finish="STOP"))) == [("f", "{}", True)]

    def test_several_in_one_chunk_and_in_several(self) -> None:
        a, b, c = call(name="f", args={"n": 1}), call(name="f", args={"n": 2}), call(id="x", name="g")
        turn = fed("gemini", chunk(a, b), chunk(c), STOP)
        assert [(one.name, one.arguments) for one in turn.tool_calls] == [
            ("f", '{"n":1}'),
            ("f", '{"n":2}'),
            ("g", "{}"),
        ]
        assert len({one.id for one in turn.tool_calls}) == 3
        assert turn.tool_calls[2].id == "x"

    def test_the_deltas(self) -> None:
        assert deltas_of("gemini", chunk(call(id="x", name="f", args={"a": 1}), finish="STOP")) == [
            ToolCallDelta(0, "", "x", "f"),
            ToolCallDelta(0, '{"a":1}'),
            ToolCallDelta(0, "", complete=True),
            Finish("tool_use", "STOP"),
        ]

    def test_they_belong_to_their_candidate(self) -> None:
        turn = fed(
            "gemini", chunk(call(name="f"), index=1), chunk(index=1, finish="STOP"), chunk(text("a"), finish="STOP")
        )
        assert [(one.index, one.finish_reason, len(one.tool_calls)) for one in turn.choices] == [
            (0, "stop", 0),
            (1, "tool_use", 1),
        ]


class TestStreamedArguments:
    """providers.md 6.5 and 10.7: partialArgs by JSON path."""

    BEGIN = chunk(call(name="f", willContinue=True))
    END = chunk(call())

    def arguments(self, *parts: Any) -> Any:
        turn = fed("gemini", self.BEGIN, *(chunk(part) for part in parts), self.END, STOP)
        assert turn.state == "finished"
        assert [one.complete for one in turn.tool_calls] == [True]
        return json.loads(turn.tool_calls[0].arguments)

    def test_a_string_in_pieces(self) -> None:
        assert self.arguments(
            piece("$.a", stringValue="Olá", willContinue=True),
            piece("$.a", stringValue=", mundo", willContinue=True),
            piece("$.a", stringValue=""),
        ) == {"a": "Olá, mundo"}

    def test_nested_objects_and_lists(self) -> None:
        assert self.arguments(
            piece("$.a[0].b", stringValue="x"),
            piece("$.a[0].c", numberValue=0.5),
            piece("$.a[1].b", boolValue=False),
            piece("$.a[2][0]", nullValue=None),
            piece("$.a[2][1]", nullValue="NULL_VALUE"),
            piece("$['d e'][\"f.g\"]", numberValue=3),
            piece("$['it\\'s']", stringValue=""),
        ) == {
            "a": [{"b": "x", "c": 0.5}, {"b": False}, [None, None]],
            "d e": {"f.g": 3},
            "it's": "",
        }

    def test_strings_may_be_interleaved_and_come_in_any_order(self) -> None:
        assert self.arguments(
            piece("$.b.x", stringValue="1", willContinue=True),
            piece("$.a", stringValue="2", willContinue=True),
            piece("$.b.x", stringValue="3"),
            piece("$.a", stringValue="4"),
            piece("$.b.y", numberValue=5),
        ) == {"b": {"x": "13", "y": 5}, "a": "24"}

    def test_several_in_one_piece_and_nulls_beside(self) -> None:
        many = call(
            partialArgs=[
                {"jsonPath": "$.a", "stringValue": "x", "numberValue": None, "willContinue": None},
                {"jsonPath": "$.b", "numberValue": 1, "stringValue": None, "nullValue": None},
            ],
            willContinue=True,
        )
        assert self.arguments(many) == {"a": "x", "b": 1}

    def test_an_end_without_a_value_ends_the_string(self) -> None:
        assert self.arguments(piece("$.a", stringValue="x", willContinue=True), piece("$.a")) == {"a": "x"}

    def test_no_arguments_at_all(self) -> None:
        assert self.arguments() == {}
        assert self.arguments(call(willContinue=True)) == {}

    def test_the_end_may_be_missing(self) -> None:
        full = chunk(piece("$.a", stringValue="x"))
        last = chunk(call(partialArgs=[{"jsonPath": "$.a", "stringValue": "x"}]))
        for chunks in (
            [self.BEGIN, full, STOP],
            [self.BEGIN, full, self.BEGIN, STOP],
            [self.BEGIN, last, STOP],
            [self.BEGIN, last, self.END, STOP],
            [chunk(call(name="f", partialArgs=[{"jsonPath": "$.a", "stringValue": "x"}])), STOP],
        ):
            turn = fed("gemini", *chunks)
            assert turn.state == "finished"
            assert calls(turn)[0] == ("f", '{"a":"x"}', True)
            assert all(one.complete for one in turn.tool_calls)

    def test_no_delta_before_the_call_is_whole(self) -> None:
        chunks = [self.BEGIN, chunk(piece("$.a", numberValue=1))]
        assert deltas_of("gemini", *chunks) == []
        assert deltas_of("gemini", *chunks, self.END) == [
            ToolCallDelta(0, '{"a":1}', "call_0", "f"),
            ToolCallDelta(0, "", complete=True),
        ]

    def test_a_call_that_the_limit_cut_is_not_complete(self) -> None:
        turn = fed("gemini", self.BEGIN, chunk(piece("$.a", numberValue=1)), chunk(finish="MAX_TOKENS"))
        assert turn.state == "finished"
        assert [one.complete for one in turn.tool_calls] == [False]
        assert turn.result().message()["parts"] == []

    def test_a_string_that_was_to_continue(self) -> None:
        cut = chunk(piece("$.a", stringValue="x", willContinue=True))
        for end in ([STOP], [self.BEGIN, self.END, STOP]):
            turn = fed("gemini", self.BEGIN, cut, *end)
            assert turn.error is not None
            assert turn.error.kind == "protocol"
            assert turn.tool_calls[0].complete is False
        told = fed("gemini", self.BEGIN, cut, self.END, STOP)
        assert (told.state, told.anomalies.counts) == ("finished", {"argument_not_ended": 1})

    @pytest.mark.parametrize(
        "bad",
        [
            piece("$", stringValue="x"),
            piece("", stringValue="x"),
            piece("a.b", stringValue="x"),
            piece("$.a[", stringValue="x"),
            piece("$.a[-1]", stringValue="x"),
            piece("$.a[1]", stringValue="x"),
            piece("$.a[999999999]", stringValue="x"),
            piece("$[0]", stringValue="x"),
            piece("$..a", stringValue="x"),
            piece("$.a"),
            piece("$.a", stringValue=1),
            piece("$.a", numberValue="NaN"),
            piece("$.a", numberValue=True),
            piece("$.a", boolValue=1),
            piece("$.s.x", numberValue=1),
            piece("$.s", numberValue=1),
            piece("$.n", stringValue="x"),
            piece("$.n.x", stringValue="x"),
            piece("$.l.x", stringValue="x"),
            piece("$" + ".a" * 101, stringValue="x"),
            call(partialArgs=["x"], willContinue=True),
            call(partialArgs=[{"jsonPath": 3, "stringValue": "x"}], willContinue=True),
        ],
    )
    def test_what_has_no_place_breaks_the_protocol(self, bad: Any) -> None:
        before = [piece("$.s", stringValue="x"), piece("$.n", numberValue=1), piece("$.l[0]", numberValue=1)]
        turn = fed("gemini", self.BEGIN, *(chunk(part) for part in before), chunk(bad), self.END, STOP)
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    def test_pieces_without_a_call_break_the_protocol(self) -> None:
        turn = fed("gemini", chunk(piece("$.a", stringValue="x")), STOP)
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    def test_an_end_without_a_call_means_nothing(self) -> None:
        assert fed("gemini", chunk(text("a")), self.END, STOP).anomalies.total == 0


class TestUsage:
    """providers.md 1.1."""

    def test_the_rule(self) -> None:
        raw = {
            "promptTokenCount": 15,
            "toolUsePromptTokenCount": 770,
            "candidatesTokenCount": 37,
            "thoughtsTokenCount": 742,
            "cachedContentTokenCount": 5,
            "totalTokenCount": 1564,
        }
        assert usage_of(raw) == Usage(785, 779, 742, 5, None, 1564, raw)

    def test_what_is_not_told_is_none(self) -> None:
        assert usage_of({"promptTokenCount": 11, "totalTokenCount": 11}) == Usage(
            11, None, None, None, None, 11, {"promptTokenCount": 11, "totalTokenCount": 11}
        )

    def test_the_last_one_wins_and_nothing_is_summed(self) -> None:
        grows = [
            chunk(text("a")) | {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": n}} for n in (1, 4)
        ]
        usage = fed("gemini", *grows, STOP).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (9, 4)

    def test_a_chunk_with_only_its_traffic_type_resets_nothing(self) -> None:
        full = {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 4, "totalTokenCount": 13}}
        bare = {"usageMetadata": {"trafficType": "ON_DEMAND", "promptTokenCount": None}}
        usage = fed("gemini", bare, chunk(text("a")) | full, STOP | bare).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (9, 4, 13)
        assert usage.raw == full["usageMetadata"] | {"trafficType": "ON_DEMAND"}


class TestSources:
    """Grounding and citations: bytes in the given part."""

    CHUNKS: ClassVar = [
        {"web": {"uri": "https://a", "title": "A", "domain": "a"}},
        {"retrievedContext": {"uri": "gs://b", "title": "B", "text": "b b"}},
        {"maps": {"uri": "https://c", "title": "C", "placeId": "p"}},
        {"image": {"sourceUri": "https://d", "title": "D"}},
        {"hologram": {}},
    ]
    SUPPORTS: ClassVar = [
        {"segment": {"endIndex": 4, "text": "Olá"}, "groundingChunkIndices": [0, 1], "confidenceScores": [0.9, 0.1]},
        {"segment": {"startIndex": 5, "endIndex": 10, "text": "mundo"}, "groundingChunkIndices": [2]},
    ]

    def test_chunks_are_references_and_supports_are_citations(self) -> None:
        grounding = {"groundingChunks": self.CHUNKS, "groundingSupports": self.SUPPORTS}
        turn = fed("gemini", chunk(text("Olá mundo"), finish="STOP", groundingMetadata=grounding))
        assert [(one.id, one.url, one.title, one.text) for one in turn.references] == [
            ("0", "https://a", "A", None),
            ("1", "gs://b", "B", "b b"),
            ("2", "https://c", "C", None),
            ("3", "https://d", "D", None),
            ("4", None, None, None),
        ]
        assert turn.citations == (
            Citation(0, 4, "bytes", references=("0", "1"), raw=self.SUPPORTS[0]),
            Citation(5, 10, "bytes", references=("2",), raw=self.SUPPORTS[1]),
        )
        assert turn.anomalies.counts == {"unknown_reference": 1}
        raw = turn.answer.encode()
        assert [raw[one.start : one.end].decode() for one in turn.citations] == ["Olá", "mundo"]

    def test_late_metadata_replaces_the_former_and_only_the_new_is_a_delta(self) -> None:
        first = {"groundingChunks": self.CHUNKS[:1], "groundingSupports": self.SUPPORTS[:1]}
        second = {"groundingChunks": self.CHUNKS[:2], "groundingSupports": self.SUPPORTS}
        turn, deltas = play(
            "gemini",
            sse(
                chunk(text("Olá mundo"), groundingMetadata={}),
                chunk(groundingMetadata=first),
                chunk(groundingMetadata=second),
                chunk(groundingMetadata={}),
                chunk(groundingMetadata=second, finish="STOP"),
            ),
        )
        assert [delta.id for delta in deltas if isinstance(delta, Reference)] == ["0", "1"]
        assert [delta.start for delta in deltas if isinstance(delta, Citation)] == [0, 5]
        assert (len(turn.references), len(turn.citations)) == (2, 2)
        turn = fed("gemini", chunk(groundingMetadata=second), chunk(groundingMetadata=first, finish="STOP"))
        assert (len(turn.references), len(turn.citations)) == (1, 1)

    def test_a_part_index_names_the_text_part(self) -> None:
        segment = {"partIndex": 1, "startIndex": 1, "endIndex": 2}
        support = {"segment": segment, "groundingChunkIndices": [0]}
        turn = fed(
            "gemini", chunk(text("ab"), text("cd"), finish="STOP", groundingMetadata={"groundingSupports": [support]})
        )
        (citation,) = turn.citations
        assert (citation.start, citation.end, citation.block) == (1, 2, 1)

    def test_a_quotation_decides_between_parts(self) -> None:
        code = {"executableCode": {"language": "PYTHON", "code": "1"}}
        grounding = {"groundingSupports": [{"segment": {"partIndex": 3, "endIndex": 2, "text": "cd"}}]}
        grounding["groundingSupports"] += [{"segment": {"endIndex": 2, "text": "cd"}}]
        turn = fed("gemini", chunk(text("ab"), code, text("cd"), finish="STOP", groundingMetadata=grounding))
        assert [citation.block for citation in turn.citations] == [1, 1]

    def test_code_before_the_text_moves_no_offset(self) -> None:
        code = {"executableCode": {"language": "PYTHON", "code": "1"}}
        grounding = {"groundingSupports": self.SUPPORTS}
        turn = fed("gemini", chunk(code), chunk(text("Olá mundo"), finish="STOP", groundingMetadata=grounding))
        assert (
            {citation.block for citation in turn.citations} == {part.block for part in turn.parts if part.text} == {0}
        )

    @pytest.mark.parametrize("name", ["citationSources", "citations"])
    def test_citation_metadata_under_both_names(self, name: str) -> None:
        source = {"startIndex": 1, "endIndex": 3, "uri": "https://x", "title": "X", "license": "mit"}
        metadata = {name: [source, {"endIndex": 2, "uri": "https://y"}]}
        turn = fed(
            "gemini", chunk(text("abc"), citationMetadata=metadata), chunk(citationMetadata=metadata, finish="STOP")
        )
        assert [(one.start, one.end, one.unit, one.url, one.title) for one in turn.citations] == [
            (1, 3, "bytes", "https://x", "X"),
            (0, 2, "bytes", "https://y", None),
        ]

    def test_sources_and_supports_stand_side_by_side_and_by_candidate(self) -> None:
        citation = {"citations": [{"endIndex": 1, "uri": "u"}]}
        grounding = {"groundingChunks": self.CHUNKS[:1], "groundingSupports": self.SUPPORTS[:1]}
        turn = fed(
            "gemini",
            chunk(text("Olá mundo"), groundingMetadata=grounding, citationMetadata=citation, index=0, finish="STOP"),
            chunk(text("Olá"), groundingMetadata=grounding, index=1, finish="STOP"),
        )
        assert [(one.choice, one.url) for one in turn.citations] == [(0, "u"), (0, None), (1, None)]
        assert [one.choice for one in turn.references] == [0, 1]

    def test_url_context_and_continuation_are_kept_and_not_sent_back(self) -> None:
        urls = {"urlMetadata": [{"retrievedUrl": "https://x"}]}
        first = chunk(text("a"), urlContextMetadata=urls)
        turn = fed("gemini", first, first, chunk(finish="CONTINUATION", continuationToken="t"))
        assert opaque(turn, "urlContextMetadata") == [urls]
        assert opaque(turn, "continuationToken") == ["t"]
        assert turn.result().message()["parts"] == [{"text": "aa"}]
        assert turn.finish_reason == "pause"


class TestWholeAnswers:
    """A body that is not streamed: rule 7 of design.md 3.2."""

    def whole(self, document: Any) -> Turn:
        turn = Turn("gemini", framing="sse")
        turn.head(200, "application/json; charset=UTF-8")
        turn.feed(json.dumps(document).encode())
        turn.eof(clean=True)
        return turn

    def test_an_object_and_a_list_of_chunks(self) -> None:
        for document in (chunk(text("ab"), finish="STOP"), [chunk(text("a")), chunk(text("b"), finish="STOP")]):
            turn = self.whole(document)
            assert (turn.state, turn.answer) == ("finished", "ab")

    def test_a_blocked_prompt(self) -> None:
        assert self.whole({"promptFeedback": {"blockReason": "SAFETY"}}).finish_reason == "content_filter"

    def test_without_a_finish_reason_it_is_not_whole(self) -> None:
        turn = self.whole(chunk(text("a")))
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    @pytest.mark.parametrize("document", [{}, [], {"candidates": []}, {"choices": []}, [1], "a", 3])
    def test_other_json_is_no_answer(self, document: Any) -> None:
        turn = self.whole(document)
        assert turn.error is not None
        assert turn.error.kind == "protocol"


class TestStencils:
    def test_plain_pretty_printed_chunks_are_read_by_a_stencil(self) -> None:
        for framing in FRAMINGS:
            turn = Turn("gemini", framing=framing)
            plain = [chunk(text(word)) | {"createTime": "2026-05-04T20:01:02Z"} for word in "abcdefgh"]
            stream = framed(framing, *plain)
            turn.feed(stream[: stream.index(b'"d"')])
            assert turn._stencils
            tries = turn._stencil_tries
            turn.feed(stream[stream.index(b'"d"') :])
            assert turn.answer == "abcdefgh"
            assert turn._stencil_tries >= tries

    def test_text_after_a_finish_is_not_taken_by_a_stencil_unseen(self) -> None:
        plain = [chunk(text("a")) for _ in range(5)]
        assert fed("gemini", *plain, STOP, *plain).state == "error"
        assert fed("gemini", *plain, STOP, *plain, STOP).state == "finished"


class TestCumulativeText:
    def test_text_so_far_is_appended_where_it_is_asked_for(self) -> None:
        turn = fed(
            "gemini", chunk(text("a")), chunk(text("ab")), chunk(text("abc"), finish="STOP"), text_mode="cumulative"
        )
        assert turn.answer == "abc"


STREAM = [
    chunk(text("Hm 水", thought=True)) | {"usageMetadata": {"promptTokenCount": 3, "trafficType": "X"}},
    chunk(text("Olá"), index=0),
    chunk(text('😀 {"}]\\'), index=0),
    chunk(call(name="f", args={"é": ["}", {"a": "\\"}]}) | {"thoughtSignature": "c2ln"}),
    chunk(text(""), finish="STOP", groundingMetadata={"webSearchQueries": ["é"]})
    | {"usageMetadata": {"totalTokenCount": 9}},
]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_no_cut_changes_the_turn(framing: str) -> None:
    assert_cuts_change_nothing("gemini", framed(framing, *STREAM), framing)


@pytest.mark.parametrize("framing", FRAMINGS)
def test_no_stream_that_was_cut_off_passes_for_a_whole_one(framing: str) -> None:
    stream = framed(framing, *STREAM)
    # an event stream is whole with its last document, an array with its bracket
    terminal = json.dumps(STREAM[-1], ensure_ascii=False).encode() if framing == "sse" else b"]"
    assert_never_whole_when_cut_off("gemini", stream, framing, terminal)


# -- streams of every kind, from a generator that knows the answer -----------------------------------------------------

WORDS = st.text(st.sampled_from('aé水😀 \n"\\{}[]:,\u2028\u0085'), min_size=1, max_size=6)
NAMES = st.sampled_from(["f", "get_weather"])
LEAVES = st.one_of(WORDS, st.integers(-9, 9), st.booleans(), st.none(), st.just(0.5))


@st.composite
def paths_of(draw: st.DrawFn, value: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of partialArgs that make up `value`, strings in pieces."""
    entries: list[dict[str, Any]] = []

    def walk(path: str, inner: Any) -> None:
        if isinstance(inner, dict):
            for key, item in inner.items():
                walk(f"{path}.{key}", item)
        elif isinstance(inner, list):
            for number, item in enumerate(inner):
                walk(f"{path}[{number}]", item)
        elif isinstance(inner, str):
            place = draw(st.integers(0, len(inner)))
            entries.append({"jsonPath": path, "stringValue": inner[:place], "willContinue": True})
            entries.append({"jsonPath": path, "stringValue": inner[place:], "willContinue": True})
            entries.append({"jsonPath": path, "stringValue": ""})
        elif isinstance(inner, bool):
            entries.append({"jsonPath": path, "boolValue": inner})
        elif inner is None:
            entries.append({"jsonPath": path, "nullValue": None})
        else:
            entries.append({"jsonPath": path, "numberValue": inner})

    walk("$", value)
    return entries


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """Chunks, and by candidate what they amount to."""
    expected: dict[int, dict[str, Any]] = {}
    chunks: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 2))):
        wanted = expected[index] = {"answer": "", "reasoning": "", "calls": [], "signatures": []}
        for kind in draw(st.lists(st.sampled_from(["text", "thought", "call", "streamed", "empty"]), max_size=6)):
            signed = {"thoughtSignature": "c2ln"} if draw(st.booleans()) else {}
            wanted["signatures"] += signed.values()
            if kind in ("text", "thought"):
                words = draw(WORDS)
                thought = {"thought": True} if kind == "thought" else {}
                wanted["reasoning" if thought else "answer"] += words
                chunks.append(chunk(text(words, **thought, **signed), index=index))
            elif kind == "empty":
                chunks.append(chunk(text("", **signed), index=index))
            else:
                keys = st.sampled_from(["a", "b", "c"])
                arguments = draw(st.dictionaries(keys, LEAVES | st.lists(LEAVES, min_size=1, max_size=2), max_size=2))
                name = draw(NAMES)
                wanted["calls"].append((name, arguments))
                if kind == "call":
                    chunks.append(chunk(call(name=name, args=arguments) | signed, index=index))
                else:
                    chunks.append(chunk(call(name=name, willContinue=True) | signed, index=index))
                    for entry in draw(paths_of(arguments)):
                        chunks.append(chunk(call(partialArgs=[entry], willContinue=True), index=index))
                    chunks.append(chunk(call(), index=index))
        finish = draw(st.sampled_from(["STOP", "SAFETY", "OTHER"]))
        ours = {"STOP": "tool_use" if wanted["calls"] else "stop", "SAFETY": "content_filter", "OTHER": "other"}
        wanted["finish"] = ours[finish]
        chunks.append(chunk(finish=finish, index=index))
    return chunks, expected


NOISE: Final[list[Any]] = [
    {"usageMetadata": {"trafficType": "X"}},
    {"usageMetadata": None, "createTime": "2026"},
    {"novelty": {"a": [1]}},
    {"candidates": None},
    {"candidates": []},
    {"promptFeedback": {"safetyRatings": []}},
    {},
]


def sprinkled(chunks: list[dict[str, Any]], rnd: random.Random) -> list[dict[str, Any]]:
    """Add what means nothing: nulls, unknown fields, empty chunks; leave out what may be missing."""
    out: list[dict[str, Any]] = []
    for one in json.loads(json.dumps(chunks)):
        (candidate,) = one["candidates"]
        if candidate.get("index") == 0 and rnd.random() < 0.5:
            del candidate["index"]
        if rnd.random() < 0.5:
            del candidate["content"]["role"]
        for box in (one, candidate, candidate["content"], *candidate["content"]["parts"]):
            for key in rnd.sample(["finishReason", "error", "groundingMetadata", "index", "x", "thoughtSignature"], 2):
                box.setdefault(key, None)
        out += rnd.sample(NOISE, rnd.randint(0, 1))
        out.append(one)
    return out


def cut(stream: bytes, rnd: random.Random) -> list[bytes]:
    places = sorted(rnd.sample(range(len(stream) + 1), min(len(stream), rnd.randint(0, 8))))
    return [stream[a:b] for a, b in pairwise([0, *places, len(stream)])]


@given(st.data())
def test_any_stream_gives_its_generators_answer(data: st.DataObject) -> None:
    chunks, expected = data.draw(streams())
    framing = data.draw(st.sampled_from(FRAMINGS))
    rnd = random.Random(data.draw(st.integers(0, 1 << 30)))
    stream = framed(framing, *sprinkled(chunks, rnd))
    turn, _ = play("gemini", *cut(stream, rnd), framing=framing)
    assert turn.error is None
    assert turn.state == "finished"
    for one in turn.choices:
        wanted = expected[one.index]
        assert (one.answer, one.reasoning) == (wanted["answer"], wanted["reasoning"])
        assert [(made.name, json.loads(made.arguments)) for made in one.tool_calls] == wanted["calls"]
        assert all(made.complete for made in one.tool_calls)
        assert one.finish_reason == wanted["finish"]
        assert [p.data for p in turn.parts if p.name == "thought_signature" and p.choice == one.index] == wanted[
            "signatures"
        ]
    assert (
        "".join(part.get("text", "") for part in turn.result().message()["parts"] if not part.get("thought"))
        == (expected[0]["answer"])
    )


@given(st.data())
def test_the_joined_deltas_are_the_channels(data: st.DataObject) -> None:
    chunks, _ = data.draw(streams())
    turn, deltas = play("gemini", sse(*chunks))
    for one in turn.choices:
        for channel in ("answer", "reasoning"):
            pieces = [
                d.text for d in deltas if isinstance(d, TextDelta) and (d.choice, d.channel) == (one.index, channel)
            ]
            assert "".join(pieces) == getattr(one, channel)
    for number, made in enumerate(turn.tool_calls):
        assert (
            "".join(d.arguments for d in deltas if isinstance(d, ToolCallDelta) and d.index == number) == made.arguments
        )


@given(st.data())
def test_damage_raises_nothing_and_confirms_nothing(data: st.DataObject) -> None:
    chunks, _ = data.draw(streams())
    framing = data.draw(st.sampled_from(FRAMINGS))
    rnd = random.Random(data.draw(st.integers(0, 1 << 30)))
    stream = bytearray(framed(framing, *chunks))
    for _ in range(rnd.randint(1, 6)):
        stream[rnd.randrange(len(stream))] = rnd.choice(b'"\\{}[],:\n\r\x00\xff\xc3 a1')
    turn, _ = play("gemini", bytes(stream), framing=framing)
    assert turn.state in ("finished", "error")
    assert isinstance(turn.parts, tuple)
    if turn.state == "finished":
        assert isinstance(turn.result().message(), dict)
    # the last finish reason of each candidate, damaged
    terminal = framed(framing, *[one for one in chunks if "finishReason" not in one["candidates"][0]])
    broken = framed(
        framing, *(json.loads(json.dumps(one).replace('"finishReason"', '"finishReasom"')) for one in chunks)
    )
    for damaged in (terminal, broken):
        assert play("gemini", damaged, framing=framing)[0].state == "error"


@given(st.data())
def test_stencils_read_what_the_decoder_reads(data: st.DataObject) -> None:
    chunks, _ = data.draw(streams())
    rnd = random.Random(data.draw(st.integers(0, 1 << 30)))
    many = [one for one in chunks for _ in range(rnd.randint(1, 3))]
    framing = data.draw(st.sampled_from(FRAMINGS))
    stream = framed(framing, *many)
    assert_same("gemini", cut(stream, rnd), framing)
