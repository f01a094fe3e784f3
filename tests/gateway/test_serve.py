"""`levada serve` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from levada.cli.group import levada
from levada.gateway.demo import SCENARIOS

FIXTURES = Path(__file__).parents[1] / "fixtures"


@contextmanager
def serving(*args: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-W", "error", "-m", "levada", "serve", "--port", "0", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"levada gateway on (http://\S+/) \(Ctrl-C ends it\)\n", line)
            assert found, line + (process.stderr.read() if process.stderr and process.poll() is not None else "")
            yield found[1], process
        finally:
            process.kill()


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_answers_and_ends_at_a_signal_telling_the_open_turns(number: signal.Signals) -> None:
    with serving("--demo") as (url, process), httpx.Client(trust_env=False, timeout=10) as client:
        assert "<title>levada</title>" in client.get(url).text
        names = [row["name"] for row in client.get(f"{url}upstreams").json()["upstreams"]]
        assert names == list(SCENARIOS)
        with client.stream("POST", f"{url}turns", json={"upstream": "slow", "request": {}}) as response:
            chunks = response.iter_text()
            assert '"state":"connecting"' in next(chunks)
            process.send_signal(number)
            assert '"type":"shutdown"' in "".join(chunks)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "say --config FILE, or --demo"),
        (("--config", "nope.toml"), "nope.toml: cannot read"),
        (("--demo", "--port", "70000"), "70000"),
        (("--demo", "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid port 8000"),
    ],
)
def test_usage_is_exit_code_2(args: tuple[str, ...], words: str) -> None:
    got = CliRunner().invoke(levada, ["serve", *args])
    assert got.exit_code == 2
    assert words in got.stderr


def test_a_live_url_that_makes_no_sense_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text('upstreams = {}\n[live]\nurl = "sqlite://live.db"')
    got = CliRunner().invoke(levada, ["serve", "--config", str(config)])
    assert got.exit_code == 2
    assert re.fullmatch(r"Error: .+gateway\.toml: live: url must begin with memory://, sqlite:///.+\n", got.stderr)


def test_an_address_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        got = CliRunner().invoke(levada, ["serve", "--demo", "--port", str(taken.getsockname()[1])])
    assert got.exit_code == 2
    assert re.fullmatch(r"Error: cannot listen on 127.0.0.1 port \d+: .+\n", got.stderr)


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from levada.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--demo"]
    got = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)
    assert (got.returncode, got.stderr) == (2, "Error: the gateway needs uvicorn: pip install 'levada[gateway]'\n")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "src/levada/gateway/demo").glob("*.*s*"), key=str))
def test_the_demo_plays_our_fixtures(path: Path) -> None:
    if path.suffix in (".sse", ".json"):
        assert path.read_bytes() == (FIXTURES / path.name).read_bytes()
