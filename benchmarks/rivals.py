"""The contestants: one factory each, all with the same two functions.

`read(chunks)` is what is timed: a fresh parser takes every chunk, and each event's data is read as str, for whose
length a count is kept (to keep the texts themselves would measure malloc, and no gateway keeps them). `pairs(chunks)`
gives (type, data) of every event by the same calls, for the check that all agree.

Each rival is called in the quickest way that its own code offers from chunks of bytes, without response objects, also
where those classes are private; `how` says which.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from time import thread_time
from types import MappingProxyType
from typing import Final, Protocol

from benchmarks.workloads import TurnWorkload, Workload

Chunks = Sequence[bytes]
Pairs = list[tuple[str, str]]


class UnavailableError(Exception):
    """The contestant cannot take part here; the text says why."""


class Contestant(Protocol):
    """Takes turns on one stream at a time."""

    name: str
    version: str
    how: str

    def takes(self, workload: Workload) -> bool:
        """Say whether it can be given this workload at all."""

    def load(self, workload: Workload, chunks: Chunks) -> None:
        """Take the stream of the turns to come. Not timed."""

    def fault(self) -> str | None:
        """Say what is wrong with the answer to the loaded stream; None where nothing is."""

    def turn(self, at_least_s: float) -> float:
        """Read the loaded stream, again until `at_least_s` have passed; return the seconds of one reading.

        Seconds of the processor, not of the wall: on a busy machine the wall clock charges a long turn for other
        programs that interrupted it, and spares a short one, which would favour whoever is quick.
        """

    def close(self) -> None:
        """Free what was held."""


@dataclass(frozen=True)
class Reader:
    """The two functions of a contestant."""

    read: Callable[[Chunks], int]
    pairs: Callable[[Chunks], Pairs]


class Local:
    """A contestant in this process."""

    def __init__(self, name: str, how: str, distribution: str | None, factory: Callable[[], Reader]) -> None:
        self.name = name
        self.how = how
        try:
            self.reader = factory()
            self.version = metadata.version(distribution) if distribution else "this tree"
        except ImportError as error:
            raise UnavailableError(f"not installed: {error}") from None
        self._chunks: Chunks = ()
        self._workload: Workload | None = None

    def takes(self, workload: Workload) -> bool:
        return not isinstance(workload, TurnWorkload)

    def load(self, workload: Workload, chunks: Chunks) -> None:
        self._workload, self._chunks = workload, chunks

    def fault(self) -> str | None:
        assert self._workload is not None
        wanted = list(self._workload.events)
        try:
            got = self.reader.pairs(self._chunks)
            length = self.reader.read(self._chunks)
        except Exception as error:  # noqa: BLE001, RUF100  # whatever a rival raises is its answer
            return f"{type(error).__name__}: {error!s:.100}"
        if got != wanted:
            number = next(
                (n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted))
            )
            return f"{len(got)} events for {len(wanted)}; event {number} is {got[number : number + 1]!r:.100}"
        if length != sum(len(data) for _, data in wanted):
            return f"{length} characters read, a wrong number"
        return None

    def turn(self, at_least_s: float) -> float:
        read, chunks = self.reader.read, self._chunks
        calls, begun = 0, thread_time()
        while True:
            read(chunks)
            calls += 1
            spent = thread_time() - begun
            if spent >= at_least_s:
                return spent / calls

    def close(self) -> None:
        self._chunks, self._workload = (), None


class Floor(Local):
    """Work that no parser can avoid, done by the interpreter's own compiled code. It finds no events."""

    def __init__(self, name: str, how: str, work: Callable[[Workload], Callable[[Chunks], int]]) -> None:
        super().__init__(name, how, None, lambda: Reader(lambda _: 0, lambda _: []))
        self._work = work

    def load(self, workload: Workload, chunks: Chunks) -> None:
        super().load(workload, chunks)
        self.reader = Reader(self._work(workload), lambda _: [])

    def fault(self) -> str | None:
        return None


def _twin(module: str) -> Callable[[], Reader]:
    def factory() -> Reader:
        event_parser = import_module(module).EventParser

        def read(chunks: Chunks) -> int:
            feed = event_parser().feed
            length = 0
            for chunk in chunks:
                for event in feed(chunk):
                    length += len(event.data)
            return length

        def pairs(chunks: Chunks) -> Pairs:
            feed = event_parser().feed
            return [(event.event, event.data) for chunk in chunks for event in feed(chunk)]

        return Reader(read, pairs)

    return factory


def _httpx_sse() -> Reader:
    decoders = import_module("httpx_sse._decoders")
    make_text = codecs.getincrementaldecoder("utf-8")  # what httpx's iter_text() decodes with

    def read(chunks: Chunks) -> int:
        text_of = make_text("replace").decode
        lines_of = decoders.SSELineDecoder().decode
        event_of = decoders.SSEDecoder().decode
        length = 0
        for chunk in chunks:
            for line in lines_of(text_of(chunk)):
                event = event_of(line)
                if event is not None:
                    length += len(event.data)
        return length

    def pairs(chunks: Chunks) -> Pairs:
        text_of = make_text("replace").decode
        lines_of = decoders.SSELineDecoder().decode
        event_of = decoders.SSEDecoder().decode
        events = (event_of(line) for chunk in chunks for line in lines_of(text_of(chunk)))
        return [(event.event, event.data) for event in events if event is not None]

    return Reader(read, pairs)


def _httpx2() -> Reader:
    sse = import_module("httpx2._sse")
    make_text = codecs.getincrementaldecoder("utf-8")

    def read(chunks: Chunks) -> int:
        text_of = make_text("replace").decode
        events_of = sse._SSEParser(None).decode  # no limit: its default of 1 MiB refuses the big events
        length = 0
        for chunk in chunks:
            for event in events_of(text_of(chunk)):
                length += len(event.data)
        return length

    def pairs(chunks: Chunks) -> Pairs:
        text_of = make_text("replace").decode
        events_of = sse._SSEParser(None).decode
        return [(event.event, event.data) for chunk in chunks for event in events_of(text_of(chunk))]

    return Reader(read, pairs)


def _iter_bytes(module: str) -> Callable[[], Reader]:
    """Make the reader of the OpenAI and Anthropic clients, whose decoders are called alike."""

    def factory() -> Reader:
        streaming = import_module(module)

        def read(chunks: Chunks) -> int:
            length = 0
            for event in streaming.SSEDecoder().iter_bytes(iter(chunks)):
                length += len(event.data)
            return length

        def pairs(chunks: Chunks) -> Pairs:
            # None is their word for the default type
            return [(event.event or "message", event.data) for event in streaming.SSEDecoder().iter_bytes(iter(chunks))]

        return Reader(read, pairs)

    return factory


def _sseclient() -> Reader:
    sseclient = import_module("sseclient")

    def read(chunks: Chunks) -> int:
        length = 0
        for event in sseclient.SSEClient(chunks).events():
            length += len(event.data)
        return length

    def pairs(chunks: Chunks) -> Pairs:
        return [(event.event, event.data) for event in sseclient.SSEClient(chunks).events()]

    return Reader(read, pairs)


def _split(workload: Workload) -> Callable[[Chunks], int]:
    stream, blank_line = workload.stream, workload.blank_line
    return lambda _: len(stream.split(blank_line))


def _decode(workload: Workload) -> Callable[[Chunks], int]:
    payloads = [data.encode() for _, data in workload.events]

    def read(_: Chunks) -> int:
        length = 0
        for payload in payloads:
            length += len(payload.decode())
        return length

    return read


def _join_decode(_: Workload) -> Callable[[Chunks], int]:
    return lambda chunks: len(b"".join(chunks).decode())


CYTHON: Final = "levada cython"
PYTHON: Final = "levada python"
HTTPX_SSE: Final = "httpx-sse"
JOIN_DECODE: Final = "join().decode()"

# name: how it is called, the distribution that has its version (None: this tree), its factory
LOCAL: Final[Mapping[str, tuple[str, str | None, Callable[[], Reader]]]] = MappingProxyType(
    {
        CYTHON: ("EventParser.feed of the compiled twin", None, _twin("levada._hotpath_c")),
        PYTHON: ("EventParser.feed of the reference twin", None, _twin("levada._hotpath_py")),
        HTTPX_SSE: (
            "the incremental UTF-8 decoder that httpx uses, SSELineDecoder.decode, SSEDecoder.decode; its EventSource "
            "adds a response object, three generators and an rstrip per line, which are left out in its favour",
            "httpx-sse",
            _httpx_sse,
        ),
        "httpx2": (
            "the incremental UTF-8 decoder that httpx2 uses and _SSEParser.decode, which its EventSource runs on; no "
            "response object, no size limit",
            "httpx2",
            _httpx2,
        ),
        "openai": ("SSEDecoder().iter_bytes(chunks)", "openai", _iter_bytes("openai._streaming")),
        "anthropic": ("SSEDecoder().iter_bytes(chunks)", "anthropic", _iter_bytes("anthropic._streaming")),
        "sseclient-py": ("SSEClient(chunks).events()", "sseclient-py", _sseclient),
    }
)

FLOORS: Final[Mapping[str, tuple[str, Callable[[Workload], Callable[[Chunks], int]]]]] = MappingProxyType(
    {
        "bytes.split": ('the whole stream .split(b"\\n\\n"), and nothing else', _split),
        "bytes.decode": ("each event's data, cut beforehand, .decode()", _decode),
        JOIN_DECODE: ('b"".join(chunks).decode(), the linear measure for big events', _join_decode),
    }
)


def local(name: str) -> Local:
    """Return the contestant or floor of that name. Raises UnavailableError where its package is not installed."""
    if name in FLOORS:
        return Floor(name, *FLOORS[name])
    return Local(name, *LOCAL[name])
