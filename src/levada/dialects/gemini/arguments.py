"""Assembles the arguments of a function call that come in pieces, each with the JSON path where it belongs.

Vertex AI sends `partialArgs: [{"jsonPath": "$.a[0].b", "stringValue": "…", "willContinue": true}]`. A string comes in
pieces as long as the entry says `willContinue`; an empty piece without it ends the string. Entries need not come in the
order in which JSON would write them, so the JSON text exists once the call is closed, not before.

Source: google-genai 3.6.1 types, recorded Vertex streams, read 2026-11-30.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from levada.dialects.reading import MOST_LEVELS

_STEP: Final = re.compile(
    r"""\.([^.\[\]]+)|\[([0-9]{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""", re.DOTALL
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class _Text:
    """A string that grows."""

    __slots__ = ("pieces",)

    def __init__(self, piece: str) -> None:
        self.pieces = [piece]


class Arguments:
    """The arguments of one call. Every method raises ValueError, with words, for what may have lost a part of them."""

    __slots__ = ("_open", "_root")

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._open: set[str] = set()  # paths of strings that will continue

    @property
    def unfinished(self) -> bool:
        """Whether a string was to continue."""
        return bool(self._open)

    def add_whole(self, args: object) -> None:
        """Take an object of arguments."""
        if not isinstance(args, dict):
            raise ValueError("functionCall.args is no object")
        self._root.update(args)

    def add(self, entry: object) -> None:
        """Take one entry of partialArgs."""
        if not isinstance(entry, dict):
            raise ValueError("an entry of partialArgs is no object")
        path = entry.get("jsonPath")
        if type(path) is not str:
            raise ValueError("a jsonPath is no string")
        box, key, known = self._place(_steps(path))
        text, number, truth = entry.get("stringValue"), entry.get("numberValue"), entry.get("boolValue")
        if text is not None:
            self._add_text(box, key, known, text)
            if entry.get("willContinue") is True:
                self._open.add(path)
            else:
                self._open.discard(path)
            return
        if known and isinstance(box[key], (dict, list, _Text)):
            if path in self._open and number is None and truth is None:
                self._open.discard(path)  # an end without a value: proto3 leaves empty strings out
                return
            raise ValueError("a value of partialArgs takes another one's place")
        if number is not None:
            if type(number) not in (int, float):
                raise ValueError("a numberValue is no number")
            _put(box, key, number)
        elif truth is not None:
            if type(truth) is not bool:
                raise ValueError("a boolValue is no truth value")
            _put(box, key, truth)
        elif "nullValue" in entry:
            _put(box, key, None)  # its own value is null, or the word NULL_VALUE
        else:
            raise ValueError("an entry of partialArgs has no value")

    def text(self) -> str:
        """Return the arguments as compact JSON text."""
        return json.dumps(
            self._root,
            ensure_ascii=False,
            separators=(",", ":"),
            allow_nan=False,
            default=lambda text: "".join(text.pieces),
        )

    def _add_text(self, box: Any, key: Any, known: bool, text: object) -> None:
        if type(text) is not str:
            raise ValueError("a stringValue is no string")
        if not known:
            _put(box, key, _Text(text))
        elif isinstance(box[key], _Text):
            box[key].pieces.append(text)
        else:
            raise ValueError("a value of partialArgs takes another one's place")

    def _place(self, steps: list[str | int]) -> tuple[Any, str | int, bool]:
        """Return the object or list where a path ends, the key there, and whether it has a value already."""
        box: Any = self._root
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            known: bool
            if isinstance(step, int):
                if not isinstance(box, list):
                    raise ValueError("a jsonPath goes into something that is no list")
                if step > len(box):
                    raise ValueError("a jsonPath leaves out an entry of a list")
                known = step < len(box)
            else:
                if not isinstance(box, dict):
                    raise ValueError("a jsonPath goes into something that is no object")
                known = step in box
            if following is None:
                break
            if not known:
                _put(box, step, [] if isinstance(following, int) else {})
            box = box[step]
        return box, step, known


def _put(box: Any, key: Any, value: Any) -> None:
    if isinstance(box, list) and key == len(box):
        box.append(value)
    else:
        box[key] = value


def _steps(path: str) -> list[str | int]:
    """Return the keys and list positions of a JSON path such as `$.a[0]['b c']`."""
    steps: list[str | int] = []
    place = 1
    while place < len(path):
        found = _STEP.match(path, place)
        if found is None or len(steps) == MOST_LEVELS:
            break
        name, position, *quoted = found.groups()
        if position is not None:
            steps.append(int(position))
        else:
            steps.append(name if name is not None else _ESCAPED.sub(r"\1", quoted[0] or quoted[1] or ""))
        place = found.end()
    if not steps or place < len(path) or not path.startswith("$"):
        raise ValueError("a jsonPath cannot be read")
    return steps
