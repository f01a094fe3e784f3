"""Several processes write into one ledger at once: none is turned away, and each key is stored once."""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from typing import Any

import pytest

from levada.ledger import Ledger

if sys.platform == "win32":
    pytest.skip("needs a fork server", allow_module_level=True)

from tests.ledger import writing

WRITERS, OWN, SHARED = 4, 30, 10
PATIENCE_S = 120.0  # for a machine that has much to do


def test_each_key_is_stored_once_and_each_action_runs_once(ledger_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.ledger.writing"])
    shared = [f"shared {number}" for number in range(SHARED)]
    writers: list[tuple[Any, Any]] = []
    for writer in range(WRITERS):
        own = [f"{writer} {number}" for number in range(OWN)]
        keys = [key for pair in zip(own, shared * 3, strict=True) for key in pair]  # each shared key three times
        ours, theirs = context.Pipe()
        process = context.Process(target=writing.write, args=(theirs, ledger_url, keys), daemon=True)
        process.start()
        theirs.close()
        writers.append((process, ours))
    for _, pipe in writers:
        assert pipe.poll(PATIENCE_S)
        assert pipe.recv() == "ready"
    for _, pipe in writers:
        pipe.send("go")
    stored: Counter[str] = Counter()
    ran: Counter[str] = Counter()
    for process, pipe in writers:
        assert pipe.poll(PATIENCE_S)
        statuses, its = pipe.recv()
        stored.update(key for key, status in statuses.items() if status == "stored")
        ran.update(its)
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        pipe.close()
    with Ledger.open(ledger_url) as ledger:
        while ledger.queued():
            came = ledger.dispatch({"note": lambda action: ran.update([action.idempotency_key])})
            assert came.done
        every = {turn.key: turn.answer for turn in ledger.each_turn()}
    assert every == {key: writing.answer_of(key) for key in every}
    assert len(every) == WRITERS * OWN + SHARED
    assert set(ran.values()) == {1}
    assert len(ran) == len(every)
    # the last status of a shared key may be that of its repetition, so only one's own keys are all told here
    assert all(count == 1 for count in stored.values())
    assert {key for key in every if not key.startswith("shared")} == {key for key in stored if "shared" not in key}
