"""`python -m benchmarks`: are all answers equal, and how long does each contestant take?"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from benchmarks.bars import verdicts
from benchmarks.measure import BUDGET_S, Cell, measure
from benchmarks.memory import DELTAS, QUICK_TURNS_ALIVE, TURNS_ALIVE, Idle, idle
from benchmarks.node_rival import DECODERS, WARM_UP_S, NodeParser
from benchmarks.report import (
    Run,
    bars_text,
    contestants_text,
    races_text,
    table_text,
    write_json,
    write_markdown,
    write_plot,
)
from benchmarks.rivals import CYTHON, FLOORS, LOCAL, PYTHON, Chunks, Contestant, UnavailableError, local
from benchmarks.stores import ROWS, Race, race
from benchmarks.turns import LITELLM, READERS, TURN, turn_reader
from benchmarks.workloads import (
    BIG_SIZES_MIB,
    DELIVERIES,
    EVENTS,
    QUICK_EVENTS,
    STREAMS,
    TURN_DELIVERIES,
    TURNS,
    Workload,
    chat,
    named,
    one_big_event,
)

SERIES = 3
QUICK_BUDGET_S = 0.3


def main(arguments: list[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    workloads = _workloads(quick=options.quick)
    factories = _factories(quick=options.quick)
    only = set(options.only)
    unknown = only - workloads.keys() - factories.keys() - ROWS.keys()
    if unknown:
        known = ", ".join(repr(name) for name in (*workloads, *factories, *ROWS))
        print(f"--only: no such name: {', '.join(sorted(unknown))}; there are {known}", file=sys.stderr)
        return 2
    chosen, stores = _chosen(only, workloads)
    whole = {make(9).name for make in TURNS}
    families = {name in whole for name in chosen}  # of events, of whole turns
    wanted = {name: make for name, make in factories.items() if (name in READERS) in families}
    contestants, absent = _assemble(wanted, only & factories.keys())
    names = [contestant.name for contestant in contestants]
    bases = tuple(name for name in (CYTHON if CYTHON in names else PYTHON, TURN) if name in names)
    if not bases and chosen:
        print("levada cannot be imported: install this tree first (pip install .)", file=sys.stderr)
        return 2
    versions = {contestant.name: contestant.version for contestant in contestants}
    hows = {contestant.name: contestant.how for contestant in contestants}
    rounds = 3 if options.quick else 9
    cells: list[Cell] = []
    idle_turns: list[Idle] = []
    try:
        for name in chosen:
            for workload, delivery, chunks in workloads[name]():
                _progress(f"{workload.name}, {delivery}")
                there = [one for one in contestants if one.takes(workload)]
                budget = QUICK_BUDGET_S if options.quick else BUDGET_S
                cells.append(measure(workload, delivery, chunks, there, series=SERIES, rounds=rounds, budget_s=budget))
        for make in TURNS:
            if make(9).name in chosen and TURN in names:
                _progress(f"{make(9).name}, memory")
                alive = QUICK_TURNS_ALIVE if options.quick else TURNS_ALIVE
                idle_turns.append(idle(make(DELTAS + 9), turns=alive))
    finally:
        for contestant in contestants:
            contestant.close()
        _progress("")
    races = _races(stores, absent, rounds)
    run = Run(bases, versions, hows, absent, cells, verdicts(cells), SERIES, rounds, idle_turns, races)
    blocks = [contestants_text(run)]
    if cells:
        blocks += [table_text(run), bars_text(run.verdicts, run.idle)]
    if races:
        blocks.append(races_text(races))
    print(*blocks, sep="\n\n")
    return _write(run, options)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="some seconds: the bars' streams, cut to half; one event of 1 MiB; few rounds",
    )
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="a workload or contestant; may be repeated"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every number")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw a bar chart, .svg or .png (needs matplotlib)")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="replace the tables between the markers of FILE")
    return parser


def _workloads(*, quick: bool) -> dict[str, Callable[[], Iterator[tuple[Workload, str, Chunks]]]]:
    """Return what makes each workload's deliveries, so that one stream at a time is held."""

    def deliveries(make: Callable[[int], Workload]) -> Iterator[tuple[Workload, str, Chunks]]:
        workload = make(QUICK_EVENTS if quick else EVENTS)
        for delivery, cut in DELIVERIES.items():
            yield workload, delivery, cut(workload)

    def in_reads(mib: int) -> Iterator[tuple[Workload, str, Chunks]]:
        workload = one_big_event(mib)
        yield workload, next(iter(DELIVERIES)), workload.reads()

    found: dict[str, Callable[[], Iterator[tuple[Workload, str, Chunks]]]] = {}
    for make in (chat, named) if quick else STREAMS:
        found[make(1).name] = lambda make=make: deliveries(make)  # type: ignore[misc]  # binds the loop variable
    for make_turn in TURNS:
        found[make_turn(9).name] = lambda make=make_turn: itertools.islice(deliveries(make), len(TURN_DELIVERIES))  # type: ignore[misc]  # the same
    for mib in BIG_SIZES_MIB[:1] if quick else BIG_SIZES_MIB:
        found[f"one event of {mib} MiB"] = lambda mib=mib: in_reads(mib)  # type: ignore[misc]  # the same
    return found


def _factories(*, quick: bool) -> dict[str, Callable[[], Contestant]]:
    """Return what makes each contestant, in the order of the table: the floors last."""
    found: dict[str, Callable[[], Contestant]] = {}
    for name in LOCAL:
        found[name] = lambda name=name: local(name)  # type: ignore[misc]  # binds the loop variable
    for decoder, (name, _) in list(DECODERS.items())[: 1 if quick else None]:
        found[name] = lambda decoder=decoder: NodeParser(decoder, install=True, warm_up_s=0.2 if quick else WARM_UP_S)  # type: ignore[misc]  # the same
    for name in FLOORS:
        found[name] = lambda name=name: local(name)  # type: ignore[misc]  # the same
    for name in READERS:
        if name != LITELLM or not quick:  # importing it takes longer than a quick run
            found[name] = lambda name=name: turn_reader(name)  # type: ignore[misc]  # the same
    return found


def _assemble(
    factories: dict[str, Callable[[], Contestant]], only: set[str]
) -> tuple[list[Contestant], dict[str, str]]:
    """Return who takes part and, by name, why others do not. The units always do."""
    contestants, absent = [], {}
    for name, make in factories.items():
        if only and name not in only and name not in (CYTHON, TURN):
            continue
        _progress(f"preparing {name}")
        try:
            contestants.append(make())
        except UnavailableError as error:
            absent[name] = str(error)
    return contestants, absent


def _chosen(only: set[str], workloads: Collection[str]) -> tuple[set[str], list[str]]:
    """Return the workloads and the stores to measure: all, unless `only` names some. A contestant reads all streams."""
    stores = [name for name in ROWS if not only or name in only]
    alone = bool(only) and only <= ROWS.keys()
    return only & set(workloads) or (set() if alone else set(workloads)), stores


def _races(names: list[str], absent: dict[str, str], rounds: int) -> list[Race]:
    """Race the stores; say in `absent` why one cannot be."""
    found = []
    for name in names:
        _progress(name)
        try:
            found.append(race(name, series=SERIES, rounds=rounds))
        except UnavailableError as error:
            absent[name] = str(error)
    _progress("")
    return found


def _write(run: Run, options: argparse.Namespace) -> int:
    try:
        if options.json:
            write_json(run, options.json)
        if options.markdown:
            write_markdown(run, options.markdown)
        if options.plot:
            write_plot(run, options.plot)
    except ImportError as error:
        print(f"--plot needs matplotlib ({error}): pip install 'levada[plot]'", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
