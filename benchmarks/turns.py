"""The contestants of whole turns: bytes of a response in; each delta's text, the answer and the finish out.

Every one is called as its users call it. The clients get their bytes through an httpx transport that holds them ready,
so that no socket and no HTTP framing is timed, which only helps them; the client object is made once, as programs do.
What is timed reads each delta's text as str, joins or reads the whole answer, sees that finish and usage came and the
turn ended, and returns the answer and the finish, which are checked before any clock starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module, metadata
from time import thread_time
from types import MappingProxyType
from typing import Any, Final

from benchmarks.rivals import Chunks, UnavailableError
from benchmarks.workloads import TurnWorkload, Workload

Outcome = tuple[str, str | None]  # the answer, the provider's word for its finish
Reading = Callable[[Chunks], Outcome]
Make = Callable[[TurnWorkload | None], Reading | None]  # None: it does not read that dialect


class TurnReader:
    """A contestant that reads whole turns, in this process. `make`: dialect to its reading; None where it has none."""

    def __init__(self, name: str, how: str, distribution: str | None, make: Make) -> None:
        self.name, self.how, self._make = name, how, make
        try:
            make(None)  # what it needs is imported, or it is not there
            self.version = metadata.version(distribution) if distribution else f"this tree, {_backend()}"
        except ImportError as error:
            raise UnavailableError(f"not installed: {error}") from None
        self._workload: TurnWorkload | None = None
        self._reading: Reading | None = None
        self._chunks: Chunks = ()

    def takes(self, workload: Workload) -> bool:
        """Say whether it reads this workload's dialect at all."""
        return isinstance(workload, TurnWorkload) and self._make(workload) is not None

    def load(self, workload: Workload, chunks: Chunks) -> None:
        assert isinstance(workload, TurnWorkload)
        self._workload, self._chunks, self._reading = workload, chunks, self._make(workload)

    def fault(self) -> str | None:
        assert self._workload is not None
        try:
            answer, finish = self.outcome(self._chunks)
        except Exception as error:  # noqa: BLE001, RUF100  # whatever a rival raises is its answer
            return f"{type(error).__name__}: {error!s:.100}"
        if answer != self._workload.answer:
            return f"{len(answer)} characters of answer for {len(self._workload.answer)}, or others"
        if finish not in (self._workload.finish, "stop"):  # litellm has one word for all
            return f"finish {finish!r} for {self._workload.finish!r}"
        return None

    def outcome(self, chunks: Chunks) -> Outcome:
        """Read the chunks of the loaded workload."""
        assert self._reading is not None
        return self._reading(chunks)

    def turn(self, at_least_s: float) -> float:
        reading, chunks = self._reading, self._chunks
        assert reading is not None
        calls, begun = 0, thread_time()
        while True:
            reading(chunks)
            calls += 1
            spent = thread_time() - begun
            if spent >= at_least_s:
                return spent / calls

    def close(self) -> None:
        self._chunks, self._workload, self._reading = (), None, None


def _backend() -> str:
    return str(import_module("levada").BACKEND)


def _levada(workload: TurnWorkload | None) -> Reading:
    levada = import_module("levada")
    make, text_delta, finished = levada.Turn, levada.TextDelta, levada.State.FINISHED
    dialect = workload.dialect if workload else ""

    def read(chunks: Chunks) -> Outcome:
        turn = make(dialect)
        feed = turn.feed
        length = 0
        for chunk in chunks:
            for delta in feed(chunk):
                if type(delta) is text_delta:
                    length += len(delta.text)
        turn.eof(clean=True)
        if turn.state is not finished:
            raise ValueError(f"state {turn.state}")
        whole = turn.result()
        if len(whole.answer) != length or whole.usage is None:
            raise ValueError("the deltas are not the answer, or there is no usage")
        return whole.answer, whole.native_finish_reason

    return read


def _transport(module: str) -> tuple[Any, Callable[[Chunks], None]]:
    """Return a client of httpx or its kin that answers any request with the chunks set last, and what sets them."""
    httpx = import_module(module)
    held: list[Chunks] = [()]

    class Ready(httpx.SyncByteStream):  # type: ignore[misc, name-defined]  # imported by name
        def __iter__(self) -> Iterator[bytes]:
            return iter(held[0])

    def answer(_: Any) -> Any:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Ready())

    def hold(chunks: Chunks) -> None:
        held[0] = chunks

    return httpx.Client(transport=httpx.MockTransport(answer)), hold


_ASKED: Final = [{"role": "user", "content": "Where does the water come from?"}]


def _openai(workload: TurnWorkload | None) -> Reading | None:
    openai = import_module("openai")
    if workload is not None and workload.dialect != "openai_chat":
        return None
    http, hold = _transport("httpx")
    create = openai.OpenAI(api_key="none", http_client=http, max_retries=0).chat.completions.create
    return _chat_loop(lambda: create(model="gpt-4o", messages=_ASKED, stream=True), hold)


def _litellm(workload: TurnWorkload | None) -> Reading | None:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch a list of prices at import
    litellm, openai = import_module("litellm"), import_module("openai")
    if workload is not None and workload.dialect != "openai_chat":
        return None
    http, hold = _transport("httpx")
    client = openai.OpenAI(api_key="none", http_client=http, max_retries=0)
    return _chat_loop(
        lambda: litellm.completion(
            model="openai/gpt-4o",
            messages=_ASKED,
            stream=True,
            stream_options={"include_usage": True},
            client=client,
            api_key="none",
        ),
        hold,
    )


def _chat_loop(begin: Callable[[], Any], hold: Callable[[Chunks], None]) -> Reading:
    """Read a stream of chat chunks in the loop of both clients' documentation."""

    def read(chunks: Chunks) -> Outcome:
        hold(chunks)
        texts: list[str] = []
        finish = usage = None
        for chunk in begin():
            for choice in chunk.choices:
                if choice.delta.content:
                    texts.append(choice.delta.content)
                if choice.finish_reason is not None:
                    finish = choice.finish_reason
            if getattr(chunk, "usage", None) is not None:
                usage = chunk.usage
        if finish is None or usage is None:
            raise ValueError("no finish, or no usage")
        return "".join(texts), finish

    return read


def _anthropic(workload: TurnWorkload | None) -> Reading | None:
    anthropic = import_module("anthropic")
    if workload is not None and workload.dialect != "anthropic":
        return None
    http, hold = _transport("httpx2")
    create = anthropic.Anthropic(api_key="none", http_client=http, max_retries=0).messages.create

    def read(chunks: Chunks) -> Outcome:
        hold(chunks)
        texts: list[str] = []
        finish = usage = None
        ended = False
        for event in create(model="claude-opus-4-20250514", max_tokens=4096, messages=_ASKED, stream=True):
            kind = event.type
            if kind == "content_block_delta":
                if event.delta.type == "text_delta":
                    texts.append(event.delta.text)
            elif kind == "message_delta":
                finish, usage = event.delta.stop_reason, event.usage
            elif kind == "message_stop":
                ended = True
        if not ended or usage is None:
            raise ValueError("no message_stop, or no usage")
        return "".join(texts), finish

    return read


def _typed(workload: TurnWorkload | None) -> Reading:
    """The floor: the same JSON, cut out beforehand, decoded into structs of what is needed. No stream, no state."""
    msgspec = import_module("msgspec")
    if workload is None:
        return lambda _: ("", None)
    payloads = [data.encode() for _, data in workload.events if data != "[DONE]"]
    define, decoder = msgspec.defstruct, msgspec.json.Decoder
    maybe = (str | None, None)
    if workload.dialect == "openai_chat":
        delta = define("Delta", [("content", *maybe)])
        choice = define("Choice", [("delta", delta), ("finish_reason", *maybe)])
        decode = decoder(define("Chunk", [("choices", list[choice])])).decode  # type: ignore[valid-type]  # made here

        def chat(_: Chunks) -> Outcome:
            texts: list[str] = []
            finish = None
            for payload in payloads:
                for choice in decode(payload).choices:
                    if choice.delta.content:
                        texts.append(choice.delta.content)
                    if choice.finish_reason is not None:
                        finish = choice.finish_reason
            return "".join(texts), finish

        return chat
    delta = define("Delta", [("text", *maybe), ("stop_reason", *maybe)])
    decode = decoder(define("Event", [("delta", delta | None, None)])).decode

    def named(_: Chunks) -> Outcome:
        texts: list[str] = []
        finish = None
        for payload in payloads:
            delta = decode(payload).delta
            if delta is not None:
                if delta.text:
                    texts.append(delta.text)
                elif delta.stop_reason is not None:
                    finish = delta.stop_reason
        return "".join(texts), finish

    return named


TURN: Final = "levada Turn"
OPENAI: Final = "openai client"
ANTHROPIC: Final = "anthropic client"
LITELLM: Final = "litellm"
TYPED: Final = "msgspec typed decode"

# name: how it is called, the distribution that has its version (None: this tree), what makes its reading
READERS: Final[Mapping[str, tuple[str, str | None, Make]]] = MappingProxyType(
    {
        TURN: (
            "Turn(dialect).feed(chunk), each TextDelta's text; eof(clean=True), state FINISHED, result()",
            None,
            _levada,
        ),
        OPENAI: (
            "client.chat.completions.create(stream=True) over an httpx.MockTransport; each chunk's delta.content, the "
            "finish reason, the usage; without the stream helper's own accumulation, which only helps it",
            "openai",
            _openai,
        ),
        ANTHROPIC: (
            "client.messages.create(stream=True) over an httpx2.MockTransport; each text_delta's text, the stop "
            "reason, the usage; without the stream helper's own accumulation, which only helps it",
            "anthropic",
            _anthropic,
        ),
        LITELLM: (
            "completion(stream=True, client=that OpenAI client), its CustomStreamWrapper read as above",
            "litellm",
            _litellm,
        ),
        TYPED: (
            "msgspec.json.Decoder(Struct of text and finish).decode of each event's data, cut out beforehand: no "
            "stream, no state, no checks",
            "msgspec",
            _typed,
        ),
    }
)


def turn_reader(name: str) -> TurnReader:
    """Return the contestant of that name. Raises UnavailableError where its package is not installed."""
    return TurnReader(name, *READERS[name])
