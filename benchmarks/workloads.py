"""The streams that are measured, each named for the branch it stresses, and the ways in which they are delivered.

Every stream is made from a fixed seed and brings its right answer, so that tests use it too.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

READ_BYTES: Final = 16 * 1024  # what one read of a busy socket gives: the buffer of asyncio, h11 and urllib3 is near it
FRAGMENT_BYTES: Final = 37  # odd, so that cuts fall inside characters, field names and line ends alike
EVENTS: Final = 2_000
QUICK_EVENTS: Final = 1_000
MIB: Final = 1024 * 1024

_ASCII: Final = (" the", " river", " and", " channel", " water", " carries", " stone", " light")
_ACCENTS: Final = (" où", " café", " Straße", " naïve")
_CJK: Final = (" 水", " 漢字", " 流れ", " 물길")
_EMOJI: Final = (" 🌊", " 🙂", " 👩‍🚀")
_CJK_TEXT: Final = "水路は山の斜面を静かに流れ一滴もこぼさずに畑まで運ぶ。漢字仮名交じり文、그리고 한글。"


@dataclass(frozen=True)
class Workload:
    """A stream, frame by frame, and the events a parser must find in it as (type, data)."""

    name: str
    frames: tuple[bytes, ...]  # as a server writes them: an event or a comment, with its blank line
    events: tuple[tuple[str, str], ...]
    blank_line: bytes = b"\n\n"

    @property
    def stream(self) -> bytes:
        return b"".join(self.frames)

    def reads(self) -> tuple[bytes, ...]:
        return _cut(self.stream, READ_BYTES)

    def per_event(self) -> tuple[bytes, ...]:
        return self.frames

    def fragments(self) -> tuple[bytes, ...]:
        return _cut(self.stream, FRAGMENT_BYTES)


@dataclass(frozen=True)
class TurnWorkload(Workload):
    """A whole turn: a stream with its finish, usage and terminal signal, and what a reader must make of it."""

    dialect: str = ""
    answer: str = ""
    finish: str = ""  # the provider's own word


DELIVERIES: Final[Mapping[str, Callable[[Workload], tuple[bytes, ...]]]] = MappingProxyType(
    {
        "16 KiB reads": Workload.reads,
        "one event per chunk": Workload.per_event,
        "37-byte fragments": Workload.fragments,
    }
)
TURN_DELIVERIES: Final = tuple(DELIVERIES)[:2]


def chat(events: int = EVENTS) -> Workload:
    """`data:` only, about 330 bytes an event, as OpenAI's chat completions: some ASCII, accents, CJK, emoji."""
    rng = random.Random(1)
    payloads = [_chat_payload(rng, _words(rng)) for _ in range(events - 1)]
    return _data_only("chat stream", [*payloads, "[DONE]"])


def named(events: int = EVENTS) -> Workload:
    """`event:` and `data:`, about 120 bytes an event, as Anthropic's content_block_delta."""
    return _named("named-event stream", events, "\n")


def chat_turn(events: int = EVENTS) -> TurnWorkload:
    """The events of the chat stream between a role chunk and the finish, the usage, `[DONE]`: a whole turn."""
    rng = random.Random(1)
    texts = [_words(rng) for _ in range(events - 4)]
    begin = _chat_payload(rng, "").replace('{"content":""}', '{"role":"assistant","content":"","refusal":null}')
    finish = _chat_payload(rng, "").replace('{"content":""}', "{}").replace('_reason":null', '_reason":"stop"')
    usage = (
        '{"id":"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG","object":"chat.completion.chunk","created":1741570283,'
        '"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_fc9f1d7035","choices":[],"usage":'
        f'{{"prompt_tokens":19,"completion_tokens":{len(texts)},"total_tokens":{19 + len(texts)},'
        '"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}'
    )
    payloads = [begin, *(_chat_payload(rng, text) for text in texts), finish, usage, "[DONE]"]
    plain = _data_only("chat turn", payloads)
    return TurnWorkload(plain.name, plain.frames, plain.events, b"\n\n", "openai_chat", "".join(texts), "stop")


def named_turn(events: int = EVENTS) -> TurnWorkload:
    """The events of the named-event stream inside a message of one text block: a whole turn."""
    rng = random.Random(4)
    texts = [rng.choice(_ASCII + _ACCENTS) for _ in range(events - 5)]
    documents = [
        '{"type":"message_start","message":{"id":"msg_014p7gG3wDgGV9EUtLvnow3U","type":"message","role":"assistant",'
        '"model":"claude-opus-4-20250514","content":[],"stop_reason":null,"stop_sequence":null,"usage":'
        '{"input_tokens":19,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        *(_named_payload(text) for text in texts),
        '{"type":"content_block_stop","index":0}',
        '{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":'
        f'{{"output_tokens":{len(texts)}}}}}',
        '{"type":"message_stop"}',
    ]
    pairs = [(document[9 : document.index('"', 9)], document) for document in documents]
    return TurnWorkload(
        "named-event turn",
        tuple(f"event: {name}\ndata: {data}\n\n".encode() for name, data in pairs),
        tuple(pairs),
        b"\n\n",
        "anthropic",
        "".join(texts),
        "end_turn",
    )


def cjk(events: int = EVENTS) -> Workload:
    """Three bytes a character: what decoding costs. The events of the chat stream with whole clauses of CJK."""
    rng = random.Random(2)
    payloads = []
    for _ in range(events):
        start = rng.randrange(len(_CJK_TEXT) - 24)
        payloads.append(_chat_payload(rng, _CJK_TEXT[start : start + 24]))
    return _data_only("CJK text", payloads)


def crlf(events: int = EVENTS) -> Workload:
    """CRLF at every line end: the search for CR. The named-event stream otherwise."""
    return _named("CRLF", events, "\r\n")


def keep_alives(events: int = EVENTS) -> Workload:
    """A comment between any two events, as a proxy sends while the model thinks."""
    plain = chat(events)
    frames = [frame for event in plain.frames for frame in (b": OPENROUTER PROCESSING\n\n", event)]
    return Workload("keep-alives", tuple(frames), plain.events)


def one_big_event(mib: int = 1) -> Workload:
    """One event of so many MiB, an image in base64: is the time linear? ASCII, where the linear floor is quickest."""
    image = base64.b64encode(random.Random(3).randbytes(mib * MIB * 3 // 4)).decode()
    return _data_only(f"one event of {mib} MiB", [f'{{"b64_json":"{image}"}}'])


TURNS: Final = (chat_turn, named_turn)
STREAMS: Final = (chat, named, cjk, crlf, keep_alives)
BIG_SIZES_MIB: Final = (1, 4, 16)


def _cut(stream: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(stream[start : start + size] for start in range(0, len(stream), size))


def _words(rng: random.Random) -> str:
    # Half the words are ASCII, as in Western prose; the rest makes wide strings common, which cost the most to decode.
    kinds = rng.choices((_ASCII, _ACCENTS, _CJK, _EMOJI), (8, 4, 2, 2), k=rng.randint(1, 3))
    return "".join(rng.choice(kind) for kind in kinds)


def _chat_payload(rng: random.Random, content: str) -> str:
    padding = "".join(
        rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=rng.randint(8, 18))
    )
    return (
        '{"id":"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG","object":"chat.completion.chunk","created":1741570283,'
        '"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_fc9f1d7035","choices":[{"index":0,'
        f'"delta":{{"content":"{content}"}},"logprobs":null,"finish_reason":null}}],"obfuscation":"{padding}"}}'
    )


def _named_payload(text: str) -> str:
    return f'{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}'


def _data_only(name: str, payloads: list[str]) -> Workload:
    return Workload(
        name,
        tuple(f"data: {payload}\n\n".encode() for payload in payloads),
        tuple(("message", payload) for payload in payloads),
    )


def _named(name: str, events: int, line_end: str) -> Workload:
    rng = random.Random(4)
    frames, pairs = [], []
    for _ in range(events):
        data = _named_payload(rng.choice(_ASCII + _ACCENTS))
        frames.append(f"event: content_block_delta{line_end}data: {data}{line_end}{line_end}".encode())
        pairs.append(("content_block_delta", data))
    return Workload(name, tuple(frames), tuple(pairs), 2 * line_end.encode())
