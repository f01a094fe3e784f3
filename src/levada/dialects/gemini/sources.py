"""Reads what Gemini says of its sources: grounding metadata and citation metadata, to references and citations.

Offsets are bytes of UTF-8 in one text part of the answer; `startIndex` 0 is left out. `partIndex` counts the parts.
Recorded streams leave it out also where a thought or code stands before the text, so it is taken to count the answer's
text parts, and where that does not fit, the text that a segment quotes decides.

Source: google-genai 3.6.1 types, recorded streams, read 2026-11-30.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from levada.deltas import Citation, Reference
from levada.dialects.reading import as_count
from levada.draft import Draft

_KINDS: Final = ("web", "retrievedContext", "maps", "image")
_MOST_BLOCKS: Final = 64  # searched for a quotation; answers have one or two


def references_of(chunks: list[Any], choice: int, draft: Draft) -> list[Reference]:
    """Return `groundingChunks` as references. Citations call them by their place in the list: none is left out."""
    references = []
    for number, chunk in enumerate(chunks):
        entry = chunk if isinstance(chunk, dict) else {}
        body = next((entry[kind] for kind in _KINDS if isinstance(entry.get(kind), dict)), None)
        if body is None:
            draft.anomaly("unknown_reference", "groundingMetadata.groundingChunks")
            body = {}
        url = next((body[key] for key in ("uri", "sourceUri", "imageUri") if type(body.get(key)) is str), None)
        references.append(
            Reference(str(number), _string(body.get("title")), url, _string(body.get("text")), choice=choice, raw=chunk)
        )
    return references


def supports_of(
    supports: list[Any], choice: int, last_block: int, text_of: Callable[[int], str], draft: Draft
) -> list[Citation]:
    """Return `groundingSupports` as citations. `text_of` gives the text so far of a block of the answer."""
    citations = []
    texts: dict[int, bytes] = {}
    for support in supports:
        segment = support.get("segment") if isinstance(support, dict) else None
        if not isinstance(segment, dict):
            draft.anomaly("unknown_citation", "groundingMetadata.groundingSupports")
            continue
        start, end = as_count(segment.get("startIndex")) or 0, as_count(segment.get("endIndex"))
        block = min(as_count(segment.get("partIndex")) or 0, last_block)
        quoted = segment.get("text")
        if last_block and type(quoted) is str and end is not None:
            # where the quotation does not stand in the part that was named, but in another one, that is meant
            for candidate in (block, *range(min(last_block + 1, _MOST_BLOCKS))):
                if candidate not in texts:
                    texts[candidate] = text_of(candidate).encode()
                if texts[candidate][start:end] == quoted.encode():
                    block = candidate
                    break
        indices = support.get("groundingChunkIndices")
        names = tuple(str(index) for index in indices) if isinstance(indices, list) else ()
        citations.append(_citation(start, end, names, choice, block, support))
    return citations


def sources_of(metadata: dict[str, Any], choice: int, draft: Draft) -> list[Citation]:
    """Return `citationMetadata` as citations: `citationSources` of the Gemini API, `citations` of Vertex AI."""
    citations = []
    for name in ("citationSources", "citations"):
        entries = metadata.get(name)
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, dict):
                draft.anomaly("unknown_citation", f"citationMetadata.{name}")
                continue
            start, end = as_count(entry.get("startIndex")) or 0, as_count(entry.get("endIndex"))
            citations.append(
                _citation(start, end, (), choice, 0, entry, _string(entry.get("uri")), _string(entry.get("title")))
            )
    return citations


def _citation(
    start: int,
    end: int | None,
    references: tuple[str, ...],
    choice: int,
    block: int,
    raw: Any,
    url: str | None = None,
    title: str | None = None,
) -> Citation:
    if end is None:
        return Citation(None, None, None, url, title, None, references, choice, block, raw)
    return Citation(start, end, "bytes", url, title, None, references, choice, block, raw)


def _string(value: Any) -> str | None:
    return value if type(value) is str else None
