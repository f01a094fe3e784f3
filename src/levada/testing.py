"""For tests of programs that read streams: cutters, and a server that plays a recorded stream over real HTTP.

pytest finds the fixture `replay_server` by itself (`_levada_pytestplugin`); everything here works without pytest too.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, Literal

__all__ = [
    "Connection",
    "CutDifference",
    "ReplayServer",
    "Reply",
    "Request",
    "assert_cut_invariant",
    "every_cut",
    "first_difference",
    "random_cuts",
]

# -- cutting -----------------------------------------------------------------------------------------------------------


def every_cut(data: bytes) -> Iterator[list[bytes]]:
    """Yield `data` cut in two at every place, the two ends included: there one piece is empty."""
    for place in range(len(data) + 1):
        yield [data[:place], data[place:]]


def random_cuts(data: bytes, n: int = 20, seed: int = 0) -> Iterator[list[bytes]]:
    """Yield `n` ways of cutting `data` into pieces, some fine, some coarse; the same ones for the same `seed`."""
    rnd = random.Random(seed)
    for _ in range(n):
        cuts = int(len(data) ** rnd.random())  # from one cut to nearly every byte, evenly by order of magnitude
        yield _pieces(data, sorted(rnd.sample(range(1, len(data)), min(cuts, len(data) - 1))) if data else [])


@dataclass(frozen=True)
class CutDifference:
    """The first cut found that changes what comes out.

    `places`: where the data was cut, in bytes from its start; the last of them is the one that makes the difference.
    `whole`, `got`: what came out without a cut and with these; an exception stands for itself.
    """

    data: bytes = field(repr=False)
    places: tuple[int, ...]
    whole: Any
    got: Any

    def __str__(self) -> str:
        place = self.places[-1]
        around = f"{self.data[max(0, place - 20) : place]!r} | {self.data[place : place + 20]!r}"
        more = f", after cuts at {_shortened(self.places[:-1])}" if len(self.places) > 1 else ""
        return (
            f"a cut at byte {place} of {len(self.data)} changes the result{more}: {around}\n"
            f"  whole: {self.whole!r:.1000}\n  cut:   {self.got!r:.1000}"
        )


def first_difference(
    fn: Callable[[list[bytes]], Any], data: bytes, *, n: int = 20, seed: int = 0, max_single_cuts: int = 2000
) -> CutDifference | None:
    """Return the first cut of `data` that changes what `fn` makes of its pieces, or None.

    `fn` takes a list of bytes and returns a value to compare; an exception counts as a value, by its type and text.
    Tried in this order: every single cut (of more than `max_single_cuts` places as many, drawn with `seed`), byte by
    byte, and `n` random ways.
    """
    whole = _outcome(fn, [data])
    places: Iterable[int] = range(len(data) + 1)
    if len(data) >= max_single_cuts:
        places = sorted(random.Random(seed).sample(range(len(data) + 1), max_single_cuts))
    for place in places:
        got = _outcome(fn, _pieces(data, [place]))
        if got != whole:
            return CutDifference(data, (place,), whole, got)
    for pieces in ([data[at : at + 1] for at in range(len(data))], *random_cuts(data, n, seed)):
        got = _outcome(fn, pieces)
        if got != whole:
            return _narrowed(fn, data, list(accumulate(map(len, pieces[:-1]))), whole, got)
    return None


def assert_cut_invariant(
    fn: Callable[[list[bytes]], Any], data: bytes, *, n: int = 20, seed: int = 0, max_single_cuts: int = 2000
) -> None:
    """Raise AssertionError where a cut of `data` changes what `fn` makes of its pieces; it names the first such cut.

    The parameters are those of `first_difference`.
    """
    difference = first_difference(fn, data, n=n, seed=seed, max_single_cuts=max_single_cuts)
    if difference is not None:
        raise AssertionError(str(difference))


def _pieces(data: bytes, places: Iterable[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *places, len(data)])]


def _outcome(fn: Callable[[list[bytes]], Any], pieces: list[bytes]) -> Any:
    try:
        return fn(pieces)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _narrowed(fn: Callable[[list[bytes]], Any], data: bytes, places: list[int], whole: Any, got: Any) -> CutDifference:
    """Look for the shortest beginning of `places` that still differs, by halving: one step apart at the end."""
    same, differs = 0, len(places)
    while differs - same > 1:
        middle = (same + differs) // 2
        outcome = _outcome(fn, _pieces(data, places[:middle]))
        if outcome == whole:
            same = middle
        else:
            differs, got = middle, outcome
    return CutDifference(data, tuple(places[:differs]), whole, got)


def _shortened(places: Sequence[int]) -> str:
    words = [str(place) for place in places]
    return ", ".join(words if len(words) <= 8 else [*words[:3], f"… {len(words) - 6} more …", *words[-3:]])


# -- serving -----------------------------------------------------------------------------------------------------------

_CONNECTION_LIMIT: Final = 256  # at once: far above any test, far below the usual 1,024 descriptors
_HEAD_LIMIT: Final = 64 * 1024  # of a request's head, in bytes; http.client's own limit for one line


@dataclass(frozen=True)
class Reply:
    """What to answer to one request.

    `body`: the bytes, the path of a file with them, or a list of bytes: each piece is then one send, and one HTTP
    chunk. `framing`: how the end of the body is told: chunked, content-length, or close (HTTP/1.0 style: it is not).
    `head_delay_s` passes before the head, `first_delay_s` between head and first piece, `delay_s` between pieces and
    before a `stop`. `stop_at`: the number of bytes after which the body stops short, with `stop`: close the
    connection in good order, reset it (RST), or hang until the client or the server goes away. The framing is not
    completed then, not even where `stop_at` is the whole length.
    """

    body: bytes | str | Path | Sequence[bytes] = b""
    status: int = 200
    content_type: str | None = "text/event-stream"
    headers: Sequence[tuple[str, str]] = ()
    framing: Literal["chunked", "content-length", "close"] = "chunked"
    head_delay_s: float = 0.0
    first_delay_s: float = 0.0
    delay_s: float = 0.0
    stop_at: int | None = None
    stop: Literal["close", "reset", "hang"] = "close"

    def pieces(self) -> list[bytes]:
        """Return the whole body as the pieces to send; no piece is empty."""
        body = self.body
        if isinstance(body, (str, Path)):
            body = Path(body).read_bytes()
        return [piece for piece in ([body] if isinstance(body, bytes) else body) if piece]

    def head(self) -> bytes:
        """Return the bytes of the status line and the headers."""
        lines = [f"HTTP/1.{0 if self.framing == 'close' else 1} {self.status} Replayed"]
        if self.content_type is not None:
            lines.append(f"content-type: {self.content_type}")
        if self.framing == "chunked":
            lines.append("transfer-encoding: chunked")
        elif self.framing == "content-length":
            lines.append(f"content-length: {sum(map(len, self.pieces()))}")
        lines.extend(f"{name}: {value}" for name, value in self.headers)
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(frozen=True)
class Request:
    """A request as it came. `headers` have lower-case names."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Connection:
    """What the server saw of one connection; times are in seconds since the server started.

    `sent`: bytes of bodies sent. `closed_by`: client, server, or None while it is open.
    """

    opened_s: float
    requests: list[Request] = field(default_factory=list)
    sent: int = 0
    closed_s: float | None = None
    closed_by: Literal["client", "server"] | None = None


class _ClientGoneError(Exception):
    """The client closed or reset its connection."""


class ReplayServer:
    """An HTTP/1.1 server on 127.0.0.1 that plays recorded answers, cut, delayed and broken as told.

    Each request gets the next of `replies`, the last one again and again; a path or bytes are `Reply(body)`.
    Use it in a `with` statement, or call `start` and `close`. It ends by itself after `max_s` seconds.

    >>> with ReplayServer(Reply(b"data: [DONE]\\n\\n", stop_at=7, stop="reset")) as server:
    ...     url = server.url
    """

    def __init__(self, *replies: Reply | bytes | str | Path, max_s: float = 60.0) -> None:
        if not replies:
            raise ValueError("a ReplayServer needs at least one reply")
        self.replies = [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]
        self.connections: list[Connection] = []
        self._max_s = max_s
        self._changed = threading.Condition()
        self._served = 0
        self._closing = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._started_s = 0.0
        self._port = 0

    @property
    def url(self) -> str:
        """Where the server listens: every path gets the replies."""
        return f"http://127.0.0.1:{self._port}/"

    @property
    def requests(self) -> list[Request]:
        """The requests seen so far, by connection."""
        return [request for connection in self.connections for request in connection.requests]

    def start(self) -> ReplayServer:
        """Listen, in a thread of its own."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        self._started_s = time.monotonic()
        self._spawn(self._listen, listener)
        return self

    def close(self) -> None:
        """Close every connection and wait for the threads."""
        with self._changed:
            self._closing = True
            for held in self._sockets:
                with suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
            self._changed.notify_all()
        if self._threads and self._threads[0].is_alive():
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), 1.0).close()  # wakes the thread that listens
        for thread in list(self._threads):
            thread.join(5.0)

    def wait_for(self, seen: Callable[[ReplayServer], bool], timeout_s: float = 5.0) -> bool:
        """Wait until `seen(server)` is true, at most so long; return whether it is. It is asked at every change."""
        with self._changed:
            return self._changed.wait_for(lambda: seen(self), timeout_s)

    def wait_client_closed(self, timeout_s: float = 5.0) -> bool:
        """Wait until there was a connection and every one was closed by its client; return whether that came."""
        return self.wait_for(
            lambda server: (
                bool(server.connections) and all(known.closed_by == "client" for known in server.connections)
            ),
            timeout_s,
        )

    def __enter__(self) -> ReplayServer:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- threads: one that listens, one for each connection ------------------------------------------------------------

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True, name="levada-replay")
        self._threads.append(thread)
        thread.start()

    def _now_s(self) -> float:
        return time.monotonic() - self._started_s

    def _left_s(self) -> float:
        """How long the server may still live; raises TimeoutError where that is over or it was told to end."""
        left_s = self._max_s - self._now_s()
        if left_s <= 0 or self._closing:
            raise TimeoutError
        return left_s

    def _listen(self, listener: socket.socket) -> None:
        with listener, suppress(OSError):  # TimeoutError: max_s is over
            while True:
                listener.settimeout(self._left_s())
                held, _ = listener.accept()
                with self._changed:
                    if self._closing or len(self._sockets) >= _CONNECTION_LIMIT:
                        held.close()
                        continue
                    self._sockets.add(held)
                    connection = Connection(self._now_s())
                    self.connections.append(connection)
                    self._changed.notify_all()
                self._spawn(self._serve, held, connection)
        self._closing = True  # max_s is over: nothing is served any longer

    def _serve(self, held: socket.socket, connection: Connection) -> None:
        closed_by: Literal["client", "server"] = "server"
        try:
            held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a cut shall be a cut on the wire
            rest = b""
            going_on = True
            while going_on:
                request, rest = self._read_request(held, rest)
                with self._changed:
                    connection.requests.append(request)
                    reply = self.replies[min(self._served, len(self.replies) - 1)]
                    self._served += 1
                    self._changed.notify_all()
                going_on = self._answer(held, connection, reply)
        except (_ClientGoneError, ConnectionError):
            closed_by = "server" if self._closing else "client"
        except TimeoutError:
            pass  # max_s is over
        finally:
            with self._changed:
                self._sockets.discard(held)
                with suppress(OSError):
                    held.close()
                connection.closed_s, connection.closed_by = self._now_s(), closed_by
                self._changed.notify_all()

    def _receive(self, held: socket.socket) -> bytes:
        held.settimeout(self._left_s())
        data = held.recv(65536)
        if not data:
            raise _ClientGoneError
        return data

    def _read_request(self, held: socket.socket, data: bytes) -> tuple[Request, bytes]:
        """Return the next request, and the bytes that came after it."""
        while b"\r\n\r\n" not in data and len(data) < _HEAD_LIMIT:
            data += self._receive(held)
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, *_ = [*first.split(" "), "", ""]
        named = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in named}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""  # kept as it came: no client needs it decoded here
            while not data.endswith(b"0\r\n\r\n"):
                data += self._receive(held)
            body, data = data, b""
        else:
            length = int(headers.get("content-length", 0))
            while len(data) < length:
                data += self._receive(held)
            body, data = data[:length], data[length:]
        return Request(method, path, headers, body), data

    def _answer(self, held: socket.socket, connection: Connection, reply: Reply) -> bool:
        """Play one reply; return whether the connection may be used again."""
        self._wait(held, reply.head_delay_s)
        self._send(held, reply.head())
        left = reply.stop_at
        delay_s = reply.first_delay_s
        for piece in reply.pieces():
            self._wait(held, delay_s)
            delay_s = reply.delay_s
            part = piece if left is None else piece[:left]
            if part and reply.framing == "chunked":
                # a chunk that stops short announces its whole size: the client can tell
                self._send(held, b"%x\r\n%b%b" % (len(piece), part, b"\r\n" if part == piece else b""))
            elif part:
                self._send(held, part)
            with self._changed:
                connection.sent += len(part)
                self._changed.notify_all()
            if left is not None:
                left -= len(part)
                if not left:
                    break
        if reply.stop_at is not None:
            self._wait(held, reply.delay_s)
            if reply.stop == "hang":
                self._wait(held, self._left_s())
            elif reply.stop == "reset":
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if reply.framing == "chunked":
            self._send(held, b"0\r\n\r\n")
        return reply.framing != "close"

    def _send(self, held: socket.socket, data: bytes) -> None:
        held.settimeout(self._left_s())
        held.sendall(data)

    def _wait(self, held: socket.socket, seconds: float) -> None:
        """Let time pass; raise _ClientGoneError as soon as the client closes."""
        until_s = self._now_s() + min(seconds, self._left_s())
        while (wait_s := until_s - self._now_s()) > 0:
            held.settimeout(wait_s)
            try:
                if not held.recv(1, socket.MSG_PEEK):
                    raise _ClientGoneError
            except TimeoutError:
                return
            self._left_s()
            time.sleep(min(wait_s, 0.01))  # a pipelined request waits in the socket: look again, but not in a spin
