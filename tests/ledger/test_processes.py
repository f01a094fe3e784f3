"""Several processes over one database: no write is lost, and no action runs twice at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from levada.ledger import Action, DueAction, Ledger
from tests.ledger.turned import finished

SPAWN = multiprocessing.get_context("spawn")  # what users get everywhere one day; a fork would share connections
PROCESSES = 4


def until(true: Callable[[], bool], words: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, words
        time.sleep(0.02)


def together(work: Callable[..., None], *args: object) -> None:
    processes = [SPAWN.Process(target=work, args=(number, *args)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * PROCESSES


def write(number: int, url: str) -> None:
    with Ledger.open(url) as ledger:
        for n in range(25):
            assert ledger.commit(finished(), key=f"{number}/{n}", actions=[Action("mail")]).status == "stored"


def write_the_same(number: int, url: str, folder: str) -> None:
    with Ledger.open(url) as ledger:
        for n in range(25):
            status = ledger.commit(finished(str(n)), key=str(n), actions=[Action("mail")]).status
            (Path(folder) / f"{status}.{n}.{number}").touch()


class Once:
    """A handler that sees, over all processes, whether an action that it runs runs already."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __call__(self, action: DueAction) -> None:
        name = action.idempotency_key.replace("/", "_")
        try:
            (self.folder / f"running.{name}").touch(exist_ok=False)
        except FileExistsError:
            (self.folder / f"twice.{name}").touch()
        time.sleep(0.002)
        (self.folder / f"ran.{name}.{action.attempt}.{os.getpid()}").touch()
        (self.folder / f"running.{name}").unlink()


def dispatch(number: int, url: str, folder: str) -> None:
    with Ledger.open(url) as ledger:
        while ledger.queued():
            ledger.dispatch({"mail": Once(folder)}, limit=7)


def dispatch_and_hang(number: int, url: str, folder: str) -> None:
    def hangs(action: DueAction) -> None:
        (Path(folder) / f"begun.{action.attempt}").touch()
        time.sleep(600)

    with Ledger.open(url) as ledger:
        ledger.dispatch({"mail": hangs}, lease_s=1)


class TestWriters:
    def test_they_open_at_once_and_none_finds_the_database_locked(self, ledger_url: str) -> None:
        together(write, ledger_url)
        with Ledger.open(ledger_url) as ledger:
            assert (ledger.count(), ledger.queued()) == (100, {"mail": 100})

    def test_of_equal_commits_one_is_stored(self, ledger_url: str, tmp_path: Path) -> None:
        together(write_the_same, ledger_url, str(tmp_path))
        came = Counter(tuple(path.name.split(".")[:2]) for path in tmp_path.glob("*stored.*"))
        assert came == {("stored", str(n)): 1 for n in range(25)} | {("already_stored", str(n)): 3 for n in range(25)}
        with Ledger.open(ledger_url) as ledger:
            assert (ledger.count(), ledger.queued()) == (25, {"mail": 25})


class TestDispatchers:
    def test_no_action_runs_twice_at_the_same_time_and_each_runs_once(self, ledger_url: str, tmp_path: Path) -> None:
        with Ledger.open(ledger_url) as ledger:
            for n in range(40):
                ledger.commit(finished(), key=f"k{n}", actions=[Action("mail"), Action("mail", n)])
            together(dispatch, ledger_url, str(tmp_path))
            assert (ledger.queued(), ledger.dead_letters()) == ({}, [])
        runs = [path.name.split(".") for path in tmp_path.glob("ran.*")]
        assert len(runs) == len({name for _, name, _, _ in runs}) == 80
        assert {attempt for _, _, attempt, _ in runs} == {"1"}
        assert list(tmp_path.glob("twice.*")) == list(tmp_path.glob("running.*")) == []
        assert len({process for *_, process in runs}) > 1, "one process did it all: this test shows nothing"

    def test_what_a_killed_dispatcher_ran_runs_again_after_its_lease(self, ledger_url: str, tmp_path: Path) -> None:
        with Ledger.open(ledger_url) as ledger:
            ledger.commit(finished(), key="k", actions=[Action("mail")])
            process: BaseProcess = SPAWN.Process(target=dispatch_and_hang, args=(0, ledger_url, str(tmp_path)))
            process.start()
            until((tmp_path / "begun.1").exists, "it never began")
            time.sleep(1.5)  # longer than its lease, which it renews
            assert ledger.dispatch({"mail": Once(str(tmp_path))}).done == 0
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(30)
            until(lambda: ledger.dispatch({"mail": Once(str(tmp_path))}).done == 1, "its action never came back")
        assert [path.name.split(".")[2] for path in tmp_path.glob("ran.*")] == ["2"]
