"""The extension under AddressSanitizer and UndefinedBehaviorSanitizer: how it is built, loaded and fed.

A bytes object ends in a NUL that is no part of the chunk, so that a core which reads one byte too far stays inside the
object, and no sanitizer sees it. `exact` makes the NUL, and the word before the first byte, out of bounds as well.
`BUFFER_SEAL` in the extension does the same for the spare room of its own buffers.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
BUILD: Final = ROOT / "build" / "fuzz"
NAME: Final = "levada._hotpath_c"
LIBRARY: Final = BUILD / f"_hotpath_c{sysconfig.get_config_var('EXT_SUFFIX')}"
CORE: Final = ROOT / "ext" / "_hotpath_c.pyx"
COVERAGE: Final = HERE / "coverage.c"
SANITIZE: Final = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


class UnavailableError(Exception):
    """No sanitizer build can be made or run here, and why."""


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UnavailableError(f"{command[0]} is not there") from error
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def runtime() -> str:
    """Return the path of gcc's libasan, which must be loaded before Python. CC names another gcc."""
    compiler = os.environ.get("CC", "gcc")
    if not sys.platform.startswith("linux"):
        raise UnavailableError(f"the sanitizer build is for gcc on Linux, not {sys.platform}")
    if "Free Software Foundation" not in _run(compiler, "--version"):
        raise UnavailableError(f"{compiler} is not gcc, whose libasan and trace-pc this needs")
    path = Path(_run(compiler, "-print-file-name=libasan.so"))
    if not path.is_absolute() or path.read_bytes()[:4] != b"\x7fELF":
        raise UnavailableError(f"{compiler} has no libasan")
    return str(path)


def build() -> None:
    """Compile the extension into build/fuzz, where a source is newer than what is there. Takes about half a minute."""
    sources = [*CORE.parent.iterdir(), COVERAGE, Path(__file__)]
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return
    try:
        import Cython  # noqa: F401  # only to see whether it is there
    except ImportError as error:
        raise UnavailableError("Cython is not installed") from error
    BUILD.mkdir(parents=True, exist_ok=True)
    c_file, core, coverage = BUILD / "_hotpath_c.c", BUILD / "_hotpath_c.o", BUILD / "coverage.o"
    compiler = os.environ.get("CC", "gcc")
    paths = sysconfig.get_paths()
    compile_ = [compiler, *SANITIZE, "-fsanitize-coverage=trace-pc", "-O1", "-g", "-fwrapv", "-fPIC", "-c"]
    includes = [f"-I{CORE.parent}", f"-I{paths['include']}", f"-I{paths['platinclude']}"]
    _run(sys.executable, "-m", "cython", "--module-name", NAME, str(CORE), "-o", str(c_file))
    _run(*compile_, *includes, str(c_file), "-o", str(core))
    _run(*compile_, str(COVERAGE), "-o", str(coverage))
    # renamed when complete: a build that was stopped, or one beside this one, leaves nothing broken
    fresh = LIBRARY.with_suffix(f".{os.getpid()}")
    _run(compiler, *SANITIZE, "-shared", str(core), str(coverage), "-o", str(fresh))
    fresh.replace(LIBRARY)


def environment() -> dict[str, str]:
    """Return the environment in which a Python can load the build. Its own leaks are not ours, so leaks are off."""
    return os.environ | {
        "LD_PRELOAD": runtime(),
        "ASAN_OPTIONS": "exitcode=99:detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "exitcode=99:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # small objects come from malloc, where the sanitizer sees them
        "PYTHONHASHSEED": "0",
        "LEVADA_BACKEND": "python",  # the compiled twin of this process is the one that `load` brings
    }


def load() -> ModuleType:
    """Return the sanitized twin, in a process with this environment."""
    spec = spec_from_file_location(NAME, LIBRARY, loader=ExtensionFileLoader(NAME, str(LIBRARY)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a C function of this process: of libasan, of the extension or of libc."""
    found = getattr(ctypes.CDLL(str(LIBRARY)), name)
    found.restype, found.argtypes = result, arguments
    return found


_DATA: Final = bytes.__basicsize__ - 1  # where the bytes of a bytes object begin
_SIZE: Final = object.__basicsize__  # where its size is written


def exact_maker() -> Any:
    """Return `exact`: bytes to equal bytes, of which nothing before the first and behind the last may be touched.

    The sizes 0 and 1 are made by hand, because Python keeps one shared object of each.
    """
    new = ctypes.pythonapi.PyBytes_FromStringAndSize
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
    poison = function("__asan_poison_memory_region", None, ctypes.c_void_p, ctypes.c_size_t)

    def exact(data: bytes) -> bytes:
        size = len(data)
        made: bytes = new(data, size) if size > 1 else new(None, 1)
        begin = id(made) + _DATA
        if size < 2:
            ctypes.memmove(begin, data, 1)  # of an empty one its NUL, on which Python's comparison relies
            ctypes.c_ssize_t.from_address(id(made) + _SIZE).value = size
        poison(begin + size, 1 if size else 2)
        poison(begin - 8, 8)  # the cached hash, which only Python itself reads
        return made

    is_poisoned = function("__asan_address_is_poisoned", ctypes.c_int, ctypes.c_void_p)
    for size in range(70):  # the drivers are worth as much as this
        made = exact(bytes(size))
        begin = id(made) + _DATA
        reach = [bool(is_poisoned(begin + place)) for place in range(-1, size + 1)]
        assert made == bytes(size)
        assert reach == [True, *[False] * size, True], f"exact memory of {size} bytes is not exact: {reach}"
    return exact
