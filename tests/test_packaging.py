"""The package as users get it: built in every mode from a clean copy of this tree, and looked at from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXT_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
ASK = "import levada; print(levada.BACKEND); print(levada.BACKEND_REASON)"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="lays virtual environments out by hand, as on POSIX")


def run(*command: str | Path, cwd: Path, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a clean environment: no backend chosen, nothing on the path but what is given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LEVADA_", "PYTHON"))}
    got = subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True, check=False, timeout=300)
    assert (got.returncode == 0) is ok, got.stdout + got.stderr
    return got


def clean_copy(target: Path) -> Path:
    """Copy this tree without what was built in it. A copy and not `git archive`: an export has no git."""
    built = shutil.ignore_patterns(".*", "build", "dist", "node_modules", "*.egg-info", "__pycache__", "*.so", "*.c")
    shutil.copytree(ROOT, target, ignore=built)
    return target


def environment(folder: Path) -> Path:
    """Make a virtual environment that also sees what is installed in the running one, except levada itself.

    levada's editable install is a .pth file, and those count only in the environment's own site-packages.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (folder / SITE_PACKAGES / "running.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def pip(*args: str | Path, cwd: Path, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    return run(sys.executable, "-m", "pip", *args, *offline, cwd=cwd, ok=ok, **env)


def install(folder: Path, *, ok: bool = True, **env: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Install a clean copy into a new environment below `folder`; return its Python, and what pip said."""
    source, python = clean_copy(folder / "source"), environment(folder / "venv")
    got = pip("install", "-v", "--target", folder / "venv" / SITE_PACKAGES, ".", cwd=source, ok=ok, **env)
    return python, got


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with levada installed from its sdist under LEVADA_BUILD_EXT=yes."""
    folder = tmp_path_factory.mktemp("compiled")
    source = clean_copy(folder / "source")
    backend = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", backend, folder, cwd=source, LEVADA_BUILD_EXT="yes")
    (sdist,) = folder.glob("*.tar.gz")
    pip("wheel", "--wheel-dir", folder, sdist, cwd=folder, LEVADA_BUILD_EXT="yes")
    (wheel,) = folder.glob("*.whl")
    python = environment(folder / "venv")
    pip("install", "--target", folder / "venv" / SITE_PACKAGES, wheel, cwd=folder)
    return python


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with levada installed under LEVADA_BUILD_EXT=no."""
    python, _ = install(tmp_path_factory.mktemp("pure"), LEVADA_BUILD_EXT="no")
    return python


def folder_of(python: Path) -> Path:
    return python.parent.parent.parent


def package_of(python: Path) -> Path:
    return python.parent.parent / SITE_PACKAGES / "levada"


class TestBuildModes:
    def test_yes_gives_the_compiled_backend(self, compiled: Path) -> None:
        got = run(compiled, "-c", ASK, cwd=folder_of(compiled))
        assert got.stdout.splitlines() == ["cython", "the extension is built and works"]

    def test_no_gives_a_working_pure_python_package(self, pure: Path) -> None:
        got = run(pure, "-W", "error", "-c", ASK, cwd=folder_of(pure))
        assert got.stdout.splitlines() == [
            "python",
            "the extension was not built; reinstall with LEVADA_BUILD_EXT=yes to see why",
        ]
        parse = "import levada; print(levada.EventParser().feed(b'data: a\\n\\n')[0].data)"
        assert run(pure, "-c", parse, cwd=folder_of(pure)).stdout == "a\n"

    @pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
    def test_auto_without_a_compiler_installs_and_says_so(self, tmp_path: Path, compiler: str) -> None:
        python, _ = install(tmp_path, CC=compiler)
        got = run(python, "-W", "error", "-c", ASK, cwd=tmp_path)
        assert got.stdout.startswith("python\nthe extension was not built")

    def test_yes_without_a_compiler_fails(self, tmp_path: Path) -> None:
        install(tmp_path, ok=False, LEVADA_BUILD_EXT="yes", CC="false")

    def test_yes_without_cython_fails_and_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "without").mkdir()
        (tmp_path / "without" / "Cython.py").write_text("raise ModuleNotFoundError(\"No module named 'Cython'\")\n")
        _, got = install(tmp_path, ok=False, LEVADA_BUILD_EXT="yes", PYTHONPATH=str(tmp_path / "without"))
        assert "No module named 'Cython'" in got.stdout + got.stderr

    def test_another_mode_is_refused(self, tmp_path: Path) -> None:
        _, got = install(tmp_path, ok=False, LEVADA_BUILD_EXT="maybe")
        assert "LEVADA_BUILD_EXT must be auto, yes or no, not 'maybe'" in got.stdout + got.stderr

    def test_no_generated_c_appears_in_ext(self, compiled: Path, tmp_path: Path) -> None:
        source = clean_copy(tmp_path / "source")
        before = sorted((source / "ext").iterdir())
        pip("wheel", "--wheel-dir", tmp_path, ".", cwd=source, LEVADA_BUILD_EXT="yes", CC="false", ok=False)
        assert sorted((source / "ext").iterdir()) == before
        assert list(source.glob("build/**/*.c")), "Cython ran, and its C went into build/"


class TestBackendChoice:
    def test_cython_where_there_is_none_is_an_error(self, pure: Path) -> None:
        got = run(pure, "-c", ASK, cwd=folder_of(pure), ok=False, LEVADA_BACKEND="cython")
        assert "ModuleNotFoundError: No module named 'levada._hotpath_c'" in got.stderr

    def test_python_where_there_is_another_is_quiet(self, compiled: Path) -> None:
        got = run(compiled, "-W", "error", "-c", ASK, cwd=folder_of(compiled), LEVADA_BACKEND="python")
        assert got.stdout.splitlines() == ["python", "asked for by LEVADA_BACKEND=python"]

    def test_another_value_is_an_error(self, pure: Path) -> None:
        got = run(pure, "-c", ASK, cwd=folder_of(pure), ok=False, LEVADA_BACKEND="rust")
        assert "LEVADA_BACKEND must be auto, cython or python, not 'rust'" in got.stderr

    @pytest.fixture
    def broken(self, pure: Path, tmp_path: Path) -> Path:
        """Return an environment where the extension is there and cannot be loaded."""
        python = environment(tmp_path / "venv")
        shutil.copytree(package_of(pure), package_of(python))
        (package_of(python) / f"_hotpath_c{EXT_SUFFIX}").write_bytes(b"not an extension")
        return python

    def test_a_broken_extension_gives_one_warning_under_auto(self, broken: Path, tmp_path: Path) -> None:
        got = run(broken, "-W", "always", "-c", "import levada, levada.sse, levada.frames\n" + ASK, cwd=tmp_path)
        assert got.stdout.startswith("python\nthe extension is there but failed: ")
        assert got.stderr.count("RuntimeWarning") == 1
        assert "RuntimeWarning: levada runs in pure Python: the extension is there but failed: " in got.stderr

    def test_a_broken_extension_is_an_error_under_cython(self, broken: Path, tmp_path: Path) -> None:
        got = run(broken, "-c", ASK, cwd=tmp_path, ok=False, LEVADA_BACKEND="cython")
        assert got.stderr.splitlines()[-1].startswith("ImportError: ")
        assert "RuntimeWarning" not in got.stderr


class TestContents:
    def test_the_wheel_has_types_and_no_sources_of_the_extension(self, compiled: Path) -> None:
        (wheel,) = folder_of(compiled).glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        assert {"levada/py.typed", "levada/_hotpath_c.pyi", f"levada/_hotpath_c{EXT_SUFFIX}"} <= set(names)
        assert [name for name in names if name.endswith((".pyx", ".pxd", ".c", ".h"))] == []
        gateway = ROOT / "src" / "levada" / "gateway"
        shown = [path for folder in ("page", "demo") for path in (gateway / folder).iterdir() if path.is_file()]
        assert {str(path.relative_to(ROOT / "src")) for path in shown} <= set(names)
        assert {name.split("/")[0].split("-")[0] for name in names} == {"levada", "_levada_pytestplugin.py"}

    def test_the_sdist_has_what_is_needed_to_build_and_test(self, compiled: Path) -> None:
        (sdist,) = folder_of(compiled).glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        wanted = ["ext", "src", "tests", "benchmarks", "docs", "examples"]
        mine = {
            str(path.relative_to(ROOT))
            for folder in wanted
            for path in (ROOT / folder).rglob("*")
            if path.is_file()
            and path.suffix not in (".pyc", ".so", ".c")
            and not {"__pycache__", "node_modules", "levada.egg-info"} & set(path.parts)
        }
        top = {"Makefile", "pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
        assert mine | top <= names
        assert [name for name in names if name.endswith((".c", ".so", ".pyc"))] == []

    def test_a_user_who_checks_strictly_is_left_in_peace(self, compiled: Path, tmp_path: Path) -> None:
        (tmp_path / "program.py").write_text(
            "from levada import BACKEND, Event, EventParser, iter_events\n"
            "parser = EventParser(max_event_bytes=1024)\n"
            "events: list[Event] = parser.feed(b'data: a\\n\\n')\n"
            "texts: list[str] = [event.data for event in iter_events([b'data: a\\n\\n'])]\n"
            "print(BACKEND.upper(), parser.close().raw.hex(), events, texts)\n"
        )
        python = ("--python-executable", str(compiled))
        run(sys.executable, "-m", "mypy", "--strict", *python, "--cache-dir=cache", "program.py", cwd=tmp_path)

    def test_the_build_group_repeats_the_build_system(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
        assert set(project["build-system"]["requires"]) <= set(project["dependency-groups"]["build"])
