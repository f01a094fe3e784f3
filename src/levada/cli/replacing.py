"""A file that is whole or not there: written beside its place, and put into it at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from levada.cli.exits import Unusable
from levada.cli.shown import one_line

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file that becomes `path` where the block ends well, and is gone where it does not.

    Only its owner may read it. A link is followed. Raises Unusable where it cannot be written.
    """
    shown = one_line(str(path))
    place = path.resolve()
    if place.exists() and not place.is_file():
        raise Unusable(f"{shown} is no regular file; say - and send the output there")
    beside: str | None = None
    try:
        handle, beside = tempfile.mkstemp(prefix=".levada-", suffix=".tmp", dir=place.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
        beside = None
    except OSError as error:
        raise Unusable(f"cannot write {shown}: {error.strerror or error}") from error
    finally:
        if beside is not None:
            with suppress(OSError):
                os.unlink(beside)
