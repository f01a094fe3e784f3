"""What can be wrong with the file of live turns."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from levada import UsageError
from levada.live import Fenced, LiveLog, LiveLogUnavailable, UnknownTurn
from tests.livelog.followed import follow, write_some


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


async def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LiveLogUnavailable, match="unable to open database file") as away:
        async with LiveLog.open(url_of(tmp_path / "secret" / "live.db"), patience_s=0.2):
            pass
    assert "secret" not in str(away.value)


async def test_a_file_that_is_no_database_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "live.db").write_bytes(b"no database " * 1000)
    with pytest.raises(LiveLogUnavailable, match="file is not a database") as away:
        async with LiveLog.open(url_of(tmp_path / "live.db"), patience_s=60):
            pass
    assert "tried" not in str(away.value)
    assert "later" not in str(away.value)
    assert not away.value.retryable


@pytest.mark.parametrize("statement", ["CREATE TABLE other (n)", "PRAGMA user_version = 7"])
async def test_the_file_of_somebody_else_is_left_alone(tmp_path: Path, statement: str) -> None:
    with sqlite3.connect(tmp_path / "live.db") as other:
        other.execute(statement)
    other.close()
    with pytest.raises(UsageError, match="of their own"):
        async with LiveLog.open(url_of(tmp_path / "live.db")):
            pass


async def test_a_file_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    async with LiveLog.open(url_of(tmp_path / "live.db"), patience_s=20, lease_s=30) as log:
        writer = await log.start("t", "ana")
        other = sqlite3.connect(tmp_path / "live.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(write_some(writer, 3))
        await asyncio.sleep(1.5)
        assert not writing.done()
        other.execute("ROLLBACK")
        other.close()
        assert (await follow(log, "t", most=3)) == await writing
        await writer.close("finished")


async def test_one_that_is_held_for_too_long_is_told(tmp_path: Path) -> None:
    async with LiveLog.open(url_of(tmp_path / "live.db"), patience_s=0.5, lease_s=30) as log:
        writer = await log.start("t", "ana")
        other = sqlite3.connect(tmp_path / "live.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LiveLogUnavailable, match="database is locked"):
            await writer.append([("text", "x")])
        other.execute("ROLLBACK")
        other.close()


async def test_a_full_disk_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    async with LiveLog.open(url_of(tmp_path / "live.db"), patience_s=0.5, lease_s=30) as log:
        writer = await log.start("t", "ana")
        written = await write_some(writer, 3)
        rows = log._store._writing._rows  # type: ignore[attr-defined]  # as full as a test can make it
        await asyncio.get_running_loop().run_in_executor(
            log._store._writing._thread,  # type: ignore[attr-defined]  # the same
            lambda: rows._db.execute("PRAGMA max_page_count = 30"),
        )
        with pytest.raises(LiveLogUnavailable, match="disk is full"):
            await writer.append([("text", "x" * 1_000_000)])
        assert await follow(log, "t", most=3) == written


async def test_readers_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    async with LiveLog.open(url_of(tmp_path / "live.db"), patience_s=1, lease_s=30) as log:
        writer = await log.start("t", "ana")
        written = await write_some(writer, 3)
        other = sqlite3.connect(tmp_path / "live.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert await follow(log, "t", most=3) == written
        other.close()
        thread = log._store._writing  # type: ignore[attr-defined]  # where each write fails at once, as on a full disk
        await thread.call(lambda rows: rows._db.execute("PRAGMA query_only = 1"))
        assert await follow(log, "t", most=3) == written


async def test_a_file_that_is_deleted_fences_its_producer_and_is_made_anew(tmp_path: Path) -> None:
    async with LiveLog.open(url_of(tmp_path / "live.db"), lease_s=30) as log:
        writer = await log.start("t", "ana")
        await write_some(writer, 3)
        reader = asyncio.create_task(follow(log, "t"))
        await asyncio.sleep(0.1)
        for path in tmp_path.iterdir():
            path.unlink()
        with pytest.raises(Fenced, match="does not know the turn"):
            await writer.append([("text", "nobody would see this")])
        with pytest.raises(UnknownTurn):
            await reader
        async with LiveLog.open(url_of(tmp_path / "live.db"), lease_s=30) as other:
            again = await other.start("t", "ana")
            written = await write_some(again, 2)
            assert await follow(log, "t", most=2) == written


async def test_the_owner_is_not_in_the_file(tmp_path: Path) -> None:
    async with LiveLog.open(url_of(tmp_path / "live.db")) as log:
        await (await log.start("t", "ana's secret")).close("finished")
    assert not [path for path in tmp_path.iterdir() if b"secret" in path.read_bytes()]


@pytest.mark.parametrize("url", ["sqlite://live.db", "sqlite:///", "sqlite:///:memory:", "mysql://x", "x", "", 7])
def test_what_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(UsageError):
        LiveLog.open(url)


@pytest.mark.parametrize(
    "options",
    [
        {"lease_s": 0},
        {"lease_s": "5"},
        {"max_entries": 0},
        {"max_entry_bytes": 2**30},
        {"connections": 0},
        {"leas": 1},
        {"prefix": "\ud800"},
    ],
)
def test_an_option_that_makes_no_sense_is_an_error_that_names_it(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        LiveLog.open("memory://", **options)


async def test_its_files_are_their_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        async with LiveLog.open(url_of(tmp_path / "live.db")) as log:
            await write_some(await log.start("t", "ana"), 1)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(old)
    assert modes == dict.fromkeys(("live.db", "live.db-wal", "live.db-shm"), 0o600)
