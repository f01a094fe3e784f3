"""Ask, keep the answer, then act: run_turn, a ledger as its commit, and a dispatcher beside it.

    UPSTREAM_URL=https://api.example.com/v1/chat/completions UPSTREAM_KEY=… python examples/keep_turns.py ID "Why?"

Asked again with the same ID, it answers from the ledger, and nobody is told twice.
"""

import asyncio
import os
import sys

import httpx

from levada import AsyncLedger, Outcome, TurnError, run_turn
from levada.finished import FinishedTurn
from levada.ledger import Action, Committed, DueAction

URL = os.environ.get("UPSTREAM_URL") or sys.exit("UPSTREAM_URL is not set; see the top of this file")
KEY = os.environ.get("UPSTREAM_KEY", "")
MODEL = os.environ.get("UPSTREAM_MODEL", "gpt-5-mini")
LEDGER = os.environ.get("LEDGER_URL", "sqlite:///turns.db")


def short_enough(turn: FinishedTurn, released: str) -> str | None:
    return None if len(released) <= 10_000 else f"the answer has {len(released)} characters, and 10000 is the most"


async def tell(action: DueAction) -> None:
    """Tell somebody. It may run more than once: whoever is told knows by the key what was told before."""
    print(f"told {action.payload['whom']} ({action.idempotency_key})", file=sys.stderr)


async def main(request_id: str, question: str) -> int:
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": question}]}
    async with AsyncLedger.open(LEDGER) as ledger, httpx.AsyncClient(timeout=None) as client:

        async def commit(outcome: Outcome) -> Committed:
            actions = [Action("tell", {"whom": "her"})]
            return await ledger.commit(outcome, key=request_id, validators=[short_enough], actions=actions)

        stop = asyncio.Event()
        dispatcher = asyncio.create_task(ledger.run_dispatcher({"tell": tell}, stop=stop, poll_s=0.05))
        try:
            stored = await ledger.get(request_id)
            if stored is None:
                outcome = await run_turn(
                    lambda: client.stream("POST", URL, json=body, headers={"authorization": f"Bearer {KEY}"}),
                    "openai_chat",
                    commit=commit,
                    on_error="keep_marked",
                    keep=lambda incomplete: ledger.keep_partial(incomplete, key=request_id),
                    on_record=lambda record: ledger.record(record, key=request_id),
                )
                if outcome.committed.status == "refused":
                    print("refused:", *outcome.committed.reasons, file=sys.stderr)
                    return 1
                stored = await ledger.get(request_id)
            assert stored is not None
            print(stored.answer)
            while (await ledger.queued()).get("tell"):  # in a server the dispatcher runs as long as it does
                await asyncio.sleep(0.05)
        except TurnError as error:
            print(f"no answer: {error.kind}: {error.message}", file=sys.stderr)
            return 1
        finally:
            stop.set()
            await dispatcher
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:3])))
