"""A client of the gateway: asks an upstream by name, shows the answer as it comes, and knows whether it is whole.

Where the connection breaks, it reads on behind the last event that it has: nothing is asked twice, nothing shown twice.

levada serve --demo &
python examples/read_normal_form.py anthropic "What is a levada?"
"""

import os
import random
import secrets
import sys
import time

import httpx

from levada import iter_events

GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:8000/")
SILENCE_S = 40.0  # the gateway says something each 15 s: a connection that is silent for longer is dead
PATIENCE_S = 60.0  # how long nothing new may come before we give up
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


class Answer:
    """What has come of a turn. `last`: the id to read on behind; `state`: how it ended, "" before."""

    def __init__(self) -> None:
        self.last = ""
        self.state = ""
        self.error = "nothing more came of it"

    def read(self, response: httpx.Response) -> None:
        """Show what comes, to the turn's end; or until the connection breaks, which leaves `state` empty."""
        try:
            for event in iter_events(response.iter_bytes()):
                self.last = event.id or self.last  # an event without an id is no place to read on from
                value = event.json()
                match event.event:
                    case "text" if value["channel"] == "answer":
                        print(value["text"], end="", flush=True)
                    case "error":  # of the turn, if `end` follows; else of this stream alone
                        self.error = f"{value['kind']}: {value['message']}"
                    case "end":
                        self.state = value["state"]
        except httpx.TransportError as error:
            self.error = f"the connection broke: {type(error).__name__}"


def main(upstream: str, question: str) -> int:
    body = {"upstream": upstream, "request": {"messages": [{"role": "user", "content": question}]}}
    owner = {"levada-owner": secrets.token_urlsafe(24)}  # whose turn it is: who reads on has to say the same
    answer = Answer()
    with httpx.Client(timeout=SILENCE_S) as client:
        with client.stream("POST", f"{GATEWAY}turns", json=body, headers=owner) as response:
            response.raise_for_status()
            events = f"{GATEWAY}turns/{response.headers['levada-turn']}/events"
            answer.read(response)
        if not answer.state:
            read_on(client, events, owner, answer)
    print()
    if answer.state != "finished":
        print(f"no answer: {answer.error if answer.state != 'cancelled' else 'it was cancelled'}", file=sys.stderr)
    return 0 if answer.state == "finished" else 1


def read_on(client: httpx.Client, events: str, owner: dict[str, str], answer: Answer) -> None:
    """Come back until the turn has ended, with pauses that grow and differ; any replica will do."""
    pause_s, until_s = FIRST_PAUSE_S, time.monotonic() + PATIENCE_S
    while not answer.state and time.monotonic() < until_s:
        print("\n(reading on)", file=sys.stderr)
        time.sleep(pause_s * random.uniform(0.5, 1))
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        before = answer.last
        behind = {"last-event-id": before} if before else {}
        try:
            with client.stream("GET", events, headers={**owner, **behind}) as response:
                if response.status_code == 200:
                    answer.read(response)
                elif response.status_code != 429 and response.status_code < 500:
                    answer.error = f"the gateway no longer has it ({response.status_code})"  # 404, 410: it never will
                    return
        except httpx.TransportError as error:
            answer.error = f"the gateway cannot be reached: {type(error).__name__}"
        if answer.last != before:
            pause_s, until_s = FIRST_PAUSE_S, time.monotonic() + PATIENCE_S


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
