"""A terminal of its own for a command, so that tests see what a person sees."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

try:
    import fcntl
    import pty
    import termios
except ImportError:  # Windows
    pty = None  # type: ignore[assignment]

Terminal = Callable[..., tuple[int, str]]


@pytest.fixture
def terminal() -> Terminal:
    """Run a command of levada on a terminal; give its exit code and its output. `keys` are typed after `after` came."""
    if pty is None:
        pytest.skip("no pseudo-terminals here")
    return _run


def _run(
    *args: str, columns: int = 80, rows: int = 24, keys: bytes = b"", after: str = "", timeout_s: float = 60, **env: str
) -> tuple[int, str]:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    surroundings = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        surroundings.pop(name, None)
    options: dict[str, Any] = {"stdin": side, "stdout": side, "stderr": side, "env": surroundings}
    # the terminal has to be the process's own, for Ctrl-C to reach it
    process = subprocess.Popen(
        [sys.executable, "-m", "levada", *args],
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # no threads here
        **options,
    )
    os.close(side)
    shown = b""
    ends_s = time.monotonic() + timeout_s
    try:
        while time.monotonic() < ends_s:
            try:
                data = os.read(main, 65536)
            except OSError:  # nobody holds its other side any more
                break
            if not data:
                break
            shown += data
            if keys and after in shown.decode("utf-8", "replace"):
                os.write(main, keys)
                keys = b""
        return process.wait(timeout_s), shown.decode("utf-8", "replace")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(main)
