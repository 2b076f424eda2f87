"""The default clock of everything that records: the current moment in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the current moment. It is stored as the moment of recording; no derived content depends on it."""
    return datetime.now(UTC)
