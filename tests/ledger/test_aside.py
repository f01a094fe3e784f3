"""What is no answer is kept only if asked for, apart from the answers, and marked."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

import pytest

from levada import Blocked, Cancelled, Incomplete, Outcome, ProviderError, RunRecord, State, Turn, Usage, UsageError
from levada.ledger import Ledger, LedgerTooLarge
from tests.ledger.turned import DONE, fed, finished, spoken, stop, text


class TestPartialTurns:
    def test_a_cut_turn_is_kept_with_its_error(self, ledger: Ledger) -> None:
        ledger.keep_partial(fed(spoken("wat\x00\ud800"), clean=False), key="k")
        [kept] = ledger.partials(key="k")
        assert (kept.partial_text, kept.state, kept.error_kind) == ("wat\x00\ufffd", "error", "truncated")
        assert (kept.incomplete, kept.released, kept.model) == (True, False, "m")
        assert "wat" not in repr(kept)

    def test_a_turn_may_be_kept_while_it_goes_on(self, ledger: Ledger) -> None:
        turn = fed(text("wat"), clean=None)
        ledger.keep_partial(turn, key="k")
        turn.cancel()
        ledger.keep_partial(turn, key="k")
        ledger.keep_partial(Turn("openai_chat"), key="k")
        states = [(one.state, one.error_kind, one.partial_text) for one in ledger.partials(key="k")]
        assert states == [("connecting", None, ""), ("cancelled", None, "wat"), ("streaming", None, "wat")]

    def test_of_an_incomplete_what_was_released_is_kept(self, ledger: Ledger) -> None:
        ledger.keep_partial(
            Incomplete("wat", ProviderError("x", "overloaded"), fed(text("water"), clean=None)), key="a"
        )
        ledger.keep_partial(Incomplete("wat", Cancelled(by="her"), fed(text("water"), clean=None)), key="b")
        blocked = Incomplete("wat", Blocked("no"), fed(text("water"), stop(), DONE))
        ledger.keep_partial(blocked, key="c")
        kept = [(one.partial_text, one.state, one.error_kind, one.error_type) for one in ledger.partials()]
        assert kept == [
            ("wat", "error", "blocked", None),
            ("wat", "cancelled", None, None),
            ("wat", "error", "provider", "overloaded"),
        ]
        assert all(one.released for one in ledger.partials())

    def test_it_is_never_an_answer(self, ledger: Ledger) -> None:
        ledger.keep_partial(fed(text("wat"), clean=False), key="k")
        assert (ledger.get("k"), ledger.turns(), list(ledger.each_turn()), ledger.count()) == (None, [], [], 0)
        assert ledger.commit(finished(), key="k").status == "stored"
        with pytest.raises(UsageError, match="not PartialTurn"):
            ledger.commit(ledger.partials()[0], key="l")  # type: ignore[arg-type]

    @pytest.mark.parametrize("what", [finished(), Outcome(finished(), "water"), "wat", None])
    def test_what_is_an_answer_is_not_kept_as_a_part_of_one(self, ledger: Ledger, what: Any) -> None:
        with pytest.raises(UsageError, match="keep_partial takes a Turn or an Incomplete"):
            ledger.keep_partial(what, key="k")
        with pytest.raises(UsageError, match="commit its result"):
            ledger.keep_partial(fed(text("water"), stop(), DONE), key="k")

    def test_it_has_the_limit_of_a_turn(self, ledger_url: str) -> None:
        with Ledger.open(ledger_url, max_turn_bytes=100) as ledger:
            with pytest.raises(LedgerTooLarge, match="raise max_turn_bytes"):
                ledger.keep_partial(fed(text("w" * 101), clean=False), key="k")
            ledger.keep_partial(fed(text("w" * 100), clean=False), key="k")

    def test_pages_are_bounded(self, ledger: Ledger) -> None:
        for key in "abc":
            ledger.keep_partial(fed(text("wat"), clean=False), key=key)
        first, second = ledger.partials(limit=2)
        assert [one.key for one in (first, second)] == ["c", "b"]
        assert [one.key for one in ledger.partials(limit=2, after=second.n)] == ["a"]


def record(**values: Any) -> RunRecord:
    common = {
        "attempt": 1, "dialect": "openai_chat", "profile": "openai_chat", "model": "m", "state": State.ERROR,
        "error_kind": "timeout", "error_type": None, "retry_in_s": 0.5, "released_chars": 3,
        "usage": Usage(input_tokens=7, raw={"prompt_tokens": 7}), "committed": False, "cancelled": None,
        "exception": None, "upstream_closed": True, "started_s": 100.0, "first_delta_s": 100.5, "ended_s": 102.25,
    }  # fmt: skip
    return RunRecord(**{**common, **values})


class TestRecords:
    def test_an_attempt_is_recorded_with_its_durations(self, ledger: Ledger) -> None:
        ledger.record(record(), key="k")
        [kept] = ledger.records(key="k")
        given = record()
        same = {field.name for field in fields(RunRecord)} - {"started_s", "first_delta_s", "ended_s", "cancelled"}
        for name in same:
            assert getattr(kept, name) == getattr(given, name), name
        assert (kept.first_delta_after_s, kept.lasted_s, kept.cancelled, kept.cancelled_by) == (0.5, 2.25, False, None)

    def test_a_cancel_says_by_whom(self, ledger: Ledger) -> None:
        ledger.record(record(state=State.CANCELLED, cancelled=Cancelled(by="her"), error_kind=None, first_delta_s=None))
        [kept] = ledger.records()
        assert (kept.key, kept.state, kept.cancelled, kept.cancelled_by) == (None, "cancelled", True, "her")
        assert kept.first_delta_after_s is None

    @pytest.mark.parametrize("committed", [True, False, None])
    def test_a_commit_that_was_cut_off_is_neither(self, ledger: Ledger, committed: bool | None) -> None:
        ledger.record(record(committed=committed))
        assert ledger.records()[0].committed is committed

    def test_they_are_found_by_kind(self, ledger: Ledger) -> None:
        for kind in ("timeout", "truncated", "timeout"):
            ledger.record(record(error_kind=kind))
        assert len(ledger.records(error_kind="timeout")) == 2
        assert len(ledger.records(limit=1)) == 1

    def test_words_of_a_provider_are_cut(self, ledger: Ledger) -> None:
        ledger.record(record(error_type="\x00" * 10_000, model="m" * 10_000))
        [kept] = ledger.records()
        assert (kept.error_type, kept.model) == ("\x00" * 200, "m" * 200)

    def test_nothing_else_is_a_record(self, ledger: Ledger) -> None:
        with pytest.raises(UsageError, match="record takes a RunRecord, not dict"):
            ledger.record({}, key="k")  # type: ignore[arg-type]


def test_run_turn_hands_over_what_is_to_be_kept(ledger: Ledger) -> None:
    from levada import Retry, TurnError, run_turn

    async def open_stream() -> Any:
        yield text("wat")

    async def main() -> None:
        await run_turn(
            open_stream,
            "openai_chat",
            on_error="keep_marked",
            keep=lambda incomplete: ledger.keep_partial(incomplete, key="k"),
            on_record=lambda record: ledger.record(record, key="k"),
            commit=lambda outcome: ledger.commit(outcome, key="k"),
            retry=Retry(attempts=1),
        )

    with pytest.raises(TurnError):
        asyncio.run(main())
    assert [(one.partial_text, one.error_kind) for one in ledger.partials()] == [("wat", "truncated")]
    assert [(one.state, one.error_kind, one.committed) for one in ledger.records()] == [("error", "truncated", False)]
    assert ledger.count() == 0
