"""Programs to fuzz with: sequences of calls on one object, made at random from telling pieces, or bred by mutation."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Final, NamedTuple


class Call(NamedTuple):
    """One call. `form` is the type in which `payload` is given; both are empty where the method takes nothing."""

    method: str
    form: str = ""
    payload: bytes = b""


class Program(NamedTuple):
    """Calls on one object. `option`: its limit, `errors`, or place in STENCILS. The repr reads back by `eval`."""

    target: str  # one of CLASSES
    option: int | str
    calls: tuple[Call, ...]


# "frames" is the parser as a turn uses it, with all of STENCILS; "stencil" is one of them alone.
CLASSES: Final = {
    "events": "EventParser",
    "text": "Utf8Decoder",
    "array": "JsonArray",
    "frames": "EventParser",
    "stencil": "Stencil",
}
STENCILS: Final = (
    ("message", (b'{"t":"', b'","n":', b',"s":"', b'"}'), "tns"),
    ("message", (b'{"t":"', b'"}'), "t"),
    ("e", (b'"', b'"'), "t"),
    ("e", (b'{"s":"', b'","t":"', b'"}'), "st"),
    ("e", (b'"', b'",', b""), "tn"),  # a hole at the very end
)
_LIMITS: Final[list[int | str]] = [1, 3, 5, 8, 12, 20, 64, 300, 2**20, 2**20, 2**63 - 1]
OPTIONS: Final[dict[str, list[int | str]]] = {
    "events": _LIMITS,
    "text": ["replace", "strict"],
    "array": [1, 2, 5, 9, 30, 300, 2**20, 2**20],
    "frames": [*_LIMITS[5:], *_LIMITS[8:]],
    "stencil": [*range(len(STENCILS))],
}
METHODS: Final = {
    "events": ["feed"] * 6 + ["feed_all"] * 3 + ["feed_text"],
    "text": ["decode"] * 9 + ["decode_final"],
    "array": ["feed"],
    "frames": ["_feed_frames"] * 9 + ["feed"],
    "stencil": ["match", "delta"],
}
# Calls of another kind, between the others: `init` is __init__ once more, which must leak and break nothing.
PAUSES: Final = {
    "events": ["close", "init"],
    "text": ["reset", "init"],
    "array": ["close", "init"],
    "frames": ["close", "_close_frames", "init"],
    "stencil": ["none"],
}
_ANY_FORM: Final = ["bytes"] * 12 + ["bytearray", "memoryview", "strided", "str", "none"]
FORMS: Final = dict.fromkeys(CLASSES, _ANY_FORM) | {"stencil": ["bytes"]}  # its argument is ours, not the user's


def _pieces(*lines: bytes) -> list[bytes]:
    return [piece for line in lines for piece in line.split(b"|")]


_CHARACTERS: Final = _pieces(
    b"\xe6\xb0\xb4|\xc3\xa9|\xf0\x9f\x98\x80|\xef\xbf\xbd|\xe2\x80\xa8|\xf4\x8f\xbf\xbf|\x7f",
    # the last and the first character of each width, in bytes and in Python's strings, and beside the surrogates
    b"\xc2\x80|\xc3\xbf|\xc4\x80|\xdf\xbf|\xe0\xa0\x80|\xed\x9f\xbf|\xee\x80\x80|\xef\xbf\xbf|\xf0\x90\x80\x80",
    b"\xef|\xbb|\xbf|\xef\xbb|\xbb\xbf|\xef\xbb\xbf",  # a byte order mark and its pieces
    b"\xff|\x80|\xc0\x80|\xc1\xbf|\xe0\x80|\xe0\xa0|\xed\xa0\x80|\xed\x9f|\xf0\x8f|\xf0\x90|\xf4\x90|\xf5",
    b"\xe6\xb0|\xf0\x9f|\xf0\x9f\x98|\xc3|a|abcdefg|\0|caf\xc3\xa9 caf\xc3\xa9 caf\xc3\xa9 ",
    b"xxxxxxx|xxxxxxxx|xxxxxxxxxxxxxxx|xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
)
_ENDS: Final = [b"\n", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r"]
_FIELDS: Final = _pieces(
    b"data|data:|data: |data: x|data:x|data:  y|data: \xe6\xb0\xb4|dat|d|datax| data",
    b"event|event:|event: e|event: message|event: ping|even|event: " + b"e" * 33,
    b"id|id:|id: 1|id: a\0b|id:\0|i|idx|id: \xff",
    b"retry|retry:|retry: |retry: 12|retry:007|retry: 1x|retry: \xd9\xa1|retr",
    b":|: c|: |::|foo: bar|{|error: {}|[DONE]",
)
_JSON: Final = _pieces(
    b'[|]|{|}|,|[{|},|},{|}]|{}|{"a":1}|"|"a"|\\|\\"|\\\\|"}"|"{"| |\n|\t\r\n |:|[]|[{}]|{"a":"\\u007d"}|null|1|\x0b',
)
_DOCUMENTS: Final = _pieces(
    b'data: {"t":"hello","n":12,"s":"x"}\n\n|data: {"t":"hello"}\n\n|event: e\n|data: "a"\n\n|data: |\ndata: ',
    b'{"t":"|","n":|,"s":"|"}|{"s":"|","t":"|"|12|0|00|123456789012345678|1234567890123456789|abc|},{',
    b'\\n|\\u00e9|\\ud83d\\ude00|\\ud83d|\\"|\\\\|\\|\\x|\x1f|\t|[DONE]|: c',
)
_LONG: Final = [b"x" * 300, b"x" * 1100, b"data: y\n" * 9, b": z\n" * 20, b"\n" * 20, b"\xe6\xb0\xb4" * 400]
_DIGITS: Final = [b"9" * 20, b"9" * 4_000, b"1" * 9_999, b"9" * 10_000, b"9" * 10_001, b"0" * 11_000]
ATOMS: Final = {
    "events": _ENDS * 6 + _FIELDS * 2 + _CHARACTERS + [b" ", b":"] * 3,
    "text": _CHARACTERS,
    "array": _JSON * 3 + _CHARACTERS,
    "frames": _ENDS * 2 + _DOCUMENTS * 2 + _CHARACTERS,
    "stencil": _DOCUMENTS * 2 + _CHARACTERS,
}


def random_stream(random: Random, target: str, longest: int = 40) -> bytes:
    """Return bytes that mean something to `target`, or nearly."""
    atoms = random.choices(ATOMS[target], k=random.randint(1, longest))
    if random.random() < 0.04:
        atoms.insert(random.randrange(len(atoms) + 1), random.choice(_LONG))
    while target == "frames" and random.random() < 0.8:  # what nearly fits a stencil, or does
        line = random.choice([b"", b"", b"event: e\n"]) + b"data: " + random_document(random) + b"\n\n"
        atoms.insert(random.randrange(len(atoms) + 1), line)
    while target == "events" and random.random() < 0.25:
        # runs of ASCII of any length between the others: decoders take them in blocks
        parts = [random.choice([b"a" * random.randrange(70), *_CHARACTERS[:20]]) for _ in range(random.randint(1, 5))]
        line = b"data: " + b"".join(parts + random.choices(_CHARACTERS, k=random.randint(0, 9))) + random.choice(_ENDS)
        atoms.insert(random.randrange(len(atoms) + 1), line)
    if target == "events" and random.random() < 0.01:
        atoms.insert(random.randrange(len(atoms) + 1), b"retry: " + random.choice(_DIGITS))
    if target == "array" and random.random() < 0.7:
        atoms.insert(0, random.choice([b"[", b"{", b"[{", b" [", b"\xef\xbb\xbf["]))
    return b"".join(atoms)


def random_document(random: Random) -> bytes:
    """Return what fits one of STENCILS, or fails to by a little."""
    _, literals, holes = random.choice(STENCILS)
    document = literals[0]
    for hole, literal in zip(holes, literals[1:], strict=True):
        inside = random.choices(_DOCUMENTS[-12:] + _CHARACTERS if random.random() < 0.3 else _CHARACTERS, k=3)
        document += random.choice([b"0", b"7", b"1234", b"00", b"", b"1" * 19]) if hole == "n" else b"".join(inside)
        document += literal
    return document[: random.randrange(len(document))] if random.random() < 0.1 else document


def random_cuts(random: Random, stream: bytes, most: int = 8) -> list[bytes]:
    """Cut a stream anywhere; a cut twice at one place makes an empty chunk."""
    cuts = sorted(random.choices(range(len(stream) + 1), k=random.randint(0, most)))
    return [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]


def random_program(random: Random) -> Program:
    """Return a program over a random stream, cut at random, its chunks by any method in any form."""
    target = random.choices([*CLASSES], [6, 2, 3, 3, 1])[0]
    if target == "stencil":
        documents = [random_document(random) for _ in range(random.randint(1, 5))]
        calls = [Call(random.choice(METHODS[target]), "bytes", document) for document in documents]
        return Program(target, random.choice(OPTIONS[target]), tuple(calls))
    stream = random_stream(random, target, 10 if target == "frames" else 40)
    chunks = [stream[i : i + 1] for i in range(len(stream))] if random.random() < 0.05 else random_cuts(random, stream)
    steady = random.random() < 0.4  # one method and bytes throughout, as real callers do
    method = random.choice(METHODS[target])
    calls = [
        Call(method, "bytes", chunk)
        if steady and method != "feed_text"
        else Call(random.choice(METHODS[target]), random.choice(FORMS[target]), chunk)
        for chunk in chunks
    ]
    if random.random() < 0.05:
        calls.insert(random.randrange(len(calls) + 1), Call(random.choice(PAUSES[target])))
    if random.random() < 0.7:  # the others are dropped with what they hold
        calls.append(Call("decode_final", "bytes", b"") if target == "text" else Call("close"))
    if random.random() < 0.1:
        calls += [*random.choices(calls, k=2), calls[-1]]
    return Program(target, random.choice(OPTIONS[target]), tuple(calls))


def mutated(random: Random, program: Program, other: Program) -> Program:
    """Return a program like this one, with one to four changes; `other` may give it some of its calls."""
    target, option, calls = program.target, program.option, list(program.calls)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(calls))
        method, form, payload = calls[at]
        place = random.randrange(len(payload) + 1)
        rest = random.randrange(place, len(payload) + 1)
        match random.randrange(11):
            case 0:
                option = random.choice(OPTIONS[target])
            case 1:
                form = random.choice(FORMS[target])
            case 2:
                method = random.choice(METHODS[target])
                form = form or "bytes"
            case 3:
                payload = payload[:place] + random.choice(ATOMS[target]) + payload[place:]
            case 4:
                payload = payload[:place] + payload[rest:]
            case 5 if len(payload) < 4_000:
                payload = payload[:rest] + payload[place:rest] * random.randint(1, 4) + payload[rest:]
            case 6:
                payload = payload[:place] + bytes([random.randrange(256)]) + payload[place + 1 :]
            case 7:  # cut in two
                calls.insert(at + 1, Call(method, form, payload[place:]))
                payload = payload[:place]
            case 8 if at + 1 < len(calls) and len(calls[at + 1].payload) + len(payload) < 20_000:  # mend a cut
                payload += calls.pop(at + 1).payload
            case 9 if len(calls) < 60:
                calls.insert(at, Call(random.choice(PAUSES[target])) if random.random() < 0.2 else calls[at])
            case 10 if other.target == target:
                calls[at + 1 :] = other.calls[random.randrange(len(other.calls)) :]
        calls[at] = Call(method, form, payload)
    return Program(target, option, tuple(calls[:80]))
