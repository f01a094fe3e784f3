"""levada.testing: the cutters, and what the replay server does on the wire, seen by a bare socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import levada
from levada.sse import EventParser
from levada.testing import ReplayServer, Reply, assert_cut_invariant, every_cut, first_difference, random_cuts

DATA = "data: á\n\ndata: 山 🏔️\r\n\r\n".encode()


class TestCutters:
    def test_every_cut_is_every_place_ends_included(self) -> None:
        assert list(every_cut(b"ab")) == [[b"", b"ab"], [b"a", b"b"], [b"ab", b""]]
        assert list(every_cut(b"")) == [[b"", b""]]

    def test_random_cuts_give_all_the_bytes_and_the_same_ones_again(self) -> None:
        ways = list(random_cuts(DATA * 50, 30, seed=7))
        assert len(ways) == 30
        assert all(b"".join(pieces) == DATA * 50 and all(pieces) for pieces in ways)
        assert ways == list(random_cuts(DATA * 50, 30, seed=7))
        assert ways != list(random_cuts(DATA * 50, 30, seed=8))

    def test_random_cuts_are_coarse_and_fine(self) -> None:
        counts = [len(pieces) for pieces in random_cuts(bytes(10_000), 50)]
        assert min(counts) < 20
        assert max(counts) > 1000

    @pytest.mark.parametrize("data", [b"", b"a", b"ab"])
    def test_little_data_can_be_cut_too(self, data: bytes) -> None:
        assert all(b"".join(pieces) == data for pieces in random_cuts(data))
        assert_cut_invariant(b"".join, data)


class TestCutInvariance:
    def test_what_holds_for_every_cut_passes(self) -> None:
        def events(chunks: list[bytes]) -> object:
            parser = EventParser()
            return [event for chunk in chunks for event in parser.feed(chunk)], parser.close()

        assert_cut_invariant(events, DATA)

    def test_the_message_names_the_first_cut_that_differs(self) -> None:
        place = DATA.index("á".encode()) + 1
        with pytest.raises(AssertionError) as caught:
            assert_cut_invariant(lambda chunks: "".join(chunk.decode("utf-8", "replace") for chunk in chunks), DATA)
        message = str(caught.value)
        assert message.startswith(f"a cut at byte {place} of {len(DATA)} changes the result: ")
        assert "b'data: \\xc3' | b'\\xa1" in message
        assert "whole:" in message
        assert "cut:" in message

    def test_an_exception_is_an_outcome(self) -> None:
        difference = first_difference(lambda chunks: [chunk.decode() for chunk in chunks] and 0, DATA)
        assert difference is not None
        assert difference.got.startswith("UnicodeDecodeError")

    def test_a_fault_of_many_cuts_is_narrowed_to_the_one_that_brings_it(self) -> None:
        difference = first_difference(lambda chunks: len(chunks) > 5, bytes(100))
        assert difference is not None
        assert difference.places == (1, 2, 3, 4, 5)
        assert "after cuts at 1, 2, 3, 4:" in str(difference)

    def test_long_data_is_sampled(self) -> None:
        calls: list[int] = []
        assert first_difference(lambda chunks: calls.append(1), bytes(50_000), n=3, max_single_cuts=100) is None
        assert len(calls) == 1 + 100 + 1 + 3


def fetch(server: ReplayServer, *, read: int = -1) -> bytes:
    """GET with a bare socket, and return all that comes until the other side closes, or `read` bytes."""
    port = int(server.url.split(":")[2].strip("/"))
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        while len(got) != read and (data := client.recv(65536 if read < 0 else read - len(got))):
            got += data
            if got.endswith(b"0\r\n\r\n"):
                break
        return got


class TestReplayServer:
    def test_chunked(self) -> None:
        with ReplayServer(Reply([b"abc", b"", b"de"], status=201, headers=[("X-A", "b")])) as server:
            assert fetch(server) == (
                b"HTTP/1.1 201 Replayed\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nX-A: b"
                b"\r\n\r\n"
                b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            )

    def test_content_length_and_until_close(self, tmp_path: Path) -> None:
        recorded = tmp_path / "a.sse"
        recorded.write_bytes(b"abcde")
        with ReplayServer(
            Reply(recorded, framing="close", content_type=None),
            Reply(recorded, framing="content-length", stop_at=2),
            recorded,
        ) as server:
            assert fetch(server) == b"HTTP/1.0 200 Replayed\r\n\r\nabcde"
            assert fetch(server).endswith(b"content-length: 5\r\n\r\nab")
            assert fetch(server).endswith(b"5\r\nabcde\r\n0\r\n\r\n")
            assert [known.sent for known in server.connections] == [5, 2, 5]

    def test_a_chunk_that_stops_short_announces_its_whole_size(self) -> None:
        with ReplayServer(Reply([b"abc", b"defg"], stop_at=5)) as server:
            assert fetch(server).endswith(b"\r\n\r\n3\r\nabc\r\n4\r\nde")

    def test_a_reset_is_one(self) -> None:
        with ReplayServer(Reply(b"abc", stop_at=2, stop="reset")) as server, pytest.raises(ConnectionResetError):
            fetch(server)

    def test_a_hang_lasts_until_the_client_goes(self) -> None:
        with ReplayServer(Reply(b"abc", stop_at=3, stop="hang")) as server:
            head = len(server.replies[0].head())
            assert fetch(server, read=head + 8).endswith(b"3\r\nabc\r\n")
            assert server.wait_client_closed(1)
            assert server.connections[0].closed_by == "client"
            assert server.connections[0].closed_s is not None

    def test_it_records_requests(self) -> None:
        with ReplayServer(b"x") as server:
            port = int(server.url.split(":")[2].strip("/"))
            with socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(
                    b"POST /v1?a HTTP/1.1\r\nX-Key: b\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\n\r\n"
                )
                assert server.wait_for(lambda seen: len(seen.requests) == 2, 2)
        first, second = server.requests
        assert (first.method, first.path, first.headers["x-key"], first.body) == ("POST", "/v1?a", "b", b"abc")
        assert (second.method, second.path, second.body) == ("GET", "/2", b"")

    def test_it_ends_with_its_block_whatever_its_clients_do(self) -> None:
        begun_s = time.monotonic()
        with ReplayServer(Reply(b"abc", first_delay_s=50)) as server:
            port = int(server.url.split(":")[2].strip("/"))
            clients = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(3)]
            clients[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert server.wait_for(lambda seen: len(seen.connections) == 3, 2)
        assert time.monotonic() - begun_s < 2
        assert [known.closed_by for known in server.connections] == ["server"] * 3
        for client in clients:
            client.close()

    def test_it_ends_by_itself(self) -> None:
        server = ReplayServer(Reply(b"abc", first_delay_s=50), max_s=0.2).start()
        assert fetch(server) == server.replies[0].head()
        time.sleep(0.1)
        with pytest.raises(OSError):  # noqa: PT011  # refused, or reset by the closing listener
            fetch(server)
        server.close()


PLUGIN_TEST = """
import sys

def test_a(replay_server):
    from levada.testing import Reply
    from urllib.request import urlopen
    server = replay_server(Reply(b"data: x\\n\\n"))
    with urlopen(server.url, timeout=5) as response:
        assert response.read() == b"data: x\\n\\n"
"""


class TestPlugin:
    def test_the_fixture_works_and_the_plugin_imports_nothing_of_levada(self, tmp_path: Path) -> None:
        (tmp_path / "test_it.py").write_text(PLUGIN_TEST)
        (tmp_path / "conftest.py").write_text(
            "import sys\nassert not any(m.startswith('levada') for m in sys.modules)\n"
        )
        source = str(Path(levada.__file__).parents[1])
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:levada", "-p", "_levada_pytestplugin", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": source, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "1 passed" in run.stdout, run.stdout + run.stderr
