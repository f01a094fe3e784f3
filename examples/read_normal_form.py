"""A client of the gateway: asks an upstream by name, shows the answer as it comes, and knows whether it is whole.

levada serve --demo &
python examples/read_normal_form.py anthropic "What is a levada?"
"""

import os
import sys

import httpx

from levada import iter_events

GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:8000/")


def main(upstream: str, question: str) -> int:
    body = {"upstream": upstream, "request": {"messages": [{"role": "user", "content": question}]}}
    state = "error"  # a stream without its last event was cut
    with httpx.stream("POST", f"{GATEWAY}turns", json=body, timeout=None) as response:
        response.raise_for_status()
        for event in iter_events(response.iter_bytes()):
            value = event.json()
            match event.event:
                case "text" if value["channel"] == "answer":
                    print(value["text"], end="", flush=True)
                case "error":
                    print(f"\nno answer: {value['kind']}: {value['message']}", file=sys.stderr)
                case "end":
                    state = value["state"]
    print()
    return 0 if state == "finished" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
