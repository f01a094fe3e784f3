"""The public names, pinned: adding one needs a README line, and removing one breaks somebody."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import levada

NAMES = [
    "Anomalies", "Anomaly", "AsyncReview", "BACKEND", "BACKEND_REASON", "Blocked", "Cancelled", "Choice", "Citation",
    "Comment", "CumulativeText", "DIALECTS", "Delta", "Detected", "Event", "EventParser", "EventTooLarge", "Finish",
    "FinishedTurn", "Gate", "HoldGate", "Incomplete", "JsonArray", "JsonLines", "KeyConflict", "LedgerError",
    "LedgerTooLarge", "LevadaError", "LiveLog", "MalformedPayload", "NotFinished", "Opaque", "OpenGate", "Outcome",
    "PROFILES", "PaintClock", "Painter", "Part", "Profile", "ProtocolError", "ProviderError", "Reference", "Remainder",
    "Retry", "Review", "RunRecord", "SchemaMismatch", "Sentence", "SentenceGate", "State", "StopButton", "StoreError",
    "Stray", "StreamError", "TextDelta", "TextReplaced", "ThreadPainter", "Timeouts", "TooLarge", "ToolCall",
    "ToolCallDelta", "TransportError", "TransportRewound", "Truncated", "Turn", "TurnError", "TurnTimeout", "Usage",
    "UsageError", "UsageUpdate", "Utf8Decoder", "__version__", "aiter_events", "detect", "encode_comment",
    "encode_event", "encode_json", "iter_events", "run_turn", "run_turn_sync",
]  # fmt: skip
OF_EXTRAS = ["AsyncLedger", "Ledger"]


def test_all_is_what_it_was() -> None:
    assert sorted(levada.__all__) == NAMES


def test_each_name_is_there() -> None:
    missing = [name for name in NAMES + OF_EXTRAS if name != "__version__" and not hasattr(levada, name)]
    assert missing == []


def test_those_of_an_extra_are_seen_but_not_imported_with_all_others() -> None:
    assert set(OF_EXTRAS) <= set(dir(levada))
    code = "import sys; sys.modules['sqlalchemy'] = None\nfrom levada import *\ntry: import levada.ledger\n"
    code += "except ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "levada.ledger needs SQLAlchemy: pip install 'levada[ledger]'\n"


def test_the_version_is_that_of_the_package() -> None:
    """Where levada is only on the path, not installed, there is none."""
    try:
        expected = version("levada")
    except ModuleNotFoundError:
        pytest.skip("levada is not installed")
    assert levada.__version__ == expected


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'levada' has no attribute 'nope'"):
        levada.nope  # noqa: B018  # reading it is the test


def test_text_and_framing_need_the_standard_library_alone() -> None:
    others = ("msgspec", "click", "rich", "httpx", "sqlalchemy")
    code = f"import sys, levada; print([n for n in {others} if n in sys.modules])"
    source = str(Path(levada.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "[]"
