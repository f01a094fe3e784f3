"""The extension and its switch, nothing else; all other settings are in pyproject.toml.

LEVADA_BUILD_EXT: yes = must compile, no = never, auto (default) = if it can.
"""

import os

from setuptools import Extension, setup

MODE = os.environ.get("LEVADA_BUILD_EXT") or "auto"
if MODE not in ("auto", "yes", "no"):
    raise SystemExit(f"LEVADA_BUILD_EXT must be auto, yes or no, not {MODE!r}")
if MODE == "yes":
    import Cython  # noqa: F401  # a missing Cython must be an error here, not a silently skipped extension

hot = Extension(
    "levada._hotpath_c",
    ["ext/_hotpath_c.pyx"],
    include_dirs=["ext"],
    depends=["ext/_utf8.h"],
    optional=MODE != "yes",
)
setup(ext_modules=[] if MODE == "no" else [hot])
