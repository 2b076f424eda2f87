"""The default clock, and moments as microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_now() -> datetime:
    """Return the current moment (UTC), stored as `recorded_at`; no derived content depends on it."""
    return datetime.now(UTC)


def micros_of(moment: datetime) -> int:
    """Return a moment with a time zone in microseconds since 1970, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_at(micros: int) -> datetime:
    """Return the moment (UTC) of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)
