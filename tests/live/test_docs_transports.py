"""The programs in docs/transports.md run as they stand, against a ReplayServer in place of their URL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from levada.testing import ReplayServer, Reply

PAGE = Path(__file__).parents[2] / "docs" / "transports.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
URL = "https://api.example.com/v1/chat/completions"
STREAM = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "Ol\xc3\xa1"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_program_of_the_page_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    with ReplayServer(Reply(STREAM, delay_s=0.05)) as server:
        exec(compile(BLOCKS[number].replace(URL, server.url), f"{PAGE.name}, block {number}", "exec"), {})
        printed = capsys.readouterr().out
        if URL in BLOCKS[number]:
            assert re.search("Olá|finished|cancelled", printed)
            assert len(server.requests) == 1
