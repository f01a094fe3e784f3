"""The programs under examples/ run as they stand, each as a process of its own, before a ReplayServer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from levada import Ledger, Turn
from levada.gateway import LiveSettings
from levada.gateway.demo import SCENARIOS, Scenario
from levada.testing import ReplayServer, Reply
from tests.gateway.proxy import Proxy
from tests.gateway.serving import Running
from tests.gateway.test_normal_form import Reader
from tests.live.browsing import within

EXAMPLES = Path(__file__).parents[2] / "examples"
FIXTURES = Path(__file__).parents[1] / "fixtures"
GATEWAYS = sorted(path.name for path in EXAMPLES.glob("gateway_*.py"))
CHAT = [event + b"\n\n" for event in (FIXTURES / "openai_chat.sse").read_bytes().split(b"\n\n") if event]


@contextmanager
def running(name: str, upstream: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "UPSTREAM_URL": upstream, "UPSTREAM_KEY": "k", "PORT": str(port), "NO_PROXY": "*"}
    with subprocess.Popen([sys.executable, str(EXAMPLES / name)], env=environment) as process:
        try:
            for _ in range(200):
                with socket.socket() as attempt:
                    if attempt.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, "the example ended by itself"
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/ask"
        finally:
            process.kill()


def read(url: str, **options: Any) -> Reader:
    reader = Reader()
    with httpx.Client(trust_env=False) as client:
        with client.stream("POST", url, json={"question": "?"}, timeout=20, **options) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            for chunk in response.iter_bytes():
                reader.feed(chunk)
    return reader


@pytest.mark.parametrize("name", GATEWAYS)
class TestGateways:
    def test_it_tells_a_turn_and_an_error(self, name: str) -> None:
        cut = Reply(CHAT, stop_at=3000, delay_s=0.002)
        with ReplayServer(Reply(CHAT, delay_s=0.002), cut) as server, running(name, server.url) as url:
            whole, error = read(url), read(url)
        assert whole.end["state"] == "finished"
        assert "水路" in whole.text[0, "answer"]
        assert (error.end["state"], error.error["kind"]) == ("error", "truncated")
        assert server.requests[0].headers["authorization"] == "Bearer k"

    def test_a_client_that_is_gone_closes_the_upstream(self, name: str) -> None:
        with ReplayServer(Reply(CHAT, delay_s=0.5)) as server, running(name, server.url) as url:
            with httpx.Client(trust_env=False) as client:
                with client.stream("POST", url, json={"question": "?"}, timeout=20) as response:
                    chunks = response.iter_bytes()  # dropped, it would close the response
                    assert next(chunks)
                    assert server.wait_for(lambda server: any(known.sent for known in server.connections))
            assert server.wait_client_closed(1.5)


def test_the_client_shows_the_answer_and_knows_a_cut() -> None:
    command = [sys.executable, str(EXAMPLES / "read_normal_form.py")]
    with Running() as gateway:
        environment = {**os.environ, "GATEWAY": f"{gateway.url}/", "NO_PROXY": "*", "PYTHONIOENCODING": "utf-8"}
        whole, cut = (
            subprocess.run([*command, name, "?"], env=environment, capture_output=True, timeout=60, check=False)
            for name in ("anthropic", "cut")
        )
    assert (whole.returncode, whole.stderr) == (0, b"")
    assert "用心して" in whole.stdout.decode()
    assert cut.returncode == 1
    assert b"no answer: truncated" in cut.stderr


@pytest.mark.parametrize("keep_s", [300, 0.1])
def test_the_client_reads_on_where_its_connection_is_cut(keep_s: float) -> None:
    """Or gives up, where the gateway no longer has the turn."""
    scenario = SCENARIOS["slow"]
    played = {"slow": Scenario(**{**vars(scenario), "first_delay_s": 0.1, "delay_s": 0.1})}
    turn = Turn(scenario.dialect, profile=scenario.profile)
    for piece in scenario.pieces():
        turn.feed(piece)
    turn.eof(clean=True)
    command = [sys.executable, str(EXAMPLES / "read_normal_form.py"), "slow", "?"]
    with (
        Running(scenarios=played, live=LiveSettings(linger_s=30, keep_s=keep_s)) as gateway,
        Proxy(gateway.url) as proxy,
    ):
        environment = {**os.environ, "GATEWAY": f"{proxy.url}/", "NO_PROXY": "*", "PYTHONIOENCODING": "utf-8"}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            first = process.stdout.read(10)  # in the middle
            proxy.shut()
            if keep_s < 1:
                assert within(lambda: not gateway.turns, 30)
                time.sleep(1)
            proxy.open()
            rest, said = process.communicate(timeout=60)
        assert gateway.demo.asked["slow"] == 1, "nothing was asked twice"
    shown = (first + rest).decode()
    assert "(reading on)" in said.decode()
    if keep_s < 1:
        assert process.returncode == 1
        assert turn.answer.startswith(shown.rstrip("\n"))
        assert said.decode().endswith("no answer: the gateway no longer has it (404)\n")
    else:
        assert process.returncode == 0, said.decode()
        assert shown == turn.answer + "\n"


class TestKeepTurns:
    def test_an_answer_is_kept_and_told_once(self, tmp_path: Path) -> None:
        with ReplayServer(Reply(CHAT, delay_s=0.001)) as server:
            first, again = (keep_turns(server.url, tmp_path) for _ in range(2))
            assert len(server.requests) == 1
        for done in (first, again):
            assert done.returncode == 0, done.stderr.decode()
            assert "水路" in done.stdout.decode()
        assert first.stderr == b"told her (7/0/tell)\n"
        assert again.stderr == b""

    def test_of_a_cut_one_only_a_part_is_kept(self, tmp_path: Path) -> None:
        with ReplayServer(Reply(CHAT[:-2])) as server:  # whole events, but neither finish reason nor [DONE]
            done = keep_turns(server.url, tmp_path)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.startswith(b"no answer: truncated")
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            assert (ledger.count(), ledger.queued()) == (0, {})
            assert [(one.error_kind, one.incomplete) for one in ledger.partials(key="7")] == [("truncated", True)]
            assert {one.error_kind for one in ledger.records(key="7")} == {"truncated"}


def keep_turns(upstream: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, str(EXAMPLES / "keep_turns.py"), "7", "Why?"]
    environment = {
        **os.environ,
        "UPSTREAM_URL": upstream,
        "UPSTREAM_KEY": "k",
        "LEDGER_URL": f"sqlite:///{folder}/turns.db",
        "NO_PROXY": "*",
        "PYTHONIOENCODING": "utf-8",
    }
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)


def test_only_finished_streams_are_kept_and_told(tmp_path: Path) -> None:
    names = ("openai_chat.sse", "openai_chat-truncated.sse", "anthropic-error.sse", "gemini.json")
    command = [sys.executable, str(EXAMPLES / "keep_recorded.py"), *(str(FIXTURES / name) for name in names)]
    for status in ("stored", "already stored"):
        got = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        assert got.stderr == ""
        lines = got.stdout.splitlines()
        assert lines[0] == f"openai_chat.sse: {status}"
        assert lines[1].startswith("openai_chat-truncated.sse: not kept, truncated: ")
        assert lines[2] == "anthropic-error.sse: not kept, provider: Overloaded"
        assert lines[3] == f"gemini.json: {status}"
        told = [f"  told her of {name}, attempt 1" for name in ("openai_chat.sse", "gemini.json")]
        assert lines[5:] == (told if status == "stored" else [])
    with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
        assert ledger.count() == 2
