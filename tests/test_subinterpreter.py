"""A second interpreter in one process: the extension refuses it cleanly, and `auto` falls back to Python.

A trial that declared support for subinterpreters crashed; this test holds the decision not to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import levada

# Runs `code` in a new interpreter, after the main one has loaded the extension. The module has had several names.
MAIN = """
import sys
import levada
assert levada.BACKEND == "cython", levada.BACKEND_REASON
code = sys.stdin.read()
if sys.version_info >= (3, 14):
    from concurrent import interpreters
    interpreters.create().exec(code)
elif sys.version_info >= (3, 13):
    import _interpreters
    failure = _interpreters.exec(_interpreters.create(), code)
    assert failure is None, failure
else:
    import _xxsubinterpreters
    _xxsubinterpreters.run_string(_xxsubinterpreters.create(), code)
assert levada.EventParser().feed(b"data: a\\n\\n")[0].data == "a"  # the first one still works
"""

SECOND = f"""
import json, sys, warnings
sys.path.insert(0, {str(Path(levada.__file__).parents[1])!r})
said = {{}}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import levada
    said["warnings"] = [(w.category.__name__, str(w.message)) for w in caught]
said["backend"], said["reason"] = levada.BACKEND, levada.BACKEND_REASON
said["data"] = levada.EventParser().feed(b"data: a\\n\\n")[0].data
try:
    import levada._hotpath_c
except ImportError as error:
    said["error"] = str(error)
print(json.dumps(said))
sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def said(twins: tuple[ModuleType, ModuleType]) -> Any:
    """What the second interpreter said of itself."""
    environment = {**os.environ, "LEVADA_BACKEND": "auto", "PYTHONPATH": str(Path(levada.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", MAIN], input=SECOND, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestSecondInterpreter:
    def test_the_extension_is_a_clean_import_error(self, said: Any) -> None:
        assert "interpreter" in said["error"]

    def test_auto_falls_back_to_python_with_that_reason(self, said: Any) -> None:
        assert said["backend"] == "python"
        assert said["reason"] == f"the extension is there but failed: {said['error']}"
        assert said["data"] == "a"

    def test_one_warning_says_so(self, said: Any) -> None:
        assert said["warnings"] == [["RuntimeWarning", f"levada runs in pure Python: {said['reason']}"]]
