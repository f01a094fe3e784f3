"""Cases from the field whose attempts end in a ledger, or must not: layer `turn` of tests/cases/cases.jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levada import Retry, TurnError, run_turn_sync
from levada.ledger import Action, Ledger
from tests.turn.chat import DONE, chunk, event, stop, text

CASES = [
    case
    for case in map(json.loads, (Path(__file__).parents[1] / "cases" / "cases.jsonl").read_text().splitlines())
    if case["layer"] == "turn"
]
AGAIN = Retry(backoff_s=0.001, when="empty_draft")


def attempts_of(steps: list[dict[str, Any]]) -> list[list[bytes]]:
    """Return the stream of each attempt."""
    attempts: list[list[bytes]] = []
    for step in steps:
        match step:
            case {"attempt": _}:
                attempts.append([])
            case {"preamble": _}:
                attempts[-1].append(chunk(role="assistant"))
            case {"answer": answer}:
                attempts[-1].append(text(answer))
            case {"fail": word}:
                attempts[-1].append(event({"error": {"message": word, "type": f"{word}_error", "code": 529}}))
            case {"terminal": finish}:
                attempts[-1] += [stop(finish=finish), DONE]
            case {"eof": _}:
                pass
            case _:
                pytest.fail(f"nobody plays {step}")
    return attempts


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case_is_stored_if_it_is_finished_and_never_else(case: dict[str, Any], ledger: Ledger) -> None:
    attempts = attempts_of(case["steps"])
    expect = case["expect"]

    def open_stream(number: int) -> list[bytes]:
        return attempts[number - 1]

    def run(commit: Callable[..., Any]) -> Any:
        policy = AGAIN if len(attempts) > 1 else Retry(when="never")
        return run_turn_sync(
            open_stream,
            "openai_chat",
            commit=commit,
            retry=policy,
            on_error="keep_marked",
            keep=lambda incomplete: ledger.keep_partial(incomplete, key="k"),
            on_record=lambda record: ledger.record(record, key="k"),
        )

    def commit(outcome: Any) -> Any:
        return ledger.commit(outcome, key="k", actions=[Action("mail")])

    if expect["state"] == "finished":
        outcome = run(commit)
        stored = ledger.get("k")
        assert stored is not None
        assert (stored.answer, stored.attempts) == (expect["answer"], len(attempts))
        assert (outcome.committed.status, ledger.queued()) == ("stored", {"mail": 1})
    else:
        with pytest.raises(TurnError) as raised:
            run(commit)
        assert raised.value.kind == expect["error"]["kind"]
        assert not expect["committed"]
        assert (ledger.get("k"), ledger.count(), ledger.queued()) == (None, 0, {})
        (partial,) = ledger.partials()
        assert (partial.incomplete, partial.partial_text) == (True, expect["answer"])
    assert [record.attempt for record in ledger.records()] == list(range(len(attempts), 0, -1))


def test_there_are_such_cases() -> None:
    assert {case["id"] for case in CASES} >= {"C158", "C159"}
