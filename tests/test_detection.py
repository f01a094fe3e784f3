"""Detection: right where it answers, None where the bytes do not tell, and never another answer for a beginning."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levada
from levada import Detected, detect
from levada.detection import MOST_BYTES, Document
from tests.shared import RECORDED

HERE = Path(__file__).parent
LISTING = RECORDED / "expected.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in LISTING.read_text().splitlines()] if LISTING.exists() else []
OURS = ("openai_chat", "openai_responses", "anthropic", "gemini")
# Mistral's own wire is a Chat wire with additions; the others are dialects that levada does not speak yet
ALSO_CHAT = ("mistral",)
needs_recordings = pytest.mark.skipif(not ROWS, reason=f"no recordings at {RECORDED}")

# What the vendors of expected.jsonl run, where their bytes tell it; None: a profile would be a guess.
PROFILES = {
    "alibaba": "dashscope",
    "azure": "azure",
    "crusoe": "vllm",
    "deepseek": "deepseek",
    "groq": "groq",
    "moonshot": "moonshot",
    "ollama_cloud": "ollama_v1",
    "ollama_v1": "ollama_v1",
    "openrouter": "openrouter",
    "perplexity": "perplexity",
    "vllm": "vllm",
    "writer": "writer",
    "xai": "xai",
    "zai": "zai",
}


@cache
def body(file: str) -> bytes:
    return (RECORDED / file).read_bytes()


def expected(row: dict[str, Any]) -> Detected | None:
    framing = "json-array" if row["file"].endswith(".json") else "sse"
    if row["dialect"] in ALSO_CHAT:
        return Detected("openai_chat", "sse")
    if row["dialect"] not in OURS:
        return None
    return Detected(row["dialect"], framing, PROFILES.get(row["vendor"]) if row["dialect"] == "openai_chat" else None)


def beginnings(data: bytes) -> list[bytes]:
    data = data[:MOST_BYTES]
    return [data[:end] for end in (*range(0, min(len(data), 1200), 3), *range(1200, len(data), 1999))]


def check_beginnings(data: bytes, whole: Detected | None) -> None:
    for beginning in beginnings(data):
        found = detect(None, beginning)
        if found is None:
            continue
        assert whole is not None, (len(beginning), found)
        assert (found.dialect, found.framing) == (whole.dialect, whole.framing), len(beginning)
        assert found.profile in (None, whole.profile), len(beginning)


@needs_recordings
class TestRecordings:
    @pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
    def test_the_first_64_kib_tell_everything(self, row: dict[str, Any]) -> None:
        assert detect(None, body(row["file"])[: 64 * 1024]) == expected(row)

    @pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
    def test_a_beginning_tells_the_same_or_nothing(self, row: dict[str, Any]) -> None:
        check_beginnings(body(row["file"]), expected(row))

    def test_the_first_512_bytes_mostly_tell_the_dialect(self) -> None:
        ours = [row for row in ROWS if row["dialect"] in OURS]
        told = [row for row in ours if detect(None, body(row["file"])[:512]) is not None]
        assert len(told) > 0.94 * len(ours)

    def test_most_servers_that_have_a_profile_are_recognised(self) -> None:
        chats = [row for row in ROWS if row["dialect"] == "openai_chat" and row["vendor"] in levada.PROFILES]
        found = [row for row in chats if getattr(detect(None, body(row["file"])), "profile", None)]
        assert len(found) >= 19  # of 31; the others bear no mark: openai (7), huggingface (2), databricks, gpustack, …

    @pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
    def test_other_line_ends_a_mark_and_comments_before_change_nothing(self, row: dict[str, Any]) -> None:
        data = body(row["file"])
        if not row["file"].endswith(".sse"):
            return
        data = data.replace(b"\r\n", b"\n")
        whole = expected(row)
        for end in (b"\r\n", b"\r"):
            found = detect(None, data.replace(b"\n", end)[:MOST_BYTES])  # CRLF may push the mark out of sight
            assert found in (whole, whole and Detected(whole.dialect, "sse"))
        before = b"\xef\xbb\xbf: hello\n\n: keep-alive\n\nretry: 3000\n\n"
        assert detect("text/event-stream", (before + data)[:MOST_BYTES]) == whole


FIXTURES = {
    "anthropic-error.sse": Detected("anthropic", "sse"),
    "anthropic-tools.sse": Detected("anthropic", "sse"),
    "anthropic.sse": Detected("anthropic", "sse"),
    "gemini.json": Detected("gemini", "json-array"),
    "gemini.sse": Detected("gemini", "sse"),
    "ollama.ndjson": None,
    "openai_chat-error.sse": Detected("openai_chat", "sse"),
    "openai_chat-tools.sse": Detected("openai_chat", "sse"),
    "openai_chat-truncated.sse": Detected("openai_chat", "sse"),
    "openai_chat.sse": Detected("openai_chat", "sse"),
    "openai_responses.sse": Detected("openai_responses", "sse"),
    "vertex_search.json": Detected("vertex_search", "json-array"),
}


@pytest.mark.parametrize("name", FIXTURES)
def test_our_own_fixtures_are_recognised_and_so_are_their_beginnings(name: str) -> None:
    data = (HERE / "fixtures" / name).read_bytes()
    found = detect(None, data)
    whole = FIXTURES[name]
    assert (found and (found.dialect, found.framing)) == (whole and (whole.dialect, whole.framing))
    check_beginnings(data, found)


CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


class TestDialects:
    @pytest.mark.parametrize(
        ("stream", "dialect"),
        [
            (CHUNK, "openai_chat"),
            (b'data: {"choices":[],"usage":null}\n\n', None),
            (b'data: {"choices":[],"usage":null}\n\n' + CHUNK, "openai_chat"),
            (b'data: {"choices":[{"text":"O","index":0}],"object":"text_completion"}\n\n', None),
            (b'event: ping\ndata: {"type": "ping"}\n\n', None),
            (b'event: ping\ndata: {"type": "ping"}\n\ndata: {"type":"message_start"}\n\n', "anthropic"),
            (b'event: message_start\ndata: {"mess', "anthropic"),
            (b"event: message_sta", None),
            (b'event: message-start\ndata: {"type":"message-start"}\n\n', None),
            (b'event: response.created\ndata: {"resp', "openai_responses"),
            (b'data:{"type":"response.in_progress"}\n\n', "openai_responses"),
            (b'data: {"candidates":[{"content":', "gemini"),
            (b'data: {"usageMetadata":{"promptTokenCount":1}}\r\n\r\n', "gemini"),
            (b"data: [DONE]\n\n", None),
            (b"", None),
            (b": keep-alive\n\n: keep-alive\n\n", None),
            (b'{"error":"stray"}\n\n' + CHUNK, "openai_chat"),
            (b"<!DOCTYPE html><html></html>", None),
            (b"data: <html>\n\n", None),
            (b"plain words", None),
            (b'data: "choices.delta"\n\n', None),
            (b'data: {"choices.delta":1,"content":"{\\"candidates\\":[{\\"content\\":1}]}"}\n\n', None),
        ],
    )
    def test_of_an_event_stream(self, stream: bytes, dialect: str | None) -> None:
        assert detect(None, stream) == (dialect and Detected(dialect, "sse"))

    @pytest.mark.parametrize(
        ("stream", "dialect"),
        [
            (b'[{"candidates": [{"content":', "gemini"),
            (b'\xef\xbb\xbf \r\n[{\n  "promptFeedback": {"blockReason": "SAFETY"}}]', "gemini"),
            (b'[{"answer": {"state": "STREAMING"}}', "vertex_search"),
            (b'[{"answer": {"answerText": "Ol', "vertex_search"),
            (b'[{"answer": {"state": "IN_PROGRESS", "replies": [{"groundedContent": {}}]}}]', None),  # streamAssist
            (b'[{"session": {"name": "s"}}, {"answer": {"state": "SUCCEEDED", "steps": []}}]', "vertex_search"),
            (b'{"candidates": [{"content": {"parts": []}}]}', "gemini"),
            (b"[", None),
            (b"[]", None),
            (b"[1, 2]", None),
            (b'["candidates"]', None),
        ],
    )
    def test_of_a_json_array(self, stream: bytes, dialect: str | None) -> None:
        assert detect("application/json", stream) == (dialect and Detected(dialect, "json-array"))

    @pytest.mark.parametrize(
        ("body", "dialect"),
        [
            (b'{"id":"c","object":"chat.completion","choices":[{"message":{"content":"x"}}]}', "openai_chat"),
            (b'{"id":"m","type":"message","role":"assistant","content":[]}', "anthropic"),
            (b'{"id":"r","object":"response","output":[]}', "openai_responses"),
        ],
    )
    def test_of_a_whole_answer(self, body: bytes, dialect: str) -> None:
        assert detect("application/json", body) == Detected(dialect, "sse")


class TestErrors:
    """JSON error bodies, and errors that are a stream's first event."""

    @pytest.mark.parametrize(
        ("error", "dialect"),
        [
            ('{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}', "openai_chat"),
            ('{"error":{"code":401,"message":"no","metadata":{}}}', "openai_chat"),
            ('{"code":"no credits","error":"pay"}', "openai_chat"),
            ('{"object":"error","message":"no","code":400}', "openai_chat"),
            ('{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "anthropic"),
            ('{"type":"error","error":{"type":"api_error","message":"no"},"request_id":"r"}', "anthropic"),
            ('{"error":{"type":"error","error":{"type":"api_error","message":"no"}}}', "anthropic"),
            ('{"type":"error","code":"x","message":"no","param":null,"sequence_number":2}', "openai_responses"),
            (
                '{"type":"error","sequence_number":2,"error":{"type":"t","code":"c","message":"no","param":null}}',
                "openai_responses",
            ),
            ('{"type":"error","error":{"type":"t","code":"c","message":"no","param":null}}', "openai_responses"),
            ('{"error":{"code":404,"message":"no","status":"NOT_FOUND"}}', "gemini"),
            ('{"error":"model not found"}', None),
            ('{"error":null}', None),
            ('{"detail":"no"}', None),
        ],
    )
    def test_an_error_has_the_dialect_of_its_shape(self, error: str, dialect: str | None) -> None:
        framing = "json-array" if dialect == "gemini" else "sse"
        pretty = json.dumps(json.loads(error), indent=2)
        for body in (error, pretty):
            assert detect("application/json", body.encode()) == (dialect and Detected(dialect, framing))
        event = f"event: error\ndata: {error}\n\n".encode()
        assert detect("text/event-stream", event) == (dialect and Detected(dialect, "sse"))
        for data in (error.encode(), event):
            check_beginnings(data, detect(None, data))

    def test_an_error_in_an_array_is_googles(self) -> None:
        assert detect(None, b'[{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}\n]') == Detected(
            "gemini", "json-array"
        )
        assert detect(None, b'[{"error":{"type":"t","message":"m"}}]') is None


class TestProfiles:
    """Only from marks that no other server makes."""

    @pytest.mark.parametrize(
        ("stream", "profile"),
        [
            (b": OPENROUTER PROCESSING\n\n" + CHUNK, "openrouter"),
            (b": keep-alive\n\n" + CHUNK, None),
            (b'data: {"choices":[{"delta":{},"matched_stop":7,"finish_reason":"stop"}]}\n\n', "sglang"),
            (b'data: {"choices":[{"delta":{"content":"a"}}],"x_groq":{"id":"r"}}\n\n', "groq"),
            (
                b'data: {"choices":[{"delta":{"tool_calls":[{"extra_content":{"google":{}}}]}}]}\n\n',
                "gemini_openai",
            ),
            (b'data: {"choices":[{"delta":{}}],"model":"grok-4"}\n\n', None),  # a name is no mark: anybody may serve it
            (b'data: {"choices":[{"delta":{"content":"x_groq fp_ollama matched_stop"}}]}\n\n', None),
            (b'data: {"choices":[],"prompt_filter_results":[],"id":""}\n\n' + CHUNK, None),  # GitHub Copilot
            (b": OPENROUTER PROCESSING\n\n" + CHUNK + b'data: {"choices":[],"x_groq":{}}\n\n', None),  # two: who knows
        ],
    )
    def test_of_a_chat_stream(self, stream: bytes, profile: str | None) -> None:
        assert detect(None, stream) == Detected("openai_chat", "sse", profile)

    def test_never_loosen_what_finishes_a_turn(self) -> None:
        for name in levada.PROFILES:
            habits = Detected("openai_chat", "sse", name).habits
            assert habits is not None
            assert (habits.name, habits.terminal, habits.terminal_objects) == (name, "strict", ())
        assert Detected("openai_chat", "sse").habits is None

    def test_belong_to_their_dialect(self) -> None:
        stream = b': OPENROUTER PROCESSING\n\ndata: {"type":"response.created"}\n\n'
        assert detect(None, stream) == Detected("openai_responses", "sse")

    def test_exist(self) -> None:
        assert set(PROFILES.values()) <= set(levada.PROFILES)


class TestContentType:
    @pytest.mark.parametrize("said", ["application/json", "text/plain; charset=utf-8", "TEXT/EVENT-STREAM", ""])
    def test_does_not_overrule_the_bytes(self, said: str) -> None:
        assert detect(said, CHUNK) == Detected("openai_chat", "sse")

    @pytest.mark.parametrize("said", ["application/vnd.amazon.eventstream", "text/html; charset=utf-8"])
    def test_may_say_that_it_is_something_else(self, said: str) -> None:
        assert detect(said, CHUNK) is None


class TestHostileBytes:
    @given(st.binary(max_size=400))
    def test_no_bytes_raise(self, data: bytes) -> None:
        for start in (b"", b"data: ", b"[{", b'{"error":', b"\xef\xbb\xbf"):
            detect(None, start + data)

    @settings(max_examples=200)
    @given(st.lists(st.sampled_from(["{", "}", "[", "]", ",", ":", '"a"', '"', "\\", "1", " ", "\n", '"error"'])))
    def test_no_brackets_raise(self, pieces: list[str]) -> None:
        text = "".join(pieces)
        detect(None, text.encode())
        detect(None, b"data: " + text.encode())

    @pytest.mark.parametrize(
        "data",
        [
            b"[" * 1_000_000,
            b'{"a":' * 300_000,
            b'data: {"a":' + b'{"b":' * 300_000,
            b'"' * 1_000_000,
            b'data: "' + b"\\" * 1_000_001,
            b"\n" * 1_000_000,
            b"data: {}\n\n" * 100_000,
            b'data: {"choices":[]}\n\n' * 100_000,
            b"{,:" * 300_000,
            bytes(range(256)) * 4000,
        ],
    )
    def test_the_work_is_bounded(self, data: bytes) -> None:
        began = time.process_time()
        detect(None, data)
        assert time.process_time() - began < 1.0  # some 20 ms here; a fast machine is not what is tested

    def test_any_bytes_like_object_will_do(self) -> None:
        assert detect(None, bytearray(CHUNK)) == detect(None, memoryview(CHUNK)) == detect(None, CHUNK)


class TestDocument:
    def test_has_paths_that_arrays_leave_no_trace_in(self) -> None:
        facts = Document('{"a":[{"b":"x"},{"c":1,"b":"y"}],"d":null,"e":{"":2,"f.g":3,"h":true}}').facts
        assert facts == {
            "a": "[",
            "a.b": '"x',
            "a.c": "1",
            "d": "null",
            "e": "{",
            "e.h": "true",
        }

    def test_of_a_beginning_has_no_value_that_may_go_on(self) -> None:
        assert Document('{"a":"x","b":12').facts == {"a": '"x', "b": ""}
        assert Document('{"a":"x","b":12,').facts == {"a": '"x', "b": "12"}
        assert Document('{"a":"x').facts == {"a": ""}

    def test_knows_its_end_and_what_comes_after_it(self) -> None:
        for text, whole, rest in [
            ('{"a":1', False, False),
            ('{"a":1}', True, False),
            ('{"a":1}\n ', True, False),
            ("{}{}", True, True),
            ('{} "', True, True),
        ]:
            document = Document(text)
            assert (document.whole, document.rest) == (whole, rest), text
