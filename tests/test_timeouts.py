"""The limits of a turn, with time as an argument."""

from __future__ import annotations

import math
from typing import Any

import pytest

from levada import UsageError
from levada.timeouts import Timeouts, Watch


class TestTimeouts:
    @pytest.mark.parametrize("value", [0, -1, math.nan, True, "5"])
    def test_a_limit_is_a_positive_number_of_seconds(self, value: Any) -> None:
        with pytest.raises(UsageError, match="idle_s must be a positive number"):
            Timeouts(idle_s=value)

    def test_none_is_no_limit(self) -> None:
        assert Watch(Timeouts(), 0).limit(5, opened=False) is None
        assert Watch(Timeouts(idle_s=1, stall_s=1), 0).limit(5, opened=False) is None


class TestWatch:
    """Which limit a wait has; (when it is over, its name)."""

    def limit(self, watch: Watch, now_s: float, *, opened: bool = True) -> tuple[float, str]:
        limit = watch.limit(now_s, opened=opened)
        assert limit is not None
        return limit.at_s, limit.name

    def test_the_first_byte_counts_from_the_start(self) -> None:
        watch = Watch(Timeouts(first_byte_s=10, idle_s=1), 100)
        assert self.limit(watch, 103, opened=False) == (110, "first_byte_s")
        watch.came(104, chunk=True, deltas=False)
        assert self.limit(watch, 104, opened=False) == (105, "idle_s")

    def test_an_empty_chunk_is_no_byte(self) -> None:
        watch = Watch(Timeouts(first_byte_s=10, idle_s=1), 100)
        watch.came(102, chunk=False, deltas=False)
        assert self.limit(watch, 103) == (110, "first_byte_s")

    def test_keep_alives_do_not_put_off_the_first_event(self) -> None:
        watch = Watch(Timeouts(first_event_s=10), 100)
        for now_s in (101, 105, 109):
            watch.came(now_s, chunk=True, deltas=False)
            assert self.limit(watch, now_s, opened=False) == (110, "first_event_s")
        assert watch.limit(109, opened=True) is None

    def test_a_stall_is_waiting_without_a_delta_whatever_else_comes(self) -> None:
        watch = Watch(Timeouts(stall_s=10), 100)
        watch.came(101, chunk=True, deltas=True)
        assert self.limit(watch, 101) == (111, "stall_s")
        watch.came(105, chunk=True, deltas=False)
        assert self.limit(watch, 105) == (111, "stall_s")
        watch.came(106, chunk=True, deltas=True)
        assert self.limit(watch, 106) == (116, "stall_s")

    def test_the_pauses_of_the_reader_count_for_the_total_alone(self) -> None:
        watch = Watch(Timeouts(idle_s=10, stall_s=15, total_s=1000), 0)
        watch.came(1, chunk=True, deltas=False)
        assert self.limit(watch, 500) == (510, "idle_s")
        watch.came(507, chunk=True, deltas=False)  # 1 s and 7 s of waiting
        assert self.limit(watch, 600) == (607, "stall_s")
        watch.came(601, chunk=True, deltas=True)
        assert self.limit(watch, 995) == (1000, "total_s")

    def test_the_earliest_limit_is_the_one(self) -> None:
        watch = Watch(Timeouts(first_byte_s=3, first_event_s=2, total_s=1), 0)
        assert self.limit(watch, 0, opened=False) == (1, "total_s")

    def test_the_error_says_which_and_how_long(self) -> None:
        limit = Watch(Timeouts(first_event_s=0.25), 0).limit(0, opened=False)
        assert limit is not None
        error = limit.error()
        assert (error.kind, error.retryable) == ("timeout", True)
        assert error.message == "nothing but keep-alives came within 0.25 s (first_event_s)"
