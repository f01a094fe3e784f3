"""Many parsers in parallel threads, each with its own stream: no state is shared, so each gives its own answer.

On a free-threaded Python this is what a claim of support would stand on; with the GIL, switching as often as possible.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType

import pytest

from levada import MalformedPayload
from tests.oracle import read
from tests.wire import cut_at, plain

THREADS, ROUNDS = 8, 12


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Let threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_parallel(work: Callable[[int], None]) -> None:
    """Run `work` with its number in each thread, all begun at the same moment."""
    barrier = Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait()
        for _ in range(ROUNDS):
            work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


def stream_of(number: int) -> bytes:
    """Return a stream that is unlike any other thread's in every field, its sizes too."""
    block = f"event: type {number}\nid: {number}-%d\nretry: {number}00\ndata: {'水é🐙' * number}\ndata: %d\n: c\n\n"
    return "".join(block % (n, n) for n in range(60)).encode()


class TestParallelThreads:
    def test_event_parsers(self, hotpath: ModuleType) -> None:
        streams = [stream_of(number) for number in range(THREADS)]
        expected = [read(stream) for stream in streams]

        def work(number: int) -> None:
            stream = streams[number]
            parser = hotpath.EventParser()
            chunks = cut_at(stream, *range(number + 3, len(stream), number + 3))
            assert [plain(item) for chunk in chunks for item in parser.feed_all(chunk)] == expected[number].items
            assert parser.last_event_id == expected[number].last_event_id
            assert parser.close() == expected[number].remainder

        in_parallel(work)

    def test_decoders(self, hotpath: ModuleType) -> None:
        streams = [stream_of(number) for number in range(THREADS)]

        def work(number: int) -> None:
            stream = streams[number]
            decoder = hotpath.Utf8Decoder()
            chunks = cut_at(stream, *range(number + 1, len(stream), number + 1))
            assert "".join(map(decoder.decode, chunks)) == stream.decode()

        in_parallel(work)

    def test_json_arrays_and_errors(self, hotpath: ModuleType) -> None:
        items = [[b'{"%d":"%s"}' % (n, b"}" * number) for n in range(99)] for number in range(THREADS)]

        def work(number: int) -> None:
            stream = b"[" + b",".join(items[number]) + b"]"
            reader = hotpath.JsonArray()
            chunks = cut_at(stream, *range(number + 2, len(stream), number + 2))
            assert [item for chunk in chunks for item in reader.feed(chunk)] == items[number]
            with pytest.raises(MalformedPayload) as caught:
                reader.feed(b"%d" % number)
            assert caught.value.offset == len(stream)

        in_parallel(work)

    def test_events_are_values_that_any_thread_may_read(self, hotpath: ModuleType) -> None:
        events = hotpath.EventParser().feed(stream_of(3))
        expected = [(event.data, repr(event), hash(event)) for event in events]

        def work(number: int) -> None:
            assert [(event.data, repr(event), hash(event)) for event in events] == expected
            assert events == hotpath.EventParser().feed(stream_of(3))

        in_parallel(work)
