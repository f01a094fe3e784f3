"""Plays programs on a twin, and says where the twins differ or where a cut changes what comes out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any, Final

from levada.errors import StreamError
from tests.fuzz.programs import CLASSES, METHODS, OPTIONS, STENCILS, Call, Program, random_cuts, random_stream

KEYWORDS: Final = {
    "events": "max_event_bytes",
    "frames": "max_event_bytes",
    "text": "errors",
    "array": "max_item_bytes",
}
STATE: Final = {
    "events": ("last_event_id", "retry", "ignored_lines"),
    "frames": ("last_event_id", "retry", "ignored_lines"),
    "text": ("pending",),
    "array": ("closed",),
    "stencil": ("event",),
}
BYTEWISE_UP_TO: Final = 3_000

Exact = Callable[[bytes], bytes]  # the same bytes in memory that ends where they end: `sanitized.exact`


def _argument(form: str, payload: bytes, exact: Exact) -> Any:
    match form:
        case "bytes":
            return exact(payload)
        case "bytearray":
            return bytearray(payload)
        case "memoryview":
            return memoryview(payload)
        case "strided":
            return memoryview(bytes(byte for pair in zip(payload, payload, strict=True) for byte in pair))[::2]
        case "str":
            return payload.decode("utf-8", "surrogateescape")  # lone surrogates where the bytes are no text
    return None


def _delta(text: str, channel: str, choice: int, block: int, kind: object, log: Any, length: int) -> Any:
    return "delta", text, channel, choice, block, kind, length, log.text()


def _stencil(hotpath: ModuleType, number: int | str) -> Any:
    event, literals, holes = STENCILS[int(number)]
    return hotpath.Stencil(event, literals, holes, _delta, "answer", 0, 0, None, hotpath.TextLog())


def _make(hotpath: ModuleType, target: str, option: int | str) -> Any:
    if target == "stencil":
        return _stencil(hotpath, option)
    return getattr(hotpath, CLASSES[target])(**{KEYWORDS[target]: option})


# Python's own check of a string: its width is the narrowest that fits, and a NUL follows it. Ends the process if not.
_check_text: Final = getattr(ctypes.pythonapi, "_PyUnicode_CheckConsistency", None)


def _plain(value: Any) -> Any:
    """Return a value of either twin as one that compares, type and all."""
    if isinstance(value, str) and _check_text is not None:
        _check_text(ctypes.py_object(value), 1)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_plain(item) for item in value]
    if type(value).__name__ == "Event":
        return "Event", *(_plain(part) for part in (value.event, value.data, value.id, value.retry))
    return type(value), value


def _stencils(hotpath: ModuleType, target: str) -> list[Any]:
    return [_stencil(hotpath, number) for number in range(len(STENCILS))] if target == "frames" else []


def _perform(thing: Any, program: Program, call: Call, exact: Exact, stencils: list[Any]) -> Any:
    match call.method:
        case "none":
            return None
        case "_feed_frames":
            return thing._feed_frames(_argument(call.form, call.payload, exact), stencils)
        case "init":
            return thing.__init__(**{KEYWORDS[program.target]: program.option})
        case "close" | "_close_frames" | "reset":
            return getattr(thing, call.method)()
        case "decode_final":
            return thing.decode(_argument(call.form, call.payload, exact), True)
    return getattr(thing, call.method)(_argument(call.form, call.payload, exact))


def _outcome(thing: Any, program: Program, call: Call, exact: Exact, stencils: list[Any]) -> Any:
    try:
        return _plain(_perform(thing, program, call, exact, stencils))
    except Exception as error:  # whatever it is, both twins must raise it
        completed = error.completed if isinstance(error, StreamError) else ()
        return type(error), str(error), error.args, _plain(completed)


def exercise(hotpath: ModuleType, program: Program, exact: Exact) -> None:
    """Play a program for what a sanitizer says of it."""
    thing, stencils = _make(hotpath, program.target, program.option), _stencils(hotpath, program.target)
    for call in program.calls:
        try:
            _perform(thing, program, call, exact, stencils)
        except Exception:  # `transcript` compares errors; here they only must not stop the program
            continue


def transcript(hotpath: ModuleType, program: Program, exact: Exact = bytes) -> list[Any]:
    """Return what each call gave or raised, and the public state after it."""
    thing, stencils = _make(hotpath, program.target, program.option), _stencils(hotpath, program.target)
    return [
        (_outcome(thing, program, call, exact, stencils), *(getattr(thing, name) for name in STATE[program.target]))
        for call in program.calls
    ]


def difference(one: ModuleType, two: ModuleType, program: Program, exact: Exact = bytes) -> str:
    """Return where two twins differ on a program, in words, or "". `exact` is for the second."""
    first, second = transcript(one, program), transcript(two, program, exact)
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if a != b:
            return f"the twins differ at call {number} of\n{program!r}\n{one.__name__}: {a!r}\n{two.__name__}: {b!r}"
    return ""


def _flat(hotpath: ModuleType, target: str, option: int | str, method: str, chunks: list[bytes]) -> Any:
    """Return what came out of a stream, whichever call brought it: results, the error or the rest, the state."""
    thing = _make(hotpath, target, option)
    results: list[Any] = []
    end: Any = None
    try:
        if target == "text":
            results = ["".join([*(thing.decode(chunk) for chunk in chunks), thing.decode(b"", True)])]
        else:
            for chunk in chunks:
                results += getattr(thing, method)(chunk)
            end = thing.close()
    except UnicodeDecodeError as error:  # its place counts from the last boundary, its chunk's text goes with it
        results, end = [], (type(error), error.reason, error.object[error.start : error.end])
    except StreamError as error:
        results += error.completed
        end = type(error), error.args, str(error)
    return _plain(results), end, [getattr(thing, name) for name in STATE[target]]


def broken_cut(hotpaths: tuple[ModuleType, ...], random: Random) -> str:
    """Cut one random stream in several ways on all twins; return where the results differ, in words, or ""."""
    target = random.choices(["events", "text", "array"], [6, 2, 3])[0]
    option = random.choice(OPTIONS[target])
    method = random.choice([name for name in METHODS[target] if name != "feed_text"])
    stream = random_stream(random, target)
    forms = [[stream], random_cuts(random, stream), random_cuts(random, stream, 30)]
    if len(stream) <= BYTEWISE_UP_TO:
        forms.append([stream[i : i + 1] for i in range(len(stream))])
    expected = _flat(hotpaths[0], target, option, method, [stream])
    for hotpath in hotpaths:
        for chunks in forms:
            found = _flat(hotpath, target, option, method, chunks)
            if found != expected:
                return (
                    f"a cut changes what {CLASSES[target]}.{method} gives, option {option!r}\n"
                    f"{hotpaths[0].__name__}, whole: {expected!r}\n{hotpath.__name__}, {chunks!r}: {found!r}"
                )
    return ""
