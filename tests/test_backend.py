"""Which twin is chosen, and why: each case in a fresh process, because the choice is made once, at import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

import levada

Import = Callable[..., subprocess.CompletedProcess[str]]
TELL = "import levada; print(levada.BACKEND, levada.BACKEND_REASON, levada.EventParser.__module__, sep='|')"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a copy of the package without its extension: what an installation without a compiler looks like."""
    copy = tmp_path / "levada"
    shutil.copytree(Path(levada.__file__).parent, copy, ignore=shutil.ignore_patterns("_hotpath_c*", "__pycache__"))
    return copy


def tell(choice: str | None, package: Path = Path(levada.__file__).parent) -> subprocess.CompletedProcess[str]:
    """Import `package` in a new process where every warning is an error, under LEVADA_BACKEND=choice; let it tell."""
    environment = {name: value for name, value in os.environ.items() if name != "LEVADA_BACKEND"}
    environment |= {"PYTHONPATH": str(package.parent)} | ({} if choice is None else {"LEVADA_BACKEND": choice})
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", TELL], capture_output=True, text=True, env=environment, check=False
    )


class TestWithTheExtension:
    @pytest.mark.parametrize(
        ("choice", "told"),
        [
            (None, "cython|the extension is built and works|levada._hotpath_c"),
            ("", "cython|the extension is built and works|levada._hotpath_c"),
            ("auto", "cython|the extension is built and works|levada._hotpath_c"),
            ("cython", "cython|asked for by LEVADA_BACKEND=cython|levada._hotpath_c"),
            ("python", "python|asked for by LEVADA_BACKEND=python|levada._hotpath_py"),
        ],
    )
    def test_the_choice_is_kept_and_told(
        self, twins: tuple[ModuleType, ModuleType], choice: str | None, told: str
    ) -> None:
        done = tell(choice)
        assert (done.stdout.strip(), done.stderr) == (told, "")


class TestWithoutTheExtension:
    @pytest.mark.parametrize("choice", [None, "auto"])
    def test_auto_falls_back_quietly_and_says_how_to_see_why(self, package: Path, choice: str | None) -> None:
        done = tell(choice, package)
        reason = "the extension was not built; reinstall with LEVADA_BUILD_EXT=yes to see why"
        assert (done.stdout.strip(), done.stderr) == (f"python|{reason}|levada._hotpath_py", "")

    def test_asked_for_by_name_it_is_an_error(self, package: Path) -> None:
        done = tell("cython", package)
        assert done.returncode == 1
        assert "ModuleNotFoundError: No module named 'levada._hotpath_c'" in done.stderr


class TestWithABrokenExtension:
    @pytest.fixture
    def broken(self, package: Path) -> Path:
        (package / f"_hotpath_c{EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
        return package

    def test_auto_falls_back_with_one_warning(self, broken: Path) -> None:
        done = tell("auto", broken)
        assert "RuntimeWarning: levada runs in pure Python: the extension is there but failed: " in done.stderr
        done = subprocess.run(
            [sys.executable, "-c", TELL],
            capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(broken.parent), "LEVADA_BACKEND": "auto"},
        )  # fmt: skip
        assert done.stdout.startswith("python|the extension is there but failed: ")
        assert done.stderr.count("RuntimeWarning") == 1

    def test_asked_for_by_name_it_is_an_error(self, broken: Path) -> None:
        done = tell("cython", broken)
        assert done.returncode == 1
        assert "ImportError" in done.stderr

    def test_python_does_not_even_look_at_it(self, broken: Path) -> None:
        assert tell("python", broken).stdout.startswith("python|asked for")


class TestAnyOtherChoice:
    @pytest.mark.parametrize("choice", ["c", "Python", "auto "])
    def test_it_is_a_usage_error(self, choice: str) -> None:
        done = tell(choice)
        assert done.returncode == 1
        assert f"UsageError: LEVADA_BACKEND must be auto, cython or python, not {choice!r}" in done.stderr
