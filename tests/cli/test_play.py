"""`levada play`: what a person sees of a stream, on a terminal and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from levada.cli.group import levada as group

Terminal = Callable[..., tuple[int, str]]  # see conftest.py

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHAT = str(FIXTURES / "openai_chat.sse")
TOOLS = str(FIXTURES / "openai_chat-tools.sse")
ERROR = str(FIXTURES / "openai_chat-error.sse")
TRUNCATED = str(FIXTURES / "openai_chat-truncated.sse")

STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def say(**delta: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def run(*args: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(group, ["play", "--speed", "0", *args], input=stdin)


def start(*args: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "levada", "play", *args]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, **pipes)  # type: ignore[call-overload,no-any-return]  # what Popen takes


def plain(shown: str) -> str:
    """Take escape sequences out, and what they erased."""
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", shown.replace("\r", ""))


def settled(shown: str) -> str:
    """Return what stands on the terminal at the end: all after the last erased line."""
    return plain(shown[shown.rfind("\x1b[2K") :])


class TestSpeed:
    @pytest.mark.parametrize("speed", ["nan", "-nan", "NaN", "inf", "-inf", "-1", "1e7", "fast", ""])
    def test_what_is_no_speed_is_wrong_usage(self, speed: str) -> None:
        got = CliRunner().invoke(group, ["play", f"--speed={speed}", CHAT])
        assert (got.exit_code, got.stdout) == (2, "")
        assert "Error: Invalid value for '--speed': " in got.stderr
        assert "Traceback" not in got.stderr


class TestPlain:
    """Without a terminal."""

    def test_the_answer_goes_to_stdout_and_all_else_to_stderr(self) -> None:
        got = run(CHAT)
        assert got.exit_code == 0
        assert got.stdout.startswith("Uma levada é um canal de água estreito: ")
        assert got.stdout.endswith("💧\n")
        assert got.stderr.startswith("[reasoning] The user asks what a levada is.")
        assert got.stderr.endswith("\n[finished] stop; 23 in, 89 out (28 reasoning), 112 in all\n")

    def test_tool_calls_are_listed_at_the_end(self) -> None:
        got = run(TOOLS)
        assert got.stderr == (
            '[tool call] water_flow({"levada":"Levada do Caldeirão Verde","unit":"l/s"})\n'
            '[tool call] weather({"place":"Santana, Madeira","days":2})\n'
            "[finished] tool_use; 118 in (64 read from cache), 57 out, 175 in all\n"
        )

    def test_tool_calls_of_a_turn_that_is_not_finished_are_not_to_be_run(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
        stream = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}).encode() + b"\n\n"
        got = run("-", stdin=stream)
        assert "[tool call, not to be run] f({})\n[error: truncated] " in got.stderr

    def test_an_error_says_whether_to_try_again(self) -> None:
        got = run(ERROR)
        assert got.exit_code == 4
        assert got.stderr.endswith("Sorry about that!; another attempt may go better\n")
        got = run("-", stdin=say(content="x") + b'data: {"error":{"message":"no","type":"invalid_request_error"}}\n\n')
        assert got.stderr == "[error: provider] invalid_request_error: no\n"
        assert run(TRUNCATED).exit_code == 3

    def test_there_are_no_commands_to_a_terminal(self) -> None:
        text = "a\x1b[31m\x07\r\tb\n[bold]c"
        got = run("-", stdin=say(reasoning="\x1b]0;x\x07") + say(content=text) + STOP + DONE)
        assert got.stdout == "a\\u001b[31m\\u0007\\r\tb\n[bold]c\n"
        assert got.stderr.startswith("[reasoning] \\u001b]0;x\\u0007\n")
        assert "\x1b" not in run(CHAT).stdout + run(CHAT).stderr

    def test_channels_that_take_turns_are_marked_each_time(self) -> None:
        stream = say(reasoning="a") + say(refusal="b") + say(reasoning="c") + STOP + DONE
        assert run("-", stdin=stream).stderr == "[reasoning] a\n[refusal] b\n[reasoning] c\n[finished] refusal\n"

    def test_text_that_is_withdrawn_is_said_to_be(self) -> None:
        verdict = b'{"index":0,"finish_reason":"content_filter","content_filter_results":{"hate":{"filtered":true}}}'
        stream = say(content="bad") + b'data: {"choices":[' + verdict + b"]}\n\n" + DONE
        got = run("--profile", "azure", "-", stdin=stream)
        assert got.stdout == "bad\n"
        assert got.stderr.startswith("[answer replaced: ")

    @pytest.mark.parametrize("chunk", ["1", "7", "100000"])
    def test_no_cut_changes_what_is_shown(self, chunk: str) -> None:
        for name in (CHAT, TOOLS, ERROR, TRUNCATED):
            whole, cut = run(name), run("--chunk", chunk, name)
            assert (whole.exit_code, whole.stdout, whole.stderr) == (cut.exit_code, cut.stdout, cut.stderr)

    def test_nothing_at_all_is_truncated(self) -> None:
        got = run("-")
        expected = "[error: truncated] the stream ended before anything came; another attempt may go better\n"
        assert (got.exit_code, got.stdout, got.stderr) == (3, "", expected)

    def test_wrong_usage_is_2(self, tmp_path: Path) -> None:
        for args in ([], [str(tmp_path)], ["absent"], ["--speed", "-1", CHAT], ["--chunk", "0", CHAT]):
            assert run(*args).exit_code == 2, args
        got = run("-", stdin=b"hello")
        assert (got.exit_code, got.stdout) == (2, "")
        assert "say which it is: --dialect D" in got.stderr


class TestPace:
    def test_speed_is_events_a_second(self) -> None:
        began = time.monotonic()
        got = CliRunner().invoke(group, ["play", "--speed", "36", CHAT])  # it has 36 events
        assert got.exit_code == 0
        assert 0.9 < time.monotonic() - began < 10

    def test_a_live_pipe_is_shown_live(self) -> None:
        process = start("--speed", "0", "-")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(say(content="first"))
        process.stdin.flush()
        assert process.stdout.read(5) == b"first"  # while the rest has not come
        out, err = process.communicate(say(content=" second") + STOP + DONE, timeout=60)
        assert (process.returncode, out, err) == (0, b" second\n", b"[finished] stop\n")

    def test_ctrl_c_is_a_cancel(self) -> None:
        process = start("--speed", "0", "-")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(say(content="first"))
        process.stdin.flush()
        assert process.stdout.read(5) == b"first"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, b"\n", b"[cancelled] what came is no answer\n")

    def test_a_reader_that_goes_away_ends_it_quietly(self) -> None:
        script = '"$0" -m levada play --speed 0 "$1" | head -c 4'
        got = subprocess.run(["bash", "-c", script, sys.executable, CHAT], capture_output=True, check=True, timeout=60)
        assert got.stdout == b"Uma "
        assert b"Traceback" not in got.stderr
        assert b"Broken" not in got.stderr


class TestTerminal:
    def test_provisional_text_looks_provisional_and_settles_at_the_end(self, terminal: Terminal) -> None:
        code, shown = terminal("play", "--speed", "60", CHAT)
        assert code == 0
        assert "\x1b[3m" in shown  # italic while it may still change
        assert "▌" in shown
        assert "streaming · provisional · " in shown
        end = settled(shown)
        assert end.startswith("▸ thought for 114 characters\nUma levada é um canal de água estreito: ")
        assert end.endswith("✔ finished · stop · 23 in, 89 out (28 reasoning), 112 in all\n")
        assert "▌" not in end

    def test_reasoning_is_open_and_dim_until_the_answer_begins(self, terminal: Terminal) -> None:
        _, shown = terminal("play", "--speed", "60", CHAT)
        thinking, _, answering = shown.partition("▸ thought for")
        assert "thinking" in thinking
        assert "\x1b[2mThe user asks" in thinking
        assert "The user asks" not in answering

    def test_there_are_at_most_25_paints_a_second(self, terminal: Terminal, tmp_path: Path) -> None:
        stream = tmp_path / "long.sse"
        stream.write_bytes(say(content="word ") * 400 + STOP + DONE)
        began = time.monotonic()
        _, shown = terminal("play", "--speed", "400", str(stream))
        assert 5 < shown.count("provisional") <= 25 * (time.monotonic() - began)

    def test_40_columns_are_enough(self, terminal: Terminal) -> None:
        for name in (CHAT, TOOLS, ERROR, TRUNCATED):
            _, shown = terminal("play", "--speed", "300", name, columns=40, rows=8)
            for line in plain(shown).split("\n"):
                assert len(line) <= 2 * 40, line  # paints that follow each other may share a line here
            assert max(len(line) for line in settled(shown).split("\n")) <= 40

    def test_text_longer_than_the_terminal_shows_its_end_and_settles_whole(
        self, terminal: Terminal, tmp_path: Path
    ) -> None:
        stream = tmp_path / "long.sse"
        lines = [f"line {number}\n" for number in range(200)]
        stream.write_bytes(b"".join(say(content=line) for line in lines) + STOP + DONE)
        _, shown = terminal("play", "--speed", "400", str(stream), rows=10)
        end = settled(shown)
        assert all(line in end for line in lines)
        paints = shown[: shown.rfind("\x1b[2K")].split("provisional")
        assert max(paint.count("line ") for paint in paints) < 10

    def test_ctrl_c_is_a_cancel(self, terminal: Terminal) -> None:
        code, shown = terminal("play", "--speed", "10", CHAT, keys=b"\x03", after="Uma levada")
        assert code == 130
        end = plain(shown)
        assert "unfinished text, no answer:" in end
        assert end.endswith("■ cancelled · what came is no answer\n")
        assert "Traceback" not in end
        assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is back

    def test_an_error_keeps_the_text_marked(self, terminal: Terminal) -> None:
        code, shown = terminal("play", "--speed", "0", ERROR)
        assert code == 4
        end = settled(shown)
        assert "unfinished text, no answer:\nA Levada do Rei" in end
        assert "✘ error: provider\n  server_error: " in end
        assert end.endswith("  another attempt may go better\n")

    def test_markup_and_escapes_are_shown_as_text(self, terminal: Terminal, tmp_path: Path) -> None:
        stream = tmp_path / "markup.sse"
        text = "[bold]x[/bold] [/] :smile: \x1b[31m\x1b]0;t\x07\x9b"
        stream.write_bytes(say(reasoning=text) + say(content=text) + STOP + DONE)
        _, shown = terminal("play", "--speed", "20", str(stream))
        assert "[bold]x[/bold] [/] :smile: \\u001b[31m\\u001b]0;t\\u0007\\u009b" in settled(shown)
        assert "\x1b]0" not in shown
        assert "\x1b[31m" not in shown

    def test_tool_calls_are_shown(self, terminal: Terminal) -> None:
        _, shown = terminal("play", "--speed", "100", TOOLS)
        assert '→ weather({"place":"Santana, Madeira","days":2})\n✔ finished · tool_use' in settled(shown)

    def test_a_dumb_terminal_gets_plain_text(self, terminal: Terminal) -> None:
        code, shown = terminal("play", "--speed", "0", CHAT, TERM="dumb")
        assert code == 0
        assert "\x1b" not in shown
        assert "[finished] stop" in shown

    def test_a_terminal_without_unicode_gets_ascii(self, terminal: Terminal) -> None:
        code, shown = terminal("play", "--speed", "100", TOOLS, PYTHONIOENCODING="ascii", LC_ALL="C")
        assert code == 0
        assert shown.isascii()
        assert "-> weather(" in settled(shown)


def test_the_environment_cannot_force_escape_codes_into_a_pipe() -> None:
    env = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    process = start("--speed", "0", CHAT, env=env)
    out, err = process.communicate(timeout=60)
    assert b"\x1b" not in out + err
