"""What a hostile tester found: streams that were cut, or in error, and looked whole. Each was finished once."""

from __future__ import annotations

import json

import pytest

from levada import State, Turn
from tests.turn.chat import DONE, chunk, event, fed, stop, text

STRAY = b'{"error":{"code":503,"message":"gone"}}\n\n'


def gemini(*pieces: bytes) -> Turn:
    turn = Turn("gemini", framing="sse")
    for piece in pieces:
        turn.feed(piece)
    turn.eof(clean=True)
    return turn


ANSWERED = b'data: {"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}\n\n'


class TestErrorsBesideTheEvents:
    @pytest.mark.parametrize(
        "before", [b"", b"x\n", b"<p>\n", b"upstream error:\n", b"{}\n", b"{}\n\n", b'{"a":1}\n', b"[]\n", b"[x\n"]
    )
    def test_a_bare_error_after_other_strays(self, before: bytes) -> None:
        for turn in (fed(text("a"), stop(), before + STRAY, DONE), gemini(ANSWERED, before + STRAY)):
            assert turn.error is not None
            assert (turn.error.kind, turn.error.message) == ("provider", "gone")

    @pytest.mark.parametrize("tail", [b"{\n" + STRAY, b'{"error": {"code": 503,\n\n', b"[\n"])
    def test_a_bare_document_that_never_ends(self, tail: bytes) -> None:
        for turn in (fed(text("a"), stop(), tail, DONE), gemini(ANSWERED, tail)):
            assert turn.error is not None
            assert turn.error.kind == "truncated"

    @pytest.mark.parametrize("message", ["x" * 70_000, "x" * 1_000_000])
    def test_a_long_one(self, message: str) -> None:
        stray = json.dumps({"error": {"message": message}}).encode() + b"\n"
        assert fed(text("a"), stop(), stray, DONE).state is State.ERROR
        assert gemini(ANSWERED, stray).state is State.ERROR

    def test_one_that_is_nested_too_deeply_to_be_read(self) -> None:
        stray = b'{"error":' + b"[" * 3000 + b"]" * 3000 + b"}\n"
        assert fed(text("a"), stop(), stray, DONE).state is State.ERROR

    def test_a_page_of_html_after_the_finish(self) -> None:
        assert gemini(ANSWERED, b"<html>502 Bad Gateway</html>\n").state is State.ERROR

    def test_an_error_inside_a_choice_and_a_flat_one(self) -> None:
        inner = event({"choices": [{"index": 0, "delta": {}, "error": {"message": "x"}, "finish_reason": "stop"}]})
        for error in (inner, event({"type": "error", "message": "x"})):
            turn = fed(text("a"), error, stop(), DONE)
            assert turn.error is not None
            assert (turn.error.kind, turn.error.message) == ("provider", "x")


class TestFinishReasonAlone:
    def test_done_is_not_enough(self) -> None:
        for pieces in ((DONE,), (text("a"), DONE), (text("a"), stop(), text("b", 1), DONE)):
            assert fed(*pieces, terminal="finish_reason").state is State.ERROR

    def test_a_stream_that_goes_on_after_it_names_another(self) -> None:
        assert fed(text("a"), stop(), text("b"), terminal="finish_reason").state is State.ERROR
        assert fed(text("a"), stop(), text("b"), stop(), terminal="finish_reason").result().answer == "ab"


class TestCallsThatWereCut:
    @pytest.mark.parametrize("arguments", ["", '{"a":'])
    @pytest.mark.parametrize("finish", ["length", "content_filter", "weird"])
    def test_only_a_model_that_was_done_completes_them(self, arguments: str, finish: str) -> None:
        call = {"index": 0, "id": "t", "function": {"name": "f", "arguments": arguments}}
        (found,) = fed(chunk(tool_calls=[call]), stop(finish=finish), DONE).result().tool_calls
        assert not found.complete
        assert found.arguments == arguments

    def test_a_call_without_a_name_breaks_the_protocol(self) -> None:
        call = {"index": 0, "id": "t", "function": {"arguments": "{}"}}
        turn = fed(chunk(tool_calls=[call]), stop(finish="tool_calls"), DONE)
        assert turn.error is not None
        assert turn.error.kind == "protocol"

    def test_a_block_that_was_never_ended(self) -> None:
        turn = Turn("anthropic")
        for body in (
            {"type": "message_start", "message": {"id": "m", "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ):
            turn.feed(b"event: " + str(body["type"]).encode() + b"\n" + event(body))
        assert [call.complete for call in turn.result().tool_calls] == [False]

    @pytest.mark.parametrize("done", [None, {"status": "incomplete", "arguments": ""}])
    def test_an_item_that_its_provider_did_not_complete(self, done: dict[str, str] | None) -> None:
        item = {"type": "function_call", "id": "i", "call_id": "k", "name": "f", "arguments": ""}
        bodies: list[dict[str, object]] = [
            {"type": "response.created", "response": {"id": "r"}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
        ]
        if done is None:
            bodies.append({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a":'})
        else:
            bodies.append({"type": "response.output_item.done", "output_index": 0, "item": item | done})
        bodies.append({"type": "response.completed", "response": {"status": "completed", "output": None}})
        turn = Turn("openai_responses")
        for body in bodies:
            turn.feed(b"event: " + str(body["type"]).encode() + b"\n" + event(body))
        assert [call.complete for call in turn.result().tool_calls] == [False]


class TestWhatWasLost:
    def test_arguments_beside_the_function(self) -> None:
        call = {"index": 0, "id": "t", "name": "f", "arguments": '{"a":1}'}
        (found,) = fed(chunk(tool_calls=[call]), stop(finish="tool_calls"), DONE).result().tool_calls
        assert (found.name, found.arguments) == ("f", '{"a":1}')

    def test_a_message_without_a_delta(self) -> None:
        whole = event({"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]})
        assert fed(whole, DONE).result().answer == "a"


class TestCuts:
    def test_what_comes_after_a_limit_is_counted_under_every_cut(self) -> None:
        stream = text("a") + stop() + DONE
        for limit in (1, 50, 200):
            counts = set()
            for size in (1, 50, len(stream)):
                turn = Turn("openai_chat", max_turn_bytes=limit)
                for at in range(0, len(stream), size):
                    turn.feed(stream[at : at + size])
                counts.add((turn.anomalies.total, turn.state))
            assert len(counts) == 1, limit

    def test_what_comes_after_an_end_in_a_broken_chunk_is_counted(self) -> None:
        stream = b'[{"error":{"code":1}},{},x'
        counts = set()
        for cut in range(len(stream)):
            turn = Turn("vertex_search")
            turn.feed(stream[:cut])
            turn.feed(stream[cut:])
            counts.add(turn.anomalies.total)
        assert counts == {1}


def test_many_usage_keys_are_bounded() -> None:
    many = [event({"choices": [], "usage": {f"k{n}": 1}}) for n in range(1000)]
    turn = fed(text("a"), *many, stop(), DONE)
    assert turn.usage is not None
    assert len(turn.usage.raw) == 256
    assert turn.anomalies.counts["usage_too_large"] == 744


class TestTheOlderCompletions:
    """POST /v1/completions has chunks with `text` in the place of `delta`; unread, a whole answer looked empty."""

    @staticmethod
    def piece(text: object, finish: str | None = None, **more: object) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, **more}
        return event({"id": "c1", "object": "text_completion", "model": "m", "choices": [choice]})

    def test_their_text_is_the_answer(self) -> None:
        turn = fed(*map(self.piece, ("Água ", "水 ", "🐙")), self.piece("", "length"), DONE)
        assert (turn.result().answer, turn.finish_reason) == ("Água 水 🐙", "length")

    def test_text_of_a_wrong_type_is_lost_text(self) -> None:
        assert fed(self.piece(7), self.piece("", "stop"), DONE).state is State.ERROR

    def test_beside_a_delta_it_says_nothing(self) -> None:
        turn = fed(self.piece("b", delta={"content": "a"}), self.piece("b", "stop", delta={}), DONE)
        assert turn.result().answer == "a"
