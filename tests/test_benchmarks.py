"""The benchmarks' contestants agree on every workload, so that a ratio compares equal work. Nothing is timed here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.__main__ import _chosen
from benchmarks.bars import BARS, Verdict
from benchmarks.measure import Cell, Ratio
from benchmarks.memory import Idle
from benchmarks.node_rival import DECODERS, NodeParser
from benchmarks.report import races_text
from benchmarks.rivals import CYTHON, FLOORS, LOCAL, Contestant, Local, UnavailableError, local
from benchmarks.stores import ROWS, LedgerCommits, Race, race
from benchmarks.turns import READERS, TURN, TYPED, TurnReader, turn_reader
from benchmarks.workloads import (
    BIG_SIZES_MIB,
    DELIVERIES,
    STREAMS,
    TURN_DELIVERIES,
    TURNS,
    TurnWorkload,
    Workload,
    chat,
    chat_turn,
    named,
    named_turn,
    one_big_event,
)

FEW = 150


@contextmanager
def taking_part(make: Callable[[], Contestant]) -> Iterator[Contestant]:
    try:
        contestant = make()
    except UnavailableError as error:
        pytest.skip(str(error))
    try:
        yield contestant
    finally:
        contestant.close()


def faults(contestant: Contestant, workload: Workload) -> dict[str, str]:
    found = {}
    for delivery, cut in DELIVERIES.items():
        contestant.load(workload, cut(workload))
        fault = contestant.fault()
        if fault is not None:
            found[delivery] = fault
    return found


class TestWorkloads:
    """Streams are what their names say, and the same each time."""

    @pytest.mark.parametrize("make", STREAMS)
    def test_a_seed_gives_the_same_stream(self, make: Callable[[int], Workload]) -> None:
        assert make(FEW) == make(FEW)

    @pytest.mark.parametrize("make", STREAMS)
    @pytest.mark.parametrize("delivery", DELIVERIES)
    def test_a_delivery_is_the_whole_stream(self, make: Callable[[int], Workload], delivery: str) -> None:
        workload = make(FEW)
        assert b"".join(DELIVERIES[delivery](workload)) == workload.stream

    def test_chat_events_are_of_about_330_bytes_in_every_width_of_character(self) -> None:
        workload = chat()
        assert len(workload.events) == 2_000
        assert 320 <= len(workload.stream) / 2_000 <= 340
        widths = {len(character.encode()) for _, data in workload.events for character in data}
        assert widths == {1, 2, 3, 4}

    def test_named_events_are_of_about_120_bytes(self) -> None:
        assert 115 <= len(named().stream) / 2_000 <= 125

    def test_the_big_event_is_as_big_as_it_says(self) -> None:
        assert 0 <= len(one_big_event(1).stream) - 1024 * 1024 < 100


class TestContestants:
    """A wrong answer has no speed."""

    @pytest.mark.parametrize("name", LOCAL)
    @pytest.mark.parametrize("make", STREAMS)
    def test_a_contestant_gives_the_events_of_the_stream(self, make: Callable[[int], Workload], name: str) -> None:
        with taking_part(lambda: local(name)) as contestant:
            assert faults(contestant, make(FEW)) == {}

    @pytest.mark.parametrize("name", LOCAL)
    def test_a_contestant_gives_one_big_event(self, name: str) -> None:
        workload = one_big_event(1)
        with taking_part(lambda: local(name)) as contestant:
            contestant.load(workload, workload.reads())
            assert contestant.fault() is None

    @pytest.mark.parametrize("decoder", DECODERS)
    def test_node_gives_the_events_of_every_stream(self, decoder: str) -> None:
        with taking_part(lambda: NodeParser(decoder, install=False, warm_up_s=0)) as contestant:
            assert {make.__name__: faults(contestant, make(FEW)) for make in STREAMS} == {
                make.__name__: {} for make in STREAMS
            }

    def test_a_wrong_answer_is_found(self) -> None:
        right, wrong = chat(FEW), named(FEW)
        reference = local("levada python")
        reference.load(Workload("mixed up", wrong.frames, right.events), wrong.reads())
        fault = reference.fault()
        assert fault is not None
        assert fault.startswith("150 events for 150; event 0 is ")

    def test_what_is_not_installed_says_so(self) -> None:
        def absent() -> None:
            raise ImportError("No module named 'absent'")

        with pytest.raises(UnavailableError, match="not installed: No module named 'absent'"):
            Local("absent", "not at all", None, absent)  # type: ignore[arg-type]  # it never returns

    @pytest.mark.parametrize("name", FLOORS)
    def test_a_floor_does_some_work(self, name: str) -> None:
        floor = local(name)
        floor.load(chat(FEW), chat(FEW).reads())
        assert floor.reader.read(chat(FEW).reads()) >= FEW


class TestTurnReaders:
    """Whole turns: all who read a dialect come to the same answer and finish."""

    @pytest.mark.parametrize("make", TURNS)
    def test_a_turn_is_a_whole_stream(self, make: Callable[[int], TurnWorkload]) -> None:
        workload = make(FEW)
        assert len(workload.events) == len(workload.frames) == FEW
        assert local("levada python").reader.pairs(workload.reads()) == list(workload.events)
        assert make(FEW) == workload

    def test_its_deltas_are_those_of_the_streams_of_events(self) -> None:
        size = len(chat().stream) / 2_000
        assert abs(len(chat_turn().stream) / 2_000 - size) < 5
        assert set(named(FEW).events) & set(named_turn(FEW).events)

    @pytest.mark.parametrize("name", READERS)
    @pytest.mark.parametrize("make", TURNS)
    @pytest.mark.parametrize("delivery", TURN_DELIVERIES)
    # litellm's own, and its clients'
    @pytest.mark.filterwarnings("ignore")
    def test_a_contestant_gives_answer_and_finish(
        self, delivery: str, make: Callable[[int], TurnWorkload], name: str
    ) -> None:
        workload = make(FEW)
        with taking_part(lambda: turn_reader(name)) as contestant:
            if not contestant.takes(workload):
                pytest.skip(f"{name} does not read {workload.dialect}")
            contestant.load(workload, DELIVERIES[delivery](workload))
            assert contestant.fault() is None
            assert contestant.turn(0) > 0

    def test_each_dialect_has_two_contestants_at_least(self) -> None:
        for make in TURNS:
            workload = make(FEW)
            assert sum(turn_reader(name).takes(workload) for name in (TURN, TYPED)) == 2

    @pytest.mark.parametrize("name", [TURN, TYPED])
    def test_a_wrong_answer_is_found(self, name: str) -> None:
        right = chat_turn(FEW)
        wrong = TurnWorkload(
            right.name, right.frames, right.events, right.blank_line, right.dialect, right.answer + "x", right.finish
        )
        reader = turn_reader(name)
        reader.load(wrong, wrong.reads())
        assert reader.fault() == f"{len(right.answer)} characters of answer for {len(right.answer) + 1}, or others"

    def test_a_turn_without_its_end_is_found(self) -> None:
        workload = chat_turn(FEW)
        reader = turn_reader(TURN)
        reader.load(workload, workload.frames[:-1])
        assert reader.fault() == "ValueError: state error"

    def test_readers_of_events_are_not_given_turns(self) -> None:
        assert not local("levada python").takes(chat_turn(FEW))
        assert not turn_reader(TURN).takes(chat(FEW))

    def test_what_is_not_installed_says_so(self) -> None:
        def absent(_: TurnWorkload | None) -> None:
            raise ImportError("No module named 'absent'")

        with pytest.raises(UnavailableError, match="not installed: No module named 'absent'"):
            TurnReader("absent", "not at all", None, absent)


class TestStores:
    """Both sides of a race leave the same in their databases, or it has no ratio."""

    @pytest.mark.parametrize("name", ROWS)
    def test_the_plain_driver_does_the_same(self, name: str) -> None:
        try:
            found = race(name, series=1, rounds=1, items=2)
        except UnavailableError as error:
            pytest.skip(str(error))
        assert found.fault is None
        assert found.ratio is not None
        assert found.per_second > 0

    def test_a_side_that_leaves_something_else_is_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("benchmarks.stores.PlainDriver.state", lambda self: "something else")
        found = race("ledger on SQLite", series=1, rounds=1, items=2)
        assert (found.ratio, found.fault) == (None, "the two databases differ")
        assert "out" in races_text([found])

    def test_what_is_recorded_is_one_transaction(self, tmp_path: Path) -> None:
        side = LedgerCommits(f"sqlite:///{tmp_path}/a.db")
        words = [statement.split()[0] for statement, _ in side.recorded()]
        side.close()
        assert words == ["BEGIN", "INSERT", "INSERT"]

    def test_a_race_is_a_line(self) -> None:
        line = races_text([Race("w", "commits", "levada", "sqlite3 3", "how", 250.0, Ratio((2.0, 1.5), 1.0, 3.0))])
        assert "250 commits/s" in line
        assert "1.50× (1.00..3.00)" in line


class TestRatios:
    """Only turns of one round are compared."""

    def test_all_is_measured_unless_only_names_some(self) -> None:
        streams, store = {"chat stream", "chat turn"}, next(iter(ROWS))
        assert _chosen(set(), streams) == (streams, list(ROWS))
        assert _chosen({"chat turn"}, streams) == ({"chat turn"}, [])
        assert _chosen({store}, streams) == (set(), [store])
        assert _chosen({store, "chat turn"}, streams) == ({"chat turn"}, [store])
        assert _chosen({"httpx-sse"}, streams) == (streams, [])

    def test_a_ratio_pairs_turns_of_one_round(self) -> None:
        seconds = {"slow": [{0: 4.0, 1: 6.0, 2: 5.0}, {0: 9.0}], "fast": [{0: 2.0, 1: 2.0, 2: 1.0}, {0: 3.0, 1: 50.0}]}
        cell = Cell("w", "d", 1, 1, 1, seconds, {})
        assert cell.ratio("slow", "fast") == Ratio((3.0, 3.0), 2.0, 5.0)
        assert cell.ratio("slow", "absent") is None

    def test_every_bar_of_rows_1_to_7_is_there(self) -> None:
        assert len(BARS) == 6 + 6 + 6 + len(BIG_SIZES_MIB) + 2 + 2 + 2 * 2

    def test_the_summit_of_an_upper_bound_lies_below_it(self) -> None:
        bar = next(bar for bar in BARS if bar.at_most and bar.summit)
        assert Verdict(bar, Ratio((0.6, 0.4, 0.7), 0.3, 0.9)).text == "met, and the summit"
        assert Verdict(bar, Ratio((0.6, 0.8, 0.7), 0.3, 0.9)).text == "met"

    def test_memory_is_judged_beyond_the_text(self) -> None:
        verdicts = [Idle("w", 1, 20, total, 100).verdict for total in (1_124, 4_196, 4_197)]
        assert verdicts == ["met, and the summit", "met", "NOT MET"]

    def test_an_upper_bound_takes_the_smallest_median(self) -> None:
        bar = next(bar for bar in BARS if bar.at_most)
        assert Verdict(bar, Ratio((3.5, 2.9, 3.1), 2.0, 9.0)).text == "met"
        assert Verdict(bar, Ratio((3.5, 3.2, 3.1), 2.0, 9.0)).text == "NOT MET"

    def test_a_lower_bound_takes_the_largest_median(self) -> None:
        bar = next(bar for bar in BARS if bar.faster == CYTHON and not bar.at_most)
        assert Verdict(bar, Ratio((9.0, 10.1, 9.5), 1.0, 20.0)).text == "met"
        assert Verdict(bar, Ratio((12.0,), 12.0, 12.0)).text == "met, and the summit"
        assert Verdict(bar, None).text == "not measured"
