"""What there is to say of a turn, in words for people. All of it is fit for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.cli.shown import one_line
from levada.deltas import ToolCall, Usage
from levada.errors import TurnError
from levada.lifecycle import State

if TYPE_CHECKING:
    from levada.turn import Turn

__all__ = ["call_words", "end_words", "error_words", "retry_words", "usage_words"]


def end_words(turn: Turn) -> list[str]:
    """Return how a turn ended: first the state, then what else there is to say of it."""
    error = turn.error
    if turn.state is State.CANCELLED:
        return ["cancelled", "what came is no answer"]
    if error is not None:
        return [f"error: {error.kind}", error_words(error), *([retry_words(error)] if error.retryable else [])]
    facts = [turn.state.value]
    if turn.finish_reason:
        facts.append(turn.finish_reason)
    if turn.usage is not None:
        facts.append(usage_words(turn.usage))
    return facts


def error_words(error: TurnError) -> str:
    """Return the provider's word for an error, and the message."""
    return one_line(": ".join(word for word in (error.type, error.message) if word) or "no message")


def retry_words(error: TurnError) -> str:
    """Return when to try again; only for an error that is retryable."""
    if error.retry_after_s is None:
        return "another attempt may go better"
    return f"another attempt may go better after {error.retry_after_s:g} s"


def usage_words(usage: Usage) -> str:
    """Return the counts that a provider told."""
    counts = []
    if usage.input_tokens is not None:
        cache = [(usage.cache_read_tokens, "read from cache"), (usage.cache_write_tokens, "written to cache")]
        apart = ", ".join(f"{count} {what}" for count, what in cache if count)
        counts.append(f"{usage.input_tokens} in" + (f" ({apart})" if apart else ""))
    if usage.output_tokens is not None:
        counts.append(f"{usage.output_tokens} out")
        if usage.reasoning_tokens:
            counts[-1] += f" ({usage.reasoning_tokens} reasoning)"
    if usage.total_tokens is not None:
        counts.append(f"{usage.total_tokens} in all")
    return ", ".join(counts) or "told, without counts"


def call_words(call: ToolCall, most: int) -> str:
    """Return a tool call as a call, its arguments cut off after `most` characters."""
    arguments = call.arguments if len(call.arguments) <= most else f"{call.arguments[: most - 1]}…"
    return f"{one_line(call.name)}({one_line(arguments)})"
