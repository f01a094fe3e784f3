"""The painter: the law by a clock that the tests turn, then the drivers."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada import PaintClock, Painter, ThreadPainter, UsageError
from tests.turned import run

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases/cases.jsonl").read_text().splitlines()]
OURS = [case for case in CASES if case["layer"] == "paint"]


class TestClock:
    def test_the_first_text_is_painted_at_once(self) -> None:
        assert PaintClock().offer("a", 1_000) == "a"

    def test_later_texts_wait_for_the_interval_and_the_newest_wins(self) -> None:
        clock = PaintClock(interval_ms=40)
        clock.offer("a", 0)
        assert clock.due_ms is None
        assert clock.offer("ab", 5) is None
        assert clock.due_ms == 40
        assert clock.offer("abc", 39) is None
        assert clock.tick(39.9) is None
        assert clock.tick(40) == "abc"
        assert clock.due_ms is None
        assert clock.tick(80) is None

    def test_after_a_pause_a_text_is_painted_at_once(self) -> None:
        clock = PaintClock(interval_ms=40)
        clock.offer("a", 0)
        assert clock.offer("ab", 40) == "ab"

    def test_an_offer_also_paints_what_is_due(self) -> None:
        clock = PaintClock(interval_ms=40)
        clock.offer("a", 0)
        clock.offer("ab", 10)
        assert clock.offer("abc", 41) == "abc"
        assert clock.due_ms is None

    def test_what_is_on_the_screen_is_not_painted_again(self) -> None:
        clock = PaintClock(interval_ms=40)
        assert clock.offer("", 0) is None
        assert clock.offer("a", 1) == "a"
        assert clock.offer("a", 100) is None
        assert clock.offer("ab", 30) is None
        assert clock.offer("a", 35) is None
        assert clock.due_ms is None

    def test_clear_paints_now_and_cancels_what_is_pending(self) -> None:
        clock = PaintClock(interval_ms=40)
        clock.offer("a", 0)
        clock.offer("ab", 5)
        assert clock.clear(6) == ""
        assert clock.due_ms is None

    def test_clear_is_no_provisional_paint(self) -> None:
        clock = PaintClock(interval_ms=40)
        clock.offer("a", 0)
        clock.clear(6)
        assert clock.offer("b", 7) is None  # 7 ms after the last provisional paint
        assert clock.due_ms == 40
        clock.clear(200)
        assert clock.offer("c", 201) == "c"

    def test_finish_paints_now_and_nothing_is_painted_after_it(self) -> None:
        clock = PaintClock(interval_ms=40)
        clock.offer("a", 0)
        clock.offer("ab", 5)
        assert clock.finish("abc", 6) == "abc"
        assert clock.due_ms is None
        assert [clock.tick(50), clock.offer("x", 100), clock.clear(150), clock.finish("y", 200)] == [None] * 4

    def test_the_final_text_is_painted_even_if_it_is_on_the_screen(self) -> None:
        clock = PaintClock()
        clock.offer("a", 0)
        assert clock.finish("a", 1) == "a"

    def test_close_drops_what_is_pending(self) -> None:
        clock = PaintClock()
        clock.offer("a", 0)
        clock.offer("ab", 5)
        clock.close()
        assert clock.due_ms is None
        assert [clock.tick(50), clock.offer("x", 100), clock.clear(150), clock.finish("y", 200)] == [None] * 4

    def test_without_an_interval_every_text_is_painted(self) -> None:
        clock = PaintClock(interval_ms=0)
        assert [clock.offer(text, 5) for text in ("a", "ab", "abc")] == ["a", "ab", "abc"]

    @pytest.mark.parametrize("bad", [-1, float("nan")])
    def test_an_interval_is_not_negative(self, bad: float) -> None:
        with pytest.raises(UsageError, match="interval_ms must be 0 or more"):
            PaintClock(bad)


STEPS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(["text", "text", "text", "tick", "clear", "replace"])), max_size=60
)


class TestLaw:
    @settings(max_examples=300, derandomize=True)
    @given(STEPS, st.sampled_from([1, 7, 40, 100]), st.booleans())
    def test_any_arrival_keeps_the_law(self, steps: list[tuple[int, str]], interval_ms: int, punctual: bool) -> None:
        """`punctual`: tick comes when it is due; else only when a step says so."""
        clock = PaintClock(interval_ms)
        paints: list[tuple[float, str, str]] = []  # when, provisional | clear | final, text
        last_offer: tuple[float, str] | None = None
        now: float = 0
        text = ""
        for number, (pause, step) in enumerate(steps):
            until = now + pause
            while punctual and (due := clock.due_ms) is not None and due <= until:
                painted = clock.tick(due)
                assert painted is not None
                paints.append((due, "provisional", painted))
            now = until
            if step == "clear":
                text = ""
                assert clock.clear(now) == ""
                paints.append((now, "clear", ""))
                last_offer = None
                continue
            if step != "tick":
                text = text + "x" if step == "text" else f"replaced {number} "
                last_offer = (now, text)
                if step == "replace":
                    paints.append((now, "replacement", text))
            painted = clock.tick(now) if step == "tick" else clock.offer(text, now)
            if painted is not None:
                assert painted == text, "the newest text wins"
                paints.append((now, "provisional", painted))
            if last_offer is not None and punctual and now >= last_offer[0] + interval_ms:
                assert clock.due_ms is None, "no text waits longer than the interval"
        assert clock.finish("final", now) == "final"
        assert (clock.offer("later", now + 1_000), clock.tick(now + 1_000), clock.due_ms) == (None, None, None)
        times = [when for when, kind, _ in paints if kind == "provisional"]
        assert all(b - a >= interval_ms for a, b in pairwise(times))
        before = ""
        for _, kind, painted in paints:
            if kind == "replacement":
                before = ""
            else:
                assert painted.startswith(before) or kind == "clear"
                before = painted

    @pytest.mark.parametrize("case", OURS, ids=[case["id"] for case in OURS])
    def test_a_case_from_the_field(self, case: dict[str, Any]) -> None:
        clock = PaintClock(case["interval_ms"])
        provisional: list[float] = []
        paints: list[str] = []
        for now, text in [*case["timeline"], [case["end_ms"], None]]:
            while (due := clock.due_ms) is not None and due <= now:
                paints.append(clock.tick(due) or "")
                provisional.append(due)
            painted = clock.offer(text, now) if text is not None else clock.finish(case["timeline"][-1][1], now)
            if painted is not None:
                paints.append(painted)
                provisional += [now] if text is not None else []
        expect = case["expect"]
        assert len(paints) <= expect["max_paints"]
        assert paints[-1] == expect["last_paint"]
        gaps = [b - a for a, b in pairwise(provisional)]
        assert min(gaps) >= expect["min_gap_ms_provisional"]


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


class TestPainter:
    def recorder(self, takes_ms: int | None = None) -> tuple[list[tuple[int, str]], Callable[[str], Any]]:
        """Return a list of paints, with when they began, and a paint that writes it; async if it takes time."""
        paints: list[tuple[int, str]] = []

        def paint(text: str) -> None:
            paints.append((now_ms(), text))

        async def slow_paint(text: str) -> None:
            paints.append((now_ms(), text))
            await asyncio.sleep((takes_ms or 0) / 1000)

        return paints, paint if takes_ms is None else slow_paint

    @pytest.mark.parametrize("takes_ms", [None, 0, 30])
    def test_paints_keep_the_interval(self, takes_ms: int | None) -> None:
        async def main() -> None:
            paints, paint = self.recorder(takes_ms)
            painter = Painter(paint)
            for count in range(1, 26):
                painter.offer("x" * count)
                await asyncio.sleep(0.005)
            await painter.finish("the end")
            assert [when for when, _ in paints[:-1]] == [0, 40, 80, 120]
            for when, text in paints[:-1]:  # at 40 ms the offer may come before the paint or after it
                assert len(text) in (when // 5, when // 5 + 1)
            await asyncio.sleep(1)
            assert paints[-1][1] == "the end"
            assert len(paints) == 5

        run(main())

    def test_slow_paints_do_not_pile_up(self) -> None:
        async def main() -> None:
            paints, paint = self.recorder(takes_ms=100)
            painter = Painter(paint)
            for count in range(1, 31):
                painter.offer(str(count))
                await asyncio.sleep(0.01)
            await painter.finish("the end")
            assert [when for when, _ in paints[:3]] == [0, 100, 200]
            for when, text in paints[:3]:
                assert int(text) in (when // 10, when // 10 + 1)
            assert paints[-1][1] == "the end"
            assert now_ms() == paints[-1][0] + 100

        run(main())

    def test_clear_paints_now_and_cancels_what_is_pending(self) -> None:
        async def main() -> None:
            paints, paint = self.recorder()
            painter = Painter(paint)
            painter.offer("a")
            painter.offer("ab")
            await asyncio.sleep(0.01)
            await painter.clear()
            await asyncio.sleep(0.02)
            painter.offer("b")
            await asyncio.sleep(1)
            await painter.finish("bc")
            assert paints == [(0, "a"), (10, ""), (40, "b"), (1030, "bc")]

        run(main())

    def test_clear_and_finish_wait_for_the_paint_that_runs(self) -> None:
        async def main() -> None:
            paints, paint = self.recorder(takes_ms=25)
            painter = Painter(paint)
            painter.offer("a")
            painter.offer("ab")
            cleared = painter.clear()
            painter.offer("b")
            finished = painter.finish("bc")
            await cleared
            await finished
            assert paints == [(0, "a"), (25, "bc")]
            await painter.finish("again")
            painter.offer("later")
            await painter.clear()
            assert len(paints) == 2

        run(main())

    def test_a_failing_paint_is_reported_once_and_the_stream_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main(paint: Callable[[str], Any]) -> None:
            painter = Painter(paint)
            painter.offer("a")
            await asyncio.sleep(0.1)
            painter.offer("ab")
            await painter.clear()
            await painter.finish("abc")
            assert repr(painter.error) == "OSError('no screen for a')"

        def paint(text: str) -> None:
            tried.append(text)
            raise OSError(f"no screen for {text}")

        async def async_paint(text: str) -> None:
            paint(text)

        for either in (paint, async_paint):
            tried: list[str] = []
            caplog.clear()
            run(main(either))
            assert tried[0] == "a"
            assert tried[-2:] == ["", "abc"]
            assert [(record.name, record.levelno) for record in caplog.records] == [("levada.paint", logging.ERROR)]

    def test_a_paint_that_is_cancelled_inside_does_not_end_the_painter(self) -> None:
        async def main() -> None:
            painted: list[str] = []

            async def paint(text: str) -> None:
                painted.append(text)
                raise asyncio.CancelledError

            painter = Painter(paint)
            painter.offer("a")
            await painter.finish("ab")
            assert painted == ["a", "ab"]
            assert isinstance(painter.error, asyncio.CancelledError)

        run(main())

    def test_paint_may_call_its_painter(self) -> None:
        async def main() -> None:
            painted: list[str] = []

            def paint(text: str) -> None:
                painted.append(text)
                if text == "a":
                    painter.finish("b")

            painter = Painter(paint)
            painter.offer("a")
            assert painted == ["a", "b"]

        run(main())

    def test_close_ends_without_a_final_paint(self) -> None:
        async def main() -> None:
            paints, paint = self.recorder()
            painter = Painter(paint)
            painter.offer("a")
            painter.offer("ab")
            painter.close()
            await asyncio.sleep(1)
            await painter.finish("abc")
            assert paints == [(0, "a")]

        run(main())

    def test_the_end_of_the_loop_ends_a_paint_that_runs(self) -> None:
        async def main() -> None:
            painter = Painter(self.recorder(takes_ms=1_000_000)[1])
            painter.offer("a")
            await asyncio.sleep(0)

        run(main())

    def test_many_deltas_cost_few_timers(self) -> None:
        async def main() -> None:
            paints, paint = self.recorder()
            painter = Painter(paint)
            for count in range(10_000):
                painter.offer(str(count))
            assert len(asyncio.get_running_loop()._scheduled) == 1  # type: ignore[attr-defined]  # of BaseEventLoop
            await painter.finish("the end")
            assert [text for _, text in paints] == ["0", "the end"]

        run(main())


class TestThreadPainter:
    def test_the_first_text_is_painted_at_once_and_the_final_one_at_the_end(self) -> None:
        painted: list[str] = []
        first = threading.Event()

        def paint(text: str) -> None:
            painted.append(text)
            first.set()

        painter = ThreadPainter(paint, interval_ms=60_000)
        painter.offer("a")
        assert first.wait(10)
        painter.offer("ab")
        painter.offer("abc")
        painter.finish("abcd")
        assert painted == ["a", "abcd"]
        painter.offer("later")
        painter.clear()
        painter.finish("again")
        painter.close()
        assert painted == ["a", "abcd"]
        assert "levada painter" not in {one.name for one in threading.enumerate()}

    def test_paints_keep_the_interval(self) -> None:
        begun: list[float] = []
        painted: list[str] = []
        third = threading.Event()

        def paint(text: str) -> None:
            begun.append(time.monotonic())
            painted.append(text)
            if len(painted) == 3:
                third.set()

        with ThreadPainter(paint, interval_ms=5) as painter:
            count = 0
            while not third.wait(0.001):
                count += 1
                painter.offer("x" * count)
        assert all(b - a >= 0.005 for a, b in pairwise(begun))
        assert all(b.startswith(a) for a, b in pairwise(painted))

    def test_a_slow_paint_holds_nobody_up_and_the_newest_wins(self) -> None:
        painted: list[str] = []
        begun, go_on = threading.Event(), threading.Event()

        def paint(text: str) -> None:
            painted.append(text)
            begun.set()
            assert go_on.wait(10)

        painter = ThreadPainter(paint, interval_ms=0)
        painter.offer("a")
        assert begun.wait(10)
        for text in ("ab", "abc", "abcd"):
            painter.offer(text)
        assert painted == ["a"]
        go_on.set()
        painter.finish("end")
        assert painted in (["a", "end"], ["a", "abcd", "end"])

    def test_clear_returns_when_it_is_painted(self) -> None:
        painted: list[str] = []
        with ThreadPainter(painted.append, interval_ms=60_000) as painter:
            painter.offer("a")
            painter.clear()
            assert painted[-1] == ""
            painter.offer("b")
            painter.clear()
            assert painted[-1] == ""
            assert painted.count("") == 2

    def test_a_failing_paint_is_reported_once_and_the_stream_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        tried: list[str] = []

        def paint(text: str) -> None:
            tried.append(text)
            raise SystemExit(text)

        painter = ThreadPainter(paint)
        painter.clear()
        painter.finish("abc")
        assert tried == ["", "abc"]
        assert repr(painter.error) == "SystemExit('')"
        assert [record.name for record in caplog.records] == ["levada.paint"]

    def test_paint_may_call_its_painter(self) -> None:
        painted: list[str] = []

        def paint(text: str) -> None:
            painted.append(text)
            if text == "a":
                painter.clear()
                painter.finish("b")
                ended.set()

        ended = threading.Event()
        painter = ThreadPainter(paint)
        painter.offer("a")
        assert ended.wait(10)
        painter.finish("too late")
        assert painted == ["a", "b"]

    def test_a_painter_without_text_begins_no_thread(self) -> None:
        with ThreadPainter(print) as painter:
            assert painter.error is None
        assert "levada painter" not in {one.name for one in threading.enumerate()}
