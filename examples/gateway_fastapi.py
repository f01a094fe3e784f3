"""A gateway in FastAPI: a question in, the answer out in levada's normal form.

    UPSTREAM_URL=https://api.example.com/v1/chat/completions UPSTREAM_KEY=… python examples/gateway_fastapi.py

then: curl -N --json '{"question": "What is a levada?"}' http://127.0.0.1:8000/ask
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from levada import Turn
from levada.gateway import HEADERS, Frames
from levada.io import Timeouts

URL = os.environ["UPSTREAM_URL"]
KEY = os.environ.get("UPSTREAM_KEY", "")
MODEL = os.environ.get("UPSTREAM_MODEL", "gpt-5-mini")

# no limit on reading: the turn's own timeouts know what they wait for; and one connection for each turn
client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=10), limits=httpx.Limits(max_connections=None))


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    question: str


@app.post("/ask")
async def ask(asked: Question) -> StreamingResponse:
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": asked.question}]}
    opening = client.stream("POST", URL, json=body, headers={"authorization": f"Bearer {KEY}"})
    # The response is cancelled when the client goes; the frames then close the upstream.
    frames = Frames(opening, Turn("openai_chat"), timeouts=Timeouts(first_byte_s=60, idle_s=60, total_s=900))
    return StreamingResponse(frames, headers=HEADERS)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), log_level="warning")
