"""Budgets of a golem for shared memory: an amount for each tick, and one for each month.

A call that would exceed a budget is not made. All costs are events, so the budgets hold after a restart.
Source: MEM ("Opt-in model"); MEM-15.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import last_records


class StyxSpending(NamedTuple):
    """Micro-dollars of one golem. tick: since its last tick. month: in the calendar month (UTC) of its last tick."""

    tick: int
    month: int


def styx_spending(context: DerivationContext, golem_id: str) -> StyxSpending:
    """Return what a golem paid for calls to the layers, in its own time."""
    last = last_records(context, ("golem_id", "tick", "observed_at"), [golem_id])
    at = last["observed_at"][0].as_py() if last.num_rows else None
    tick = month = 0
    for paid_at, micros in _payments(context, golem_id):
        if at is None or paid_at >= at:
            tick += micros
        if at is None or (paid_at.year, paid_at.month) == (at.year, at.month) or paid_at > at:
            month += micros
    return StyxSpending(tick, month)


def may_pay(context: DerivationContext, golem_id: str, micros: int) -> bool:
    """Whether a golem's budgets allow one more call of this price."""
    budget = in_force_of(context, [golem_id])[golem_id].configuration.styx.budget
    spent = styx_spending(context, golem_id)
    per_tick, monthly = round(budget.max_per_tick_usd * 1e6), round(budget.monthly_usd * 1e6)
    return spent.tick + micros <= per_tick and spent.month + micros <= monthly


def _payments(context: DerivationContext, golem_id: str) -> list[tuple[datetime, int]]:
    """Return (event time, micro-dollars) of each payment of a golem."""
    queries = context.life_fields("PostsReceived", "golem_ids", "query_micros").to_pylist()
    return [(row["observed_at"], row["query_micros"]) for row in queries if golem_id in row["golem_ids"]]
