"""What servers of one dialect do differently, as data. No code of their own: a dialect looks the answers up.

Sources: docs/dialects.md, which gives for each profile where each fact was seen, read 2026-11-30. A profile is named by
the caller, or found by detection; one that was found never loosens `terminal`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from msgspec import Struct


class Profile(Struct, frozen=True, gc=False):
    """One server's habits."""

    name: str
    dialect: str
    # strict, done or finish_reason: what confirms a turn of this server when the caller named the profile
    terminal: str = "strict"
    # `object` values of a chunk that confirm the turn, with a finish reason, as `[DONE]` does
    terminal_objects: tuple[str, ...] = ()
    # where reasoning stands in a delta; the first non-empty string counts, two are never added
    reasoning_fields: tuple[str, ...] = ("reasoning", "reasoning_content", "reasoning_details")
    # tags that wrap reasoning in the answer text; split out only where the caller asks
    think_tags: tuple[str, ...] = ()
    # how the usage object counts: standard, or reasoning_apart (output tokens exclude reasoning tokens)
    usage_rule: str = "standard"
    # delta, cumulative or auto: whether text is what is new, or everything so far
    text_mode: str = "delta"
    # a finish without a delta and with a filter's verdict withdraws the text that was sent
    withdraws_filtered: bool = False
    # tool calls come whole in one chunk, without an index; for documentation and encoders
    whole_tool_calls: bool = False


_CHAT: Final = "openai_chat"
_CONTENT: Final = ("reasoning_content", "reasoning", "reasoning_details")
_PLAIN: Final = ("reasoning", "reasoning_content", "reasoning_details")

_ALL: Final = (
    Profile("openai", _CHAT),
    Profile("azure", _CHAT, withdraws_filtered=True),
    Profile("deepseek", _CHAT, reasoning_fields=_CONTENT),
    Profile("openrouter", _CHAT, reasoning_fields=_PLAIN),
    Profile("groq", _CHAT, reasoning_fields=_PLAIN, think_tags=("think",), whole_tool_calls=True),
    Profile("xai", _CHAT, reasoning_fields=_CONTENT, usage_rule="reasoning_apart", whole_tool_calls=True),
    Profile(
        "perplexity", _CHAT, terminal="finish_reason", terminal_objects=("chat.completion.done",), think_tags=("think",)
    ),
    Profile("vllm", _CHAT, reasoning_fields=_PLAIN, think_tags=("think",)),
    Profile("sglang", _CHAT, reasoning_fields=_CONTENT, think_tags=("think",)),
    Profile("tensorrt_llm", _CHAT, reasoning_fields=_CONTENT, think_tags=("think",)),
    Profile("dashscope", _CHAT, reasoning_fields=_CONTENT),
    Profile("moonshot", _CHAT, reasoning_fields=_CONTENT),
    Profile("zai", _CHAT, reasoning_fields=_CONTENT),
    Profile("ollama_v1", _CHAT, reasoning_fields=_PLAIN, think_tags=("think",), whole_tool_calls=True),
    Profile("huggingface", _CHAT, terminal="finish_reason", think_tags=("think",)),
    Profile("writer", _CHAT, terminal="finish_reason"),
    Profile("snowflake", _CHAT, terminal="done"),
    Profile("gpustack", _CHAT, terminal="finish_reason", think_tags=("think",)),
    Profile("databricks", _CHAT),
    Profile("copilot", _CHAT, reasoning_fields=("reasoning_text", *_CONTENT)),
    Profile("gemini_openai", _CHAT, think_tags=("thought",), whole_tool_calls=True),
    Profile("mistral_compat", _CHAT, whole_tool_calls=True),
    Profile("together", _CHAT, reasoning_fields=_PLAIN, think_tags=("think",)),
    Profile("fireworks", _CHAT, reasoning_fields=_CONTENT, think_tags=("think",)),
)

PROFILES: Final = MappingProxyType({profile.name: profile for profile in _ALL})
