"""The command line: what people see, and what scripts rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from levada.cli.group import levada

FIXTURES = Path(__file__).parent / "fixtures"
STREAMS = sorted(path.name for path in FIXTURES.iterdir())
CHAT = FIXTURES / "openai_chat.sse"


def run(*args: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(levada, ["events", *args], input=stdin)


def shell(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a process of its own, for what only a real one shows."""
    command = [sys.executable, "-m", "levada", "events", *args]
    return subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **env}, check=False, timeout=60)


class TestPrinting:
    def test_each_event_is_a_line_with_its_number_and_type(self) -> None:
        got = run("-", stdin=b"data: a\n\nevent: ping\ndata: b\n\n")
        assert got.stdout == "    1  message  a\n    2  ping  b\n"

    def test_id_and_retry_are_shown_where_they_are(self) -> None:
        assert run("-", stdin=b"id: 7\nretry: 30\ndata: a\n\n").stdout == "    1  message  id=7  retry=30  a\n"

    def test_several_data_lines_stay_one_line(self) -> None:
        assert run("-", stdin=b"data: a\ndata: b\n\n").stdout == "    1  message  a\\nb\n"

    def test_what_a_terminal_would_obey_is_shown_as_an_escape(self) -> None:
        got = run("-", stdin="data: \x1b[2J\x9b2J\x07\u2028\n\n".encode())
        assert got.stdout == "    1  message  \\u001b[2J\\u009b2J\\u0007\\u2028\n"

    def test_comments_and_strays_are_counted_and_printed_only_with_all(self) -> None:
        stream = b': hi\n\ndata: a\n\n"error": {\n'
        got = run("-", stdin=stream)
        assert got.stdout == "    1  message  a\n"
        assert got.stderr == "sse: events 1, comments 1, strays 1, bytes 26, remainder none\n"
        assert run("--all", "-", stdin=stream).stdout == '    :  hi\n    1  message  a\n    ?  "error": {\n'

    def test_a_pretty_printed_item_is_one_line(self) -> None:
        stream = '[{\r\n  "a": "x\u2028y"\r\n}]'.encode()
        assert run("-", stdin=stream).stdout == '    1  { "a": "x\\u2028y" }\n'

    @pytest.mark.parametrize("name", STREAMS)
    @pytest.mark.parametrize("chunk", ["1", "7", "4096"])
    def test_no_cut_changes_the_output(self, name: str, chunk: str) -> None:
        path = str(FIXTURES / name)
        for option in ((), ("--json", "--all")):
            whole, cut = run(*option, path), run(*option, "--chunk", chunk, path)
            assert (cut.exit_code, cut.stdout, cut.stderr) == (0, whole.stdout, whole.stderr)


class TestJson:
    def test_an_event_has_the_four_fields(self) -> None:
        got = run("--json", "-", stdin=b"event: e\nid: 1\nretry: 5\ndata: a\n\ndata: b\n\n")
        assert [json.loads(line) for line in got.stdout.splitlines()] == [
            {"event": "e", "data": "a", "id": "1", "retry": 5},
            {"event": "message", "data": "b", "id": "1", "retry": None},
        ]

    def test_comments_strays_and_items_say_what_they_are(self) -> None:
        got = run("--json", "--all", "-", stdin=b": c\noops\n")
        assert [json.loads(line) for line in got.stdout.splitlines()] == [{"comment": "c"}, {"stray": "oops"}]
        assert run("--json", "-", stdin=b'{"a":1}\n').stdout == '{"data": "{\\"a\\":1}"}\n'

    def test_a_line_is_a_line_to_every_reader(self) -> None:
        got = run("--json", "-", stdin="data: a\u2028b\x85c\x9bd\n\n".encode())
        (line,) = got.stdout.splitlines()
        assert json.loads(line)["data"] == "a\u2028b\x85c\x9bd"
        assert "\x9b" not in line


class TestFraming:
    @pytest.mark.parametrize(
        ("stream", "framing"),
        [
            (b"", "sse"),
            (b"\n\n", "sse"),
            (b"data: a\n\n", "sse"),
            (b"\xef\xbb\xbfdata: a\n\n", "sse"),
            (b": [\n\n", "sse"),
            (b'[{"a":1}]', "json-array"),
            (b' \r\n[{"a":1}]', "json-array"),
            (b'\xef\xbb\xbf[{"a":1}]', "json-array"),
            (b'{\n  "error": {}\n}', "json-array"),
            (b'{"error": {"mess', "json-array"),
            (b'{"a":1}\n{"a":2}\n', "ndjson"),
            (b'{"a":1}\r\n', "ndjson"),
            (b'{"a":1}', "ndjson"),
            (b'{"a":1} ?\n', "ndjson"),
            (b'{"a":"' + b"x" * 100_000 + b'"}\n', "ndjson"),
        ],
    )
    @pytest.mark.parametrize("chunk", ["1", "65536"])
    def test_auto_decides_from_the_first_bytes(self, stream: bytes, framing: str, chunk: str) -> None:
        got = run("--chunk", chunk, "-", stdin=stream)
        assert got.exit_code == 0
        assert got.stderr.startswith(f"{framing}: ")
        assert f"bytes {len(stream)}," in got.stderr

    def test_a_framing_that_is_named_is_taken(self) -> None:
        assert run("--framing", "ndjson", "-", stdin=b"data: a\n").stdout == "    1  data: a\n"

    def test_compressed_input_is_refused_with_a_hint(self) -> None:
        got = run("-", stdin=b"\x1f\x8b\x08\x00\x00")
        assert got.exit_code == 2
        assert got.stderr == "Error: the input is binary; decompress it first, or say its --framing\n"


class TestRemainder:
    @pytest.mark.parametrize(
        ("stream", "left"),
        [
            (b"data: a\n\n", "none"),
            (b"data: a\n\ndata: b", "7 bytes"),
            (b": an unfinished comment", "an unfinished line"),
            (b"[{}]", "none"),
            (b'[{}, {"a"', "4 bytes, array not closed"),
            (b"[{}", "none, array not closed"),
            (b"{}\n{}", "none"),
        ],
    )
    def test_the_summary_says_what_was_left(self, stream: bytes, left: str) -> None:
        got = run("-", stdin=stream)
        assert got.exit_code == 0
        assert got.stderr.endswith(f", remainder {left}\n")


class TestErrors:
    def test_a_malformed_array_gives_what_came_before_and_exit_code_4(self) -> None:
        got = run("-", stdin=b"[{},{} {}]")
        assert got.exit_code == 4
        assert got.stdout == "    1  {}\n    2  {}\n"
        assert got.stderr == (
            "json-array: events 2, comments 0, strays 0, bytes 10, remainder not reached\n"
            "Error: <stdin>: expected ',' or ']' after an object of the JSON array, found byte 0x7b at byte 7 of the "
            "stream\n"
        )

    @pytest.mark.parametrize(("framing", "stream"), [("sse", b"data: 456\n\n"), ("ndjson", b"123456789\n")])
    def test_a_too_large_event_says_which_option_raises_the_limit(self, framing: str, stream: bytes) -> None:
        got = run("--framing", framing, "--max-event-bytes", "8", "-", stdin=stream)
        assert got.exit_code == 4
        assert "larger than 8 bytes" in got.stderr
        assert got.stderr.endswith("; here: --max-event-bytes\n")
        assert "Traceback" not in got.stderr

    @pytest.mark.parametrize(
        "args",
        [
            (),
            ("no such file",),
            (".",),
            ("--framing", "xml", "-"),
            ("--chunk", "0", "-"),
            ("--chunk", "x", "-"),
            ("--nonsense", "-"),
            ("-", "-"),
        ],
    )
    def test_usage_and_unreadable_input_are_exit_code_2(self, args: tuple[str, ...]) -> None:
        got = run(*args)
        assert got.exit_code == 2
        assert "Error: " in got.stderr

    @pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that opens and cannot be read")
    def test_a_read_that_fails_is_exit_code_2(self) -> None:
        got = run("/proc/self/mem")
        assert got.exit_code == 2
        assert got.stderr.startswith("Error: /proc/self/mem: cannot read: ")

    def test_without_the_extra_one_line_says_what_to_install(self) -> None:
        code = "import sys; sys.modules['click'] = None; from levada.cli import main; main()"
        got = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
        assert got.returncode == 2
        assert got.stderr.decode() == "levada: the command line needs click: pip install 'levada[cli]'\n"


class TestProcess:
    @pytest.mark.parametrize("backend", ["cython", "python"])
    def test_both_backends_print_the_same(self, backend: str) -> None:
        got = shell(str(CHAT), "--all", LEVADA_BACKEND=backend, PYTHONIOENCODING="utf-8")
        assert got.returncode == 0
        assert got.stdout.decode() == run(str(CHAT), "--all").stdout
        assert got.stderr.decode() == run(str(CHAT), "--all").stderr

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-16", "shift_jis"])
    def test_an_odd_encoding_gets_escapes_and_no_crash(self, encoding: str) -> None:
        got = shell(str(CHAT), PYTHONIOENCODING=encoding)
        assert got.returncode == 0
        assert got.stdout.decode(encoding).count("\n") == 36

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
    def test_json_stays_json_in_every_encoding(self, encoding: str) -> None:
        got = shell(str(CHAT), "--json", PYTHONIOENCODING=encoding)
        rows = [json.loads(line) for line in got.stdout.decode(encoding).splitlines()]
        assert rows == [json.loads(line) for line in run(str(CHAT), "--json").stdout.splitlines()]

    def test_a_reader_that_goes_away_is_no_error_to_shout_about(self) -> None:
        command = [sys.executable, "-m", "levada", "events", "-"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(b"data: first\n\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"    1  message  first\n"  # shown while the input is still open
            process.stdout.close()
            process.stdin.write(b"data: second\n\n")
            process.stdin.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 1

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
    def test_output_that_cannot_be_written_is_one_line(self) -> None:
        command = [sys.executable, "-m", "levada", "events", str(CHAT)]
        with open("/dev/full", "wb") as full:
            got = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
        assert got.returncode == 2
        assert got.stderr == b"Error: cannot write: No space left on device\n"

    @pytest.mark.skipif(os.name != "posix", reason="closes descriptors with the shell")
    def test_closed_standard_streams_are_empty_ones(self) -> None:
        command = f'"{sys.executable}" -m levada events - <&- >&-'
        got = subprocess.run(command, shell=True, stderr=subprocess.PIPE, check=False, timeout=60)
        assert got.returncode == 0
        assert got.stderr == b"sse: events 0, comments 0, strays 0, bytes 0, remainder none\n"

    def test_the_version_names_the_backend(self) -> None:
        got = CliRunner().invoke(levada, ["--version"])
        assert got.exit_code == 0
        assert "cython (" in got.stdout or "python (" in got.stdout
