"""The errors of live turns: values that say who was wrong, and never the text of an answer."""

from __future__ import annotations

import copy
import pickle

import pytest

from levada import LevadaError
from levada.live import (
    EntryGone,
    Fenced,
    LiveLimit,
    LiveLogError,
    LiveLogUnavailable,
    TurnClosed,
    TurnExists,
    UnknownEntry,
    UnknownTurn,
)

ERRORS = [
    UnknownTurn("t"),
    TurnExists("t"),
    EntryGone("t", "1-7", "4-7"),
    EntryGone("t", "", "4-7"),
    UnknownEntry("t", "x", "malformed"),
    Fenced("t", 7, "another producer has the turn"),
    TurnClosed("t", "finished"),
    LiveLimit("bytes of one entry", 11, 10, "max_entry_bytes"),
    LiveLogUnavailable("Redis", 0.0, "it refuses our name"),
    LiveLogUnavailable("Redis", 5.0, "no answer"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_copy_or_a_pickle_is_equal_and_says_the_same(error: LiveLogError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert again == error
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_different_errors_differ() -> None:
    for one in ERRORS:
        assert [other for other in ERRORS if other == one] == [one]


def test_they_are_of_levada_and_one_may_pass() -> None:
    assert all(isinstance(error, LevadaError) for error in ERRORS)
    assert [error for error in ERRORS if error.retryable] == ERRORS[-1:]


def test_what_somebody_sent_is_cut_short() -> None:
    assert len(str(UnknownEntry("t", "x" * 10_000, "malformed"))) < 200
