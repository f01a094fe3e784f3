"""A turn painted on a terminal: provisional while it goes on, settled when it has ended. For `levada play`.

A provisional paint comes at most every 40 ms, the newest text wins, and none comes after the end. It shows as many of
the last lines as fit; the settled one is printed whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from levada.cli.shown import escaped, is_unicode, one_line
from levada.cli.words import call_words, end_words, usage_words
from levada.deltas import Delta
from levada.lifecycle import State

if TYPE_CHECKING:
    from levada.turn import Turn

__all__ = ["Painted"]

_INTERVAL_S: Final = 0.04  # between two provisional paints: 25 a second
_ENDED: Final = (State.FINISHED, State.ERROR, State.CANCELLED)
_CALLS: Final = 8  # tool calls in a provisional paint
_LONGEST_CALL: Final = 4000  # characters of a call's arguments


class Painted:
    """Paints the turn in place, and at the end once more for good."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._live = Live(
            _View(turn, settled=False),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._painted_s = 0.0
        self._news = True

    def __enter__(self) -> Painted:
        self._live.start(refresh=True)
        self._painted()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, deltas: list[Delta]) -> None:
        """Paint what is new, if the last paint is old enough."""
        self._news = self._news or bool(deltas)
        self._paint_if_due()

    def rest(self, seconds: float) -> None:
        """Let time pass, and paint in it what has become due."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            due_s = self._painted_s + _INTERVAL_S - time.monotonic()
            time.sleep(min(left_s, max(due_s, 0.0)) if self._news else left_s)
            self._paint_if_due()

    def catch_up(self) -> None:
        """Paint what is new as soon as the interval allows."""
        if self._news:
            time.sleep(max(self._painted_s + _INTERVAL_S - time.monotonic(), 0.0))
            self._paint_if_due()

    def settle(self) -> None:
        """Print the turn as it ended; whole, however long it is."""
        self._console.print(_View(self._turn, settled=True))

    def _paint_if_due(self) -> None:
        if self._news and time.monotonic() - self._painted_s >= _INTERVAL_S:
            self._live.refresh()
            self._painted()

    def _painted(self) -> None:
        self._painted_s = time.monotonic()
        self._news = False


class _View:
    """A turn as lines of a terminal. Not yet settled, it shows as many of the last lines as fit."""

    def __init__(self, turn: Turn, *, settled: bool) -> None:
        self._turn = turn
        self._settled = settled
        self._fancy = is_unicode()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        options = options.update(height=None)
        # text that cannot be on the screen need not be laid out: a column takes at least one character
        most = None if self._settled else options.max_width * console.height
        above = [line for text in self._texts(most) for line in console.render_lines(text, options, pad=False)]
        below = [line for text in self._status() for line in console.render_lines(text, options, pad=False)]
        room = max(console.height - len(below) - 1, 1)
        for line in above if self._settled else above[-room:]:
            yield from (*line, Segment.line())
        yield from _joined(below)
        if self._settled:
            yield Segment.line()

    def _texts(self, most: int | None) -> Iterator[Text]:
        """Give reasoning, refusal, answer and tool calls; of each text at most the last `most` characters."""
        turn = self._turn
        answer, reasoning, refusal = turn.answer, turn.reasoning, turn.refusal
        thinking = not (answer or refusal or turn.tool_calls or turn.state in _ENDED)
        if reasoning:
            if thinking:
                yield self._text("thinking", "dim bold")
                yield self._text(_last(reasoning, most), "dim")
            else:
                mark = "▸" if self._fancy else ">"
                yield self._line(f"{mark} thought for {len(reasoning):,} characters", "dim")
        body, label = self._look()
        if label and (answer or refusal):
            yield self._line(label, "dim")
        if refusal:
            yield self._text(_last(refusal, most), f"{body} magenta".strip())
        if answer:
            text = self._text(_last(answer, most), body)
            if not self._settled:
                text.append("▌" if self._fancy else "_", "dim")
            yield text
        arrow = "→" if self._fancy else "->"
        finished = turn.state is State.FINISHED
        for call in turn.tool_calls if self._settled else turn.tool_calls[-_CALLS:]:
            words = f"{arrow} {call_words(call, _LONGEST_CALL)}"
            if self._settled:
                yield self._text(words if finished else f"{words} not to be run", "cyan" if finished else "dim")
            else:
                yield self._line(words, "cyan dim")

    def _look(self) -> tuple[str, str]:
        """Return the style of the answer, and the line above it where it is none."""
        if self._turn.state is State.FINISHED:
            return "", ""
        if self._settled:
            return "dim", "unfinished text, no answer:"
        return "italic", ""

    def _status(self) -> Iterator[Text]:
        """Give the state, and what else there is to say at the end."""
        turn = self._turn
        dot = " · " if self._fancy else " - "
        if not self._settled:
            facts = [turn.state.value]
            if turn.state is State.STREAMING:
                facts.append("provisional")
            if len(turn.choices) > 1:
                facts.append(f"choice 0 of {len(turn.choices)}")
            facts.append(f"{turn.events} events")
            if turn.usage is not None:
                facts.append(usage_words(turn.usage))
            yield self._line(dot.join(facts), "dim")
            return
        mark, style = self._verdict()
        first, *rest = end_words(turn)
        if turn.error is None:
            yield self._text(mark + dot.join([first, *rest]), style)
        else:
            for text in (mark + first, *(f"  {words}" for words in rest)):
                yield self._text(text, style)

    def _verdict(self) -> tuple[str, str]:
        """Return the mark and the style of how the turn ended."""
        turn = self._turn
        if turn.state is State.FINISHED:
            mark, style = "✔ ", "green"
        elif turn.state is State.CANCELLED:
            mark, style = "■ ", "yellow"
        else:
            mark, style = "✘ ", "yellow" if turn.error is not None and turn.error.kind == "truncated" else "red"
        return mark if self._fancy else "", style

    def _text(self, text: str, style: str) -> Text:
        return Text(escaped(text), style=style, overflow="fold")

    def _line(self, text: str, style: str) -> Text:
        return Text(one_line(text), style=style, overflow="ellipsis" if self._fancy else "crop", no_wrap=True)


def _joined(lines: list[list[Segment]]) -> Iterator[Segment]:
    from rich.segment import Segment  # noqa: PLC0415

    for number, line in enumerate(lines):
        if number:
            yield Segment.line()
        yield from line


def _last(text: str, most: int | None) -> str:
    return text if most is None else text[-most:]
