"""Real Redis and PostgreSQL servers for the tests.

LEVADA_REDIS_URL, LEVADA_POSTGRES_URL: servers that run already, as `.ci/run` starts them; the tests make databases and
keys of their own there. Without them a test starts a server of its own on loopback, from a program that is on this
machine, and stops it. Where there is none either, the test is skipped, unless LEVADA_REQUIRE names it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = frozenset(filter(None, os.environ.get("LEVADA_REQUIRE", "").split(",")))


def missing(name: str, why: str) -> Any:
    """Skip the test, or fail where LEVADA_REQUIRE names what it needs."""
    if name in REQUIRED:
        pytest.fail(f"LEVADA_REQUIRE names {name}: {why}")
    pytest.skip(f"needs {name}: {why}")


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class RedisServer:
    """A Redis (or Valkey) of our own. It keeps its data in `folder` over `kill`, `stop` and `start`."""

    def __init__(self, folder: Path, *options: str) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        self.program = program or missing("redis", "there is no redis-server on this machine")
        self.folder, self.options, self.port = folder, options, free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; wait until it answers."""
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--logfile", str(self.folder / "redis.log"), *self.options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _until(self._answers, f"redis does not answer; see {self.folder}/redis.log")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"  # -LOADING until the data is read
        except OSError:
            return False

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(20)
            self._process = None


class PostgresServer:
    """A PostgreSQL of our own in `folder`. Fast, not safe: nothing is synced to the disk."""

    def __init__(self, folder: Path) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(shutil.which("initdb") or "")]
        if not found[-1].name:
            missing("postgres", "there is no initdb on this machine")
        self.programs, self.folder, self.port = found[-1].parent, folder, free_port()
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; wait until it answers."""
        data = self.folder / "data"
        as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self.folder, "postgres", "postgres")
        if not data.exists():
            command = [self.programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "-E", "UTF8", "-N"]
            command.append("--locale=C.UTF-8")
            made = subprocess.run([*map(str, command)], check=False, capture_output=True, cwd="/", **as_user)
            assert made.returncode == 0, made.stderr.decode()
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        command = [self.programs / "postgres", "-D", data, *(f"-c{name}={value}" for name, value in settings.items())]
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log, cwd="/", **as_user)
        ready = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        log_file = f"{self.folder}/postgres.log"
        _until(lambda: subprocess.run(ready, check=False).returncode == 0, f"postgres does not answer; see {log_file}")

    def kill(self) -> None:
        """End it as a crash does: its own children go with it."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End it at once, but in good order."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(20)
            self._process = None


@contextmanager
def server_folder() -> Iterator[Path]:
    """Give a folder that another user may enter, unlike pytest's tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="levada-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    """Give a Redis of the test's own, which it may kill and start again."""
    with server_folder() as folder:
        server = RedisServer(folder, *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Give a PostgreSQL of the test's own, which it may kill and start again."""
    with server_folder() as folder:
        server = PostgresServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """Make an empty database on a PostgreSQL server; give its URL, and drop it afterwards."""
    import psycopg

    name = f"levada_{secrets.token_hex(8)}"
    plain = server_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"{server_url.rsplit('/', 1)[0]}/{name}"
    finally:
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _until(true: Callable[[], bool], words: str, seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, words
        time.sleep(0.02)
