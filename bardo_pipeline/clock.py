"""The default clock: the current moment in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the current moment (UTC), stored as `recorded_at`; no derived content depends on it."""
    return datetime.now(UTC)
