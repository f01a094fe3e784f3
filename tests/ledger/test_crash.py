"""The crash matrix: a process that streams, commits and acts is killed at every step from first byte to last action.

The laws, whenever SIGKILL comes:
- no unfinished turn is stored, and none that was refused;
- no committed turn is lost: what was said to be committed is there, whole;
- a turn has all its actions or, where it is not stored, none; no action runs without its commit;
- after a restart every action of a committed turn has run, and asking again gives stored or already_stored.

LEVADA_CRASHES: how many kills on each database, 8 by default; `make crash` says 200. LEVADA_CRASH_SEED: chooses them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from levada.ledger import Ledger
from levada.ledger.schema import outbox, refused
from levada.testing import ReplayServer, Reply
from tests.turn.chat import DONE, chunk, fed, stop, text

if sys.platform == "win32":
    pytest.skip("needs SIGKILL and flock", allow_module_level=True)

from tests.ledger import crashing
from tests.ledger.crashing import ACTIONS, Job, kind_of, noted

CRASHES = int(os.environ.get("LEVADA_CRASHES", "8"))
SEED = int(os.environ.get("LEVADA_CRASH_SEED", "7"))
PATIENCE_S = 120.0  # for a machine that has much to do

ANSWER = "Água que corre — 山を流れる水 🏔️, gota a gota. "
PIECES = [text(ANSWER[at : at + 9]) for at in range(0, len(ANSWER), 9)]
CALL = chunk(
    tool_calls=[{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
)
# kind of turn -> its stream
STREAMS = {
    "whole": [*PIECES, stop(), DONE],
    "tools": [*PIECES, CALL, stop(finish="tool_calls"), DONE],
    "cut": [*PIECES, stop()],  # all but its terminal signal
    "refused": [text(" "), stop(), DONE],  # finished, and empty
    "length": [*PIECES, stop(finish="length"), DONE],  # finished, and not to be acted upon
}
GOOD = ("whole", "tools")
ORDER = ("whole", "cut", "tools", "refused", "length", "whole")

Said = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def streams() -> Iterator[dict[str, str]]:
    """A server for each kind of turn, whose pieces come a moment after each other."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(ReplayServer(Reply(pieces, delay_s=0.001), max_s=24 * 3600)).url
            for kind, pieces in STREAMS.items()
        }


@pytest.fixture
def job(ledger_url: str, streams: dict[str, str], tmp_path: Path) -> Job:
    effects = tmp_path / "effects"
    effects.mkdir()
    Ledger.open(ledger_url).close()  # make the tables once
    return Job(ledger_url, streams, effects, ())


@pytest.fixture(scope="module")
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.ledger.crashing"])
    return context


class Child:
    """A process whose steps we hear, and which we may kill."""

    def __init__(self, processes: Any, target: Any, job: Job) -> None:
        self.said: Said = []
        self._pipe, theirs = processes.Pipe(duplex=False)
        self.process = processes.Process(target=target, args=(theirs, job), daemon=True)
        self.process.start()
        theirs.close()

    def listen(self, *, until_s: float = PATIENCE_S) -> bool:
        """Hear one more step; False where there are none: it waits for its end, it ended, or so long nothing came."""
        try:
            if not self._pipe.poll(until_s):
                return False
            step = self._pipe.recv()
        except (EOFError, OSError):
            return False
        if step == ("here",):
            return False
        self.said.append(step)
        return True

    def kill(self) -> None:
        """Kill it, and hear what it had still said."""
        self.process.kill()
        while self.listen():
            pass
        self.process.join(PATIENCE_S)
        assert self.process.exitcode is not None
        self.process.close()
        self._pipe.close()

    def end(self) -> Said:
        """Hear it to its own end."""
        while self.listen():
            pass
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 0, (self.process.exitcode, self.said[-5:])
        assert self.said[-1] == ("end",)
        self.process.close()
        self._pipe.close()
        return self.said


def keys_of(round: int) -> tuple[str, ...]:
    return tuple(f"{kind}-{round}-{place}" for place, kind in enumerate(ORDER))


class Laws:
    """What holds after any kill, and what more holds once the program came up again."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ledger = Ledger.open(job.url)

    def after_the_kill(self, said: Said) -> set[str]:
        """Return the keys that are stored."""
        told = {step[1] for step in said if step[0] == "commit ended" and step[2] == "stored"}
        stored = set()
        for key in self.job.keys:
            turn = self.ledger.get(key)
            if turn is None:
                assert key not in told, f"{key} was committed, and is lost"
                continue
            stored.add(key)
            assert kind_of(key) in GOOD, f"{key} is stored as an answer"
            assert (turn.answer, turn.altered, turn.finish_reason) == (
                ANSWER, False, "stop" if kind_of(key) == "whole" else "tool_use",
            )  # fmt: skip
            assert [call.arguments for call in turn.tool_calls] == (['{"a":1}'] if kind_of(key) == "tools" else [])
        with self.ledger._database.reading() as connection:
            query = select(outbox.c.turn_key, outbox.c.name).where(outbox.c.turn_key.in_(self.job.keys))
            queued = Counter((key, name) for key, name in connection.execute(query))
            no = select(func.count()).where(refused.c.key.in_(self.job.keys), refused.c.key.not_like("refused%"),
                                            refused.c.key.not_like("length%"))  # fmt: skip
            assert connection.execute(no).scalar() == 0
        assert queued == Counter((key, name) for key in stored for name in ACTIONS)
        self._effects(stored)
        return stored

    def after_recovery(self, before: set[str], said: Said) -> None:
        stored = self.after_the_kill(said)
        assert stored == {key for key in self.job.keys if kind_of(key) in GOOD}
        came = {step[1]: step[2] for step in said if step[0] == "commit ended"}
        for key in stored:
            assert came[key] == ("already_stored" if key in before else "stored")
        assert {came[key] for key in self.job.keys if kind_of(key) in ("refused", "length")} == {"refused"}
        assert not any(kind_of(key) == "cut" for key in came)
        done = {effect["id"] for effect in noted(self.job.effects)}
        for key in stored:
            for place, name in enumerate(ACTIONS):
                assert f"{key}/{place}/{name}" in done, f"{name} of {key} never ran"
        assert (self.ledger.queued(), self.ledger.dead_letters()) == ({}, [])

    def _effects(self, stored: set[str]) -> None:
        for effect in noted(self.job.effects):
            if effect["key"] in self.job.keys:
                assert effect["stored"], f"{effect['id']} ran before its turn was committed"
                assert effect["key"] in stored, f"{effect['id']} ran without its commit"
                assert effect["alone"], f"{effect['id']} ran twice at the same time"
                key, _, name = effect["id"].split("/")
                assert effect["payload"] == {"key": key, "name": name}


def test_no_kill_breaks_a_law(job: Job, processes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rnd = random.Random(SEED)
    unharmed = Child(processes, crashing.work, replace(job, keys=keys_of(0)))
    unharmed.listen()  # it is up
    began_s = time.monotonic()
    whole = unharmed.end()
    took_s = time.monotonic() - began_s
    # half of the kills at exact steps, spread over all of them; half at any time
    places = [1 + int(len(whole) * (number + rnd.random()) / (CRASHES // 2)) for number in range(CRASHES // 2)]
    kills: list[int | float] = [*places, *(rnd.uniform(0, took_s) for _ in range(CRASHES - len(places)))]
    rnd.shuffle(kills)
    at: Counter[str] = Counter()
    repeated = 0
    for round, kill in enumerate(kills, 1):
        its = replace(job, keys=keys_of(round), stop_at=kill if isinstance(kill, int) else None)
        child = Child(processes, crashing.work, its)
        child.listen()  # it is up
        ends_s = time.monotonic() + (PATIENCE_S if isinstance(kill, int) else kill)
        while (left_s := ends_s - time.monotonic()) > 0 and child.listen(until_s=left_s):
            pass
        child.kill()
        at[child.said[-1][0] if child.said else "nothing"] += 1
        laws = Laws(its)
        stored = laws.after_the_kill(child.said)
        again = Child(processes, crashing.recover, replace(its, stop_at=None)).end()
        laws.after_recovery(stored, again)
        laws.ledger.close()
        ran = Counter(effect["id"] for effect in noted(job.effects) if effect["key"] in its.keys)
        repeated += sum(count - 1 for count in ran.values())
    with Ledger.open(job.url) as ledger:
        assert ledger.count() == (len(kills) + 1) * sum(kind in GOOD for kind in ORDER)
        assert all(turn.answer == ANSWER for turn in ledger.each_turn())
    last = ", ".join(f"{what} {count}" for what, count in at.most_common())
    report(
        capsys, f"{job.url.partition(':')[0]}, seed {SEED}: {len(kills)} kills among {len(whole)} steps; "
        f"actions run again: {repeated}; last step before the kill: {last}"
    )  # fmt: skip


def test_of_two_dispatchers_one_may_die_in_a_handler(
    job: Job, processes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other one runs what is left, and nothing runs twice at the same time."""
    rnd = random.Random(SEED)
    kills = max(CRASHES // 4, 2)
    repeated = 0
    for round in range(kills):
        keys = tuple(f"whole-d{round}-{number}" for number in range(6))
        its = replace(job, keys=keys, lease_s=2.0)
        with Ledger.open(job.url) as ledger:
            turn = fed(*STREAMS["whole"]).result()
            for key in keys:
                ledger.commit(turn, key=key, actions=crashing.actions_of(key))
        victim = Child(processes, crashing.dispatcher, its)
        other = Child(processes, crashing.dispatcher, its)
        moment = rnd.choice(("handler begins", "effect", "handler ends", "after UPDATE", "before COMMIT"))
        skip = rnd.randrange(3)
        while victim.listen():
            if victim.said[-1][0] == moment:
                skip -= 1
                if skip < 0:
                    break
        victim.kill()
        other.end()
        laws = Laws(its)
        laws.after_the_kill([])
        ran = Counter(effect["id"] for effect in noted(job.effects) if effect["key"] in keys)
        assert ran.keys() == {f"{key}/{place}/{name}" for key in keys for place, name in enumerate(ACTIONS)}
        assert (laws.ledger.queued(), laws.ledger.dead_letters()) == ({}, [])
        laws.ledger.close()
        repeated += sum(count - 1 for count in ran.values())
    report(
        capsys, f"{job.url.partition(':')[0]}, seed {SEED}: {kills} dispatchers killed beside another; "
        f"actions run again: {repeated}"
    )  # fmt: skip


def report(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """Print the counts of the long form; `make test` has no use for them."""
    if CRASHES > 8:
        with capsys.disabled():
            print(f"\n{words}")
