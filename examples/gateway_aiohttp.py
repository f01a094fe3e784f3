"""A gateway in aiohttp alone, server and client: a question in, the answer out in levada's normal form.

    UPSTREAM_URL=https://api.example.com/v1/chat/completions UPSTREAM_KEY=… python examples/gateway_aiohttp.py

then: curl -N -d '{"question": "What is a levada?"}' http://127.0.0.1:8000/ask
"""

import os
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from levada import Turn
from levada.gateway import HEADERS, Frames
from levada.io import Timeouts

URL = os.environ["UPSTREAM_URL"]
KEY = os.environ.get("UPSTREAM_KEY", "")
MODEL = os.environ.get("UPSTREAM_MODEL", "gpt-5-mini")
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def session(app: web.Application) -> AsyncIterator[None]:
    # aiohttp's own default ends every response after 5 minutes: too short for long answers
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=10)) as app[SESSION]:
        yield


async def ask(request: web.Request) -> web.StreamResponse:
    question = (await request.json())["question"]
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": question}]}
    posting = request.app[SESSION].post(URL, json=body, headers={"authorization": f"Bearer {KEY}"})
    frames = Frames(posting, Turn("openai_chat"), timeouts=Timeouts(first_byte_s=60, idle_s=60, total_s=900))
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    try:
        async for frame in frames:
            await response.write(frame)
    except ConnectionResetError:
        pass  # the client is gone
    finally:
        await frames.aclose()
    return response


app = web.Application()
app.cleanup_ctx.append(session)
app.router.add_post("/ask", ask)

if __name__ == "__main__":
    # handler_cancellation: a client that goes ends the handler at once, not at the next write
    port = int(os.environ.get("PORT", "8000"))
    web.run_app(app, host="127.0.0.1", port=port, handler_cancellation=True, print=lambda *_: None)
