"""The tree of errors: who was wrong, equal by their fields, and whole after a trip through pickle."""

from __future__ import annotations

import copy
import pickle

import pytest

from levada import (
    EventTooLarge,
    KeyConflict,
    LedgerError,
    LedgerTooLarge,
    LevadaError,
    MalformedPayload,
    SchemaMismatch,
    StoreError,
    StreamError,
    TransportRewound,
    UsageError,
)

ERRORS = [
    EventTooLarge(10, 11, 5),
    EventTooLarge(10, 11, 5, "max_item_bytes"),
    MalformedPayload("expected more", 3),
    TransportRewound(1, 2),
    UsageError("no"),
    KeyConflict("k"),
    LedgerTooLarge("the turn", 11, 10, "max_turn_bytes"),
    SchemaMismatch(None, 2),
    SchemaMismatch(1, 2),
    SchemaMismatch(3, 2),
    StoreError("busy", "words", True),
]


class TestTree:
    def test_the_bytes_or_our_caller(self) -> None:
        assert issubclass(StreamError, LevadaError)
        assert issubclass(UsageError, LevadaError)
        assert not issubclass(UsageError, StreamError)
        for error in (EventTooLarge, MalformedPayload, TransportRewound):
            assert issubclass(error, StreamError)

    def test_or_the_store(self) -> None:
        for error in (KeyConflict, LedgerTooLarge, SchemaMismatch, StoreError):
            assert issubclass(error, LedgerError)
        assert not issubclass(LedgerError, (StreamError, UsageError))

    def test_a_usage_error_is_a_value_error(self) -> None:
        assert issubclass(UsageError, ValueError)


class TestValues:
    @pytest.mark.parametrize("error", ERRORS, ids=repr)
    def test_a_copy_or_a_pickle_is_equal_and_says_the_same(self, error: LevadaError) -> None:
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert again == error
            assert hash(again) == hash(error)
            assert str(again) == str(error)
            assert vars(again) == vars(error)

    def test_what_was_completed_survives_pickle(self) -> None:
        error = EventTooLarge(10, 11, 5)
        error.completed = (b"{}",)
        assert pickle.loads(pickle.dumps(error)).completed == (b"{}",)

    def test_different_errors_differ(self) -> None:
        for one in ERRORS:
            assert [other for other in ERRORS if other == one] == [one]
            assert one != "no"
