"""A fixed short slice of each fuzz driver; `make fuzz` runs them for long. README.md beside this file says how."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
SKIPPED = 77
SLICES = {"differential": 2_500, "random": 2_500, "narrow": 1_000, "coverage": 2_500}


@pytest.mark.parametrize("driver", SLICES)
def test_a_slice_finds_nothing(driver: str) -> None:
    arguments = ["--driver", driver, "--seed", "1", "--executions", str(SLICES[driver])]
    done = subprocess.run([sys.executable, RUN, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SLICES[driver]} executions" in done.stdout
