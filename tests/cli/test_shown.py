"""What a stream may do to a terminal: nothing, in every command that prints its text."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from levada.cli.group import levada as group
from levada.cli.shown import escaped, one_line

# Unicode TR9, 2: explicit formatting characters; and the deprecated ones beside them
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u206a\u206f"
TROJAN = f"pay \u202eB\u2066 {BIDI}"


def play(*args: str, stdin: bytes) -> Result:
    return CliRunner().invoke(group, list(args), input=stdin)


def stream_of(text: str) -> bytes:
    """A stream whose answer, reasoning, model, tool name and arguments are this text, as characters and no escapes."""
    call = {"index": 0, "id": "c", "function": {"name": text, "arguments": json.dumps(text, ensure_ascii=False)}}
    delta = {"content": text, "reasoning_content": text, "tool_calls": [call]}
    chunk = {"model": text, "choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\ndata: [DONE]\n\n"


class TestMarksOfDirection:
    def test_each_is_an_escape(self) -> None:
        assert one_line("a\u202eb") == escaped("a\u202eb") == "a\\u202eb"
        for mark in BIDI:
            assert one_line(mark) == escaped(mark) == f"\\u{ord(mark):04x}"

    def test_joiners_and_right_to_left_letters_stay(self) -> None:
        for text in ("שלום", "مرحبا", "👩‍🚀", "می\u200cخواهم", "a\u00adb", "\ufeffa", "水"):
            assert one_line(text) == escaped(text) == text

    @pytest.mark.parametrize("command", ["play --speed 0", "check", "check --json", "events", "events --json", "cut"])
    def test_no_command_prints_one(self, command: str) -> None:
        got = play(*command.split(), "-", stdin=stream_of(TROJAN))
        assert got.exit_code == 0, got.output
        assert [mark for mark in BIDI if mark in got.stdout + got.stderr] == []
        assert "cut" in command or "\\u202e" in got.stdout + got.stderr

    def test_in_json_they_are_themselves(self) -> None:
        row = json.loads(play("check", "--json", "-", stdin=stream_of(TROJAN)).stdout)
        assert (row["answer"], row["reasoning"], row["model"]) == (TROJAN, TROJAN, TROJAN)
        events = play("events", "--json", "-", stdin=stream_of(TROJAN)).stdout.splitlines()
        assert json.loads(json.loads(events[0])["data"])["model"] == TROJAN

    def test_nor_does_an_error_of_the_provider(self) -> None:
        error = {"error": {"message": TROJAN, "type": TROJAN}}
        stream = b"data: " + json.dumps(error, ensure_ascii=False).encode() + b"\n\n"
        for command in (["play", "--speed", "0", "--dialect", "openai_chat"], ["check", "--dialect", "openai_chat"]):
            got = play(*command, "-", stdin=stream)
            assert "\\u202e" in got.stdout + got.stderr
            assert [mark for mark in BIDI if mark in got.stdout + got.stderr] == []
