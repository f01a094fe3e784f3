"""What a run says: as a table for the terminal, as Markdown for the documentation, as JSON, and as a bar chart."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.bars import Verdict
from benchmarks.measure import Cell, Ratio
from benchmarks.memory import BAR, DELTAS, SUMMIT, Idle
from benchmarks.node_rival import NODE_PARSER
from benchmarks.rivals import FLOORS
from benchmarks.stores import Race
from benchmarks.turns import TYPED

BEGIN: Final = "<!-- ratios: begin (written by python -m benchmarks --markdown) -->"
END: Final = "<!-- ratios: end -->"


@dataclass(frozen=True)
class Run:
    """One run and where it was made."""

    bases: tuple[str, ...]  # the contestants whose time is the unit, each where it takes part
    versions: Mapping[str, str]
    hows: Mapping[str, str]
    absent: Mapping[str, str]  # name -> why it could not take part
    cells: Sequence[Cell]
    verdicts: Sequence[Verdict]
    series: int
    rounds: int
    idle: Sequence[Idle] = ()  # what turns hold between events
    races: Sequence[Race] = ()  # of stores against their plain drivers

    @property
    def base(self) -> str:
        return self.bases[0]

    def base_of(self, cells: Sequence[Cell]) -> str:
        """Return the unit of these cells."""
        return next((name for name in self.bases for cell in cells if name in cell.seconds), self.base)

    def names_of(self, cells: Sequence[Cell]) -> list[str]:
        """Return who else was there."""
        there = {name for cell in cells for name in (*cell.seconds, *cell.faults)} - {self.base_of(cells)}
        return [name for name in self.versions if name in there]

    def by_workload(self) -> Iterator[tuple[str, list[Cell]]]:
        for workload in dict.fromkeys(cell.workload for cell in self.cells):
            yield workload, [cell for cell in self.cells if cell.workload == workload]


def machine() -> dict[str, str]:
    """Name the processor and the interpreter, and nothing that tells whose machine it is."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        named = {name.strip(): value.strip() for name, value in fields.items()}
        processor = named.get("model name", processor)
        if {"cpu family", "model"} <= named.keys():  # clouds give their guests a bare "Xeon" as the name
            processor += f" (family {named['cpu family']}, model {named['model']})"
    python = f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}"
    return {
        "CPU": f"{processor}, {os.cpu_count()} cores, {platform.machine()}",
        "system": f"{platform.system()}, load average {_load()} at the end of the run, which is 1 of it",
        "Python": python,
    }


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def contestants_text(run: Run) -> str:
    lines = [f"{name}: {value}" for name, value in machine().items()]
    lines += [f"{name} {version}" for name, version in run.versions.items() if name not in FLOORS]
    lines += [f"SKIPPED {name}: {why}" for name, why in run.absent.items()]
    return "\n".join(lines)


def table_text(run: Run) -> str:
    """Lay out the one table: a block for each workload, a line for each contestant, a column for each delivery."""
    width = max(len(name) for name in run.versions) + 4
    lines = [
        f"How many times the processor time of {' and of '.join(run.bases)}: best of {run.series} medians "
        f"(min..max of {run.series * run.rounds} rounds). Floors find no events."
    ]
    for workload, cells in run.by_workload():
        lines += ["", f"{workload} ({_amount(cells[0])})"]
        lines.append("".ljust(width) + "".join(cell.delivery.ljust(26) for cell in cells).rstrip())
        base = run.base_of(cells)
        lines.append(f"  {base}".ljust(width) + "".join(_speed(cell, base).ljust(26) for cell in cells).rstrip())
        for name in run.names_of(cells):
            values = [_ratio_text(cell, name, base) for cell in cells]
            lines.append(f"  {name}".ljust(width) + "".join(value.ljust(26) for value in values).rstrip())
        lines += [f"  OUT {name} in {cell.delivery}: {why}" for cell in cells for name, why in cell.faults.items()]
    return "\n".join(lines)


def bars_text(verdicts: Sequence[Verdict], idle: Sequence[Idle] = ()) -> str:
    measured = [verdict for verdict in verdicts if verdict.ratio]
    lines = [f"Bars (what we hold ourselves to): {len(measured)} of {len(verdicts)} measured in this run"]
    for row, group in _rows(measured):
        lines.append(f"  {row}")
        for verdict in group:
            place = f"{verdict.bar.workload}, {verdict.bar.delivery}"
            lines.append(f"    {place:<40}{_measured(verdict):<24}{_wanted(verdict):<28}{verdict.text}")
    if idle:
        lines.append(f"  {_IDLE}")
    for one in idle:
        place = f"{one.workload}, {one.turns:,} alive"
        lines.append(f"    {place:<40}{_bytes(one):<24}{_IDLE_WANTED:<28}{one.verdict}")
    return "\n".join(lines)


def races_text(races: Sequence[Race]) -> str:
    """Lay out the races of stores: a line for each."""
    lines = ["Stores against their plain drivers doing the same statements: how many times the wall's time"]
    for one in races:
        lines.append(f"  {one.name:<28}{_race_speed(one):<22}{_race_ratio(one):<28}of {one.plain}")
    return "\n".join(lines)


def as_json(run: Run) -> dict[str, Any]:
    return {
        "machine": machine(),
        "units": list(run.bases),
        "series": run.series,
        "rounds": run.rounds,
        "contestants": [{"name": n, "version": v, "how": run.hows[n]} for n, v in run.versions.items()],
        "skipped": dict(run.absent),
        "results": [
            {
                "workload": cell.workload,
                "delivery": cell.delivery,
                "events": cell.events,
                "bytes": cell.size,
                "chunks": cell.chunks,
                "out": dict(cell.faults),
                "contestants": [
                    {
                        "name": name,
                        "seconds": cell.median_seconds(name),
                        **_ratio_json(cell.ratio(name, run.base_of([cell]))),
                    }
                    for name in cell.seconds
                ],
            }
            for cell in run.cells
        ],
        "bars": [
            {
                "workload": v.bar.workload,
                "delivery": v.bar.delivery,
                "of": v.bar.slower,
                "against": v.bar.faster,
                "at_most" if v.bar.at_most else "at_least": v.bar.bar,
                "summit": v.bar.summit,
                "value": None if v.ratio is None else v.value,
                **_ratio_json(v.ratio),
                "verdict": v.text,
            }
            for v in run.verdicts
        ],
        "idle_turns": [
            {
                "workload": one.workload,
                "turns": one.turns,
                "deltas": one.deltas,
                "bytes": one.total,
                "bytes_beyond_text": one.beyond,
                "at_most": BAR,
                "summit": SUMMIT,
                "verdict": one.verdict,
            }
            for one in run.idle
        ],
        "stores": [
            {
                "name": one.name,
                "of": one.of,
                "plain": one.plain,
                "how": one.how,
                "per_second": one.per_second,
                **_ratio_json(one.ratio),
                "fault": one.fault,
            }
            for one in run.races
        ],
    }


def write_json(run: Run, path: Path) -> None:
    path.write_text(json.dumps(as_json(run), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_markdown(run: Run, path: Path) -> None:
    """Replace what stands between the two markers of the file. Raises ValueError where they are missing."""
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} lacks the lines {BEGIN!r} and {END!r}, between which the tables go")
    path.write_text(f"{before}{BEGIN}\n\n{_markdown(run)}\n{END}{after}", encoding="utf-8")


def write_plot(run: Run, path: Path) -> None:
    """Draw the contestants' times as bars, in times of the unit, one panel for each delivery of each stream.

    Raises ImportError where matplotlib is missing.
    """
    # by name, so that neither this module nor its type check needs the package
    settings = import_module("matplotlib").rcParams
    settings["svg.hashsalt"] = "levada"  # the same numbers give the same file
    settings["svg.fonttype"] = "none"  # text as text, not as outlines
    figure_of = import_module("matplotlib.figure").Figure
    streams = [(workload, cells) for workload, cells in run.by_workload() if len(cells) > 1][:2]
    if not streams:
        raise ValueError("nothing to draw: the plot shows streams in several deliveries; leave --only out")
    columns = max(len(cells) for _, cells in streams)
    there = run.names_of([cell for _, cells in streams for cell in cells])
    names = [run.base, *(name for name in there if name not in FLOORS)][::-1]
    figure = figure_of(figsize=(4.2 * columns, 3.4 * len(streams)), layout="constrained")
    grid = figure.subplots(len(streams), columns, sharey=True, squeeze=False)
    for line, (workload, cells) in zip(grid, streams, strict=True):
        for axes, cell in zip(line, cells, strict=False):
            ratios = [cell.ratio(name, run.base) for name in names]
            values = [ratio.best if ratio else 0.0 for ratio in ratios]
            colours = [_colour(name, run.base) for name in names]
            spread = [
                [max(0.0, ratio.best - ratio.low) if ratio else 0.0 for ratio in ratios],
                [max(0.0, ratio.high - ratio.best) if ratio else 0.0 for ratio in ratios],
            ]
            axes.barh(names, values, color=colours, xerr=spread, error_kw={"ecolor": "#999999", "elinewidth": 0.8})
            for place, (ratio, value) in enumerate(zip(ratios, values, strict=True)):
                edge = ratio.high if ratio else 0.0
                axes.text(edge, place, f"  {value:.3g}×" if ratio else "  out", va="center", fontsize=8)
            axes.set_title(f"{workload}, {cell.delivery}", fontsize=9)
            axes.margins(x=0.2)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Time to read every event's data, in times of {run.base} (less is quicker)", fontsize=11)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=120)


def _colour(name: str, base: str) -> str:
    if name == base:
        return "#0b6e4f"
    if name.startswith("levada"):
        return "#6bbf9c"
    return "#c9a227" if name.startswith(NODE_PARSER) else "#8d99ae"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _spread(ratio: Ratio, value: float) -> str:
    return f"{_number(value)}× ({_number(ratio.low)}..{_number(ratio.high)})"


def _ratio_text(cell: Cell, name: str, base: str) -> str:
    if name in cell.faults:
        return "out"
    ratio = cell.ratio(name, base)
    return _spread(ratio, ratio.best) if ratio else "–"


def _amount(cell: Cell) -> str:
    return f"{cell.events:,} event{'s' * (cell.events > 1)}, {cell.size / 1000:,.0f} kB"


def _speed(cell: Cell, name: str) -> str:
    if name not in cell.seconds:
        return "out"
    seconds = cell.median_seconds(name)
    return f"{_number(cell.size / seconds / 1e6)} MB/s"


def _rows(verdicts: Sequence[Verdict]) -> Iterator[tuple[str, list[Verdict]]]:
    """Yield the rows of the design, each with its verdicts."""
    for (slower, faster), group in groupby(verdicts, key=lambda verdict: (verdict.bar.slower, verdict.bar.faster)):
        yield f"{slower}, in times of {faster}", list(group)


def _measured(verdict: Verdict) -> str:
    return _spread(verdict.ratio, verdict.value) if verdict.ratio else ""


def _wanted(verdict: Verdict) -> str:
    bar = verdict.bar
    wanted = f"at {'most' if bar.at_most else 'least'} {bar.bar:g}×"
    return f"{wanted}, summit {bar.summit:g}×" if bar.summit else wanted


_IDLE: Final = f"memory of a turn between events, after {DELTAS} deltas, beyond its text"
_IDLE_WANTED: Final = f"at most {BAR:,}, summit {SUMMIT:,}"


def _bytes(one: Idle) -> str:
    return f"{one.beyond:,.0f} bytes"


def _race_speed(one: Race) -> str:
    return "out" if one.fault else f"{_number(one.per_second)} {one.of}/s"


def _race_ratio(one: Race) -> str:
    # less is quicker here, so the smallest median is the best one
    return _spread(one.ratio, min(one.ratio.medians)) if one.ratio else f"{one.fault}"


def _ratio_json(ratio: Ratio | None) -> dict[str, Any]:
    return {"medians": list(ratio.medians), "min": ratio.low, "max": ratio.high} if ratio else {}


def _markdown(run: Run) -> str:
    lines = [f"- {name}: {value}" for name, value in machine().items()]
    lines.append(
        f"- {run.series} series of {run.rounds} rounds; each value is the best of the series' medians (min..max)"
    )
    lines += [f"- **not measured**: {name} ({why})" for name, why in run.absent.items()]
    lines += ["", "Processor time in times of the contestant in italics; more than 1 means that it is quicker.", ""]
    for workload, cells in run.by_workload():
        lines.append(f"| {workload} ({_amount(cells[0])}) | {' | '.join(c.delivery for c in cells)} |")
        lines.append("|---|" + "---:|" * len(cells))
        base = run.base_of(cells)
        lines.append(f"| *{base}* | {' | '.join(f'*{_speed(cell, base)}*' for cell in cells)} |")
        for name in run.names_of(cells):
            label = f"{name} {run.versions[name]}".replace(" this tree", "")
            if name in (*FLOORS, TYPED):
                label = f"floor: `{name}`"
            lines.append(f"| {label} | {' | '.join(_ratio_text(cell, name, base) for cell in cells)} |")
        lines += ["", *(f"*{n} is out in {c.delivery}: {why}.*\n" for c in cells for n, why in c.faults.items())]
    lines += ["| bar | measured | wanted | |", "|---|---:|---|---|"]
    for row, group in _rows(run.verdicts):
        for verdict in group:
            what = f"{row}: {verdict.bar.workload}, {verdict.bar.delivery}"
            lines.append(f"| {what} | {_measured(verdict)} | {_wanted(verdict)} | {verdict.text} |")
    lines += [
        f"| {_IDLE}: {one.workload}, {one.turns:,} alive | {_bytes(one)} | {_IDLE_WANTED} | {one.verdict} |"
        for one in run.idle
    ]
    if run.races:
        lines += ["", "Stores against their plain drivers, which do the same statements: wall time in times of theirs."]
        lines += ["", "| store | | in times of the plain driver | plain driver |", "|---|---:|---:|---|"]
        lines += [
            f"| {one.name} | {_race_speed(one)} | {_race_ratio(one)} | {one.plain}: {one.how} |" for one in run.races
        ]
    lines += ["", "How each one is called:", ""]
    lines += [f"- **{name}**: {run.hows[name]}" for name in run.versions]
    return "\n".join(lines)
