"""Requests: one run for all that a look finds, under a key that says who waits for what, so that none comes twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import NoHomeError

FEW = 5

Look = Callable[[DerivationContext, datetime], tuple[Sequence[str], str]]
"""Looks by a moment of the wall clock. Returns who waits, each with how far that has come, and why, in words."""


def requested(home: LazyStores, look: Look, *, at_rest: str) -> dg.RunRequest | dg.SkipReason:
    """The run to ask for, or why there is none. at_rest: what to say where nobody waits. Without a home, that."""
    try:
        stores = home.stores
    except NoHomeError as error:
        return dg.SkipReason(str(error))
    waiting, why = look(stores, home.now())
    if not waiting:
        return dg.SkipReason(at_rest)
    key = f"{stores.home.created_at.isoformat()}/{', '.join(waiting)}"
    return dg.RunRequest(run_key=key, tags={"bardo/why": why})


def few(said: Sequence[str], between: str = ", ") -> str:
    """The first of these, and how many more there are."""
    more = f" and {len(said) - FEW} more" if len(said) > FEW else ""
    return f"{between.join(said[:FEW])}{more}"
