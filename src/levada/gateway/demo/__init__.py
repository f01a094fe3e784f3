"""What `levada serve --demo` plays: an upstream of our own, in the same process, and its scenarios."""

from __future__ import annotations

from levada.gateway.demo.scenarios import SCENARIOS, Scenario
from levada.gateway.demo.upstream import DemoUpstream

__all__ = ["SCENARIOS", "DemoUpstream", "Scenario"]
