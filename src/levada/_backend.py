"""Chooses the twin of the hot path and keeps the reason. The only `except ImportError` in the package.

`LEVADA_BACKEND=auto|cython|python` (default auto): auto takes the compiled twin and falls back to Python. An extension
that is absent is a quiet matter; one that is there but fails gives one RuntimeWarning.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from levada.errors import UsageError

_COMPILED: Final = "levada._hotpath_c"
_REFERENCE: Final = "levada._hotpath_py"


def _choose(wanted: str) -> tuple[ModuleType, str, str]:
    """Return the hot-path module, the backend's name, and why, in words."""
    if wanted not in ("auto", "cython", "python"):
        raise UsageError(f"LEVADA_BACKEND must be auto, cython or python, not {wanted!r:.100}")
    if wanted == "python":
        return import_module(_REFERENCE), "python", "asked for by LEVADA_BACKEND=python"
    try:
        # not `from levada import`: that hides "missing" behind "circular import"
        module = import_module(_COMPILED)
    except ImportError as error:
        if wanted == "cython":
            raise  # asked for by name: never fall back in silence
        if find_spec(_COMPILED) is None:
            reason = "the extension was not built; reinstall with LEVADA_BUILD_EXT=yes to see why"
        else:
            reason = f"the extension is there but failed: {error}"
            warnings.warn(f"levada runs in pure Python: {reason}", RuntimeWarning, stacklevel=2)
        return import_module(_REFERENCE), "python", reason
    reason = "asked for by LEVADA_BACKEND=cython" if wanted == "cython" else "the extension is built and works"
    return module, "cython", reason


hotpath, BACKEND, BACKEND_REASON = _choose(os.environ.get("LEVADA_BACKEND") or "auto")
