"""Budgets of golems for shared memory: an amount for each tick, and one for each month.

A call that would exceed a budget is not made. All costs are events, so the budgets hold after a restart.
Source: MEM ("Opt-in model"); MEM-15.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import NamedTuple

from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import last_records


class StyxSpending(NamedTuple):
    """Micro-dollars of one golem. tick: since its last tick. month: in the calendar month (UTC) of its last tick."""

    tick: int = 0
    month: int = 0


def styx_spending(context: DerivationContext, golem_ids: Collection[str]) -> dict[str, StyxSpending]:
    """Return what these golems paid for calls, in their own time. Before its first tick a golem has one budget."""
    rows = last_records(context, ("golem_id", "tick", "observed_at"), golem_ids)
    last = dict(zip(rows["golem_id"].to_pylist(), rows["observed_at"].to_pylist(), strict=True))
    spent = dict.fromkeys(golem_ids, StyxSpending())
    for golem_id, paid_at, micros in _payments(context):
        if golem_id in spent:
            at = last.get(golem_id)
            is_of_month = at is None or (paid_at.year, paid_at.month) >= (at.year, at.month)
            is_of_tick = at is None or paid_at >= at
            tick, month = spent[golem_id]
            spent[golem_id] = StyxSpending(tick + micros * is_of_tick, month + micros * is_of_month)
    return spent


def _payments(context: DerivationContext) -> Iterator[tuple[str, datetime, int]]:
    """Yield (golem, time, micro-dollars) of each paid call."""
    for heard in context.life_fields("PostsReceived", "golem_ids", "query_micros").to_pylist():
        for golem_id in heard["golem_ids"]:
            yield golem_id, heard["observed_at"], heard["query_micros"]
    for call in context.life_fields("StyxCalled", "cost_micros").to_pylist():
        yield call["golem_id"], call["observed_at"], call["cost_micros"]


def able_to_pay(context: DerivationContext, golem_ids: Collection[str], micros: int) -> list[str]:
    """Return the golems whose budgets allow one more call of this price."""
    rules = in_force_of(context, sorted(golem_ids))
    able = []
    for golem_id, spent in styx_spending(context, golem_ids).items():
        budget = rules[golem_id].configuration.styx.budget
        per_tick, monthly = round(budget.max_per_tick_usd * 1e6), round(budget.monthly_usd * 1e6)
        if spent.tick + micros <= per_tick and spent.month + micros <= monthly:
            able.append(golem_id)
    return able
