"""What providers' error objects say: message, type, whether to try again. One reading for all dialects.

Source: providers' error pages and SDKs, read 2026-11-30; see docs/dialects.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from levada.draft import Draft

# Words of error types, codes and statuses that another attempt may get past: overload, rate, throttling, time.
_RETRYABLE: Final = frozenset(
    {
        "overloaded",
        "overloaded_error",
        "server_is_overloaded",
        "service_unavailable",
        "serviceunavailableexception",
        "unavailable",
        "rate_limit",
        "rate_limit_error",
        "rate_limit_exceeded",
        "too_many_requests",
        "resource_exhausted",
        "throttlingexception",
        "modelstreamerrorexception",
        "modeltimeoutexception",
        "internalserverexception",
        "timeout",
        "timeout_error",
        "deadline_exceeded",
        "server_error",
        "internal_server_error",
        "api_error",
        "internal",
        "vector_store_timeout",
        "408",
        "429",
        "500",
        "502",
        "503",
        "504",
        "529",
    }
)


def is_retryable(words: Iterable[object]) -> bool:
    """Say whether any of an error's type, code or status means that another attempt may go better."""
    return any(str(word).lower() in _RETRYABLE for word in words if isinstance(word, (str, int)))


def is_error_document(document: object) -> bool:
    """Say whether a JSON document is an error object, alone or in a list of one."""
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict):
        return False
    return bool(document.get("error")) or document.get("object") == "error" or document.get("type") == "error"


def fail_with(draft: Draft, error: object, *, status: int | None = None, retry_after_s: float | None = None) -> None:
    """Fail the turn with a provider's error object: nested once or twice, flat, a list of one, or a bare string."""
    raw = error
    message, kind, code = "", None, None
    depth = 0
    while depth < 4:
        depth += 1
        if isinstance(error, list) and error:
            error = error[0]
        elif isinstance(error, dict) and isinstance(error.get("error"), (dict, list)):
            error = error["error"]
        else:
            break
    words: list[object] = [status]
    if isinstance(error, str):
        message = error
    elif isinstance(error, dict):
        named = [error.get(key) for key in ("message", "error", "detail", "msg", "description")]
        message = next((text for text in named if isinstance(text, str) and text), "")
        code = error.get("code")
        kind = next(
            (
                word
                for word in (error.get("type"), error.get("status"), code)
                if isinstance(word, str) and word and word != "error"
            ),
            None,
        )
        if kind is None and isinstance(code, int) and not isinstance(code, bool):
            kind = str(code)
        words += [error.get("type"), error.get("status"), code]
    if status is not None and kind is None:
        kind = str(status)
    draft.fail(message, kind, retryable=is_retryable(words), retry_after_s=retry_after_s, raw=raw)
