"""The table of states, whole."""

from __future__ import annotations

from itertools import product

import pytest

from levada.lifecycle import ENDS, TRANSITIONS, Lifecycle, Signal, State

GRID = list(product(State, Signal))


def at(state: State) -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.state = state
    return lifecycle


@pytest.mark.parametrize(("state", "signal"), GRID, ids=[f"{state}-{signal.name}" for state, signal in GRID])
def test_every_signal_in_every_state_does_what_the_table_says(state: State, signal: Signal) -> None:
    lifecycle = at(state)
    after = TRANSITIONS[state].get(signal)
    if after is not None:
        assert lifecycle.move(signal)
        assert lifecycle.state is after
        assert lifecycle.after_end == 0
    elif state in ENDS:
        assert not lifecycle.move(signal)
        assert lifecycle.state is state
        assert lifecycle.after_end == 1
    else:
        with pytest.raises(RuntimeError, match="a bug in levada"):
            lifecycle.move(signal)
        assert lifecycle.state is state


def test_finished_has_exactly_one_way_in() -> None:
    ways = [(state, signal) for state, moves in TRANSITIONS.items() for signal, to in moves.items() if to == "finished"]
    assert ways == [(State.STREAMING, Signal.TERMINAL)]


def test_the_ends_are_the_three_states_without_a_way_out() -> None:
    assert {State.FINISHED, State.ERROR, State.CANCELLED} == ENDS


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.FINISHED][Signal.DELTA] = State.STREAMING  # type: ignore[index]  # that is the point


def test_states_are_the_words_of_the_contract() -> None:
    assert [str(state) for state in State] == ["connecting", "streaming", "finished", "error", "cancelled"]
