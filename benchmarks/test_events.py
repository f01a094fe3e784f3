"""Timings by pytest-benchmark: `pytest benchmarks`. The ratios that count are those of `python -m benchmarks`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.rivals import LOCAL, Local, UnavailableError, local
from benchmarks.workloads import DELIVERIES, STREAMS, Workload, one_big_event


@cache
def stream(make: Callable[[], Workload]) -> Workload:
    return make()


def contestant(name: str) -> Local:
    try:
        return local(name)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("make", STREAMS, ids=lambda make: make.__name__)
def test_every_events_data_is_read(
    make: Callable[[], Workload], delivery: str, name: str, benchmark: BenchmarkFixture
) -> None:
    workload = stream(make)
    reader = contestant(name).reader
    benchmark.group = f"{workload.name}, {delivery}"
    length = benchmark(reader.read, DELIVERIES[delivery](workload))
    assert length == sum(len(data) for _, data in workload.events)


@pytest.mark.parametrize("name", LOCAL)
def test_one_big_event_is_read(name: str, benchmark: BenchmarkFixture) -> None:
    workload = stream(one_big_event)
    reader = contestant(name).reader
    benchmark.group = f"{workload.name}, 16 KiB reads"
    length = benchmark(reader.read, workload.reads())
    assert length == len(workload.events[0][1])
