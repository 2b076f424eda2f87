"""How often a law is tried: `BARDO_EXAMPLES=10 make test` tries each on ten times as many examples."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings


def times(count: int) -> int:
    """Return settings with this number of examples, multiplied by BARDO_EXAMPLES."""
    return max(1, round(count * float(os.environ.get("BARDO_EXAMPLES", "1"))))


def some(count: int) -> settings:
    """Settings of a slow law: the same few examples each time, none of them made smaller when it fails."""
    return settings(
        max_examples=times(count), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
