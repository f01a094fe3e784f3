"""Stored turns to files that other programs read: JSON Lines, or Parquet. A few MiB are held at once.

Both have the same columns in the same order, one row a turn. What has one shape for all providers is nested in Parquet
(`usage`, `tool_calls`); what holds the provider's own objects is JSON text there, in the columns that end in `_json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

import msgspec

from levada.errors import UsageError
from levada.ledger.values import StoredTurn

__all__ = ["json_line", "row_of", "write_json_lines", "write_parquet"]

_PLAIN: Final = (
    *("key", "stored_at", "dialect", "profile", "model", "id", "finish_reason", "native_finish_reason"),
    *("answer", "altered", "raw_answer", "reasoning", "refusal", "attempts"),
)
_NESTED: Final = ("usage", "tool_calls", "anomalies", "choices", "parts", "citations", "references")
_COUNTS: Final = (
    *("input_tokens", "output_tokens", "reasoning_tokens"),
    *("cache_read_tokens", "cache_write_tokens", "total_tokens"),
)
_CALL: Final = ("id", "name", "arguments", "complete", "kind", "choice", "block", "id_is_ours")

# Row groups: large enough to compress and to be skipped well, small enough to be held.
GROUP_ROWS: Final = 5_000
GROUP_CHARS: Final = 8 * 1024 * 1024


def row_of(turn: StoredTurn) -> dict[str, Any]:
    """Return a stored turn as plain JSON, `stored_at` as text of RFC 3339 in UTC."""
    row = {name: getattr(turn, name) for name in _PLAIN}
    row["stored_at"] = turn.stored_at.isoformat().replace("+00:00", "Z")
    nested = {name: getattr(turn, name) for name in _NESTED}
    return row | {name: msgspec.to_builtins(value) for name, value in nested.items()}


def write_json_lines(turns: Iterable[StoredTurn], file: BinaryIO) -> int:
    """Write one JSON object a line; return how many."""
    count = 0
    for turn in turns:
        file.write(json_line(turn))
        count += 1
    return count


def json_line(turn: StoredTurn) -> bytes:
    """Return a turn as one line of JSON with its end."""
    row = row_of(turn)
    try:
        return msgspec.json.encode(row) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which JSON can say as an escape alone
        return json.dumps(_finite(row), separators=(",", ":")).encode() + b"\n"


def write_parquet(turns: Iterable[StoredTurn], file: BinaryIO) -> tuple[int, int]:
    """Write a Parquet file; return how many turns, and in how many of them lone surrogates became U+FFFD.

    Parquet's text is UTF-8, which cannot say them; JSON Lines can. Raises UsageError where pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415  # an extra, without types
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"Parquet needs pyarrow ({error}): pip install 'levada[parquet]'") from error
    schema = _schema(pa)
    count = replaced = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(turns):
            columns: dict[str, list[Any]] = {name: [] for name in schema.names}
            for turn in group:
                row = _parquet_row(turn)
                whole = _without_surrogates(row)
                replaced += whole != row
                for name in schema.names:
                    columns[name].append(whole[name])
            count += len(group)
            writer.write_table(pa.table(columns, schema=schema))
    return count, replaced


def _schema(pa: Any) -> Any:
    call = {name: pa.bool_() if name in ("complete", "id_is_ours") else pa.string() for name in _CALL}
    call |= {"choice": pa.int64(), "block": pa.int64()}
    types = dict.fromkeys(_PLAIN, pa.string())
    types |= {"stored_at": pa.timestamp("us", tz="UTC"), "altered": pa.bool_(), "attempts": pa.int64()}
    types["usage"] = pa.struct([*((name, pa.int64()) for name in _COUNTS), ("raw_json", pa.string())])
    types["tool_calls"] = pa.list_(pa.struct(list(call.items())))
    types["anomalies"] = pa.int64()
    types |= {f"{name}_json": pa.string() for name in ("anomalies", "choices", "parts", "citations", "references")}
    return pa.schema(list(types.items()))


def _parquet_row(turn: StoredTurn) -> dict[str, Any]:
    row = row_of(turn)
    row["stored_at"] = turn.stored_at
    usage = row["usage"]
    if usage is not None:
        row["usage"] = {**{name: _int64(usage[name]) for name in _COUNTS}, "raw_json": _text(usage["raw"])}
    anomalies = row["anomalies"]
    for name in ("anomalies", "choices", "parts", "citations", "references"):
        row[f"{name}_json"] = _text(row.pop(name))
    row["anomalies"] = anomalies["total"]
    return row


def _int64(count: int | None) -> int | None:
    return count if count is not None and count < 2**63 else None  # JSON has no largest number; raw_json keeps it


def _text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    """Return plain JSON with null for NaN and the infinities, as msgspec writes them."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {name: _without_surrogates(one) for name, one in value.items()}
    return [_without_surrogates(one) for one in value] if isinstance(value, list) else value


def _groups(turns: Iterable[StoredTurn]) -> Iterator[list[StoredTurn]]:
    group: list[StoredTurn] = []
    size = 0
    for turn in turns:
        group.append(turn)
        size += len(turn.answer) + len(turn.reasoning) + sum(len(part.text) for part in turn.parts)
        if len(group) >= GROUP_ROWS or size >= GROUP_CHARS:
            yield group
            group, size = [], 0
    if group:
        yield group
