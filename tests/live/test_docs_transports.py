"""The programs in docs/transports.md that need a server run against a ReplayServer; test_readme.py runs the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from levada.testing import ReplayServer, Reply

PAGE = Path(__file__).parents[2] / "docs" / "transports.md"
BLOCKS = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
URL = "https://api.example.com/v1/chat/completions"
STREAM = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "Ol\xc3\xa1"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_program_of_the_page_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    with ReplayServer(Reply(STREAM, delay_s=0.05)) as server:
        exec(compile(BLOCKS[number].replace(URL, server.url), f"{PAGE.name}, block {number}", "exec"), {})
        assert re.search("Olá|finished|cancelled", capsys.readouterr().out)
        assert len(server.requests) == 1
