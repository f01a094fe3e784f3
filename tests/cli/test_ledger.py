"""`levada ledger`: what a person and a script learn of a ledger, which it never changes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types
import pytest
from click.testing import CliRunner, Result

from levada import Outcome, Turn
from levada.cli.group import levada as group
from levada.ledger import Action, DueAction, Ledger
from levada.ledger.exporting import write_json_lines, write_parquet
from levada.ledger.validators import not_empty
from tests.turn.chat import DONE, chunk, event, fed, stop, text

Terminal = Callable[..., tuple[int, str]]  # see conftest.py

FIXTURES = Path(__file__).parents[1] / "fixtures"

NASTY = "a\x1b[31m\u202eb\x00\x9b\r\n\tc 水😀\u2028"
SHOWN = "a\\u001b[31m\\u202eb\\u0000\\u009b\\r\\n\\tc 水😀\\u2028"
BEGAN = datetime(2026, 1, 15, 12, tzinfo=UTC)
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"á"}'}}
USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}})


class Clock:
    """A clock that is set."""

    now = BEGAN

    def __call__(self) -> datetime:
        return self.now

    def minute(self, minutes: int) -> None:
        self.now = BEGAN + timedelta(minutes=minutes)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a plain turn, a nasty one, one with a call and two actions; one refused, and a dead letter."""
    clock = Clock()
    with Ledger.open(f"sqlite:///{tmp_path}/turns.db", clock=clock) as opened:
        clock.minute(1)
        opened.commit(fed(text("Água."), stop(), USAGE, DONE).result(), key="plain")
        clock.minute(2)
        opened.commit(fed(text(NASTY), stop(finish="length"), DONE).result(), key="nasty")
        clock.minute(3)
        turn = fed(
            text("Calling."), chunk(reasoning_content="Hm."), chunk(tool_calls=[CALL]), stop(finish="tool_calls"), DONE
        )
        opened.commit(
            Outcome(turn.result(), "Calling.", attempts=2), key="call", actions=[Action("mail"), Action("ok")]
        )
        clock.minute(5)
        opened.commit(fed(text(" "), stop(), DONE).result(), key="blank", validators=[not_empty])
        opened.keep_partial(fed(text(NASTY)), key="partial")
        opened.dispatch({"mail": refuse, "ok": lambda action: None}, max_attempts=1)
        yield opened


def refuse(action: DueAction) -> None:
    raise ConnectionError(NASTY)


def run(*args: str, ledger: Path | None = None, **env: str) -> Result:
    if ledger is not None:
        env["LEVADA_LEDGER_URL"] = f"sqlite:///{ledger}/turns.db"
    return CliRunner(env=env).invoke(group, ["ledger", *args])


def visible(shown: str) -> bool:
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", shown)


class TestList:
    def test_the_newest_come_first(self, ledger: Ledger, tmp_path: Path) -> None:
        got = run("list", ledger=tmp_path)
        assert (got.exit_code, got.stderr) == (0, "")
        assert got.stdout.splitlines() == [
            "stored at            key    model  finish    chars  answer",
            "2026-01-15 12:03:00  call   m      tool_use  8      Calling.",
            "2026-01-15 12:02:00  nasty  m      length    18     " + SHOWN,
            "2026-01-15 12:01:00  plain  m      stop      5      Água.",
        ]

    @pytest.mark.parametrize(
        ("options", "keys"),
        [
            (["--limit", "1"], ["call"]),
            (["--model", "m"], ["call", "nasty", "plain"]),
            (["--model", "other"], []),
            (["--finish-reason", "stop"], ["plain"]),
            (["--since", "2026-01-15T12:02"], ["call", "nasty"]),
            (["--until", "2026-01-15T12:02"], ["plain"]),
            (["--since", "2026-01-15T13:02:00+01:00", "--until", "2026-01-15 12:03"], ["nasty"]),
            (["--since", "2026-01-16"], []),
        ],
    )
    def test_it_can_be_narrowed(self, ledger: Ledger, tmp_path: Path, options: list[str], keys: list[str]) -> None:
        got = run("list", *options, ledger=tmp_path)
        assert got.exit_code == 0
        assert [line.split()[2] for line in got.stdout.splitlines()[1:]] == keys

    @pytest.mark.parametrize("when", ["", "soon", "12", "99999999999d", "2026-13-01", "-1d", "１d"])
    def test_what_is_no_time_is_wrong_usage(self, ledger: Ledger, tmp_path: Path, when: str) -> None:
        got = run("list", "--since", when, ledger=tmp_path)
        assert (got.exit_code, got.stdout) == (2, "")
        assert "is neither a date or time" in got.stderr

    def test_an_age_is_from_now(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as opened:
            opened.commit(fed(text("a"), stop(), DONE).result(), key="now")
        assert "now" in run("list", "--since", "90s", ledger=tmp_path).stdout
        assert "now" not in run("list", "--until", "1h", ledger=tmp_path).stdout

    def test_refused_turns_have_their_reasons(self, ledger: Ledger, tmp_path: Path) -> None:
        got = run("list", "--refused", ledger=tmp_path)
        assert got.stdout.splitlines()[1].endswith("  blank  m      stop    empty: no answer and no tool call")

    def test_dead_actions_have_their_last_error(self, ledger: Ledger, tmp_path: Path) -> None:
        line = run("list", "--dead", ledger=tmp_path).stdout.splitlines()[1]
        assert "call/0/mail  1      ConnectionError: a\\u001b[31m\\u202eb" in line
        assert visible(line)

    def test_partial_texts_are_marked(self, ledger: Ledger, tmp_path: Path) -> None:
        assert run("list", "--partials", ledger=tmp_path).stdout.splitlines() == [
            "kept at              key      state  error      model  text, incomplete",
            "2026-01-15 12:05:00  partial  error  truncated  m      " + SHOWN,
        ]

    def test_filters_of_turns_go_with_no_other_view(self, ledger: Ledger, tmp_path: Path) -> None:
        got = run("list", "--dead", "--finish-reason", "stop", ledger=tmp_path)
        assert (got.exit_code, got.stdout) == (2, "")
        assert "--finish-reason chooses among turns; it does not go with --dead" in got.stderr

    def test_more_rows_than_one_page(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as opened:
            turn = fed(text(" "), stop(), DONE).result()
            for number in range(1_205):
                opened.commit(turn, key=f"k{number}", validators=[not_empty])
            opened.commit(turn, key="stored")
        got = run("list", "--refused", "--limit", "5000", ledger=tmp_path)
        assert len(got.stdout.splitlines()) == 1_206
        assert len(run("list", "--refused", "--limit", "700", ledger=tmp_path).stdout.splitlines()) == 701

    def test_on_a_terminal_each_is_one_line(self, ledger: Ledger, tmp_path: Path, terminal: Terminal) -> None:
        ledger.commit(fed(text("水" * 300), stop(), DONE).result(), key="wide")
        code, shown = terminal("ledger", "list", "--url", f"sqlite:///{tmp_path}/turns.db", columns=70)
        lines = shown.splitlines()
        assert (code, len(lines)) == (0, 5)
        assert lines[1].endswith("水…")
        assert visible(shown.replace("\r", ""))


class TestShow:
    def test_a_turn_is_shown_whole(self, ledger: Ledger, tmp_path: Path) -> None:
        got = run("show", "call", ledger=tmp_path)
        assert got.exit_code == 0
        assert got.stdout.splitlines() == [
            "key        call",
            "stored at  2026-01-15 12:03:00.000000 UTC",
            "dialect    openai_chat",
            "model      m",
            "id         c1",
            "finish     tool_use (tool_calls)",
            "attempts   2",
            'tool call  f({"a":"á"})',
            "",
            "reasoning, 3 characters:",
            "Hm.",
            "",
            "answer, 8 characters:",
            "Calling.",
        ]

    def test_so_are_its_sources(self, ledger: Ledger, tmp_path: Path) -> None:
        turn = Turn("vertex_search")
        turn.feed((FIXTURES / "vertex_search.json").read_bytes())
        turn.eof(clean=True)
        ledger.commit(turn.result(), key="sources")
        lines = run("show", "sources", ledger=tmp_path).stdout.splitlines()
        assert [line for line in lines if line.startswith("citation")] == [f"citation   {n}" for n in range(3)]
        assert "reference  2: Walking safely: https://walks.example/safety" in lines

    def test_no_character_of_it_is_obeyed(self, ledger: Ledger, tmp_path: Path, terminal: Terminal) -> None:
        assert visible(run("show", "nasty", ledger=tmp_path).stdout)
        url = f"sqlite:///{tmp_path}/turns.db"
        for command in (["show", "nasty"], ["show", "--json", "nasty"], ["export", "-"], ["list"], ["list", "--dead"]):
            code, shown = terminal("ledger", command[0], "--url", url, *command[1:])
            assert code == 0
            assert visible(shown.replace("\r\n", "\n")), command

    def test_in_json_it_is_itself(self, ledger: Ledger, tmp_path: Path) -> None:
        row = json.loads(run("show", "--json", "nasty", ledger=tmp_path).stdout)
        assert (row["key"], row["answer"], row["finish_reason"]) == ("nasty", NASTY, "length")

    def test_a_terminal_that_cannot_show_it_gets_json_all_the_same(self, ledger: Ledger, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "levada", "ledger", "show", "--json", "nasty"]
        env = {**os.environ, "PYTHONIOENCODING": "ascii", "LEVADA_LEDGER_URL": f"sqlite:///{tmp_path}/turns.db"}
        done = subprocess.run(command, capture_output=True, check=True, env=env)
        assert done.stdout.isascii()
        assert json.loads(done.stdout)["answer"] == NASTY

    def test_a_key_that_is_not_there_says_what_is_known_of_it(self, ledger: Ledger, tmp_path: Path) -> None:
        got = run("show", "nothing", ledger=tmp_path)
        assert (got.exit_code, got.stdout, got.stderr) == (2, "", "Error: no turn is stored under this key\n")
        assert "a partial one was kept, see" in run("show", "partial", ledger=tmp_path).stderr
        got = run("show", "blank", ledger=tmp_path)
        assert "one was refused at 2026-01-15 12:05:00: empty: no answer and no tool call" in got.stderr


COLUMNS = [
    *("key", "stored_at", "dialect", "profile", "model", "id", "finish_reason", "native_finish_reason", "answer"),
    *("altered", "raw_answer", "reasoning", "refusal", "attempts", "usage", "tool_calls", "anomalies"),
]
JSON_COLUMNS = ["choices", "parts", "citations", "references"]


class TestExport:
    def test_json_lines_have_every_turn_and_all_of_it(self, ledger: Ledger, tmp_path: Path) -> None:
        got = run("export", str(tmp_path / "all.jsonl"), ledger=tmp_path)
        assert (got.exit_code, got.stdout, got.stderr) == (0, "", "3 turns exported\n")
        rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_bytes().splitlines()]
        assert [row["key"] for row in rows] == ["call", "nasty", "plain"]
        assert all(list(row) == [*COLUMNS, *JSON_COLUMNS] for row in rows)
        assert rows[0]["tool_calls"][0]["arguments"] == '{"a":"á"}'
        assert (rows[1]["answer"], rows[1]["stored_at"]) == (NASTY, "2026-01-15T12:02:00Z")
        assert rows[2]["usage"]["output_tokens"] == 5

    def test_parquet_has_the_same(self, ledger: Ledger, tmp_path: Path) -> None:
        assert run("export", "--format", "parquet", str(tmp_path / "all.parquet"), ledger=tmp_path).exit_code == 0
        table = pq.read_table(tmp_path / "all.parquet")
        assert table.schema.names == [*COLUMNS, "anomalies_json", *(f"{name}_json" for name in JSON_COLUMNS)]
        rows = table.to_pylist()
        assert [row["key"] for row in rows] == ["call", "nasty", "plain"]
        assert (rows[1]["answer"], rows[1]["stored_at"]) == (NASTY, BEGAN + timedelta(minutes=2))
        assert rows[0]["tool_calls"][0]["arguments"] == '{"a":"á"}'
        assert (rows[0]["usage"], rows[2]["usage"]["total_tokens"]) == (None, 8)
        assert json.loads(rows[2]["usage"]["raw_json"])["prompt_tokens"] == 3

    def test_the_schema_does_not_depend_on_the_turns(self, ledger: Ledger, tmp_path: Path) -> None:
        for name, options in (("all", []), ("none", ["--model", "other"])):
            got = run("export", "--format", "parquet", *options, str(tmp_path / name), ledger=tmp_path)
            assert got.exit_code == 0
        assert pq.read_schema(tmp_path / "all") == pq.read_schema(tmp_path / "none")
        assert pq.read_table(tmp_path / "none").num_rows == 0

    @pytest.mark.parametrize("form", ["jsonl", "parquet"])
    def test_standard_output_takes_it_too(self, ledger: Ledger, tmp_path: Path, form: str) -> None:
        command = [sys.executable, "-m", "levada", "ledger", "export", "--format", form, "-"]
        env = {**os.environ, "LEVADA_LEDGER_URL": f"sqlite:///{tmp_path}/turns.db"}
        done = subprocess.run(command, capture_output=True, check=True, env=env)
        assert done.stderr == b"3 turns exported\n"
        if form == "jsonl":
            assert len(done.stdout.splitlines()) == 3
        else:
            assert pq.read_table(io.BytesIO(done.stdout)).num_rows == 3

    def test_it_can_be_narrowed(self, ledger: Ledger, tmp_path: Path) -> None:
        got = run("export", "--finish-reason", "length", str(tmp_path / "one"), ledger=tmp_path)
        assert got.stderr == "1 turn exported\n"

    def test_lone_surrogates_stay_in_json_and_are_told_in_parquet(self, tmp_path: Path) -> None:
        with Ledger.open(f"sqlite:///{tmp_path}/turns.db") as opened:
            turn = fed(text("a"), stop(), DONE).result()
            opened.commit(Outcome(turn, "odd \ud800 \ude00 😀"), key="odd")
        run("export", str(tmp_path / "odd.jsonl"), ledger=tmp_path)
        assert json.loads((tmp_path / "odd.jsonl").read_bytes())["answer"] == "odd \ud800 \ude00 😀"
        got = run("export", "--format", "parquet", str(tmp_path / "odd.parquet"), ledger=tmp_path)
        assert "lone surrogates of 1 turns became U+FFFD; --format jsonl keeps them" in got.stderr
        assert pq.read_table(tmp_path / "odd.parquet").to_pylist()[0]["answer"] == "odd \ufffd \ufffd 😀"

    def test_a_file_is_whole_or_as_it_was(
        self, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(turns: Any, file: io.BufferedWriter) -> int:
            file.write(b"half a line")
            raise OSError(28, "No space left on device")

        target = tmp_path / "out" / "all.jsonl"
        target.parent.mkdir()
        target.write_text("what was there\n")
        monkeypatch.setattr("levada.ledger.exporting.write_json_lines", broken)
        got = run("export", str(target), ledger=tmp_path)
        assert (got.exit_code, got.stdout) == (2, "")
        assert f"cannot write {target}: No space left on device" in got.stderr
        assert [path.name for path in target.parent.iterdir()] == ["all.jsonl"]
        assert target.read_text() == "what was there\n"
        monkeypatch.undo()
        assert run("export", str(target), ledger=tmp_path).exit_code == 0
        assert len(target.read_bytes().splitlines()) == 3
        assert target.stat().st_mode & 0o777 == 0o600

    def test_what_cannot_be_replaced_is_refused(self, ledger: Ledger, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for target in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
            got = run("export", str(target), ledger=tmp_path)
            assert (got.exit_code, "is no regular file" in got.stderr) == (2, True)
        got = run("export", str(tmp_path / "no" / "such" / "folder"), ledger=tmp_path)
        assert (got.exit_code, "No such file or directory" in got.stderr) == (2, True)

    def test_the_ledger_itself_is_not_replaced(self, ledger: Ledger, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "turns.db")
        for target in ("turns.db", "link"):
            got = run("export", str(tmp_path / target), ledger=tmp_path)
            assert (got.exit_code, "FILE is the ledger itself" in got.stderr) == (2, True)
        assert ledger.count() == 3

    def test_without_pyarrow_it_says_which_extra(
        self, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        got = run("export", "--format", "parquet", str(tmp_path / "x"), ledger=tmp_path)
        assert (got.exit_code, "pip install 'levada[parquet]'" in got.stderr) == (2, True)
        assert not (tmp_path / "x").exists()

    def test_parquet_is_nothing_for_a_terminal(self, ledger: Ledger, tmp_path: Path, terminal: Terminal) -> None:
        code, shown = terminal(
            "ledger", "export", "--url", f"sqlite:///{tmp_path}/turns.db", "--format", "parquet", "-"
        )
        assert (code, "Parquet is nothing for a terminal" in shown) == (2, True)

    @pytest.mark.parametrize("write", [write_json_lines, write_parquet])
    def test_it_holds_a_few_turns_at_once(self, ledger: Ledger, write: Callable[..., Any]) -> None:
        """160 MB of text go through; the largest part of what is held is one row group."""
        one = ledger.get("plain")
        assert one is not None
        turns = (replace(one, answer=f"{number}" + "x" * 80_000) for number in range(2_000))
        tracemalloc.start()
        try:
            with open(os.devnull, "wb") as file:
                write(turns, file)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 40_000_000


class TestALedgerThatIsNotThere:
    @pytest.mark.parametrize("command", [["list"], ["show", "k"], ["export", "-"]])
    def test_is_an_error_and_is_not_made(self, tmp_path: Path, command: list[str]) -> None:
        got = run(*command, ledger=tmp_path)
        assert (got.exit_code, got.stdout) == (2, "")
        assert "Error: missing: the file of the ledger does not exist" in got.stderr
        assert list(tmp_path.iterdir()) == []

    def test_by_default_it_is_turns_db_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("LEVADA_LEDGER_URL", raising=False)
        assert run("list").exit_code == 2
        Ledger.open("sqlite:///turns.db").close()
        got = run("list")
        assert (got.exit_code, got.stdout) == (0, "stored at  key  model  finish  chars  answer\n")

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("nonsense", "the URL of a ledger looks like"),
            ("mysql://localhost/x", "a ledger is kept in sqlite or postgresql"),
            ("sqlite://", "a ledger in memory begins empty"),
            ("postgresql+psycopg://nobody@127.0.0.1:9/x", "unreachable"),
        ],
    )
    def test_a_url_that_leads_nowhere_is_one_line(self, url: str, words: str) -> None:
        got = run("list", "--url", url)
        assert (got.exit_code, got.stdout, len(got.stderr.splitlines())) == (2, "", 1)
        assert words in got.stderr

    def test_nor_is_any_other_file(self, tmp_path: Path) -> None:
        (tmp_path / "turns.db").write_bytes(b"no database at all" * 100)
        assert "not_a_database" in run("list", ledger=tmp_path).stderr
        (tmp_path / "turns.db").write_bytes(b"")
        assert "the database holds no ledger" in run("list", ledger=tmp_path).stderr

    def test_nothing_is_changed_by_looking(self, ledger: Ledger, tmp_path: Path) -> None:
        ledger.close()
        before = (tmp_path / "turns.db").read_bytes()
        for command in (["list"], ["list", "--dead"], ["show", "call"], ["export", "-"]):
            assert run(*command, ledger=tmp_path).exit_code == 0
        assert (tmp_path / "turns.db").read_bytes() == before

    def test_without_the_extra_one_line_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("levada.cli.ledger.find_spec", lambda name: None)
        got = run("list")
        assert (got.exit_code, got.stderr) == (
            2,
            "Error: levada ledger needs sqlalchemy: pip install 'levada[ledger]'\n",
        )


def test_postgres_is_read_too(postgres_url: str, tmp_path: Path) -> None:
    with Ledger.open(postgres_url) as opened:
        opened.commit(fed(text(NASTY), stop(), DONE).result(), key="k")
    assert json.loads(run("show", "--json", "k", "--url", postgres_url).stdout)["answer"] == NASTY
    assert run("list", "--url", postgres_url).stdout.splitlines()[1].split()[2] == "k"
    assert run("export", "--url", postgres_url, str(tmp_path / "x")).stderr == "1 turn exported\n"
