"""Timings of whole turns by pytest-benchmark. The ratios that count are those of `python -m benchmarks`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.rivals import UnavailableError
from benchmarks.turns import READERS, TurnReader, turn_reader
from benchmarks.workloads import DELIVERIES, TURN_DELIVERIES, TURNS, TurnWorkload


@cache
def stream(make: Callable[[], TurnWorkload]) -> TurnWorkload:
    return make()


def contestant(name: str) -> TurnReader:
    try:
        return turn_reader(name)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("delivery", TURN_DELIVERIES)
@pytest.mark.parametrize("make", TURNS, ids=lambda make: make.__name__)
def test_a_whole_turn_is_read(
    make: Callable[[], TurnWorkload], delivery: str, name: str, benchmark: BenchmarkFixture
) -> None:
    workload, reader = stream(make), contestant(name)
    if not reader.takes(workload):
        pytest.skip(f"{name} does not read {workload.dialect}")
    chunks = DELIVERIES[delivery](workload)
    benchmark.group = f"{workload.name}, {delivery}"
    reader.load(workload, chunks)
    answer, _ = benchmark(reader.outcome, chunks)
    assert answer == workload.answer
