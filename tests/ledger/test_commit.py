"""Only finished turns are committed, once for each key, with their actions or not at all."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from levada import Cancelled, Incomplete, Outcome, Turn, UsageError
from levada.finished import FinishedTurn
from levada.ledger import Action, Committed, KeyConflict, Ledger, LedgerTooLarge, StoredTurn, Validator
from tests.ledger.turned import DONE, call, chunk, event, fed, finished, spoken, stop, text


def stored(ledger: Ledger, key: str = "k") -> StoredTurn:
    turn = ledger.get(key)
    assert turn is not None
    return turn


class TestOnceForEachKey:
    def test_the_same_again_is_already_stored(self, ledger: Ledger) -> None:
        turn, actions = finished(), [Action("mail", {"to": "a"})]
        assert ledger.commit(turn, key="k", actions=actions) == Committed("stored", key="k", actions=1)
        assert ledger.commit(turn, key="k", actions=actions) == Committed("already_stored", key="k")
        assert (ledger.count(), ledger.queued()) == (1, {"mail": 1})

    def test_the_same_is_what_says_the_same_whoever_read_it(self, ledger: Ledger) -> None:
        ledger.commit(finished(), key="k")
        assert ledger.commit(Outcome(finished(), "water", attempts=3), key="k").status == "already_stored"

    @pytest.mark.parametrize(
        "other",
        [
            finished("wine"),
            finished(finish="length"),
            finished(id="c2"),
            Outcome(finished(), "released"),
            fed(text("water"), stop(), event({"choices": [], "usage": {"prompt_tokens": 1}}), DONE).result(),
        ],
        ids=["another answer", "finish reason", "id", "release", "usage"],
    )  # fmt: skip
    def test_another_content_is_a_conflict(self, ledger: Ledger, other: FinishedTurn | Outcome) -> None:
        ledger.commit(finished(), key="k")
        with pytest.raises(KeyConflict, match="another turn") as raised:
            ledger.commit(other, key="k")
        assert raised.value.key == "k"
        assert stored(ledger).answer == "water"

    def test_other_actions_are_a_conflict_for_they_would_be_lost(self, ledger: Ledger) -> None:
        ledger.commit(finished(), key="k", actions=[Action("mail", 1)])
        for actions in ([], [Action("mail", 2)], [Action("post", 1)], [Action("mail", 1), Action("mail", 1)]):
            with pytest.raises(KeyConflict):
                ledger.commit(finished(), key="k", actions=actions)
        assert ledger.queued() == {"mail": 1}

    def test_anomalies_that_came_after_the_end_make_no_other_content(self, ledger: Ledger) -> None:
        turn = fed(text("water"), stop(), DONE)
        ledger.commit(turn.result(), key="k")
        turn.feed(text("late"))
        assert ledger.commit(turn.result(), key="k").status == "already_stored"

    def test_one_of_many_threads_stores_it(self, ledger: Ledger) -> None:
        turn, came = finished(), []
        gate = threading.Barrier(8)

        def commit() -> None:
            gate.wait()
            came.append(ledger.commit(turn, key="k", actions=[Action("mail")]).status)

        threads = [threading.Thread(target=commit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(came) == ["already_stored"] * 7 + ["stored"]
        assert ledger.queued() == {"mail": 1}

    @pytest.mark.parametrize("key", ["", "k" * 201, "a\x00", "a\n", "\ud800", 7, None, b"k"])
    def test_a_key_is_a_short_plain_text(self, ledger: Ledger, key: Any) -> None:
        with pytest.raises(UsageError, match="key must be a str of 1 to 200 characters"):
            ledger.commit(finished(), key=key)

    def test_a_key_may_be_of_any_script(self, ledger: Ledger) -> None:
        for key in ("水" * 200, "🌊" * 200, "a/b c'd\"%_"):
            ledger.commit(finished(), key=key)
            assert stored(ledger, key).key == key


class Like:
    """It has all that a finished turn has."""

    def __init__(self, turn: FinishedTurn) -> None:
        for name in FinishedTurn.__slots__:
            setattr(self, name, getattr(turn, name))


class OutcomeLike(Outcome):
    pass


class TestNothingElse:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: None,
            lambda: "water",
            lambda: {"answer": "water"},
            lambda: Turn("openai_chat"),
            lambda: fed(text("water"), stop(), DONE),
            lambda: fed(text("wat"), clean=False),
            lambda: Incomplete("wat", Cancelled(), Turn("openai_chat")),
            lambda: Like(finished()),
            lambda: SimpleNamespace(turn=finished(), released="water"),
            lambda: Mock(spec=FinishedTurn),
            lambda: Mock(spec=Outcome),
            lambda: OutcomeLike(finished(), "water"),
            lambda: FinishedTurn,
        ],
        ids=[
            "None", "str", "dict", "Turn", "finished Turn", "cut Turn", "Incomplete", "look-alike", "duck", "mock",
            "mocked Outcome", "Outcome's subclass", "class",
        ],
    )  # fmt: skip
    def test_it_is_refused_by_type(self, ledger: Ledger, make: Callable[[], Any]) -> None:
        with pytest.raises(UsageError, match="only a FinishedTurn or an Outcome can be committed"):
            ledger.commit(make(), key="k", actions=[Action("mail")])
        assert (ledger.count(), ledger.queued(), ledger.refused()) == (0, {}, [])

    def test_what_was_stored_cannot_be_committed_again(self, ledger: Ledger) -> None:
        ledger.commit(finished(), key="k")
        with pytest.raises(UsageError, match="not StoredTurn"):
            ledger.commit(stored(ledger), key="l")  # type: ignore[arg-type]

    def test_an_outcome_that_was_forged_is_none(self, ledger: Ledger) -> None:
        outcome = Outcome(finished(), "water")
        object.__setattr__(outcome, "turn", Like(finished()))
        with pytest.raises(UsageError, match="changed by hand"):
            ledger.commit(outcome, key="k")

    def test_a_copy_of_an_outcome_is_as_good_as_it(self, ledger: Ledger) -> None:
        outcome = Outcome(finished(), "water")
        assert ledger.commit(copy.copy(outcome), key="k").status == "stored"
        assert ledger.commit(replace(outcome, attempts=2), key="k").status == "already_stored"


class TestWhatIsStored:
    def test_a_finished_turn_comes_back_whole(self, ledger: Ledger) -> None:
        turn = call('{"city": "Funchal"}').result()
        ledger.commit(turn, key="k")
        kept = stored(ledger)
        for name in FinishedTurn.__slots__:
            assert getattr(kept, name) == getattr(turn, name), name
        assert (kept.altered, kept.raw_answer, kept.attempts) == (False, None, 1)
        assert kept.message() == turn.message()
        assert kept.stored_at.tzinfo is not None

    def test_several_candidates_come_back(self, ledger: Ledger) -> None:
        turn = fed(text("one"), text("two", choice=1), stop(), stop(choice=1), DONE).result()
        ledger.commit(turn, key="k")
        assert stored(ledger).choices == turn.choices
        assert [choice.answer for choice in stored(ledger).choices] == ["one", "two"]

    def test_the_answer_is_what_was_released(self, ledger: Ledger) -> None:
        turn = fed(chunk(reasoning_content="secret"), text("the secret"), stop(), DONE).result()
        ledger.commit(Outcome(turn, "the …", attempts=2), key="k")
        kept = stored(ledger)
        assert (kept.answer, kept.altered, kept.raw_answer, kept.attempts) == ("the …", True, None, 2)
        assert "secret" not in repr([kept.reasoning, kept.parts, kept.choices, kept.citations])
        with pytest.raises(UsageError, match="a review altered this answer"):
            kept.message()

    def test_the_raw_answer_is_kept_only_if_asked_for(self, ledger: Ledger) -> None:
        turn = fed(chunk(reasoning_content="secret"), text("the secret"), stop(), DONE).result()
        ledger.commit(Outcome(turn, "the …"), key="k", keep_raw=True)
        kept = stored(ledger)
        assert (kept.answer, kept.raw_answer, kept.reasoning) == ("the …", "the secret", "secret")
        assert kept.parts == turn.parts

    def test_candidates_that_nobody_released_keep_no_text(self, ledger: Ledger) -> None:
        turn = fed(text("one"), text("two", choice=1), stop(), stop(choice=1), DONE).result()
        ledger.commit(Outcome(turn, "one"), key="k")
        assert [choice.answer for choice in stored(ledger).choices] == ["one", ""]
        assert "two" not in repr(stored(ledger).parts)

    def test_a_model_with_an_endless_name_comes_back_whole(self, ledger: Ledger) -> None:
        turn = finished(model="m" * 10_000)
        ledger.commit(turn, key="k")
        assert stored(ledger).model == turn.model
        assert ledger.count(model="m" * 10_000) == 1

    def test_a_stored_turn_shows_no_text_in_its_repr(self, ledger: Ledger) -> None:
        ledger.commit(finished("water"), key="k", keep_raw=True)
        assert "water" not in repr(stored(ledger))

    def test_above_the_limit_nothing_is_stored(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url, max_turn_bytes=2000, max_payload_bytes=100) as ledger:
            with pytest.raises(LedgerTooLarge, match="raise max_turn_bytes"):
                ledger.commit(finished("w" * 1500), key="k")
            with pytest.raises(LedgerTooLarge, match="102 bytes, and 100 is the most; raise max_payload_bytes"):
                ledger.commit(finished(), key="k", actions=[Action("mail", "m" * 100)])
            assert ledger.count() == 0
            assert ledger.commit(finished(), key="k", actions=[Action("mail", "m" * 98)]).status == "stored"

    @pytest.mark.parametrize("keep_raw", [False, True])
    @pytest.mark.parametrize("released", ["w" * 100_000, "v" * 100_000], ids=["as it is", "altered"])
    def test_what_is_stored_counts_and_no_more(self, tmp_path: Path, released: str, keep_raw: bool) -> None:
        turn, times = finished("w" * 100_000), 2 + keep_raw + (released[0] == "v")
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db", max_turn_bytes=times * 100_000) as ledger:
            with pytest.raises(LedgerTooLarge) as raised:
                ledger.commit(Outcome(turn, released), key="k", keep_raw=keep_raw)
            assert times * 100_000 < raised.value.size < times * 100_000 + 1000
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db", max_turn_bytes=raised.value.size) as ledger:
            ledger.commit(Outcome(turn, released), key="k", keep_raw=keep_raw)
        hidden = 100_000 * 2 if released[0] == "v" and not keep_raw else 0  # what a review took out was counted
        assert raised.value.size - hidden <= (tmp_path / "turns.db").stat().st_size < raised.value.size + 150_000

    def test_an_answer_of_20_mib_goes_in(self, tmp_path: Path) -> None:
        turn = Turn("openai_chat")
        for _ in range(20):
            turn.feed(spoken("w" * 1024 * 1024))
        turn.feed(spoken("", "stop") + DONE)
        turn.eof(clean=True)
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            assert ledger.commit(turn.result(), key="k").status == "stored"

    def test_megabytes_come_back(self, ledger: Ledger) -> None:
        answer = "água 水 " * 300_000
        ledger.commit(finished(answer), key="k")
        assert stored(ledger).answer == answer


class TestActions:
    @pytest.mark.parametrize("finish", ["stop", "tool_calls"])
    def test_they_follow_a_turn_that_came_to_its_end(self, ledger: Ledger, finish: str) -> None:
        assert ledger.commit(finished(finish=finish), key="k", actions=[Action("mail")]).status == "stored"

    @pytest.mark.parametrize(
        ("finish", "reason"), [("length", "length"), ("content_filter", "content_filter"), ("odd", "other")]
    )
    def test_any_other_finish_reason_refuses_all_unless_allowed(self, ledger: Ledger, finish: str, reason: str) -> None:
        turn = finished(finish=finish)
        came = ledger.commit(turn, key="k", actions=[Action("mail")])
        assert came.status == "refused"
        assert f"not {reason}; allow=" in came.reasons[0]
        assert (ledger.get("k"), ledger.queued()) == (None, {})
        assert ledger.commit(turn, key="k", actions=[Action("mail")], allow=[reason]).status == "stored"

    def test_without_actions_any_finished_turn_is_stored(self, ledger: Ledger) -> None:
        assert ledger.commit(finished(finish="length"), key="k").status == "stored"

    def test_an_open_tool_call_refuses_all_unless_allowed(self, ledger: Ledger) -> None:
        turn = call('{"city": "Fun', finish="length").result()
        assert not turn.tool_calls[0].complete
        came = ledger.commit(turn, key="k", actions=[Action("run")], allow=["length"])
        assert came.reasons == ("actions need complete tool calls, and 1 of 1 are not",)
        both = ["length", "incomplete_tool_calls"]
        assert ledger.commit(turn, key="k", actions=[Action("run")], allow=both).status == "stored"

    def test_a_candidate_that_was_cut_refuses_too(self, ledger: Ledger) -> None:
        turn = fed(text("one"), text("two", choice=1), stop(), stop(choice=1, finish="length"), DONE).result()
        assert ledger.commit(turn, key="k", actions=[Action("run")]).status == "refused"

    def test_allow_knows_its_names(self, ledger: Ledger) -> None:
        with pytest.raises(UsageError, match="allow= knows content_filter, error, incomplete_tool_calls"):
            ledger.commit(finished(), key="k", allow=["everything"])

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 101, "é", None])
    def test_the_name_of_an_action_is_a_word(self, name: Any) -> None:
        with pytest.raises(UsageError, match="the name of an action"):
            Action(name)

    @pytest.mark.parametrize(
        "payload", [b"x", (1, 2), {1: "a"}, float("nan"), float("inf"), {"a": object()}, {1, 2}, [10**5000]]
    )
    def test_a_payload_is_plain_json(self, payload: Any) -> None:
        with pytest.raises(UsageError, match="plain JSON"):
            Action("mail", payload)

    def test_a_payload_that_holds_itself_or_never_ends_is_none(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for payload in (endless, deep):
            with pytest.raises(UsageError, match="plain JSON"):
                Action("mail", payload)

    def test_what_is_no_action_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(UsageError, match=r"levada.ledger.Action\(name, payload\), not str"):
            ledger.commit(finished(), key="k", actions=["mail"])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="1001 actions, and 1000 is the most"):
            ledger.commit(finished(), key="k", actions=[Action("mail")] * 1001)
        assert ledger.count() == 0


class TestValidators:
    def test_they_get_the_finished_turn_and_what_was_released_if_they_ask(self, ledger: Ledger) -> None:
        seen: list[Any] = []
        turn = finished("raw")

        def both(turn: FinishedTurn, released: str) -> None:
            seen.append((turn, released))

        def optional(turn: FinishedTurn, strict: bool = True) -> None:
            seen.append((turn, strict))

        ledger.commit(Outcome(turn, "released"), key="k", validators=[seen.append, both, optional])
        assert seen == [turn, (turn, "released"), (turn, True)]

    def test_any_reason_refuses_and_all_are_told(self, ledger: Ledger) -> None:
        validators: list[Validator] = [
            lambda turn: None,
            lambda turn: "too short",
            lambda turn: ("dull", "wet"),
            lambda turn: [],
        ]
        came = ledger.commit(finished(), key="k", validators=validators, actions=[Action("mail")])
        assert came == Committed("refused", ("too short", "dull", "wet"), "k")
        assert (ledger.get("k"), ledger.count(), ledger.queued()) == (None, 0, {})
        [record] = ledger.refused(key="k")
        assert (record.reasons, record.finish_reason, record.answer_chars) == (came.reasons, "stop", 5)
        assert record.raw_answer is None

    def test_the_refused_answer_is_kept_only_if_asked_for(self, ledger: Ledger) -> None:
        ledger.commit(finished(), key="k", validators=[lambda turn: "no"], keep_raw=True)
        assert ledger.refused()[0].raw_answer == "water"

    def test_a_turn_that_passes_may_follow_under_the_key(self, ledger: Ledger) -> None:
        ledger.commit(finished("bad"), key="k", validators=[lambda turn: "bad"])
        assert ledger.commit(finished("good"), key="k").status == "stored"
        assert stored(ledger).answer == "good"
        assert len(ledger.refused(key="k")) == 1

    def test_what_is_stored_stays_when_a_validator_changes_its_mind(self, ledger: Ledger) -> None:
        ledger.commit(finished(), key="k")
        assert ledger.commit(finished(), key="k", validators=[lambda turn: "no"]).status == "already_stored"
        with pytest.raises(KeyConflict):
            ledger.commit(finished("wine"), key="k", validators=[lambda turn: "no"])
        assert ledger.refused() == []

    def test_what_one_raises_comes_through_and_nothing_is_stored(self, ledger: Ledger) -> None:
        def fails(turn: FinishedTurn) -> None:
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            ledger.commit(finished(), key="k", validators=[fails])
        assert (ledger.count(), ledger.refused()) == (0, [])

    @pytest.mark.parametrize("returned", [True, 7, b"no", {"a": 1}, [7]])
    def test_one_that_returns_something_else_is_told_so(self, ledger: Ledger, returned: Any) -> None:
        with pytest.raises(UsageError, match="validator"):
            ledger.commit(finished(), key="k", validators=[lambda turn: returned])
        assert ledger.count() == 0

    def test_a_coroutine_is_no_verdict(self, ledger: Ledger) -> None:
        async def late(turn: FinishedTurn) -> None: ...

        with pytest.raises(UsageError, match="not coroutine"):
            ledger.commit(finished(), key="k", validators=[late])  # type: ignore[list-item]  # the mistake under test

    def test_reasons_are_bounded(self, ledger: Ledger) -> None:
        came = ledger.commit(finished(), key="k", validators=[lambda turn: ["r" * 10_000] * 1000])
        assert len(came.reasons) == 100
        assert (len(came.reasons[0]), came.reasons[-1]) == (501, "and 901 more reasons")
        assert ledger.refused()[0].reasons == came.reasons


class TestHalves:
    def test_nothing_is_stored_where_the_outbox_fails(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*args: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(ledger._outbox, "queue", fails)
        with pytest.raises(ZeroDivisionError):
            ledger.commit(finished(), key="k", actions=[Action("mail")])
        assert ledger.count() == 0
        monkeypatch.undo()
        assert ledger.commit(finished(), key="k", actions=[Action("mail")]).status == "stored"

    def test_a_closed_ledger_says_so(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url) as ledger:
            pass
        with pytest.raises(UsageError, match="the ledger is closed"):
            ledger.commit(finished(), key="k")
        with pytest.raises(UsageError, match="the ledger is closed"):
            ledger.count()
        ledger.close()
