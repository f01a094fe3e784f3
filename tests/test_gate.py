"""Gates: candidates in, verdicts in any order, releases in the order of the text."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada import Gate, HoldGate, OpenGate, Sentence, SentenceGate, UsageError
from levada.gate import Blocked, Decision, GatePolicy, Released, Replaced, Verdict, block, release, replace

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases/cases.jsonl").read_text().splitlines()]
GATES: dict[str, GatePolicy] = {"open": OpenGate, "sentences": SentenceGate, "hold": HoldGate}
each_gate = pytest.mark.parametrize("policy", GATES.values(), ids=GATES)


def feed_all(gate: Gate, deltas: Iterable[str]) -> list[Sentence]:
    return [sentence for delta in deltas for sentence in gate.feed(delta)] + gate.close()


def release_all(gate: Gate, deltas: Iterable[str]) -> list[str]:
    released: list[str] = []
    for sentence in feed_all(gate, deltas):
        for decision in gate.decide(sentence.n, release):
            assert isinstance(decision, Released)
            released.append(decision.text)
    return released


class TestCandidates:
    def test_the_open_gate_gives_each_piece_as_it_comes(self) -> None:
        gate = OpenGate()
        assert gate.feed("One is") == [Sentence(0, "One is")]
        assert gate.feed("") == []
        assert gate.feed(" here.") == [Sentence(1, " here.")]
        assert gate.close() == []

    def test_the_hold_gate_gives_all_at_the_end(self) -> None:
        gate = HoldGate()
        assert gate.feed("One is here. ") == gate.feed("Two is here.\n\n") == []
        assert gate.close() == [Sentence(0, "One is here. Two is here.\n\n")]

    def test_the_sentence_gate_gives_whole_sentences(self) -> None:
        gate = SentenceGate("en")
        assert gate.feed("One is he") == gate.feed("re. Tw") == []
        assert gate.feed("o is here.") == [Sentence(0, "One is here. ")]
        assert gate.close() == [Sentence(1, "Two is here.")]

    def test_the_sentence_gate_cuts_what_is_too_long_and_says_so(self) -> None:
        gate = SentenceGate("en", max_hold_chars=20)
        assert gate.feed("and so it goes on and on") == [Sentence(0, "and so it goes on ", whole=False)]

    @each_gate
    def test_an_empty_answer_gives_nothing_and_is_settled(self, policy: GatePolicy) -> None:
        gate = policy()
        assert gate.feed("") == gate.close() == gate.close() == []
        assert gate.settled
        assert gate.released == ""

    @each_gate
    def test_after_the_end_nothing_is_fed(self, policy: GatePolicy) -> None:
        gate = policy()
        gate.close()
        with pytest.raises(UsageError, match=r"feed\(\) after close\(\)"):
            gate.feed("more")
        with pytest.raises(UsageError, match=r"replace\(\) after close\(\)"):
            gate.replace("more")

    def test_a_policy_chooses_the_gate_of_each_turn(self) -> None:
        def policy_for(question: str) -> Callable[[], Gate]:
            return HoldGate if "health" in question else lambda: SentenceGate(("pt", "en"))

        assert isinstance(policy_for("about health")(), HoldGate)
        assert isinstance(policy_for("about hats")(), SentenceGate)

    def test_settings_that_make_no_sense(self) -> None:
        with pytest.raises(UsageError, match="languages"):
            SentenceGate(())
        with pytest.raises(UsageError, match="max_hold_chars"):
            SentenceGate("en", 0)


class TestVerdicts:
    def gate(self) -> Gate:
        gate = OpenGate()
        for text in ("a ", "b ", "c "):
            gate.feed(text)
        return gate

    def test_a_verdict_releases_replaces_or_blocks(self) -> None:
        gate = self.gate()
        assert gate.decide(0, release) == [Released(0, "a ")]
        assert gate.decide(1, replace("B ")) == [Replaced(1, "B ")]
        assert gate.decide(2, block, reason="rude") == [Blocked(2, "rude")]
        assert gate.released == "a B "

    def test_verdicts_are_words(self) -> None:
        assert self.gate().decide(0, "release") == [Released(0, "a ")]
        assert self.gate().decide(0, "block") == [Blocked(0)]

    def test_decisions_come_in_the_order_of_the_text(self) -> None:
        gate = self.gate()
        assert gate.decide(2, release) == []
        assert gate.decide(1, replace("")) == []
        assert gate.released == ""
        assert gate.decide(0, release) == [Released(0, "a "), Replaced(1, ""), Released(2, "c ")]
        assert gate.released == "a c "

    def test_a_block_waits_for_its_turn_and_ends_all(self) -> None:
        gate = self.gate()
        assert gate.decide(1, block) == []
        assert gate.decide(2, release) == []
        assert not gate.blocked
        assert gate.decide(0, release) == [Released(0, "a "), Blocked(1)]
        assert gate.blocked
        assert gate.feed("d ") == gate.replace("x") == gate.close() == []
        assert gate.decide(2, release) == gate.decide(0, release) == []
        assert gate.released == "a "
        assert not gate.settled

    def test_a_gate_is_settled_once_it_is_closed_and_all_is_decided(self) -> None:
        gate = self.gate()
        gate.decide(0, release)
        gate.decide(1, release)
        gate.close()
        assert not gate.settled
        gate.decide(2, replace("C"))
        assert gate.settled

    def test_each_sentence_is_decided_once(self) -> None:
        gate = self.gate()
        gate.decide(0, release)
        gate.decide(2, release)
        for n in (0, 2):
            with pytest.raises(UsageError, match=f"sentence {n} was decided already"):
                gate.decide(n, release)

    @pytest.mark.parametrize("n", [3, -1, None, "0", True])
    def test_only_what_was_given_is_decided(self, n: Any) -> None:
        with pytest.raises(UsageError, match="3 were given"):
            self.gate().decide(n, release)

    @pytest.mark.parametrize("verdict", [None, True, "yes", ("replace", "b")])
    def test_what_is_no_verdict_decides_nothing(self, verdict: Any) -> None:
        gate = self.gate()
        with pytest.raises(UsageError, match="a verdict is release, block or replace"):
            gate.decide(0, verdict)
        assert gate.decide(0, release) == [Released(0, "a ")]

    def test_a_replacement_is_text(self) -> None:
        with pytest.raises(UsageError, match="takes the text to show, not NoneType"):
            replace(None)  # type: ignore[arg-type]  # that is the point


class TestTheProviderReplacesItsText:
    def test_what_stays_the_same_stays(self) -> None:
        gate = SentenceGate("en")
        gate.feed("One is here. Two is here. Three ")
        gate.decide(0, release)
        assert gate.replace("One is here. Two is here. Four is here") == []
        assert gate.decide(1, release) == [Released(1, "Two is here. ")]
        assert gate.close() == [Sentence(2, "Four is here")]

    def test_what_a_person_saw_and_no_longer_holds_is_taken_back(self) -> None:
        gate = SentenceGate("en")
        gate.feed("One is here. Two is here. Three is here. Four ")
        for n in (0, 1):
            gate.decide(n, release)
        assert gate.replace("One is here. Too is here. Three ") == [Replaced(1, ""), Sentence(3, "Too is here. ")]
        assert gate.released == "One is here. "
        assert gate.decide(3, release) == [Released(3, "Too is here. ")]
        assert gate.close() == [Sentence(4, "Three ")]

    def test_a_verdict_on_what_was_withdrawn_is_ignored(self) -> None:
        gate = OpenGate()
        gate.feed("a ")
        gate.feed("b ")
        assert gate.decide(1, release) == []
        assert gate.replace("a c ") == [Sentence(2, "c ")]
        assert gate.decide(1, block) == []
        assert gate.decide(0, release) == [Released(0, "a ")]
        assert gate.decide(2, release) == [Released(2, "c ")]

    def test_what_the_reviewer_put_there_stays_with_its_sentence(self) -> None:
        gate = OpenGate()
        gate.feed("a ")
        gate.feed("b ")
        gate.decide(0, replace("A "))
        gate.decide(1, release)
        assert gate.replace("a ") == [Replaced(1, "")]
        assert gate.released == "A "

    @each_gate
    def test_all_of_it_can_be_withdrawn(self, policy: GatePolicy) -> None:
        gate = policy()
        seen = [gate.decide(sentence.n, release) for sentence in gate.feed("One is here. Two is here. Three")]
        assert gate.replace("") == ([Replaced(0, "")] if seen else [])
        assert gate.released == ""
        assert gate.close() == []
        assert gate.settled

    def test_what_is_held_is_simply_another_text(self) -> None:
        gate = HoldGate()
        gate.feed("One is here.")
        assert gate.replace("Two is") == []
        gate.feed(" here.")
        assert gate.close() == [Sentence(0, "Two is here.")]


PIECES = st.sampled_from(["One ", "two. ", "Three! ", "(Four. ", 'five" ', "\n\n", "```\n", "六。", "p. ex. ", "Seven"])
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@st.composite
def deltas_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


class TestLaws:
    @each_gate
    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(data=st.data(), text=TEXTS)
    def test_released_text_joined_is_the_text(self, policy: GatePolicy, data: st.DataObject, text: str) -> None:
        gate = policy()
        assert "".join(release_all(gate, data.draw(deltas_of(text)))) == text == gate.released
        assert gate.settled

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(data=st.data(), text=TEXTS)
    def test_any_cut_gives_the_same_candidates_and_releases(self, data: st.DataObject, text: str) -> None:
        deltas = data.draw(deltas_of(text))
        assert feed_all(SentenceGate(), deltas) == feed_all(SentenceGate(), [text])
        assert release_all(SentenceGate(), deltas) == release_all(SentenceGate(), [text])

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(data=st.data(), texts=st.lists(TEXTS, min_size=1, max_size=12))
    def test_the_order_of_the_verdicts_changes_nothing(self, data: st.DataObject, texts: list[str]) -> None:
        verdict: st.SearchStrategy[Verdict] = st.sampled_from([release, replace("x"), block])
        verdicts = data.draw(st.lists(verdict, min_size=len(texts), max_size=len(texts)))
        order = data.draw(st.permutations(range(len(texts))))

        def decide(order: Iterable[int]) -> tuple[list[Decision], str]:
            gate = OpenGate()
            numbers = [gate.feed(text or " ")[0].n for text in texts]
            return [got for n in order for got in gate.decide(numbers[n], verdicts[n])], gate.released

        assert decide(order) == decide(range(len(texts)))

    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(data=st.data(), texts=st.lists(TEXTS, min_size=1, max_size=4))
    def test_what_is_on_the_screen_is_always_what_was_released(self, data: st.DataObject, texts: list[str]) -> None:
        """A screen that knows only the decisions shows `released`, which is a beginning of the provider's text."""
        gate = SentenceGate()
        screen: list[tuple[int, str]] = []
        waiting: list[int] = []
        whole = ""

        def show(decision: Decision | Sentence) -> None:
            if isinstance(decision, Sentence):
                waiting.append(decision.n)
            elif isinstance(decision, Replaced):
                screen[:] = [(n, text) for n, text in screen if n < decision.n]
            else:
                assert isinstance(decision, Released)
                screen.append((decision.n, decision.text))

        for text in texts:
            if data.draw(st.booleans()):
                whole += text
                for sentence in gate.feed(text):
                    show(sentence)
            else:
                whole = whole[: data.draw(st.integers(0, len(whole)))] + text
                for value in gate.replace(whole):
                    show(value)
            for n in data.draw(st.permutations(waiting)):
                if data.draw(st.booleans()):
                    waiting.remove(n)
                    for decision in gate.decide(n, release):
                        show(decision)
            assert "".join(text for _, text in screen) == gate.released
            assert whole.startswith(gate.released)
        for sentence in gate.close():
            show(sentence)
        for n in waiting:
            for decision in gate.decide(n, release):
                show(decision)
        assert "".join(text for _, text in screen) == gate.released == whole


POLICIES: dict[str, GatePolicy] = {"hold_until_complete": HoldGate, "sentences": SentenceGate}
OURS = [case for case in CASES if case["layer"] == "gate"]


@pytest.mark.parametrize("case", OURS, ids=[case["id"] for case in OURS])
def test_a_case_from_the_field(case: dict[str, Any]) -> None:
    text = "".join(case["deltas"])
    rnd = random.Random(7)
    cuts = [sorted(rnd.sample(range(len(text) + 1), 5)) for _ in range(5)]
    many = [[text[a:b] for a, b in pairwise([0, *cut, len(text)])] for cut in cuts]
    for deltas in (case["deltas"], [text], list(text), *many):
        gate = POLICIES[case["policy"]]()
        decisions: list[Decision] = []
        for sentence in feed_all(gate, deltas):
            denied = any(words in sentence.text for words in case.get("deny", ()))
            decisions += gate.decide(sentence.n, block if denied else release)
        expect = dict(case["expect"])
        assert gate.blocked == expect.pop("blocked", False)
        if "released_never_contains" in expect:
            assert expect.pop("released_never_contains") not in gate.released
        if "released" in expect:
            assert [got.text for got in decisions if isinstance(got, Released)] == expect.pop("released")
        assert expect == {}, "nobody checks these"


@pytest.mark.usefixtures("uncollected")
def test_time_is_linear_in_the_number_of_candidates() -> None:
    def seconds(count: int) -> float:
        gate = OpenGate()
        begun = time.process_time()
        for _ in range(count):
            for sentence in gate.feed("abcde"):
                gate.decide(sentence.n, release)
        assert len(gate.released) == 5 * count
        return time.process_time() - begun

    assert seconds(40_000) < 8 * seconds(5_000) * 2.5 + 0.2
