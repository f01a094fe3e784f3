"""Which of these recorded streams is an answer? Those are kept in a ledger and acted upon; the others are not.

    python examples/keep_recorded.py tests/fixtures/*.sse

LEDGER_URL says where (default: an SQLite file turns.db here); `levada ledger list` shows it afterwards.
"""

import os
import sys
from pathlib import Path

from levada import Ledger, Turn, TurnError, detect
from levada.ledger import Action, DueAction
from levada.ledger.validators import intact, no_unfinished_tool_call, not_empty


def read(file: Path) -> Turn:
    data = file.read_bytes()
    found = detect(None, data)
    if found is None:
        raise SystemExit(f"{file}: no stream of a known provider")
    turn = Turn(found.dialect, profile=found.profile, framing=found.framing)
    for at in range(0, len(data), 1024):
        turn.feed(data[at : at + 1024])
    turn.eof(clean=True)
    return turn


def keep(ledger: Ledger, file: Path) -> str:
    try:
        finished = read(file).result()
    except TurnError as error:
        return f"not kept, {error.kind}: {error.message}"
    action = Action("tell", {"whom": "her"})
    committed = ledger.commit(
        finished, key=file.name, validators=[intact, not_empty, no_unfinished_tool_call], actions=[action]
    )
    return " ".join([committed.status.replace("_", " "), *committed.reasons])


def tell(action: DueAction) -> None:
    print(f"  told {action.payload['whom']} of {action.turn_key}, attempt {action.attempt}")


def main(*files: str) -> None:
    with Ledger.open(os.environ.get("LEDGER_URL", "sqlite:///turns.db")) as ledger:
        for file in map(Path, files):
            print(f"{file.name}: {keep(ledger, file)}")
        print(f"{ledger.count()} answers kept; now what is to be done about them, and about nothing else:")
        ledger.dispatch({"tell": tell})


if __name__ == "__main__":
    main(*sys.argv[1:])
