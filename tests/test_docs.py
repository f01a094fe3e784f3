"""The pages that list what there is list all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import levada

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "levada").rglob("*.py"))


def test_every_anomaly_that_the_sources_name_is_on_the_page() -> None:
    named = {
        name for source in SOURCES for name in re.findall(r"\banomaly\(\s*\"([a-z0-9_]+)\"", source.read_text("utf-8"))
    }
    page = (ROOT / "docs" / "turns.md").read_text("utf-8")
    assert {name for name in named if f"`{name}`" not in page} == set()
    assert len(named) > 30


@pytest.mark.parametrize("names", [levada.DIALECTS, tuple(levada.PROFILES)], ids=["dialects", "profiles"])
def test_every_dialect_and_profile_is_on_its_page(names: tuple[str, ...]) -> None:
    page = (ROOT / "docs" / "dialects.md").read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in page] == []
