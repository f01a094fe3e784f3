"""SQLite: durable by default, private, and clear about what it cannot do."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event

from levada import UsageError
from levada.ledger import Action, Ledger, StoreError
from tests.ledger.turned import fed, finished, text
from tests.servers import missing, server_folder

NOBODY = 65534


def filled(ledger: Ledger, word: str = "water") -> None:
    """Commit until it cannot."""
    for n in range(1000):
        ledger.commit(finished(word * 4000), key=f"k{n}", actions=[Action("mail")])


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's power over permissions. Other users have none to lose."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user reaches, and nobody owns."""
    with server_folder() as made:
        if os.geteuid() == 0:
            os.chown(made, NOBODY, NOBODY)
        yield made
        made.chmod(0o755)


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        missing("mount", mounted.stderr.decode().strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class TestSettings:
    def test_what_is_committed_survives_a_loss_of_power(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger, ledger._database.reading() as connection:
            settings = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
        assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}

    def test_the_files_are_their_owners_alone(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
                ledger.commit(finished(), key="k")
                modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        finally:
            os.umask(old)
        assert modes == dict.fromkeys(("turns.db", "turns.db-wal", "turns.db-shm"), 0o600)

    def test_a_mode_that_somebody_chose_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "turns.db").touch()
        (tmp_path / "turns.db").chmod(0o640)
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db"):
            assert stat.S_IMODE((tmp_path / "turns.db").stat().st_mode) == 0o640

    @pytest.mark.parametrize("name", ["a b.db", "á水.db", "a%20b.db", "a?mode=memory.db", "a#b.db"])
    def test_a_file_may_have_any_name(self, tmp_path: Path, name: str) -> None:
        from sqlalchemy import URL

        url = URL.create("sqlite", database=f"{tmp_path}/{name}")
        with Ledger.open(url) as ledger:
            ledger.commit(finished(), key="k")
        assert (tmp_path / name).stat().st_size > 0

    def test_one_in_memory_works_for_many_threads(self) -> None:
        with Ledger.open("sqlite://") as ledger:
            threads = [
                threading.Thread(target=ledger.commit, args=(finished(),), kwargs={"key": str(n)}) for n in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert ledger.count() == 8


class TestWriters:
    def test_threads_wait_for_each_other(self, tmp_path: Path) -> None:
        url, failures = f"sqlite:///{tmp_path}/turns.db", []

        def writes(name: str) -> None:
            try:
                with Ledger.open(url) as ledger:
                    for n in range(10):
                        ledger.commit(finished(), key=f"{name}/{n}", actions=[Action("mail")])
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=writes, args=(str(n),)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        with Ledger.open(url) as ledger:
            assert (ledger.count(), ledger.queued()) == (60, {"mail": 60})

    def test_above_the_timeout_the_ledger_is_busy(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db", busy_timeout_s=0.2) as ledger:
            other = sqlite3.connect(tmp_path / "turns.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=r"busy: other writers held the database for longer") as raised:
                ledger.commit(finished(), key="k")
            assert raised.value.retryable
            assert ledger.count() == 0  # readers wait for nobody
            other.execute("ROLLBACK")
            other.close()
            assert ledger.commit(finished(), key="k").status == "stored"

    def test_so_it_is_where_a_thread_of_ours_writes_for_too_long(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db", busy_timeout_s=0.2) as ledger:
            with ledger._database.writing(), pytest.raises(StoreError, match="busy: other threads"):
                ledger.commit(finished(), key="k")

    def test_where_no_connection_is_free_the_error_names_the_option(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db", busy_timeout_s=0.2, pool_size=1) as ledger:
            with ledger._database.reading(), pytest.raises(StoreError, match="raise pool_size"):
                ledger.count()


class TestWhatItCannotDo:
    def test_a_full_disk_is_told_and_nothing_is_stored_half(self, small_disk: Path) -> None:
        with Ledger.open(f"sqlite:///{small_disk}/turns.db") as ledger:
            with pytest.raises(StoreError, match="full: there is no room left for the database") as raised:
                filled(ledger)
            assert raised.value.retryable
            stored = ledger.count()
            assert stored > 3
            assert ledger.queued() == {"mail": stored}
            assert ledger.get("k0") is not None
            with pytest.raises(StoreError, match="full"):
                ledger.keep_partial(fed(text("w" * 100_000), clean=False), key="p")
            subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
            assert ledger.commit(finished(), key="more").status == "stored"

    def test_a_database_that_may_not_grow_is_told(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:

            @event.listens_for(ledger._database.engine, "checkout")
            def limited(connection: sqlite3.Connection, *others: object) -> None:
                connection.execute("PRAGMA max_page_count=40")

            with pytest.raises(StoreError, match="full: "):
                filled(ledger)
            assert ledger.queued() == {"mail": ledger.count()}

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="missing: the directory of the ledger does not exist"):
            Ledger.open(f"sqlite:///{tmp_path}/nowhere/turns.db")
        with pytest.raises(StoreError, match="missing: the path of the ledger is a directory"):
            Ledger.open(f"sqlite:///{tmp_path}")
        with pytest.raises(StoreError, match="missing: the file of the ledger does not exist"):
            Ledger.open(f"sqlite:///{tmp_path}/turns.db", read_only=True)
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_that_may_not_be_written(self, folder: Path) -> None:
        folder.chmod(0o555)
        with as_nobody(), pytest.raises(StoreError, match="denied: the file of the ledger cannot be made"):
            Ledger.open(f"sqlite:///{folder}/turns.db")

    def test_a_file_in_a_directory_that_may_not_be_written(self, folder: Path) -> None:
        with as_nobody():
            with Ledger.open(f"sqlite:///{folder}/turns.db"):
                pass
            folder.chmod(0o555)
            with pytest.raises(StoreError, match=r"(denied|read_only): the file of the ledger, or"):
                Ledger.open(f"sqlite:///{folder}/turns.db")

    def test_a_file_that_may_not_be_written(self, folder: Path) -> None:
        with as_nobody():
            with Ledger.open(f"sqlite:///{folder}/turns.db") as ledger:
                ledger.commit(finished(), key="k")
            (folder / "turns.db").chmod(0o444)
            with Ledger.open(f"sqlite:///{folder}/turns.db") as ledger:
                assert ledger.count() == 1
                with pytest.raises(StoreError, match="read_only: the file of the ledger"):
                    ledger.commit(finished(), key="l")

    def test_a_file_that_may_not_be_read(self, folder: Path) -> None:
        with as_nobody():
            (folder / "turns.db").touch()
            (folder / "turns.db").chmod(0)
            with pytest.raises(StoreError, match="denied: "):
                Ledger.open(f"sqlite:///{folder}/turns.db")

    def test_a_disk_that_is_mounted_read_only(self, small_disk: Path) -> None:
        with Ledger.open(f"sqlite:///{small_disk}/turns.db"):
            pass
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        with pytest.raises(StoreError, match=r"(read_only|denied): "):
            Ledger.open(f"sqlite:///{small_disk}/turns.db")
        with pytest.raises(StoreError, match="read_only: the file of the ledger cannot be made: Read-only file system"):
            Ledger.open(f"sqlite:///{small_disk}/other.db")

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "turns.db").write_text("Dear diary,\n" * 1000)
        with pytest.raises(StoreError, match="not_a_database: the file is no SQLite database; name another one"):
            Ledger.open(f"sqlite:///{tmp_path}/turns.db")
        assert (tmp_path / "turns.db").read_text() == "Dear diary,\n" * 1000

    def test_a_file_that_is_damaged(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            for n in range(20):
                ledger.commit(finished("w" * 5000), key=str(n))
        data = bytearray((tmp_path / "turns.db").read_bytes())
        data[4096 * 3 :] = b"\xff" * (len(data) - 4096 * 3)
        (tmp_path / "turns.db").write_bytes(data)
        with pytest.raises(StoreError, match="corrupt: the file of the ledger is damaged"):
            with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
                ledger.turns()

    def test_a_file_that_is_taken_away_is_no_new_ledger(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            ledger._database.engine.dispose()  # its connections are old, as a pool's are one day
            for path in tmp_path.iterdir():
                path.unlink()
            with pytest.raises(StoreError, match="missing: the file of the ledger was taken away"):
                ledger.commit(finished(), key="k")
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_deleted_takes_no_more_turns(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            ledger.commit(finished(), key="k", actions=[Action("mail")])
            (tmp_path / "turns.db").unlink()
            for write in (lambda: ledger.commit(finished(), key="l"), lambda: ledger.dispatch({"mail": print})):
                with pytest.raises(StoreError, match="missing: the file of the ledger was taken away") as raised:
                    write()
                assert not raised.value.retryable
            assert ledger.count() == 1  # what it held can still be read

    def test_a_file_in_the_place_of_another_is_left_alone(self, tmp_path: Path) -> None:
        for name in ("turns", "backup"):
            with Ledger.open(f"sqlite:///{tmp_path}/{name}.db") as ledger:
                ledger.commit(finished(name), key=name)
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            (tmp_path / "backup.db").replace(tmp_path / "turns.db")
            with pytest.raises(StoreError, match="replaced: another file is in the place of the ledger's"):
                ledger.commit(finished(), key="l")
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            assert [turn.key for turn in ledger.turns()] == ["backup"]

    def test_a_text_that_is_damaged(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as ledger:
            for column, damage in (("answer", "CAST(x'ff' AS TEXT)"), ("parts", "'[{'"), ("usage", "'[7]'")):
                ledger.commit(finished(), key=column)
                other = sqlite3.connect(tmp_path / "turns.db")
                other.execute(f"UPDATE levada_turns SET {column} = {damage} WHERE key = '{column}'")
                other.commit()
                other.close()
                with pytest.raises(StoreError, match="corrupt: "):
                    ledger.get(column)

    def test_parameters_in_the_url_are_refused(self) -> None:
        with pytest.raises(UsageError, match="takes no parameters, and this one has timeout") as raised:
            Ledger.open("sqlite:///turns.db?timeout=secret")
        assert "secret" not in str(raised.value)

    def test_nothing_hangs_on_an_error(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db", busy_timeout_s=0.1) as ledger:
            other = sqlite3.connect(tmp_path / "turns.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError) as raised:
                ledger.commit(finished(), key="k")
            other.close()
        assert (raised.value.__context__, raised.value.__cause__) == (None, None)

    def test_errors_hold_no_text(self, small_disk: Path) -> None:
        with Ledger.open(f"sqlite:///{small_disk}/turns.db") as ledger:
            with pytest.raises(StoreError) as raised:
                filled(ledger, "secret")
        shown = "".join(traceback.format_exception(raised.value))
        assert "secretsecret" not in shown
        assert "INSERT" not in shown

    @pytest.mark.parametrize("url", ["sqlite://turns.db", "sqlite://turns.db/", "sqlite://localhost/turns.db"])
    def test_a_path_after_two_slashes_is_no_ledger_in_memory(self, url: str) -> None:
        with pytest.raises(UsageError, match="three slashes"):
            Ledger.open(url)

    @pytest.mark.parametrize("url", ["sqlite:///file:x.db?mode=ro", "sqlite:///a\x00b"])
    def test_odd_paths_are_refused(self, url: str) -> None:
        with pytest.raises(UsageError):
            Ledger.open(url)

    def test_memory_cannot_be_read_only(self) -> None:
        with pytest.raises(UsageError, match="begins empty"):
            Ledger.open("sqlite://", read_only=True)
