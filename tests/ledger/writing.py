"""Processes that write into one ledger at once, for test_writers.py."""

from __future__ import annotations

from multiprocessing.connection import Connection

from levada.ledger import Action, DueAction, Ledger
from tests.turn.chat import DONE, fed, stop, text


def answer_of(key: str) -> str:
    return f"água de {key} " * 40


def write(pipe: Connection, url: str, keys: list[str]) -> None:
    """Wait for the word, commit every key, and dispatch now and then; tell what came of it."""
    turns = {key: fed(text(answer_of(key)), stop(), DONE).result() for key in keys}
    statuses: dict[str, str] = {}
    ran: list[str] = []

    def handler(action: DueAction) -> None:
        ran.append(action.idempotency_key)

    pipe.send("ready")
    pipe.recv()
    with Ledger.open(url) as ledger:  # all at once: the first one makes the tables
        for number, key in enumerate(keys):
            statuses[key] = ledger.commit(turns[key], key=key, actions=[Action("note", {"key": key})]).status
            assert ledger.get(key) is not None
            if number % 5 == 4:
                ledger.dispatch({"note": handler}, limit=3)
    pipe.send((statuses, ran))
