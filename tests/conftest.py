"""The backends under test, the guard against stale code, and how hard hypothesis tries.

LEVADA_TEST_BACKENDS: the twins to test, "python,cython" by default. One that is named and missing is an error.
LEVADA_HYPOTHESIS: "quick" (default; fixed seed) or "big" (more examples, a new seed each time).
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import database, running_postgres, running_redis

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
    # A shell's background job ignores SIGINT, and so would the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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


@pytest.fixture
def uncollected() -> Iterator[None]:
    """For tests of growth: the collector's time grows with all that lives in this process, and is not ours."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis that tests share: their keys need prefixes of their own. To kill one, see servers.running_redis."""
    if url := os.environ.get("LEVADA_REDIS_URL"):
        yield url
    else:
        with running_redis() as server:
            yield server.url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL that tests share, as a URL of SQLAlchemy; take `postgres_url` for an empty database there."""
    if url := os.environ.get("LEVADA_POSTGRES_URL"):
        yield url
    else:
        with running_postgres() as server:
            yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database of the test's own."""
    with database(postgres_server) as url:
        yield url
