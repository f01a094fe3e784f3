"""Reads a provider's JSON without raising: what is odd is tolerated and counted, what may lose text is an error."""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar

import msgspec

from levada.draft import Draft

_ANYTHING: Final = msgspec.json.Decoder()
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_T = TypeVar("_T")

# Levels of objects and lists in one event. Answers in the field stay below 30; 100 is the limit of protocol buffers'
# own JSON reader, so Google's services can send no more; and Python's copy.deepcopy ends near 300.
MOST_LEVELS: Final = 100


def read(data: bytes, decoder: msgspec.json.Decoder[_T], shape: type[_T], draft: Draft) -> _T | list[Any] | None:
    """Return one event's data as `shape` where it is an object, as a list where it is one, else None.

    `shape` is a Struct of the keys that the dialect looks at, all of type Any with default None, so that nothing else
    is built and no wrong type raises here. Data that begins as JSON and is not breaks the protocol; other data, a bare
    null, number or string are counted. Lone surrogates become U+FFFD, as malformed UTF-8 does. What is nested so deeply
    that copying or comparing it later could exhaust the stack breaks the protocol too.
    """
    value: Any
    try:
        value = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        value = _read_anything(data, draft)
        if isinstance(value, dict):
            value = msgspec.convert(value, shape)
    if len(data) > 2 * MOST_LEVELS and data.count(b"{") + data.count(b"[") > MOST_LEVELS and is_deep(value):
        draft.break_protocol(f"event data nested deeper than {MOST_LEVELS} levels")
        return None
    if isinstance(value, (shape, list)):
        return value
    return None


def is_deep(value: object) -> bool:
    """Say whether a value is nested deeper than MOST_LEVELS: copying or comparing it could exhaust the stack."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        inner: list[object] = []
        for outer in level:
            if isinstance(outer, dict):
                inner.extend(outer.values())
            elif isinstance(outer, list):
                inner.extend(outer)
            elif isinstance(outer, msgspec.Struct):
                inner.extend(msgspec.structs.astuple(outer))
        if not inner:
            return False
        level = inner
    return True


def read_document(data: bytes | str) -> Any:
    """Return a JSON document, read as leniently as the standard library does; None where it is none, or too deep."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        value = _without_surrogates(json.loads(text.strip(" \t\r\n\ufeff")))
    except (ValueError, RecursionError):
        return None
    return None if is_deep(value) else value


def _read_anything(data: bytes, draft: Draft) -> Any:
    try:
        value = _ANYTHING.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        value = read_document(data)
        if value is not None:
            draft.anomaly("lenient_json")
            return value
        if data.lstrip(b" \t\r\n")[:1] in (b"{", b"["):
            draft.break_protocol("event data begins as JSON and is not")
        else:
            draft.anomaly("not_json")
        return None
    if not isinstance(value, (dict, list)):
        draft.anomaly("not_an_object")
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value


def as_count(value: object) -> int | None:
    """Return a token count, also where a server writes it as a float; None for anything else."""
    if type(value) is int and value >= 0:
        return value
    if type(value) is float and value >= 0 and value.is_integer():
        return int(value)
    return None


def compact(value: Any) -> str:
    """Return `value` as compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
