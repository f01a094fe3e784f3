"""Making deltas is linear, reading the text now and then included; memory stays near the text's own size."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path
from time import process_time

import pytest

from levada import State, TextDelta, Turn
from tests.turn.chat import DONE, stop, text

CASES = (Path(__file__).parent.parent / "cases/cases.jsonl").read_text(encoding="utf-8").splitlines()
C203 = next(case for case in map(json.loads, CASES) if case["id"] == "C203")

# Time: as in tests/test_growth.py, eight times the stream may take at most 24 times as long; quadratic takes 64.
FEW, MANY, SLACK = 4_000, 32_000, 24


def play(deltas: int, size: int = 8, *, reads: int = 0, per_chunk: int = 1) -> Turn:
    """A turn of so many deltas of `size` characters; its text is read at `reads` places."""
    turn = Turn("openai_chat")
    chunk = text("wörter! "[:size].ljust(size, "x")) * per_chunk
    every = deltas // reads if reads else 0
    read = 0
    for number in range(0, deltas, per_chunk):
        for delta in turn.feed(chunk):
            if every and number % every == 0:
                assert isinstance(delta, TextDelta)
                assert len(delta.so_far) == len(turn.answer) == (number + 1) * size
                read += 1
    assert read == reads
    return turn


def seconds(deltas: int, **options: int) -> float:
    best = float("inf")
    for _ in range(3):
        begun = process_time()
        play(deltas, **options)
        best = min(best, process_time() - begun)
    return best


@pytest.mark.usefixtures("uncollected")
class TestTime:
    def test_c203_deltas_grow_linearly(self) -> None:
        few, size = C203["gen"]["deltas"], C203["gen"]["delta_chars"]
        assert C203["expect"]["growth"] == "linear: total time of 4n deltas below 5x that of n"
        # the best of a few tries: on a busy machine one measure of a short run says little
        ratios = []
        for _ in range(5):
            ratios.append(seconds(4 * few, size=size) / seconds(few, size=size))
            if ratios[-1] < 5:
                return
        pytest.fail(f"4n deltas took {ratios} times as long as n")

    @pytest.mark.parametrize("per_chunk", [1, 50])
    def test_reading_the_text_at_twenty_places_keeps_it_linear(self, per_chunk: int) -> None:
        reads = 20 if per_chunk == 1 else 0
        assert seconds(MANY, reads=reads, per_chunk=per_chunk) < SLACK * seconds(FEW, reads=reads, per_chunk=per_chunk)


class TestALongTurn:
    def test_200_000_deltas_read_at_twenty_places(self) -> None:
        turn = play(200_000, reads=20)
        turn.feed(stop() + DONE)
        assert turn.state is State.FINISHED
        assert turn.result().answer == "wörter! " * 200_000

    @pytest.mark.parametrize("reads", [0, 20])
    def test_memory_stays_near_the_texts_own_size(self, reads: int) -> None:
        deltas, size = 40_000, 8
        play(100)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            turn = play(deltas, size, reads=reads)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert deltas * size <= held <= 1.1 * deltas * size + 8 * 1024
        assert len(turn.answer) == deltas * size
