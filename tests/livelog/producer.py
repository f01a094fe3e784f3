"""A producer in a process of its own, for tests that stop and kill it.

producer.py URL OPTIONS(JSON): starts the turn "t" of "ana", says "started", appends an entry every 20 ms; ends when it
is asked to stop ("stopped by …") or fenced ("Fenced: …", and what each later call says).
"""

from __future__ import annotations

import asyncio
import json
import sys

from levada.live import Fenced, LiveLog


async def main(url: str, options: str) -> None:
    async with LiveLog.open(url, **json.loads(options)) as log:
        writer = await log.start("t", "ana")
        print("started", flush=True)
        stopping = asyncio.create_task(writer.wait_stop())
        try:
            for n in range(10_000):
                await writer.append([("text", str(n))])
                if stopping.done():
                    await writer.close("cancelled")
                    print(f"stopped by {stopping.result()}", flush=True)
                    return
                await asyncio.sleep(0.02)
        except Fenced as fenced:
            print(f"Fenced: {fenced.reason}", flush=True)
            for call in (writer.renew, lambda: writer.close("finished"), lambda: writer.append([("text", "late")])):
                try:
                    await call()
                except Fenced:
                    print("Fenced again", flush=True)
        finally:
            stopping.cancel()


asyncio.run(main(*sys.argv[1:]))
