"""Every Python block of the README and the docs runs, each on its own, as a reader would paste it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")

# Written by the benchmarks; a checkout may not have measured yet.
MEASURED = {ROOT / "docs" / "performance.md"}


def blocks() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start(1)) + 1
            name = f"{page.relative_to(ROOT)}:{line}"
            found.append(pytest.param(page, line, block[1], id=name))
    return found


@pytest.mark.parametrize(("page", "line", "source"), blocks())
def test_a_block_runs_as_it_stands(page: Path, line: int, source: str) -> None:
    code = compile("\n" * (line - 1) + source, str(page), "exec")  # an error names the line of the page
    exec(code, {"__name__": "__main__"})


def test_there_are_blocks_to_run() -> None:
    assert len(blocks()) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = {(page.parent / target).resolve() for target in LINK.findall(page.read_text("utf-8"))}
    assert {target for target in targets - MEASURED if not target.exists()} == set()
