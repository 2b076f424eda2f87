"""Run requests: one run for all items of a look, under a run key that lists them, so that no run repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import NoHomeError

FEW = 5

Look = Callable[[DerivationContext, datetime], tuple[Sequence[str], str]]
"""Function of context and wall-clock time. Returns waiting items (with their progress) and the reason in words."""


def request_run(home: LazyStores, look: Look, *, at_rest: str) -> dg.RunRequest | dg.SkipReason:
    """Return one run request for all waiting items, else a skip reason: `at_rest`, or the missing home."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    waiting, why = look(stores, home.now())
    if not waiting:
        return dg.SkipReason(at_rest)
    key = f"{stores.home.created_at.isoformat()}/{', '.join(waiting)}"
    return dg.RunRequest(run_key=key, tags={"bardo/why": why})


def few(items: Sequence[str], between: str = ", ") -> str:
    """Join the first FEW items and the count of the rest."""
    more = f" and {len(items) - FEW} more" if len(items) > FEW else ""
    return f"{between.join(items[:FEW])}{more}"
