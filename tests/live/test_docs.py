"""The programs in the docs that need a server run against a ReplayServer; test_readme.py runs the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from levada.testing import ReplayServer, Reply

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    pytest.param(page, block, id=f"{page}-{number}")
    for page in ("transports.md", "run-turn.md")
    for number, block in enumerate(re.findall(r"```py\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL))
]
URL = "https://api.example.com/v1/chat/completions"
STREAM = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "Ol\xc3\xa1"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_a_program_of_the_page_runs(page: str, block: str, capsys: pytest.CaptureFixture[str]) -> None:
    with ReplayServer(Reply(STREAM, delay_s=0.05)) as server:
        exec(compile(block.replace(URL, server.url), page, "exec"), {})
        assert re.search("Olá|finished|cancelled", capsys.readouterr().out)
        assert len(server.requests) == (3 if page == "run-turn.md" else 1)
