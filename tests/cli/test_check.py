"""`levada check`: what scripts and people learn of a recorded stream."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import levada
from levada.cli.group import levada as group
from tests.shared import RECORDED

Terminal = Callable[..., tuple[int, str]]  # see conftest.py

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "fixtures"
LISTING = RECORDED / "expected.jsonl"
ROWS = [json.loads(line) for line in LISTING.read_text().splitlines()] if LISTING.exists() else []

KEYS = (
    *("file", "dialect", "profile", "state", "error", "answer", "reasoning", "refusal", "tool_calls", "finish_reason"),
    *("native_finish_reason", "usage", "model", "citations", "references", "anomalies", "events"),
)

TEXT = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"Ol\xc3\xa1"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = TEXT + STOP + DONE


def has(dialect: str) -> bool:
    try:
        levada.Turn(dialect)
    except ImportError:
        return False
    return True


def run(*args: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(group, ["check", *args], input=stdin)


def row(*args: str, stdin: bytes = b"") -> dict[str, Any]:
    got = run("--json", *args, stdin=stdin)
    assert got.stderr == ""
    (line,) = got.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def shell(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "levada", "check", *args]
    return subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **env}, check=False, timeout=60)


class TestJson:
    def test_a_row_has_the_documented_keys_in_their_order(self) -> None:
        found = row("-", stdin=WHOLE)
        assert tuple(found) == KEYS
        assert found == {
            "file": "-",
            "dialect": "openai_chat",
            "profile": "openai_chat",
            "state": "finished",
            "error": None,
            "answer": "Olá",
            "reasoning": "",
            "refusal": "",
            "tool_calls": [],
            "finish_reason": "stop",
            "native_finish_reason": "stop",
            "usage": None,
            "model": "m",
            "citations": [],
            "references": [],
            "anomalies": {"total": 0, "counts": {}, "first": []},
            "events": 3,
        }

    def test_an_error_has_kind_type_and_message(self) -> None:
        found = row("-", stdin=TEXT + b'data: {"error":{"message":"no","type":"server_error","code":null}}\n\n')
        assert found["state"] == "error"
        assert found["error"] == {"kind": "provider", "type": "server_error", "message": "no"}
        assert found["answer"] == "Olá"

    def test_calls_and_usage_are_objects(self) -> None:
        found = row(str(FIXTURES / "openai_chat-tools.sse"))
        assert [call["name"] for call in found["tool_calls"]] == ["water_flow", "weather"]
        assert all(call["complete"] for call in found["tool_calls"])
        assert json.loads(found["tool_calls"][0]["arguments"])["unit"] == "l/s"
        assert (found["usage"]["input_tokens"], found["usage"]["cache_read_tokens"]) == (118, 64)
        assert found["usage"]["raw"]["total_tokens"] == 175

    def test_anomalies_have_their_places(self) -> None:
        found = row("-", stdin=TEXT + b"oops\n" + STOP + DONE + DONE)
        assert found["anomalies"]["counts"] == {"stray_line": 1, "after_end": 1}
        assert found["anomalies"]["first"][1] == {"name": "after_end", "event": 4, "path": ""}
        assert found["events"] == 4

    def test_each_file_is_a_line(self) -> None:
        names = [str(FIXTURES / f"openai_chat{kind}.sse") for kind in ("", "-truncated", "-error")]
        got = run("--json", *names)
        rows = [json.loads(line) for line in got.stdout.splitlines()]
        assert [found["file"] for found in rows] == names
        assert [found["error"] and found["error"]["kind"] for found in rows] == [None, "truncated", "provider"]

    def test_a_line_is_a_line_to_every_reader_and_no_command_to_a_terminal(self) -> None:
        text = json.dumps("\x1b[31m\x9b\u2028\x85é🌊\n")
        got = run("--json", "-", stdin=TEXT.replace(b'"Ol\xc3\xa1"', text.encode()) + STOP + DONE)
        assert len(got.stdout.splitlines()) == 1
        assert got.stdout.strip().isprintable()
        assert json.loads(got.stdout)["answer"] == "\x1b[31m\x9b\u2028\x85é🌊\n"

    def test_a_terminal_without_unicode_gets_json_all_the_same(self) -> None:
        got = shell("--json", "-", stdin=WHOLE, PYTHONIOENCODING="ascii")
        assert json.loads(got.stdout.decode("ascii"))["answer"] == "Olá"

    def test_numbers_that_json_has_not_do_not_break_it(self) -> None:
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"x":NaN,"y":{"z":Infinity}}}\n\n'
        found = row("-", stdin=TEXT + STOP + usage + DONE)
        assert found["usage"]["input_tokens"] == 1

    def test_usage_as_deep_as_its_author_liked_does_not_break_it(self) -> None:
        for depth in (50, 500, 900, 5000):
            deep = b'{"a":' * depth + b"1" + b"}" * depth
            got = run("--json", "-", stdin=TEXT + STOP + b'data: {"usage":' + deep + b"}\n\n" + DONE)
            assert json.loads(got.stdout)["answer"] == "Olá"

    @pytest.mark.skipif(not ROWS, reason=f"no recordings at {RECORDED}")
    def test_every_recording_gives_what_its_provider_sent(self) -> None:
        rows = {str(RECORDED / row["file"]): row for row in ROWS if has_dialect(row["dialect"])}
        got = run("--json", *rows)
        found = [json.loads(line) for line in got.stdout.splitlines()]
        assert len(found) == len(rows)
        for one in found:
            listed = rows[one["file"]]
            expect = listed["expect"]
            assert one["dialect"] == listed["dialect"], one["file"]
            assert one["answer"] == expect["answer"], one["file"]
            assert one["events"] == listed["events"] or listed.get("status"), one["file"]
            if listed["vendor"] != "snowflake":  # [DONE] without a finish reason: not finished under strict
                finished = expect["outcome"] == "finished"
                assert (one["state"] == "finished") == finished, one["file"]


def has_dialect(name: str) -> bool:
    return name in levada.DIALECTS and has(name)


class TestExitCode:
    @pytest.mark.parametrize(
        ("kinds", "code"),
        [
            ([""], 0),
            (["", "-tools"], 0),
            (["", "-truncated"], 3),
            (["-error"], 4),
            (["-error", "-truncated", ""], 4),
            (["-truncated", "-error"], 4),
        ],
    )
    def test_says_the_worst(self, kinds: list[str], code: int) -> None:
        names = [str(FIXTURES / f"openai_chat{kind}.sse") for kind in kinds]
        assert run(*names).exit_code == code
        assert run("--json", *names).exit_code == code

    def test_of_wrong_usage_is_2(self, tmp_path: Path) -> None:
        for args in (
            [],
            [str(tmp_path)],
            [str(tmp_path / "absent")],
            ["--dialect", "klingon", "-"],
            ["--profile", "klingon", "-"],
            ["--http-status", "7", "-"],
            ["--terminal", "never", "-"],
        ):
            got = run(*args)
            assert got.exit_code == 2, args
            assert got.stdout == ""
            assert "Traceback" not in got.stderr

    def test_of_what_cannot_be_told_is_2_and_the_other_files_are_read(self, tmp_path: Path) -> None:
        unknown = tmp_path / "unknown"
        unknown.write_bytes(b"hello\n")
        got = run("--json", str(unknown), str(FIXTURES / "openai_chat.sse"))
        assert got.exit_code == 2
        assert json.loads(got.stdout)["state"] == "finished"
        assert got.stderr.startswith(f"Error: {unknown}: its 6 bytes show none of openai_chat, ")
        assert "--dialect D" in got.stderr
        assert run("-", stdin=b"\x00\x00\x00\x9a\x00").stderr.startswith("Error: -: its first bytes, which are binary,")

    def test_of_settings_that_make_no_sense_is_2(self) -> None:
        got = run("--framing", "ndjson", "-", stdin=WHOLE)
        assert (got.exit_code, got.stderr) == (2, "Error: -: openai_chat is never framed as ndjson; there: sse\n")
        got = run("--profile", "groq", "-", stdin=b'data: {"type":"message_start"}\n\n')
        assert got.exit_code == 2 or not has("anthropic")


class TestSettings:
    def test_terminal_says_what_finishes_a_turn(self) -> None:
        assert row("-", stdin=TEXT + STOP)["error"]["kind"] == "truncated"
        assert row("--terminal", "finish_reason", "-", stdin=TEXT + STOP)["state"] == "finished"
        assert row("--terminal", "done", "-", stdin=TEXT + DONE)["state"] == "finished"

    def test_a_detected_profile_never_finishes_a_turn_and_a_named_one_may(self) -> None:
        marked = (
            b'data: {"object":"chat.completion.done","citations":["u"],"search_results":[],'
            b'"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
        )
        found = row("-", stdin=marked)
        assert (found["profile"], found["state"]) == ("perplexity", "error")
        assert row("--profile", "perplexity", "-", stdin=marked)["state"] == "finished"
        assert row("--profile", "perplexity", "--terminal", "strict", "-", stdin=marked)["state"] == "finished"

    def test_unclean_is_a_connection_that_broke_off(self) -> None:
        assert row("--terminal", "finish_reason", "--unclean", "-", stdin=TEXT + STOP)["error"]["kind"] == "truncated"
        assert row("--unclean", "-", stdin=WHOLE)["state"] == "finished"

    def test_think_tags_are_split_out_when_asked(self) -> None:
        stream = TEXT.replace(b"Ol\xc3\xa1", b"<think>hm</think>Hi <b>") + STOP + DONE
        assert row("-", stdin=stream)["answer"] == "<think>hm</think>Hi <b>"
        found = row("--think-tags", "thought, think", "-", stdin=stream)
        assert (found["answer"], found["reasoning"]) == ("Hi <b>", "hm")

    def test_the_head_of_the_response_counts(self) -> None:
        found = row("--http-status", "503", "-", stdin=b"busy")
        assert (found["dialect"], found["error"]["kind"], found["error"]["type"]) == (None, "protocol", "503")
        found = row("--http-status", "429", "-", stdin=b'{"error":{"message":"slow","type":"rate_limit"}}')
        assert found["error"] == {"kind": "provider", "type": "rate_limit", "message": "slow"}
        found = row("--content-type", "text/html", "--dialect", "openai_chat", "-", stdin=WHOLE)
        assert found["error"]["kind"] == "protocol"

    def test_the_dialect_that_was_said_holds(self) -> None:
        found = row("--dialect", "openai_chat", "-", stdin=b"hello\n")
        assert (found["dialect"], found["error"]["kind"]) == ("openai_chat", "protocol")
        assert row("--dialect", "openai_chat", "-")["error"]["kind"] == "truncated"


class TestBodiesThatAreNoStream:
    def test_of_nothing_at_all_are_truncated(self) -> None:
        for stream in (b"", b"\n\n", b": ping\n\n: ping\n\n", b"\xef\xbb\xbf"):
            found = row("-", stdin=stream)
            assert (found["dialect"], found["profile"], found["state"]) == (None, None, "error")
            assert found["error"] == {
                "kind": "truncated",
                "type": None,
                "message": "the stream ended before anything came",
            }
            assert run("-", stdin=stream).exit_code == 3

    def test_of_html_are_against_the_protocol(self) -> None:
        found = row("-", stdin=b"<!DOCTYPE html>\n<html></html>")
        assert (found["dialect"], found["error"]["kind"]) == (None, "protocol")
        assert "a page of HTML" in found["error"]["message"]

    def test_of_a_json_error_are_the_providers(self) -> None:
        error = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}
        for text in (json.dumps(error), json.dumps(error, indent=2), json.dumps({**error, "pad": "x" * 50_000})):
            found = row("-", stdin=text.encode())
            assert found["error"] == {"kind": "provider", "type": "invalid_request_error", "message": "no"}

    def test_of_a_whole_answer_are_read_as_one(self) -> None:
        answer = {
            "id": "c",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"content": "x" * 200_000}, "finish_reason": "stop"}],
        }
        found = row("-", stdin=json.dumps(answer).encode())
        assert (found["state"], len(found["answer"])) == ("finished", 200_000)

    @pytest.mark.parametrize("body", [b"1", b"1e999", b'"text"', b"true", b"[]", b"[1]"])
    def test_of_json_that_is_no_object_are_against_the_protocol(self, body: bytes) -> None:
        for options in ((), ("--content-type", "application/json")):
            found = row("--dialect", "openai_chat", *options, "-", stdin=body)
            assert found["error"]["kind"] == "protocol"

    def test_a_stray_error_before_events_is_still_a_stream(self) -> None:
        found = row("-", stdin=b'{"error":{"message":"no"}}\n\n' + WHOLE)
        assert found["error"] == {"kind": "provider", "type": None, "message": "no"}


class TestTable:
    def test_says_what_came_of_it(self) -> None:
        got = run(str(FIXTURES / "openai_chat-tools.sse"))
        assert got.stdout == (
            f"{FIXTURES / 'openai_chat-tools.sse'}\n"
            "  state      finished\n"
            "  stream     openai_chat over sse, 32 events\n"
            "  model      gpt-5-mini-2026-02-11\n"
            "  finish     tool_use (tool_calls)\n"
            "  usage      118 in (64 read from cache), 57 out, 175 in all\n"
            "  answer     55 characters: Vou ver o caudal e o tempo no Caldeirão Verde (緑の大釜) 🥾:\n"
            '  tool call  water_flow({"levada":"Levada do Caldeirão Verde","unit":"l/s"})\n'
            '  tool call  weather({"place":"Santana, Madeira","days":2})\n'
        )

    def test_says_what_went_wrong_and_what_would_help(self) -> None:
        got = run("-", stdin=TEXT + STOP)
        assert "  state      error: truncated\n" in got.stdout
        assert "  retry      another attempt may go better\n" in got.stdout
        assert "if this server ends without more, say --terminal finish_reason" in got.stdout
        assert "hint" not in run("--unclean", "-", stdin=TEXT + STOP).stdout
        assert "hint" not in run("-", stdin=TEXT).stdout

    def test_sums_several_files_up(self) -> None:
        names = [str(FIXTURES / f"openai_chat{kind}.sse") for kind in ("", "-tools", "-truncated", "-error")]
        assert run(*names).stdout.endswith("\n\n4 files: 2 finished, 1 truncated, 1 provider\n")

    def test_shows_text_as_text(self) -> None:
        text = json.dumps("[bold]no[/bold] \x1b[31mred\x07\n:smile:")
        got = run("-", stdin=TEXT.replace(b'"Ol\xc3\xa1"', text.encode()) + STOP + DONE)
        assert "[bold]no[/bold] \\u001b[31mred\\u0007\\n:smile:" in got.stdout
        assert "\x1b" not in got.stdout

    def test_cuts_long_text_short(self) -> None:
        got = run("-", stdin=TEXT.replace(b"Ol\xc3\xa1", b"x" * 5000) + STOP + DONE)
        assert f"5,000 characters: {'x' * 199}…\n" in got.stdout

    def test_mentions_other_choices_citations_and_anomalies(self) -> None:
        second = b'data: {"choices":[{"index":1,"delta":{"content":"abc"},"finish_reason":"length"}]}\n\n'
        cited = b'data: {"citations":["u","v"],"choices":[]}\n\n'
        got = run("-", stdin=TEXT + second + cited + b"oops\n" + STOP + DONE)
        assert "2; above is choice 0; characters of the others: 1: 3" in got.stdout
        assert "  references 2\n" in got.stdout
        assert "  anomalies  stray_line 1; first at event" in got.stdout

    def test_on_a_terminal_has_colour_and_markup_stays_text(self, terminal: Terminal, tmp_path: Path) -> None:
        stream = tmp_path / "[red]x.sse"
        stream.write_bytes(TEXT.replace(b"Ol\xc3\xa1", b"[bold]Ol\\u001b[0m :smile:") + STOP + DONE)
        for columns in (40, 80):
            code, shown = terminal("check", str(stream), columns=columns)
            assert code == 0
            assert "\x1b[32mfinished" in shown
            text = re.sub("\x1b\\[[0-9;]*m|\r\n *", "", shown)
            assert "[bold]Ol\\u001b[0m :smile:" in text
            assert "[red]x.sse" in text


class TestProcess:
    def test_a_reader_that_goes_away_ends_it_quietly(self) -> None:
        names = [str(FIXTURES / "openai_chat.sse")] * 2000
        script = '"$0" -m levada check --json "$@" | head -n 1'
        command = ["bash", "-c", script, sys.executable, *names]
        got = subprocess.run(command, capture_output=True, check=True, timeout=60)
        assert len(got.stdout.splitlines()) == 1
        assert got.stderr == b""

    def test_many_files_are_read_one_after_another(self) -> None:
        names = [str(FIXTURES / "openai_chat.sse")] * 2000  # more than a process may hold open
        got = shell("--json", *names)
        assert (got.returncode, got.stderr, len(got.stdout.splitlines())) == (0, b"", 2000)

    def test_a_large_file_is_not_held(self, tmp_path: Path) -> None:
        large = tmp_path / "large.sse"
        with large.open("wb") as file:
            for _ in range(200):
                file.write(b": " + b"x" * 1_000_000 + b"\n")
            file.write(WHOLE)
        script = (
            "import resource, runpy, sys; sys.argv = ['levada', 'check', sys.argv[1], '--dialect', 'openai_chat']\n"
            "try: runpy.run_module('levada', run_name='__main__')\n"
            "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        # by way of a shell, for Linux counts the memory of whoever forked, and a worker of these tests has much
        command = ["sh", "-c", '"$0" -c "$1" "$2"; exit $?', sys.executable, script, str(large)]
        got = subprocess.run(command, capture_output=True, check=False, timeout=120)
        assert b"state      finished" in got.stdout
        assert int(got.stderr.split()[-1]) < 100_000  # KiB, the interpreter and libraries included; the file has 200 MB
