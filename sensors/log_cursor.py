"""Cursor: how far a sensor has read the log of which home, and a look from there to where the log is now."""

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
    """Versions of the log that were read last, None before the first look; home: when the home was made."""

    home: str
    log_version: int | None
    life_version: int | None

    @classmethod
    def of(cls, stores: DerivationContext) -> Self:
        """Where the log is now."""
        return cls(stores.home.created_at.isoformat(), stores.log.version, stores.log.life_version)

    @classmethod
    def read(cls, text: str | None, *, home: str) -> Self:
        """What was kept; a fresh start where nothing was, where it cannot be read, or if it is of another home."""
        try:
            kept = cls(**json.loads(text or "{}"))
        except (TypeError, json.JSONDecodeError):
            kept = cls("", None, None)
        return kept if kept.home == home else cls(home, None, None)

    @property
    def text(self) -> str:
        """As Dagster keeps it."""
        return json.dumps(asdict(self))


Find = Callable[[DerivationContext, Cursor, Cursor], dg.RunRequest | str]
"""Compares where a sensor was with where the log is now: the run to ask for, or why there is none to ask for."""


def looked(
    context: dg.SensorEvaluationContext, home: LazyStores, find: Find, *, at_rest: str | None = None
) -> dg.SensorResult | dg.SkipReason:
    """One look at the log, from the kept cursor to where the log is now. Without a home, a reason to skip.

    at_rest: what to say without looking, where nothing was recorded since.
    """
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    now = Cursor.of(stores)
    before = Cursor.read(context.cursor, home=now.home)
    if before == now and at_rest is not None:
        return dg.SkipReason(at_rest)
    found = find(stores, before, now)
    if isinstance(found, str):
        return dg.SensorResult(skip_reason=dg.SkipReason(found), cursor=now.text)
    return dg.SensorResult(run_requests=[found], cursor=now.text)
