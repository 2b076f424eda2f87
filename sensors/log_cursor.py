"""Cursor of a sensor in the event log of one home, and the look from the cursor to the current versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import NoHomeError


@dataclass(frozen=True)
class Cursor:
    """Log versions read last, None before the first look. `home` is the creation time of the home."""

    home: str
    log_version: int | None
    life_version: int | None

    @classmethod
    def of(cls, stores: DerivationContext) -> Self:
        """Return a cursor at the current log versions."""
        return cls(stores.home.created_at.isoformat(), stores.log.version, stores.log.life_version)

    @classmethod
    def read(cls, text: str | None, *, home: str) -> Self:
        """Parse a stored cursor. Missing, unreadable or another home's: a cursor before the first look."""
        try:
            stored = cls(**json.loads(text or "{}"))
        except (TypeError, json.JSONDecodeError):
            stored = cls("", None, None)
        return stored if stored.home == home else cls(home, None, None)

    @property
    def text(self) -> str:
        """Serialise the cursor for Dagster's storage."""
        return json.dumps(asdict(self))


Find = Callable[[DerivationContext, Cursor, Cursor], dg.RunRequest | str]
"""Function of context, stored cursor and current cursor. Returns a run request, or the reason to skip."""


def look(
    context: dg.SensorEvaluationContext, home: LazyStores, find: Find, *, at_rest: str | None = None
) -> dg.SensorResult | dg.SkipReason:
    """Call `find` with stored and current cursor, and advance the cursor. Skips without a home.

    at_rest : skip reason if nothing was recorded since the stored cursor; `find` is then not called
    """
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    now = Cursor.of(stores)
    before = Cursor.read(context.cursor, home=now.home)
    if before == now and at_rest is not None:
        return dg.SkipReason(at_rest)
    result = find(stores, before, now)
    if isinstance(result, str):
        return dg.SensorResult(skip_reason=dg.SkipReason(result), cursor=now.text)
    return dg.SensorResult(run_requests=[result], cursor=now.text)
