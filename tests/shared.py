"""Where recordings of real providers lie: others' data, not part of this repository; without them tests are skipped.

LEVADA_SHARED names the folder; the default is `shared` beside the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("LEVADA_SHARED") or Path(__file__).parents[2] / "shared")
RECORDED = SHARED / "recorded"
