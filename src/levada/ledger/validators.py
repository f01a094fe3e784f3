"""Validators: what a finished turn must be to be stored as an answer.

A validator is a callable. It takes the FinishedTurn and returns None where it has nothing to say against it, a reason,
or several. One that needs a second argument is also given the text that will be stored as the answer: it differs from
`turn.answer` where a review replaced some of it. Reasons are stored: they must not quote the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NoReturn, get_args

import msgspec

from levada.deltas import FinishReason, ToolCall
from levada.errors import UsageError
from levada.finished import FinishedTurn
from levada.ledger.anomalies import HARMLESS, TOUCHING
from levada.ledger.checks import Validator

__all__ = [
    "answer_matches",
    "finish_reason_in",
    "intact",
    "intact_but",
    "no_unfinished_tool_call",
    "not_empty",
    "valid_tool_arguments",
]

_MOST_PLACES: Final = 5  # of a schema that one answer is told to break
_LONGEST_PLACE: Final = 200  # characters

_FINISH_REASONS: Final = get_args(FinishReason)


# -- the stream --------------------------------------------------------------------------------------------------------


def intact(turn: FinishedTurn) -> list[str]:
    """Refuse a turn with an anomaly that touches its content (levada.ledger.anomalies says which do, and why).

    Among these is a final text of the wire that is not the sum of its deltas.
    """
    return _touching(turn, frozenset())


def intact_but(*names: str) -> Validator:
    """Return `intact` with these anomalies allowed, for a server that is known for them.

    Raises UsageError for a name that levada does not count.
    """
    unknown = [name for name in names if name not in TOUCHING and name not in HARMLESS]
    if unknown:
        raise UsageError(f"no such anomaly: {unknown[0]!r:.100}; docs/turns.md lists them")
    allowed = frozenset(names)

    def intact_but_for_some(turn: FinishedTurn) -> list[str]:
        return _touching(turn, allowed)

    return intact_but_for_some


def _touching(turn: FinishedTurn, allowed: frozenset[str]) -> list[str]:
    reasons = []
    for name, count in turn.anomalies.counts.items():
        if name in HARMLESS or name in allowed:
            continue
        event = next((anomaly.event for anomaly in turn.anomalies.first if anomaly.name == name), None)
        place = f", first at event {event}" if event is not None else ""
        why = TOUCHING.get(name, "an anomaly that this version does not know")
        reasons.append(f"not intact: {why} ({name}, {count} times{place})")
    return reasons


# -- the answer --------------------------------------------------------------------------------------------------------


def not_empty(turn: FinishedTurn, released: str) -> str | None:
    """Refuse a turn that has neither a tool call nor an answer other than white space."""
    return None if turn.tool_calls or released.strip() else "empty: no answer and no tool call"


def answer_matches(schema: Mapping[str, Any]) -> Validator:
    """Return a validator: the whole answer is JSON text, and matches this JSON schema (draft 2020-12, or its $schema).

    The reasons name places of the schema and never quote the answer. Formats are annotations, as the draft says. A $ref
    leads only into the schema itself or to a published metaschema: nothing is ever fetched.
    Raises UsageError for what is no schema or has a $ref that leads nowhere, and where jsonschema is not installed.
    """
    judge = _compiled(schema)

    def answer_matches_schema(turn: FinishedTurn, released: str) -> list[str]:
        try:
            value = json.loads(released, parse_constant=_refuse_constant)
        except RecursionError:
            return ["the answer is JSON nested too deeply"]
        except ValueError:  # its words may quote the answer
            return ["the answer is not JSON"]
        try:
            errors = list(islice(judge.iter_errors(value), _MOST_PLACES + 1))
        except RecursionError:
            return ["the answer is JSON nested too deeply for its schema"]
        reasons = [f"the answer does not match its schema at {_place(error)}" for error in errors[:_MOST_PLACES]]
        return reasons + ["and at more places"] * (len(errors) > _MOST_PLACES)

    return answer_matches_schema


def _compiled(schema: Any) -> Any:
    try:
        from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415  # an extra
        from jsonschema.validators import validator_for  # noqa: PLC0415
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # noqa: PLC0415  # has none
        from referencing import Resource  # noqa: PLC0415
        from referencing.exceptions import Unresolvable  # noqa: PLC0415
        from referencing.jsonschema import DRAFT202012  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"answer_matches needs jsonschema ({error}): pip install 'levada[ledger]'") from error
    try:
        schema = json.loads(json.dumps(schema))  # our own: who changes theirs later does not change what was compiled
    except (TypeError, ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise UsageError("no JSON schema: it must be a dict of plain JSON")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        resource = Resource.from_contents(schema, default_specification=DRAFT202012)
        _resolve_all(resource, REGISTRY.resolver_with_root(resource))
    except SchemaError as error:
        raise UsageError(f"no JSON schema: {error.message:.200}") from error
    except Unresolvable as error:
        raise UsageError(f"the schema's $ref {error.ref!r:.200} leads out of it; nothing is fetched") from error
    return kind(schema, registry=REGISTRY)  # the metaschemas alone; without one, jsonschema would fetch


def _resolve_all(resource: Any, resolver: Any) -> None:
    """Look up each reference in a schema, so that one that leads nowhere is found before the first answer."""
    if isinstance(resource.contents, dict):
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            ref = resource.contents.get(key)
            if isinstance(ref, str):
                resolver.lookup(ref)
    for inner in resource.subresources():
        _resolve_all(inner, resolver.in_subresource(inner))


def _place(error: Any) -> str:
    """Return where in the schema an error is. The path in the answer would quote its keys."""
    path = "/".join(str(step).replace("~", "~0").replace("/", "~1") for step in error.absolute_schema_path)
    return f"/{path}" if len(path) < _LONGEST_PLACE else f"/…{path[1 - _LONGEST_PLACE :]}"


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


# -- tool calls and the finish -----------------------------------------------------------------------------------------


def valid_tool_arguments(turn: FinishedTurn) -> list[str]:
    """Refuse a turn with a tool call whose arguments are no JSON object; those of kind custom are free text."""
    return [
        f"the arguments of tool call {number} of {len(turn.tool_calls)} are no JSON object"
        for number, call in enumerate(turn.tool_calls, 1)
        if not _has_valid_arguments(call)
    ]


def _has_valid_arguments(call: ToolCall) -> bool:
    if call.kind == "custom":
        return True
    try:
        return isinstance(msgspec.json.decode(call.arguments), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False


def no_unfinished_tool_call(turn: FinishedTurn) -> list[str]:
    """Refuse a turn with a tool call that its provider did not complete."""
    return [
        f"tool call {number} of {len(turn.tool_calls)} is not complete"
        for number, call in enumerate(turn.tool_calls, 1)
        if not call.complete
    ]


def finish_reason_in(*reasons: str) -> Validator:
    """Return a validator: the turn's finish reason is one of these common words (stop, length, tool_use, …).

    Raises UsageError for none, and for a word that is no finish reason.
    """
    unknown = [reason for reason in reasons if reason not in _FINISH_REASONS]
    if unknown or not reasons:
        said = f"no such finish reason: {unknown[0]!r:.100}" if unknown else "finish_reason_in() allows nothing"
        raise UsageError(f"{said}; there are {', '.join(_FINISH_REASONS)}")

    def finish_reason_is_allowed(turn: FinishedTurn) -> str | None:
        if turn.finish_reason in reasons:
            return None
        return f"finish reason {turn.finish_reason}, not {' or '.join(reasons)}"

    return finish_reason_is_allowed
