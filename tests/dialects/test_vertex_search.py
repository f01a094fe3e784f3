"""Vertex AI Search streamAnswer: providers.md 3, 7 and 10.14, bytes in, values out. There is no recording of it."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada import Citation, Finish, Opaque, Reference, TextDelta, TextReplaced, Turn
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

DIALECT: Final = "vertex_search"
ERROR: Final = {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}


def element(state: Any = "STREAMING", text: Any = None, **answer: Any) -> dict[str, Any]:
    if state is not None:
        answer["state"] = state
    if text is not None:
        answer["answerText"] = text
    return {"answer": answer}


def succeeded(text: Any = None, **answer: Any) -> dict[str, Any]:
    return element("SUCCEEDED", text, **answer)


def reference(number: int) -> dict[str, Any]:
    described = {"uri": f"https://{number}", "title": f"T{number}"}
    return {"chunkInfo": {"chunk": f"c{number}", "content": f"words {number}", "documentMetadata": described}}


def citation(start: int, end: int, *ids: int) -> dict[str, Any]:
    span = {"startIndex": str(start)} if start else {}
    return span | {"endIndex": str(end), "sources": [{"referenceId": str(one)} for one in ids]}


class TestTheTerminalSignal:
    """providers.md 3 and 7.5: SUCCEEDED, then the bracket or a clean end."""

    @pytest.mark.parametrize("framing", FRAMINGS)
    def test_succeeded_and_a_clean_end_finish(self, framing: str) -> None:
        turn = fed(DIALECT, element(), element(text="Olá"), succeeded("Olá"), framing=framing)
        assert (turn.state, turn.answer) == ("finished", "Olá")
        assert (turn.finish_reason, turn.native_finish_reason) == ("stop", "SUCCEEDED")
        assert (turn.model, turn.usage, turn.anomalies.total) == (None, None, 0)

    @pytest.mark.parametrize("framing", FRAMINGS)
    def test_succeeded_alone_or_with_a_reset_does_not(self, framing: str) -> None:
        assert fed(DIALECT, succeeded("a"), framing=framing, clean=None).state == "streaming"
        turn = fed(DIALECT, succeeded("a"), framing=framing, clean=False)
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    @pytest.mark.parametrize("framing", FRAMINGS)
    @pytest.mark.parametrize("state", ["STREAMING", "IN_PROGRESS", "STATE_UNSPECIFIED", None, 4, 1, 0])
    def test_no_other_state_does(self, framing: str, state: Any) -> None:
        turn = fed(DIALECT, element(state, "a"), framing=framing)
        assert turn.error is not None
        assert turn.error.kind == "truncated"
        assert turn.answer == "a"

    def test_a_bracket_that_is_missing_is_counted(self) -> None:
        turn, _ = play(DIALECT, array(element(text="a"), succeeded("a"), closed=False))
        assert (turn.state, turn.anomalies.counts) == ("finished", {"array_not_closed": 1})

    def test_an_element_that_was_cut_off_confirms_nothing(self) -> None:
        for rest in (b",{", b',{"error": {"code": 5'):
            turn, _ = play(DIALECT, array(succeeded("a"), closed=False) + rest)
            assert turn.error is not None
            assert turn.error.kind == "truncated"

    def test_a_last_event_without_its_blank_line_is_no_event(self) -> None:
        turn, _ = play(DIALECT, sse(element(text="a")) + sse(succeeded("a"))[:-4])
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    def test_numbers_of_the_proto_are_states(self) -> None:
        assert fed(DIALECT, element(4, "a"), element(3, "a")).state == "finished"
        turn = fed(DIALECT, element(2))
        assert turn.error is not None
        assert turn.error.kind == "provider"

    def test_the_last_state_counts(self) -> None:
        for after in (element(text="b"), element(), element(None, "b"), element("IN_PROGRESS")):
            assert fed(DIALECT, succeeded("a"), after).state == "error"
        assert fed(DIALECT, succeeded("a"), element(text="b"), succeeded("ab")).answer == "ab"
        for after in ({"session": {"name": "s"}}, {"answer": {}}, {}, {"answer": {"relatedQuestions": ["q"]}}):
            assert fed(DIALECT, succeeded("a"), after).state == "finished"

    def test_of_two_the_last_wins(self) -> None:
        assert fed(DIALECT, succeeded("a"), succeeded("b")).answer == "b"

    @pytest.mark.parametrize("framing", FRAMINGS)
    def test_an_empty_array_and_an_empty_body(self, framing: str) -> None:
        for stream in (b"[]", b"", b" "):
            turn, _ = play(DIALECT, stream)
            assert turn.error is not None
            assert turn.error.kind == "truncated"
        assert fed(DIALECT, framing=framing).state == "error"

    def test_one_bare_object_is_a_whole_answer(self) -> None:
        turn, _ = play(DIALECT, json.dumps(succeeded("a")).encode())
        assert (turn.state, turn.answer) == ("finished", "a")

    def test_bytes_after_the_array_break_the_protocol(self) -> None:
        turn, _ = play(DIALECT, array(succeeded("a")) + b"{}")
        assert turn.error is not None
        assert turn.error.kind == "protocol"


@pytest.mark.parametrize("framing", FRAMINGS)
class TestFailures:
    """providers.md 5 and 7.5."""

    def test_failed_with_text_that_was_streamed_and_that_was_not(self, framing: str) -> None:
        for elements in (
            [element(text="Ol"), element("FAILED", "Olá")],
            [element("FAILED", "Olá")],
            [element(text="Olá"), element("FAILED")],
            [element(text="Olá"), element("FAILED", "á")],
        ):
            turn = fed(DIALECT, *elements, framing=framing)
            assert turn.error is not None
            assert (turn.error.kind, turn.error.type) == ("provider", "FAILED")
            assert (turn.answer, turn.finish_reason) == ("Olá", "error")

    def test_failed_after_succeeded(self, framing: str) -> None:
        turn = fed(DIALECT, succeeded("a"), element("FAILED"), framing=framing)
        assert turn.error is not None
        assert turn.error.kind == "provider"

    def test_an_error_element(self, framing: str) -> None:
        for elements in ([ERROR], [element(text="a"), ERROR], [succeeded("a"), ERROR]):
            for clean in (True, False):
                turn = fed(DIALECT, *elements, framing=framing, clean=clean)
                assert turn.error is not None
                assert (turn.error.kind, turn.error.type, turn.error.message, turn.error.retryable) == (
                    "provider",
                    "RESOURCE_EXHAUSTED",
                    "slow down",
                    True,
                )

    def test_a_failed_step_fails_nothing(self, framing: str) -> None:
        assert fed(DIALECT, succeeded("a", steps=[{"state": "FAILED"}]), framing=framing).state == "finished"


def test_error_bodies() -> None:
    for document in (ERROR, [ERROR]):
        turn = Turn(DIALECT)
        turn.head(429, "application/json; charset=UTF-8")
        turn.feed(json.dumps(document).encode())
        turn.eof(clean=True)
        assert turn.error is not None
        assert (turn.error.kind, turn.error.type) == ("provider", "RESOURCE_EXHAUSTED")
    turn, _ = play(DIALECT, sse(succeeded("a")) + b"event: error\n" + sse(ERROR))
    assert turn.error is not None
    assert turn.error.kind == "provider"


@pytest.mark.parametrize("framing", FRAMINGS)
class TestText:
    """providers.md 7.3: pieces, and the whole answer at the end."""

    def test_pieces_are_appended(self, framing: str) -> None:
        deltas = deltas_of(
            DIALECT, element(text="Olá "), element(text="mundo"), succeeded("Olá mundo"), framing=framing
        )
        assert deltas == [TextDelta("Olá "), TextDelta("mundo"), Finish("stop", "SUCCEEDED")]

    def test_a_final_text_that_differs_replaces_them(self, framing: str) -> None:
        turn, deltas = play(DIALECT, framed(framing, element(text="Olá "), succeeded("Olá.")), framing=framing)
        assert TextReplaced("Olá.", reason="final_text") in deltas
        assert (turn.answer, turn.result().answer) == ("Olá.", "Olá.")
        assert [part.text for part in turn.parts] == ["Olá."]
        assert turn.anomalies.counts == {"final_text_differs": 1}

    def test_a_final_text_that_only_adds_replaces_them_too(self, framing: str) -> None:
        deltas = deltas_of(DIALECT, element(text="Olá"), succeeded("Olá!"), framing=framing)
        assert TextReplaced("Olá!", reason="final_text") in deltas

    def test_a_final_text_alone_is_text(self, framing: str) -> None:
        assert deltas_of(DIALECT, succeeded("a"), framing=framing)[0] == TextDelta("a")

    def test_empty_null_and_missing_are_the_same(self, framing: str) -> None:
        for none in (
            element(text=""),
            {"answer": {"state": "STREAMING", "answerText": None}},
            element(),
            {},
            {"answer": None},
        ):
            turn = fed(DIALECT, none, element(text="a"), none, succeeded("a"), framing=framing)
            assert (turn.state, turn.answer, turn.anomalies.total) == ("finished", "a", 0)

    def test_a_final_text_that_is_missing_is_counted(self, framing: str) -> None:
        for final in (succeeded(), succeeded("")):
            turn = fed(DIALECT, element(text="a"), final, framing=framing)
            assert (turn.state, turn.answer) == ("finished", "a")
            assert turn.anomalies.counts == {"final_text_missing": 1}

    def test_cumulative(self, framing: str) -> None:
        pieces = [element(text=text) for text in ("O", "Olá", "Olá mundo")]
        turn = fed(DIALECT, *pieces, succeeded("Olá mundo"), framing=framing, text_mode="cumulative")
        assert turn.answer == "Olá mundo"
        deltas = deltas_of(DIALECT, *pieces, succeeded("Olá mundo"), framing=framing, text_mode="cumulative")
        assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == ["O", "lá", " mundo"]
        assert not any(isinstance(delta, TextReplaced) for delta in deltas)

    def test_auto_decides_at_the_end(self, framing: str) -> None:
        pieces = [element(text=text) for text in ("O", "Olá", "Olá mundo")]
        for final in (succeeded("Olá mundo"), succeeded()):
            turn = fed(DIALECT, *pieces, final, framing=framing, text_mode="auto")
            assert (turn.answer, "final_text_differs" in turn.anomalies.counts) == ("Olá mundo", False)
        parts = [element(text="O"), element(text="lá")]
        for final in (succeeded("Olá"), succeeded()):
            assert fed(DIALECT, *parts, final, framing=framing, text_mode="auto").answer == "Olá"

    def test_braces_quotes_and_backslashes(self, framing: str) -> None:
        odd = '}{"\\" \\\\" ] [ {"answer": \n\u2028\u0085\x00 水😀'
        turn = fed(DIALECT, element(text=odd), element(text=odd), succeeded(odd * 2), framing=framing)
        assert (turn.state, turn.answer) == ("finished", odd * 2)


class TestReferences:
    def test_the_three_forms(self) -> None:
        forms = [
            reference(0),
            {
                "unstructuredDocumentInfo": {
                    "document": "d",
                    "uri": "gs://x.pdf",
                    "title": "X",
                    "chunkContents": [{"content": "one", "pageIdentifier": "1"}, {"content": "two"}],
                }
            },
            {"structuredDocumentInfo": {"document": "d", "structData": {"a": 1}, "title": "S", "uri": "https://s"}},
            {"hologram": {}},
        ]
        turn = fed(DIALECT, element(references=forms), succeeded("a"))
        assert [(one.id, one.title, one.url, one.text) for one in turn.references] == [
            ("0", "T0", "https://0", "words 0"),
            ("1", "X", "gs://x.pdf", "one\n\ntwo"),
            ("2", "S", "https://s", None),
            ("3", None, None, None),
        ]
        assert [one.raw for one in turn.references] == forms

    def test_lists_are_joined_while_streaming(self) -> None:
        elements = [element(references=[reference(0)]), element(references=[reference(0), reference(1)])]
        turn, deltas = play(DIALECT, array(*elements, element(text="a"), succeeded("a")))
        assert [one.id for one in turn.references] == ["0", "1"]
        assert [delta.id for delta in deltas if isinstance(delta, Reference)] == ["0", "1"]

    def test_those_of_succeeded_replace_them(self) -> None:
        final = succeeded("a", references=[reference(1), reference(2)])
        turn = fed(DIALECT, element(references=[reference(0), reference(1)]), final)
        assert [(one.id, one.url) for one in turn.references] == [("0", "https://1"), ("1", "https://2")]
        turn = fed(DIALECT, element(references=[reference(0)]), succeeded("a", references=[]))
        assert len(turn.references) == 1

    def test_after_the_text(self) -> None:
        turn = fed(DIALECT, element(text="a"), element(references=[reference(0)]), succeeded("a"))
        assert len(turn.references) == 1


class TestCitations:
    """providers.md 7.2 and 7.3: UTF-8 bytes of the final answer, int64 as strings, zero left out."""

    def test_the_bytes_of_their_claim(self) -> None:
        turn = fed(
            DIALECT,
            element(text="Olá mundo"),
            succeeded("Olá mundo", citations=[citation(0, 4, 0), citation(5, 10, 1, 2)]),
        )
        assert [(one.start, one.end, one.unit, one.references) for one in turn.citations] == [
            (0, 4, "bytes", ("0",)),
            (5, 10, "bytes", ("1", "2")),
        ]
        raw = turn.answer.encode()
        assert [raw[one.start : one.end].decode() for one in turn.citations] == ["Olá", "mundo"]

    def test_numbers_do_as_well_and_odd_ones_are_counted(self) -> None:
        odd = [{"endIndex": 1}, {"startIndex": "x", "endIndex": "1"}, {"endIndex": -1}, {"endIndex": "1" * 30}, {}]
        turn = fed(DIALECT, succeeded("a", citations=odd))
        assert [(one.start, one.end, one.unit) for one in turn.citations] == [(0, 1, "bytes")] * 2 + [
            (None, None, None)
        ] * 3
        assert turn.anomalies.counts == {"citation_offset": 3}

    def test_one_before_its_text_is_held_until_it_has_come(self) -> None:
        early = citation(0, 4, 0)
        elements = [
            element(citations=[early]),
            element(text="Ol"),
            element(text="á"),
            element(text="!"),
            succeeded("Olá!"),
        ]
        assert deltas_of(DIALECT, *elements) == [
            TextDelta("Ol"),
            TextDelta("á"),
            Citation(0, 4, "bytes", references=("0",), raw=early),
            TextDelta("!"),
            Finish("stop", "SUCCEEDED"),
        ]

    def test_the_end_hands_out_what_was_held(self) -> None:
        turn = fed(DIALECT, element(citations=[citation(0, 9, 0)]), element(text="a"), succeeded("a"))
        assert [one.end for one in turn.citations] == [9]
        assert turn.anomalies.counts == {"citation_past_text": 1}

    def test_they_are_joined_and_those_of_succeeded_replace_them(self) -> None:
        one, two, three = citation(0, 1, 0), citation(1, 2, 0), citation(2, 3, 1)
        elements = [element(text="abc"), element(citations=[one]), element(citations=[one, two])]
        assert [c.raw for c in fed(DIALECT, *elements, succeeded("abc")).citations] == [one, two]
        turn, deltas = play(DIALECT, array(*elements, succeeded("abc", citations=[two, three])))
        assert [c.raw for c in turn.citations] == [two, three]
        assert [delta.raw for delta in deltas if isinstance(delta, Citation)] == [one, two, three]

    def test_a_replaced_answer_has_the_final_citations(self) -> None:
        turn = fed(
            DIALECT,
            element(text="Olá"),
            element(citations=[citation(0, 4, 0)]),
            succeeded("Oi!", citations=[citation(0, 2, 0)], references=[reference(0)]),
        )
        assert [(one.start, one.end) for one in turn.citations] == [(0, 2)]

    def test_grounding_supports_are_kept_as_they_came(self) -> None:
        support = citation(0, 1, 0) | {"groundingScore": 0.8, "groundingCheckRequired": True}
        turn = fed(
            DIALECT,
            element(groundingSupports=[support]),
            succeeded("a", groundingSupports=[support], groundingScore=0.8),
        )
        assert opaque(turn, "groundingSupports") == [[support]]
        assert opaque(turn, "groundingScore") == [0.8]
        assert turn.citations == ()


class TestBesideTheAnswer:
    STEP: Final = {"state": "SUCCEEDED", "description": "Search.", "thought": "One search will do.", "actions": []}

    @pytest.mark.parametrize("place", range(4))
    def test_steps_anywhere(self, place: int) -> None:
        elements = [element(), element(text="a"), succeeded("a")]
        elements.insert(place, element(None, steps=[self.STEP]))
        turn = fed(DIALECT, *elements)
        assert (turn.state, turn.answer, turn.reasoning) == ("finished", "a", "One search will do.")
        assert opaque(turn, "steps") == [[self.STEP]]
        assert [(part.text, part.kind) for part in turn.parts if part.type == "reasoning"] == [
            ("One search will do.", "plan")
        ]

    def test_repeated_steps_are_not_repeated_and_grown_ones_go_on(self) -> None:
        begun = self.STEP | {"state": "IN_PROGRESS", "thought": "One search"}
        other = {"description": "Answer.", "thought": "Now write."}
        elements = [element(steps=[begun]), element(steps=[begun, other]), succeeded("a", steps=[self.STEP, other])]
        turn = fed(DIALECT, *elements)
        assert turn.reasoning == "One searchNow write. will do."
        assert [part.text for part in turn.parts if part.type == "reasoning"] == ["One search will do.", "Now write."]

    def test_session_token_and_questions(self) -> None:
        elements = [
            element(relatedQuestions=["q1"]),
            element(relatedQuestions=["q2"]),
            element(relatedQuestions=["q1"]),
            succeeded("a", name="p/answers/1") | {"session": {"name": "s"}, "answerQueryToken": "t"},
        ]
        turn = fed(DIALECT, *elements)
        assert opaque(turn, "relatedQuestions") == [["q1", "q2"]]
        assert opaque(turn, "session") == [{"name": "s"}]
        assert opaque(turn, "answerQueryToken") == ["t"]
        assert turn.id == "p/answers/1"
        names = [delta.name for delta in deltas_of(DIALECT, *elements) if isinstance(delta, Opaque)]
        assert names == ["relatedQuestions", "relatedQuestions", "session", "answerQueryToken"]

    def test_the_message_is_the_answer(self) -> None:
        turn = fed(DIALECT, succeeded("a", steps=[self.STEP]))
        assert turn.result().message() == {"role": "assistant", "content": "a"}


class TestSkippedAnswers:
    """providers.md 7.4."""

    @pytest.mark.parametrize(
        ("reason", "ours"),
        [
            ("ADVERSARIAL_QUERY_IGNORED", "content_filter"),
            ("JAIL_BREAKING_QUERY_IGNORED", "content_filter"),
            ("POTENTIAL_POLICY_VIOLATION", "content_filter"),
            ("CUSTOMER_POLICY_VIOLATION", "content_filter"),
            ("NON_ANSWER_SEEKING_QUERY_IGNORED", "other"),
            ("NON_ANSWER_SEEKING_QUERY_IGNORED_V2", "other"),
            ("OUT_OF_DOMAIN_QUERY_IGNORED", "other"),
            ("NO_RELEVANT_CONTENT", "other"),
            ("LOW_GROUNDED_ANSWER", "other"),
            ("TOMORROW", "other"),
        ],
    )
    def test_the_reason_decides(self, reason: str, ours: str) -> None:
        for text in (None, "", "A summary could not be generated."):
            turn = fed(DIALECT, element(), succeeded(text, answerSkippedReasons=[reason]))
            assert (turn.state, turn.answer) == ("finished", text or "")
            assert (turn.finish_reason, turn.native_finish_reason) == (ours, reason)
            assert opaque(turn, "answerSkippedReasons") == [[reason]]
            assert turn.anomalies.total == 0

    def test_a_policy_decides_among_several(self) -> None:
        reasons = ["NO_RELEVANT_CONTENT", "CUSTOMER_POLICY_VIOLATION"]
        assert fed(DIALECT, succeeded(answerSkippedReasons=reasons)).finish_reason == "content_filter"

    def test_streamed_text_of_a_skipped_answer_is_not_kept(self) -> None:
        elements = [
            element(text="How to"),
            element(citations=[citation(0, 3, 0)]),
            succeeded(answerSkippedReasons=["POTENTIAL_POLICY_VIOLATION"]),
        ]
        turn, deltas = play(DIALECT, array(*elements))
        assert (turn.answer, turn.citations) == ("", ())
        assert TextReplaced("", reason="POTENTIAL_POLICY_VIOLATION") in deltas

    def test_with_a_real_answer_it_is_stop_and_the_reasons_are_told(self) -> None:
        streamed = fed(DIALECT, element(text="Real."), succeeded("Real.", answerSkippedReasons=["LOW_GROUNDED_ANSWER"]))
        cites = succeeded("Real.", answerSkippedReasons=["POTENTIAL_POLICY_VIOLATION"], citations=[citation(0, 5, 0)])
        for turn in (streamed, fed(DIALECT, cites)):
            assert (turn.finish_reason, turn.native_finish_reason, turn.answer) == ("stop", "SUCCEEDED", "Real.")
            assert len(opaque(turn, "answerSkippedReasons")) == 1

    def test_a_streamed_apology_for_a_policy_is_no_answer(self) -> None:
        elements = [element(text="Sorry."), succeeded("Sorry.", answerSkippedReasons=["ADVERSARIAL_QUERY_IGNORED"])]
        assert fed(DIALECT, *elements).finish_reason == "content_filter"

    def test_reasons_may_come_before_the_end(self) -> None:
        turn = fed(DIALECT, element(answerSkippedReasons=["NO_RELEVANT_CONTENT"]), succeeded())
        assert turn.finish_reason == "other"


class TestOddJson:
    @pytest.mark.parametrize(
        "bad",
        [
            {"answer": "a"},
            {"answer": [1]},
            element(text=1),
            element(text=["a"]),
            element(["STREAMING"]),
            element(7),
            element(True),
            element(1.5),
            b'{"answer": {"answerText": "a}',
        ],
    )
    def test_what_may_have_lost_something_breaks_the_protocol(self, bad: Any) -> None:
        turn = fed(DIALECT, element(text="a"), bad, succeeded("a"))
        assert turn.error is not None
        assert turn.error.kind == "protocol"
        assert turn.answer == "a"

    @pytest.mark.parametrize(
        "odd",
        [
            element("TOMORROW"),
            element(references={}),
            element(references=[None, "x"]),
            element(citations="x"),
            element(citations=[1]),
            element(citations=[{"sources": [1, {"referenceId": None}]}]),
            element(steps="x"),
            element(steps=[1, {"thought": 2}, {}]),
            element(relatedQuestions="q"),
            element(relatedQuestions=[{"a": 1}]),
            {"session": 3, "answerQueryToken": []},
            {"novelty": 1},
            b"[]",
            b"null",
            b"hello",
        ],
    )
    def test_what_loses_nothing_is_tolerated(self, odd: Any) -> None:
        turn = fed(DIALECT, element(text="a"), odd, succeeded("a"))
        assert (turn.state, turn.answer) == ("finished", "a")
        assert isinstance(turn.parts, tuple)

    def test_duplicate_keys_and_lone_surrogates(self) -> None:
        turn = fed(DIALECT, b'{"answer":{"answerText":"x","answerText":"a\\ud83d"}}', succeeded("a\ufffd"))
        assert (turn.state, turn.answer) == ("finished", "a\ufffd")

    @pytest.mark.parametrize("depth", [90, 150, 500, 990, 5_000, 100_000])
    def test_deep_nesting_raises_nothing(self, depth: int) -> None:
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        for name in (
            b"references",
            b"citations",
            b"steps",
            b"relatedQuestions",
            b"groundingScore",
            b"answerSkippedReasons",
        ):
            for inner in (deep, b"[" + deep + b"]"):
                turn = fed(DIALECT, b'{"answer":{"' + name + b'":' + inner + b"}}", succeeded("a"))
                assert turn.state == ("finished" if depth == 90 else "error")
                assert isinstance(turn.parts, tuple)


class TestWholeAnswers:
    """A body that is not streamed: rule 7 of design.md 3.2."""

    def whole(self, document: Any) -> Turn:
        turn = Turn(DIALECT, framing="sse")
        turn.head(200, "application/json; charset=UTF-8")
        turn.feed(json.dumps(document).encode())
        turn.eof(clean=True)
        return turn

    def test_an_object_and_a_list_of_elements(self) -> None:
        for document in (succeeded("ab"), [element(text="a"), element(text="b"), succeeded("ab")]):
            turn = self.whole(document)
            assert (turn.state, turn.answer) == ("finished", "ab")

    def test_one_that_is_in_progress_is_not_whole(self) -> None:
        turn = self.whole(element("IN_PROGRESS", "a"))
        assert turn.error is not None
        assert turn.error.kind == "truncated"

    def test_one_that_failed(self) -> None:
        turn = self.whole(element("FAILED"))
        assert turn.error is not None
        assert turn.error.kind == "provider"

    @pytest.mark.parametrize("document", [{}, [], {"answer": "a"}, {"replies": []}, [1], "a"])
    def test_other_json_is_no_answer(self, document: Any) -> None:
        turn = self.whole(document)
        assert turn.error is not None
        assert turn.error.kind == "protocol"


def test_plain_pieces_are_read_by_a_stencil_until_a_citation_comes() -> None:
    pieces = [element(text=word) for word in "abcdefgh"]
    turn = Turn(DIALECT)
    stream = array(*pieces, closed=False)
    turn.feed(stream[: stream.index(b'"d"')])
    assert turn._stencils
    turn.feed(stream[stream.index(b'"d"') :] + b"," + array(element(citations=[citation(0, 9, 0)]), *pieces)[1:])
    assert turn.answer == "abcdefgh" * 2
    assert [one.end for one in turn.citations] == [9]


STREAM: Final = [
    element(),
    element(references=[reference(0)]),
    element(text='Olá {"}]\\'),
    element(citations=[citation(0, 12, 0)]),
    element(text="😀 水."),
    element(None, steps=[{"description": "d", "thought": "é"}]),
    succeeded('Olá {"}]\\😀 水!', citations=[citation(0, 4, 0)], references=[reference(0), reference(1)])
    | {"session": {"name": "s"}},
]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_no_cut_changes_the_turn(framing: str) -> None:
    assert_cuts_change_nothing(DIALECT, framed(framing, *STREAM), framing)


@pytest.mark.parametrize("framing", FRAMINGS)
def test_no_stream_that_was_cut_off_passes_for_a_whole_one(framing: str) -> None:
    plain = [*STREAM[:-1], succeeded('Olá {"}]\\😀 水.')]
    stream = framed(framing, *plain)
    indent = None if framing == "sse" else 2
    terminal = json.dumps(plain[-1], ensure_ascii=False, indent=indent).encode() + (
        b"\r\n\r" if indent is None else b""
    )
    assert_never_whole_when_cut_off(DIALECT, stream, framing, terminal)


# -- streams of every kind, from a generator that knows the answer -----------------------------------------------------

WORDS = st.text(st.sampled_from('aé水😀 \n"\\{}[]:,\u2028\u0085'), min_size=1, max_size=6)
NOISE: Final[list[Any]] = [
    {},
    {"answer": None},
    element(),
    element(None),
    {"novelty": [1]},
    element(createTime="2026"),
    {"session": None},
]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Elements, and what they amount to."""
    pieces = draw(st.lists(WORDS, max_size=5))
    streamed = "".join(pieces)
    differs = draw(st.booleans())
    final = draw(WORDS) if differs else streamed
    thoughts = draw(st.lists(WORDS, max_size=2, unique=True))
    references = [reference(number) for number in range(draw(st.integers(0, 3)))]
    spans = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(4, 9)), max_size=3, unique=True))
    citations = [citation(start, end, 0) for start, end in spans]
    elements = [element(text=piece) for piece in pieces]
    for beside in (
        *(element(references=[one]) for one in references),
        *(element(citations=[one]) for one in citations),
        *(element(None, steps=[{"description": str(n), "thought": thought}]) for n, thought in enumerate(thoughts)),
    ):
        elements.insert(draw(st.integers(0, len(elements))), beside)
    last = succeeded(final or None)
    if draw(st.booleans()):
        last["answer"] |= {"references": references[::-1], "citations": citations[::-1]}
        references, citations = references[::-1], citations[::-1]
        kept = {"references": references, "citations": citations}
    else:
        order = [one["answer"] for one in elements]
        kept = {name: [item for one in order for item in one.get(name, ())] for name in ("references", "citations")}
    thoughts = [step["thought"] for one in elements for step in one["answer"].get("steps", ())]
    return [*elements, last], {"answer": final, "reasoning": "".join(thoughts), **kept}


def sprinkled(elements: list[dict[str, Any]], rnd: random.Random) -> list[dict[str, Any]]:
    """Add what means nothing: nulls, unknown fields, empty elements; leave out what may be missing."""
    out: list[dict[str, Any]] = []
    for one in json.loads(json.dumps(elements)):
        answer = one["answer"]
        if answer.get("state") == "STREAMING" and rnd.random() < 0.5:
            del answer["state"]
        for key in rnd.sample(["answerText", "citations", "steps", "x", "name"], 2):
            answer.setdefault(key, None)
        for key in rnd.sample(["references", "citations", "relatedQuestions"], rnd.randint(0, 1)):
            answer.setdefault(key, [])
        if rnd.random() < 0.5:
            one["error"] = None
        out += rnd.sample(NOISE, rnd.randint(0, 1))
        out.append(one)
    return out


def cut(stream: bytes, rnd: random.Random) -> list[bytes]:
    places = sorted(rnd.sample(range(len(stream) + 1), min(len(stream), rnd.randint(0, 8))))
    return [stream[a:b] for a, b in pairwise([0, *places, len(stream)])]


@given(st.data())
def test_any_stream_gives_its_generators_answer(data: st.DataObject) -> None:
    elements, expected = data.draw(streams())
    framing = data.draw(st.sampled_from(FRAMINGS))
    rnd = random.Random(data.draw(st.integers(0, 1 << 30)))
    stream = framed(framing, *sprinkled(elements, rnd))
    turn, deltas = play(DIALECT, *cut(stream, rnd), framing=framing)
    assert turn.error is None
    assert (turn.state, turn.finish_reason) == ("finished", "stop")
    assert (turn.answer, turn.reasoning) == (expected["answer"], expected["reasoning"])
    assert [one.raw for one in turn.references] == expected["references"]
    assert sorted(json.dumps(one.raw) for one in turn.citations) == sorted(map(json.dumps, expected["citations"]))
    shown = ""
    for delta in deltas:
        if isinstance(delta, TextReplaced):
            shown = delta.text
        elif isinstance(delta, TextDelta) and delta.channel == "answer":
            shown += delta.text
    assert shown == turn.answer


@given(st.data())
def test_damage_raises_nothing_and_confirms_nothing(data: st.DataObject) -> None:
    elements, _ = data.draw(streams())
    framing = data.draw(st.sampled_from(FRAMINGS))
    rnd = random.Random(data.draw(st.integers(0, 1 << 30)))
    stream = bytearray(framed(framing, *elements))
    for _ in range(rnd.randint(1, 6)):
        stream[rnd.randrange(len(stream))] = rnd.choice(b'"\\{}[],:\n\r\x00\xff\xc3 a1')
    turn, _ = play(DIALECT, bytes(stream), framing=framing)
    assert turn.state in ("finished", "error")
    assert isinstance(turn.parts, tuple)
    # a byte of the terminal signal's own word, damaged
    whole = framed(framing, *elements)
    place = whole.rindex(b"SUCCEEDED") + rnd.randrange(9)
    damaged = whole[:place] + rnd.choice([b"x", b'"', b"\\", b"\xff", b"\n", b"0"]) + whole[place + 1 :]
    assert play(DIALECT, damaged, framing=framing)[0].state == "error"


@given(st.data())
def test_stencils_read_what_the_decoder_reads(data: st.DataObject) -> None:
    elements, _ = data.draw(streams())
    rnd = random.Random(data.draw(st.integers(0, 1 << 30)))
    many = [one for one in elements for _ in range(rnd.randint(1, 3))]
    framing = data.draw(st.sampled_from(FRAMINGS))
    stream = framed(framing, *many)
    assert_same(DIALECT, cut(stream, rnd), framing)
