"""Timings of the two UTF-8 decoders against the standard library's, by pytest-benchmark."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.workloads import DELIVERIES, Workload, chat, cjk


def decoder_of(name: str) -> Callable[[], Any]:
    if name == "codecs":
        return lambda: codecs.getincrementaldecoder("utf-8")("replace")
    module = pytest.importorskip(name, reason="the extension is not built", exc_type=ImportError)
    return module.Utf8Decoder  # type: ignore[no-any-return]  # both twins have it


@pytest.mark.parametrize("name", ["levada._hotpath_c", "levada._hotpath_py", "codecs"])
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("make", [chat, cjk], ids=lambda make: make.__name__)
def test_text_is_decoded(make: Callable[[], Workload], delivery: str, name: str, benchmark: BenchmarkFixture) -> None:
    workload = make()
    chunks = DELIVERIES[delivery](workload)
    new = decoder_of(name)

    def read() -> int:
        decode = new().decode
        length = 0
        for chunk in chunks:
            length += len(decode(chunk))
        return length

    benchmark.group = f"text of {workload.name}, {delivery}"
    assert benchmark(read) == len(workload.stream.decode())
