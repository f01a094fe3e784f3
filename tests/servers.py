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
from typing import Any, ClassVar, TypeVar

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


class Server:
    """A server of our own: whoever starts it sets `process`. It keeps its data over `kill`, `stop` and `start`."""

    KILLS: ClassVar = signal.SIGKILL
    STOPS: ClassVar = signal.SIGTERM
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; wait until it answers."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(self.KILLS)

    def stop(self) -> None:
        """End it in good order."""
        self._end(self.STOPS)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None


S = TypeVar("S", bound=Server)


class RedisServer(Server):
    """A Redis (or Valkey) of our own, with its data in `folder`."""

    def __init__(self, folder: Path, *options: str) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        self.program = program or missing("redis", "there is no redis-server on this machine")
        self.folder, self.options, self.port = folder, options, free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it; wait until it answers."""
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--logfile", str(self.folder / "redis.log"), *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _until(self._answers, f"redis does not answer; see {self.folder}/redis.log")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"  # -LOADING until the data is read
        except OSError:
            return False


class PostgresServer(Server):
    """A PostgreSQL of our own in `folder`. Fast, not safe: nothing is synced to the disk, unless `fsync` is on."""

    KILLS = signal.SIGQUIT  # its own children go with it
    STOPS = signal.SIGINT  # at once: at SIGTERM it waits for its clients

    def __init__(self, folder: Path, fsync: str = "off") -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(shutil.which("initdb") or "")]
        if not found[-1].name:
            missing("postgres", "there is no initdb on this machine")
        self.programs, self.folder, self.port, self.fsync = found[-1].parent, folder, free_port(), fsync
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

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
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
        settings["fsync"] = self.fsync
        command = [self.programs / "postgres", "-D", data, *(f"-c{name}={value}" for name, value in settings.items())]
        with (self.folder / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log, cwd="/", **as_user)
        ready = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        log_file = f"{self.folder}/postgres.log"
        _until(lambda: subprocess.run(ready, check=False).returncode == 0, f"postgres does not answer; see {log_file}")


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
def _running(server: S) -> Iterator[S]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    """Give a Redis of the test's own, which it may kill and start again."""
    with server_folder() as folder, _running(RedisServer(folder, *options)) as server:
        yield server


@contextmanager
def running_postgres(fsync: str = "off") -> Iterator[PostgresServer]:
    """Give a PostgreSQL of the test's own, which it may kill and start again."""
    with server_folder() as folder, _running(PostgresServer(folder, fsync)) as server:
        yield server


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
