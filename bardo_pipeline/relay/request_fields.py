"""Reads the fields of a request to a relay: names, times and numbers. Each refusal states the cure."""

from __future__ import annotations

import re
from datetime import timedelta

from bardo_pipeline.errors import ServerError

KEPT_DAYS, KEPT_DAYS_MAX = 7, 366
"""Days that a message is kept for homes that are offline (INH S6.3), and the most that a sender may ask for."""

NAME = re.compile(r"[0-9a-f]{32,64}")


def names_of(parameters: dict[str, str], *names: str) -> list[str]:
    """Return path parameters. Raises ServerError 400 unless they are 32 to 64 hex digits."""
    values = [parameters[name] for name in names]
    for name, value in zip(names, values, strict=True):
        if not NAME.fullmatch(value):
            raise ServerError(400, "NameError", f"{name} {value[:80]!r} is no name", "give 32 to 64 hex digits")
    return values


def kept_time(text: str | None) -> timedelta:
    """Return the time for which a sender wants a message kept. Raises ServerError 400."""
    days = text or str(KEPT_DAYS)
    if not days.isascii() or not days.isdigit() or len(days) > 4 or not 1 <= int(days) <= KEPT_DAYS_MAX:
        raise ServerError(400, "DaysError", f"days {days[:80]!r} is no time to keep", f"give 1 to {KEPT_DAYS_MAX}")
    return timedelta(days=int(days))


def number_after(text: str | None) -> int:
    """Return the number behind which messages are wanted. Raises ServerError 400."""
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ServerError(400, "NumberError", f"after {text[:80]!r} is no number", "give the newest number read, or 0")
    return int(text)
