"""The backends under test, the guard against stale code, and how hard hypothesis tries.

LEVADA_TEST_BACKENDS: the twins to test, "python,cython" by default. One that is named and missing is an error.
LEVADA_HYPOTHESIS: "quick" (default; fixed seed) or "big" (more examples, a new seed each time).
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

MODULES = {"python": "levada._hotpath_py", "cython": "levada._hotpath_c"}
BACKENDS = os.environ.get("LEVADA_TEST_BACKENDS", "python,cython").split(",")
EXT = Path(__file__).parent.parent / "ext"

# No deadline: a slow machine is no fault of the code. No database: a run depends on nothing but the code.
# Generating wire out of atoms is slower than the code under test, hence too_slow.
settings.register_profile(
    "quick",
    max_examples=200,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("big", settings.get_profile("quick"), max_examples=20_000, derandomize=False)
settings.load_profile(os.environ.get("LEVADA_HYPOTHESIS", "quick"))


def pytest_configure() -> None:
    """Refuse to run where a source of the extension is newer than the extension: stale code is never tested."""
    if "cython" not in BACKENDS:
        return
    try:
        built = Path(import_module(MODULES["cython"]).__file__ or "")
    except ImportError as error:
        raise pytest.UsageError(f"{error}; build the extension, or say LEVADA_TEST_BACKENDS=python") from error
    for source in sorted(EXT.glob("*")):
        if source.suffix in (".pyx", ".pxd", ".h") and source.stat().st_mtime > built.stat().st_mtime:
            raise pytest.UsageError(f"{source} is newer than {built}; rebuild the extension (make test does)")


@pytest.fixture(scope="session", params=BACKENDS)
def hotpath(request: pytest.FixtureRequest) -> ModuleType:
    """One twin of the hot path after the other."""
    return import_module(MODULES[request.param])


@pytest.fixture(scope="session")
def twins() -> tuple[ModuleType, ModuleType]:
    """The reference and the compiled twin, side by side."""
    if set(BACKENDS) != set(MODULES):
        pytest.skip("LEVADA_TEST_BACKENDS leaves one twin out")
    return import_module(MODULES["python"]), import_module(MODULES["cython"])
