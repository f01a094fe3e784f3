"""When a turn is finished: the eight rules of design.md 3.2, and what the turn promises around them."""

from __future__ import annotations

import pickle

import pytest

import levada
from levada import Cancelled, FinishedTurn, NotFinished, State, TextDelta, Turn, UsageError
from levada.errors import ProtocolError, ProviderError, TransportError, Truncated, TurnTimeout
from tests.turn.chat import DONE, chunk, event, fed, stop, text

ERROR = event({"error": {"message": "overloaded", "type": "server_error", "code": 503}})


class TestRule1ErrorsBeatTerminalSignals:
    def test_an_error_before_done_wins(self) -> None:
        turn = fed(text("a"), stop(), ERROR, DONE)
        assert turn.state is State.ERROR
        assert turn.error == ProviderError("overloaded", "server_error", True, None, {
            "message": "overloaded", "type": "server_error", "code": 503
        })  # fmt: skip

    def test_an_error_after_done_changes_nothing_and_is_counted(self) -> None:
        turn = fed(text("a"), stop(), DONE, ERROR)
        assert turn.state is State.FINISHED
        assert turn.anomalies.counts == {"after_end": 1}

    def test_later_events_fill_empty_fields_of_the_error_and_never_its_kind(self) -> None:
        turn = fed(event({"error": {"message": "first"}}), ERROR, text("late"), clean=None)
        assert turn.error is not None
        assert (turn.error.kind, turn.error.message, turn.error.type) == ("provider", "first", "server_error")
        assert turn.answer == ""

    def test_a_truncated_turn_stays_truncated(self) -> None:
        turn = fed(text("a"))
        turn.feed(ERROR)
        assert isinstance(turn.error, Truncated)

    def test_after_the_end_feed_returns_nothing_and_nothing_raises(self) -> None:
        turn = fed(text("a"), stop(), DONE)
        assert turn.feed(text("late")) == []
        assert turn.eof(clean=False) == []
        assert turn.fail(OSError("reset")) is False
        assert turn.cancel() is False
        assert turn.state is State.FINISHED
        assert turn.result().answer == "a"
        assert turn.after_end == 5  # the eof of fed() too


class TestRule2TheTerminalSignal:
    def test_done_after_a_finish_reason_finishes(self) -> None:
        assert fed(text("a"), stop(), DONE, clean=None).state is State.FINISHED

    def test_a_finish_reason_alone_does_not(self) -> None:
        assert fed(text("a"), stop(), clean=None).state is State.STREAMING
        assert isinstance(fed(text("a"), stop()).error, Truncated)

    def test_an_unclean_end_never_finishes(self) -> None:
        assert isinstance(fed(text("a"), stop(), terminal="finish_reason", clean=False).error, Truncated)

    def test_done_without_its_blank_line_is_no_event(self) -> None:
        assert isinstance(fed(text("a"), stop(), b"data: [DONE]\n").error, Truncated)


class TestRule3Strictness:
    def test_strict_wants_a_finish_reason_for_every_choice(self) -> None:
        turn = fed(text("a", 0), text("b", 1), stop(0), DONE)
        assert isinstance(turn.error, Truncated)
        assert "choice 1" in turn.error.message

    def test_strict_wants_a_choice_at_all(self) -> None:
        assert isinstance(fed(DONE).error, Truncated)

    def test_done_suffices_under_done_and_the_finish_is_other(self) -> None:
        turn = fed(text("a"), DONE, terminal="done")
        assert turn.result().finish_reason == "other"
        assert turn.result().native_finish_reason is None

    def test_finish_reason_suffices_under_its_own_name_at_a_clean_end(self) -> None:
        assert fed(text("a"), stop(), terminal="finish_reason").result().answer == "a"

    def test_finish_reason_still_wants_one_for_every_choice(self) -> None:
        assert fed(text("a"), text("b", 1), stop(), terminal="finish_reason").state is State.ERROR

    def test_a_named_profile_may_loosen_it_and_an_explicit_option_wins(self) -> None:
        assert fed(text("a"), stop(), profile="writer").state is State.FINISHED
        assert fed(text("a"), stop(), profile="writer", terminal="strict").state is State.ERROR

    def test_a_setting_that_makes_no_sense_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="terminal must be one of strict, done, finish_reason"):
            Turn("openai_chat", terminal="lax")


class TestRule4AnErrorFinish:
    @pytest.mark.parametrize("native", ["error", "insufficient_system_resource", "network_error", "abort"])
    def test_a_native_error_word_is_a_provider_error_at_the_terminal_signal(self, native: str) -> None:
        turn = fed(text("a"), stop(finish=native), clean=None)
        assert turn.state is State.STREAMING
        turn.feed(DONE)
        assert isinstance(turn.error, ProviderError)
        assert turn.error.type == native

    def test_the_last_word_counts(self) -> None:
        assert fed(text("a"), stop(finish="abort"), stop(), DONE).state is State.FINISHED

    def test_an_unknown_word_is_other_and_never_stop(self) -> None:
        assert fed(text("a"), stop(finish="banana"), DONE).result().finish_reason == "other"


class TestRule5LossIsAProtocolError:
    @pytest.mark.parametrize(
        "data",
        [
            b'{"choices":[{"delta":{"content":"a"}',
            b'{"choices":[{"index":0,"delta":{"content":7}}]}',
            b'{"choices":[{"index":0,"delta":{"content":{"text":"a"}}}]}',
            b'{"choices":[{"index":0,"delta":"a"}]}',
            b'{"choices":["a"]}',
            b'{"choices":{"index":0}}',
            b'{"choices":[{"index":"0","delta":{"content":"a"}}]}',
            b'{"choices":[{"index":0,"delta":{},"finish_reason":7}]}',
            b'{"choices":[{"index":0,"delta":{"tool_calls":"f"}}]}',
            b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":[1]}}]}}]}',
            b"[" * 100_000,
        ],
    )
    def test_what_may_have_lost_text_arguments_or_a_finish(self, data: bytes) -> None:
        turn = fed(text("a"), b"data: " + data + b"\n\n", stop(), DONE)
        assert isinstance(turn.error, ProtocolError)
        assert turn.answer == "a"

    @pytest.mark.parametrize(
        ("data", "name"),
        [
            (b"null", "not_an_object"),
            (b"7", "not_an_object"),
            (b'"x"', "not_an_object"),
            (b": keepalive", "not_json"),
            (b"", "not_json"),
            (b'{"choices":[{"index":0,"delta":{},"x":NaN}]}', "lenient_json"),
        ],
    )
    def test_harmless_damage_is_counted_with_its_place(self, data: bytes, name: str) -> None:
        turn = fed(text("a"), b"data: " + data + b"\n\n", stop(), DONE)
        assert turn.state is State.FINISHED
        assert turn.anomalies.counts == {name: 1}
        assert turn.anomalies.first[0].event == 2


class TestRule7BodiesThatAreNoStream:
    def test_a_json_error_with_a_bad_status(self) -> None:
        turn = Turn("openai_chat")
        turn.head(429, "application/json", {"Retry-After": "7"})
        turn.feed(b'{"error":{"message":"slow down","type":"rate_limit_error"}}')
        turn.eof(clean=True)
        assert turn.error == ProviderError(
            "slow down", "rate_limit_error", True, 7.0, {"error": {"message": "slow down", "type": "rate_limit_error"}}
        )

    def test_a_page_of_html(self) -> None:
        turn = Turn("openai_chat")
        turn.head(200, "text/html; charset=utf-8")
        turn.feed(b"<html>Bad gateway</html>")
        turn.eof(clean=True)
        assert isinstance(turn.error, ProtocolError)
        assert "Bad gateway" not in str(turn.error)

    def test_a_page_of_html_that_nobody_announced(self) -> None:
        assert isinstance(fed(b"<html>\n<body>Bad gateway</body>\n</html>").error, ProtocolError)

    def test_a_whole_answer_is_read_as_one(self) -> None:
        body = event(
            {
                "id": "c1",
                "object": "chat.completion",
                "model": "m",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "água"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            }
        )[6:-2]
        turn = Turn("openai_chat")
        turn.head(200, "application/json")
        for at in range(len(body)):
            turn.feed(body[at : at + 1])
        turn.eof(clean=True)
        assert turn.result().answer == "água"
        cut = Turn("openai_chat")
        cut.head(200, "application/json")
        cut.feed(body)
        cut.eof(clean=False)
        assert cut.state is State.ERROR

    def test_a_stream_of_another_dialect_is_not_worth_another_attempt(self) -> None:
        foreign = b'event: ping\ndata: {"type":"ping"}\n\nevent: x\ndata: {"type":"content_block_delta"}\n\n'
        error = fed(foreign).error
        assert isinstance(error, Truncated)
        assert "after 2 events that openai_chat does not know" in error.message
        assert not error.retryable

    def test_an_empty_body_and_one_of_comments_are_truncated(self) -> None:
        assert isinstance(fed(b"").error, Truncated)
        assert isinstance(fed(b": keep-alive\n\n: keep-alive\n\n").error, Truncated)

    def test_a_body_that_is_no_stream_is_bounded(self) -> None:
        turn = Turn("openai_chat", max_event_bytes=100)
        turn.head(500, "text/html")
        turn.feed(b"x" * 101)
        assert turn.error is not None
        assert turn.error.kind == "too_large"

    def test_head_comes_once_and_first(self) -> None:
        turn = fed(text("a"), clean=None)
        with pytest.raises(UsageError):
            turn.head(200, "text/event-stream")


class TestRule8StrayLines:
    def test_a_stray_error_line(self) -> None:
        turn = fed(text("a"), stop(), b'error: {"code":400,"message":"context full"}\n\n', DONE)
        assert turn.error is not None
        assert (turn.error.kind, turn.error.message, turn.error.type) == ("provider", "context full", "400")

    def test_a_bare_error_document_of_several_lines_after_a_finish(self) -> None:
        document = b'{\n  "error": {\n    "code": 503,\n    "message": "gone"\n  }\n}'
        for end in (b"", b"\n", b"\r\n\r\n"):
            turn = fed(text("a"), stop(), document + end, terminal="finish_reason")
            assert turn.error is not None, end
            assert turn.error.message == "gone"

    def test_other_strays_are_counted(self) -> None:
        turn = fed(b"foo: bar\n", text("a"), stop(), DONE)
        assert turn.anomalies.counts == {"stray_line": 1}


class TestStates:
    def test_keep_alives_leave_it_connecting(self) -> None:
        assert fed(b": ping\n\nevent: x\n\n", clean=None).state is State.CONNECTING

    def test_the_first_real_event_opens_it(self) -> None:
        assert fed(chunk(role="assistant", content=""), clean=None).state is State.STREAMING

    def test_cancel(self) -> None:
        turn = fed(text("a"), clean=None)
        assert turn.cancel() is True
        assert turn.state is State.CANCELLED
        with pytest.raises(Cancelled):
            turn.result()

    def test_no_result_before_the_end(self) -> None:
        with pytest.raises(NotFinished, match="connecting"):
            Turn("openai_chat").result()

    def test_fail_tells_timeouts_from_the_transport(self) -> None:
        turn = fed(text("a"), clean=None)
        assert turn.fail(TimeoutError()) is True
        assert isinstance(turn.error, TurnTimeout)
        turn = fed(text("a"), clean=None)
        turn.fail(ConnectionResetError("reset by peer"))
        assert isinstance(turn.error, TransportError)
        assert turn.error.message == "ConnectionResetError: reset by peer"

    def test_the_result_raises_a_fresh_copy_of_the_error(self) -> None:
        turn = fed(text("a"))
        raised = []
        for _ in range(2):
            with pytest.raises(Truncated) as caught:
                turn.result()
            raised.append(caught.value)
        assert raised[0] == raised[1] == turn.error
        assert len({id(error) for error in (*raised, turn.error)}) == 3
        assert pickle.loads(pickle.dumps(raised[0])) == raised[0]


class TestLimits:
    def test_an_event_too_large_keeps_what_came_before(self) -> None:
        turn = Turn("openai_chat", max_event_bytes=300)
        deltas = turn.feed(text("a") + text("b" * 400))
        assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == ["a"]
        assert turn.error is not None
        assert turn.error.kind == "too_large"
        assert "max_event_bytes" in turn.error.message

    def test_a_turn_too_large_is_the_same_under_every_cut(self) -> None:
        stream = b"".join([*map(text, "abcdefgh"), stop(), DONE])
        for limit in range(1, len(stream) + 2, 37):
            turns = []
            for size in (1, 50, len(stream)):
                turn = Turn("openai_chat", max_turn_bytes=limit)
                for at in range(0, len(stream), size):
                    turn.feed(stream[at : at + size])
                turns.append((turn.state, turn.answer, str(turn.error)))
            assert len(set(turns)) == 1, limit
            assert (turns[0][0] is State.FINISHED) == (limit >= len(stream))

    def test_too_many_choices_and_tool_calls(self) -> None:
        turn = fed(*(text("a", index) for index in range(4)), max_choices=3, clean=None)
        assert turn.error is not None
        assert turn.error.kind == "too_large"
        call = [{"index": n, "id": f"t{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(4)]
        turn = fed(chunk(tool_calls=call), max_tool_calls=3, clean=None)
        assert turn.error is not None
        assert "max_tool_calls" in turn.error.message

    @pytest.mark.parametrize("option", ["max_event_bytes", "max_turn_bytes", "max_tool_calls", "max_choices"])
    @pytest.mark.parametrize("value", [0, -1, 1.5, True, "7", None, 2**63])
    def test_a_limit_must_be_a_positive_int(self, option: str, value: object) -> None:
        with pytest.raises(UsageError, match=option):
            Turn("openai_chat", **{option: value})  # type: ignore[arg-type]  # that is the point


class TestFinishedTurn:
    def test_only_a_turn_makes_one(self) -> None:
        with pytest.raises(UsageError):
            FinishedTurn()
        with pytest.raises(UsageError):
            FinishedTurn(object(), answer="forged")

    def test_it_is_frozen_and_does_not_pickle(self) -> None:
        result = fed(text("a"), stop(), DONE).result()
        with pytest.raises(AttributeError):
            result.answer = "b"
        with pytest.raises(TypeError):
            pickle.dumps(result)
        with pytest.raises(TypeError):
            result.anomalies.counts["x"] = 1  # type: ignore[index]  # that is the point

    def test_its_message_is_ready_for_the_next_request(self) -> None:
        call = {"index": 0, "id": "t1", "function": {"name": "f", "arguments": '{"a":1}'}}
        result = fed(text("água "), chunk(tool_calls=[call]), stop(finish="tool_calls"), DONE).result()
        assert result.message() == {
            "role": "assistant",
            "content": "água ",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        }


class TestSoFar:
    def test_each_delta_knows_the_text_up_to_it(self) -> None:
        turn = Turn("openai_chat")
        deltas = [d for piece in "água 水 😀" for d in turn.feed(text(piece)) if isinstance(d, TextDelta)]
        assert [delta.so_far for delta in deltas] == ["água 水 😀"[: n + 1] for n in range(len(deltas))]
        assert turn.answer == deltas[-1].so_far

    def test_it_is_no_part_of_the_value(self) -> None:
        delta = next(d for d in Turn("openai_chat").feed(text("a")) if isinstance(d, TextDelta))
        assert delta == TextDelta("a")
        again = pickle.loads(pickle.dumps(delta))
        assert again == delta
        with pytest.raises(UsageError):
            _ = again.so_far


class TestMisuse:
    def test_unknown_names_say_what_there_is(self) -> None:
        with pytest.raises(UsageError, match="openai_chat"):
            Turn("chatgpt")
        with pytest.raises(UsageError, match="deepseek is a profile of openai_chat"):
            Turn("deepseek")
        with pytest.raises(UsageError, match="deepseek"):
            Turn("openai_chat", profile="deepsek")
        with pytest.raises(UsageError, match="belongs to dialect openai_chat"):
            Turn("anthropic", profile="groq")

    @pytest.mark.parametrize("wrong", ["data: x\n\n", None, 7, [b"x"]])
    def test_feed_takes_bytes(self, wrong: object) -> None:
        with pytest.raises(TypeError):
            Turn("openai_chat").feed(wrong)  # type: ignore[arg-type]  # that is the point

    def test_a_text_mode_that_a_dialect_never_has(self) -> None:
        with pytest.raises(UsageError, match="text_mode='cumulative' makes no sense for anthropic; there: delta"):
            Turn("anthropic", text_mode="cumulative")
        with pytest.raises(UsageError, match="think_tags need text_mode='delta'"):
            Turn("openai_chat", text_mode="cumulative", think_tags=("think",))

    def test_cumulative_text_is_read_once(self) -> None:
        turn = fed(text("a"), text("ab"), text("abc"), stop(), DONE, text_mode="cumulative")
        assert turn.result().answer == "abc"
        turn = fed(text("ab"), text("xyz"), stop(), DONE, text_mode="cumulative")
        assert turn.result().answer == "xyz"

    def test_feed_event_takes_what_somebody_else_framed(self) -> None:
        turn = Turn("openai_chat")
        for one in levada.EventParser().feed(text("a") + stop() + DONE):
            turn.feed_event(one)
        assert turn.result().answer == "a"
