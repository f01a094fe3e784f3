"""A gateway in Starlette: a question in, the answer out in levada's normal form.

    UPSTREAM_URL=https://api.example.com/v1/chat/completions UPSTREAM_KEY=… python examples/gateway_starlette.py

then: curl -N -d '{"question": "What is a levada?"}' http://127.0.0.1:8000/ask
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from levada import Turn
from levada.gateway import HEADERS, Frames
from levada.io import Timeouts

URL = os.environ["UPSTREAM_URL"]
KEY = os.environ.get("UPSTREAM_KEY", "")
MODEL = os.environ.get("UPSTREAM_MODEL", "gpt-5-mini")


class Kept(TypedDict):
    session: aiohttp.ClientSession


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[Kept]:
    # aiohttp's own default ends every response after 5 minutes: too short for long answers
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=10)) as session:
        yield {"session": session}


async def ask(request: Request) -> Response:
    question = (await request.json())["question"]
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": question}]}
    posting = request.state.session.post(URL, json=body, headers={"authorization": f"Bearer {KEY}"})
    # Starlette cancels the response when the client goes; the frames then close the upstream.
    frames = Frames(posting, Turn("openai_chat"), timeouts=Timeouts(first_byte_s=60, idle_s=60, total_s=900))
    return StreamingResponse(frames, headers=HEADERS)


app = Starlette(routes=[Route("/ask", ask, methods=["POST"])], lifespan=lifespan)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), log_level="warning")
