"""The scenarios of the demo: streams with invented content, how they are cut, how fast they come, how they break."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import cycle, islice
from typing import Any, Final, Literal

from levada.frames import JsonArray
from levada.sse import encode_json

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One stream, and how it is played.

    `pieces`: what is sent, one send and one HTTP chunk each. `delay_s`: between two of them; `first_delay_s`: before
    the first. `breaks_at`: how many are sent before the body ends, by closing the connection or `clean`, as a server
    does that thinks it is done. `heals`: only the first of two equal requests breaks.
    """

    name: str
    group: str
    title: str
    note: str
    dialect: str
    pieces: Callable[[], list[bytes]]
    profile: str | None = None
    content_type: str = "text/event-stream"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    first_delay_s: float = 0.4
    delay_s: float = 0.05
    breaks_at: int | None = None
    ends: Literal["close", "clean"] = "close"
    heals: bool = False


def _events(name: str) -> list[bytes]:
    """Return a recorded stream, one piece for each event or item."""
    body = files(__package__).joinpath(name).read_bytes()
    if name.endswith(".json"):
        first, *rest = JsonArray().feed(body)
        return [b"[" + first, *(b",\r\n" + item for item in rest), b"]\n"]
    return [piece for piece in re.split(rb"(?<=\n\n)|(?<=\n\r\n)", body) if piece]


def _crumbs(name: str, size: int) -> list[bytes]:
    """Return a recorded stream in pieces of so many bytes, which cut events and characters."""
    body = b"".join(_events(name))
    return [body[at : at + size] for at in range(0, len(body), size)]


def _chat(deltas: list[dict[str, Any]], finish: str = "stop", tokens: int = 0) -> list[bytes]:
    head = {"id": "chatcmpl-demo", "object": "chat.completion.chunk", "created": 1790755200, "model": "levada-demo"}

    def event(delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
        return encode_json({**head, "choices": [choice]})

    usage = {"prompt_tokens": 21, "completion_tokens": tokens, "total_tokens": 21 + tokens}
    return [
        event({"role": "assistant", "content": ""}),
        *map(event, deltas),
        event({}, finish_reason=finish),
        encode_json({**head, "choices": [], "usage": usage}),
        encode_json(None).replace(b"null", b"[DONE]"),
    ]


_PROSE: Final = (
    "A levada begins where the clouds leave their water, high in the north of the island, and it ends in a banana "
    "field in the south. Between the two it may run for fifty kilometres, through tunnels and over ravines, and it "
    "falls so little that a leaf on it keeps pace with a walker. Quem cuida dela é o levadeiro: limpa as folhas, abre "
    "e fecha as comportas, e reparte as horas de água. 水は道を見つける — water finds its way, 🏞️ but here the way "
    "was cut for it by hand, from baskets that hung on ropes.\n\n"
)


def _fast(deltas: int) -> list[bytes]:
    words = [f"{word} " for word in _PROSE.split(" ")]
    thoughts = [{"reasoning_content": word} for word in islice(cycle(words), deltas // 8)]
    return _chat(
        [*thoughts, *({"content": word} for word in islice(cycle(words), deltas))], tokens=deltas + deltas // 8
    )


_MARKUP: Final = (
    "<script>document.title='owned'</script>\n"
    "<img src=x onerror=\"document.title='owned'\">\n"
    "<b>not bold</b> <!-- not hidden --> &lt;not an entity&gt; &amp;\n"
    "[a link](javascript:document.title='owned') ![](https://tracker.invalid/pixel.png)\n"
    "</p></div></body><style>* { display: none }</style>\n"
    "right-to-left: \u202egnitirw sdrawkcab\u202c, isolates: \u2066\u05e9\u05dc\u05d5\u05dd\u2069\n"
    "a line separator:\u2028after it, a next line:\u0085after it\n"
    "terminal: \x1b[31mred\x1b[0m, nul: [\x00], byte order mark: [\ufeff], lone half: [\ud83d]\n"
    'data: [DONE]\n\nevent: end\ndata: {"state":"finished"}\n\n'
    + "averylongwordwithoutanyplacetobreakit" * 12
    + "\n{{7*7}} ${7*7} <%= 7*7 %>\n"
)


def _hostile() -> list[bytes]:
    def split(text: str) -> Iterator[str]:
        for at in range(0, len(text), 9):
            yield text[at : at + 9]

    thoughts = [{"reasoning_content": part} for part in split("<h1>thinking</h1> </details><script>1</script> ")]
    answer = [{"content": part} for part in split(_MARKUP)]
    arguments = json.dumps({"path": "</pre><script>document.title='owned'</script>"})
    call = {"name": "<img src=x onerror=alert(1)>", "arguments": arguments}
    tool = {"tool_calls": [{"index": 0, "id": 'call"><b>', "type": "function", "function": call}]}
    sources = [
        {
            "type": "url_citation",
            "url_citation": {"url": url, "title": "<i>source</i>", "start_index": 0, "end_index": 8},
        }
        for url in (
            "javascript:document.title='owned'",
            "data:text/html,<script>1</script>",
            "https://walks.example/a?b=<c>",
        )
    ]
    deltas: list[dict[str, Any]] = [*thoughts, *answer, tool, {"annotations": sources}]
    # a lone half of a surrogate pair has no UTF-8 form: it is written as JSON escapes it
    return _chat(deltas, "tool_calls", tokens=len(answer))


_DIALECTS: Final = (
    ("openai_chat", "OpenAI chat", "openai_chat.sse", "deepseek", "Reasoning first, then the answer, in chat chunks."),
    (
        "openai_responses",
        "OpenAI responses",
        "openai_responses.sse",
        None,
        "Named events, with a summary of the reasoning.",
    ),
    ("anthropic", "Anthropic", "anthropic.sse", None, "Content blocks: thinking, then text."),
    ("gemini", "Gemini", "gemini.sse", None, "Parts marked as thoughts; no terminal event but a clean end."),
    ("vertex_search", "Vertex AI Search", "vertex_search.json", None, "A JSON array, with citations and references."),
)


def _all() -> Iterator[Scenario]:
    for dialect, title, name, profile, note in _DIALECTS:
        kind = "application/json" if name.endswith(".json") else "text/event-stream"
        yield Scenario(
            name=dialect, group="Dialects", title=title, note=note, dialect=dialect, profile=profile, content_type=kind,
            pieces=partial(_events, name), delay_s=0.12 if kind == "application/json" else 0.09,
        )  # fmt: skip
    chat, anthropic = partial(_events, "openai_chat.sse"), partial(_events, "anthropic.sse")
    tools = "Tools"
    yield Scenario(
        name="tools-openai", group=tools, title="Tool calls, OpenAI", dialect="openai_chat",
        note="Two calls, their arguments in fragments. Nothing may run before the turn is confirmed.",
        pieces=partial(_events, "openai_chat-tools.sse"), delay_s=0.07,
    )  # fmt: skip
    yield Scenario(
        name="tools-anthropic", group=tools, title="Tool calls, Anthropic", dialect="anthropic",
        note="Two calls in blocks of their own.", pieces=partial(_events, "anthropic-tools.sse"), delay_s=0.09,
    )  # fmt: skip
    broken = "Broken"
    yield Scenario(
        name="cut", group=broken, title="Cut in the middle", dialect="anthropic", pieces=anthropic, breaks_at=26,
        note="The connection breaks off inside the answer: it is no answer, and every try is cut again.",
    )  # fmt: skip
    yield Scenario(
        name="cut-once", group=broken, title="Cut, then whole", dialect="anthropic", pieces=anthropic, breaks_at=26,
        heals=True, note="The first try is cut; trying again brings the whole answer, and nothing of the first.",
    )  # fmt: skip
    yield Scenario(
        name="cut-quietly", group=broken, title="Cut in good order", dialect="openai_chat", profile="deepseek",
        pieces=chat, breaks_at=24, ends="clean",
        note="The server ends the body as if it were done, but the terminal signal is missing.",
    )  # fmt: skip
    yield Scenario(
        name="error", group=broken, title="Error in the middle", dialect="anthropic",
        pieces=partial(_events, "anthropic-error.sse"),
        note="The provider reports in the middle of the stream that it is overloaded.",
    )  # fmt: skip
    yield Scenario(
        name="error-openai", group=broken, title="Error in the middle, OpenAI", dialect="openai_chat",
        pieces=partial(_events, "openai_chat-error.sse"), note="An error object in the place of a chunk.",
    )  # fmt: skip
    busy = {
        "error": {"message": "Rate limit reached for levada-demo", "type": "rate_limit_error", "code": "rate_limit"}
    }
    yield Scenario(
        name="refused", group=broken, title="Refused at once", dialect="openai_chat", status=429,
        content_type="application/json", headers=(("retry-after", "7"),), pieces=lambda: [json.dumps(busy).encode()],
        note="HTTP 429 with a JSON body, before any stream.",
    )  # fmt: skip
    pace = "Pace"
    yield Scenario(
        name="slow", group=pace, title="Slow", dialect="openai_responses", first_delay_s=2.0, delay_s=0.3,
        pieces=partial(_events, "openai_responses.sse"), note="Two seconds of waiting, then three words a second.",
    )  # fmt: skip
    yield Scenario(
        name="crumbs", group=pace, title="In crumbs", dialect="openai_chat", profile="deepseek", delay_s=0.002,
        pieces=partial(_crumbs, "openai_chat.sse", 7), note="Seven bytes at a time, through events and characters.",
    )  # fmt: skip
    yield Scenario(
        name="fast", group=pace, title="Very fast", dialect="openai_chat", profile="deepseek", delay_s=1 / 2000,
        pieces=partial(_fast, 8000), note="2,000 deltas a second for four and a half seconds, and 25 paints a second.",
    )  # fmt: skip
    yield Scenario(
        name="hostile", group="Hostile", title="Markup and script", dialect="openai_chat", profile="deepseek",
        pieces=_hostile, delay_s=0.01, note="HTML, script and control characters: all of it is shown as characters.",
    )  # fmt: skip


SCENARIOS: Final = {scenario.name: scenario for scenario in _all()}
