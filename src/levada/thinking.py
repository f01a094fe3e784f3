"""Splits `<think>…</think>` out of an answer, for servers that put reasoning into it. Only where asked for."""

from __future__ import annotations

__all__ = ["ThinkSplitter"]


class ThinkSplitter:
    """Text, cut anywhere, to pieces that are inside a tag or outside of all.

    `tags`: names, such as ("think", "reasoning"). A tag may be cut anywhere: what may yet become one is held, at most
    its own length. A tag that is never closed keeps everything after it inside. Tags do not nest.
    """

    __slots__ = ("_closing", "_held", "_openings")

    def __init__(self, tags: tuple[str, ...]) -> None:
        self._openings = tuple((f"<{tag}>", f"</{tag}>") for tag in tags)
        self._closing: str | None = None  # the tag that ends the reasoning, inside one
        self._held = ""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Return pieces as (inside, text), in order, without the tags."""
        text = self._held + text
        pieces: list[tuple[bool, str]] = []
        while text:
            inside = self._closing is not None
            sought = ((self._closing, None),) if self._closing is not None else self._openings
            place, tag, closing = min(
                ((text.find(tag), tag, closing) for tag, closing in sought if tag in text),
                default=(-1, "", None),
            )
            if place < 0:
                keep = max((_overlap(text, tag) for tag, _ in sought), default=0)
                if len(text) > keep:
                    pieces.append((inside, text[: len(text) - keep]))
                self._held = text[len(text) - keep :]
                return pieces
            if place:
                pieces.append((inside, text[:place]))
            text = text[place + len(tag) :]
            self._closing = closing
        self._held = ""
        return pieces

    def close(self) -> list[tuple[bool, str]]:
        """Return what was held: it did not become a tag."""
        held, self._held = self._held, ""
        return [(self._closing is not None, held)] if held else []


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
