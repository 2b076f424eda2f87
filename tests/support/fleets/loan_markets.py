"""Markets that lend, and golems that may borrow there, for tests of loans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bardo_pipeline.events.life.events import LoanGranted
from bardo_pipeline.market.market import ASSETS, LENDER, Market, Reserves
from tests.support.fleets.memory_fleets import FOUNDING, Lived, drawn_market, live

CENTRE = 200_000
"""The pool's tick at which these markets begin: about 2,062 dollars."""

RICH = replace(FOUNDING, credit_share=0.2, lifespan_ticks=(5_000, 5_000))


def reserves(bars: int, *, earned: float = 0.0, paid: float = 0.0, rate: float = 0.05) -> Reserves:
    """Both reserves with indexes that grow by these shares a bar."""
    supply, borrow = ((1.0 + growth) ** np.arange(bars) for growth in (earned, paid))
    both = [np.stack([row] * len(ASSETS)) for row in (supply, borrow, np.full(bars, rate))]
    return Reserves(*both)


def lending(
    ticks: Sequence[int], *, earned: float = 0.0, paid: float = 0.0, rate: float = 0.05, **fields: Any
) -> Market:
    """A market drawn by hand that lends."""
    return drawn_market(ticks, reserves=reserves(len(ticks), earned=earned, paid=paid, rate=rate), **fields)


def loan(ratio: float, collateral: str = "WETH") -> LoanGranted:
    """The loan limits of an owner."""
    return LoanGranted.model_validate({"protocol": LENDER, "collateral": collateral, "loan_to_value": ratio})


def indebted(
    market: Market, ratio: float, collateral: str = "WETH", *, golems: int = 1, thought_at: int | None = None
) -> Lived:
    """Run golems with a loan limit through a market. thought_at: a tick at which their owner forces deliberation."""
    steers = {} if thought_at is None else {("*", thought_at): ("high", "look at it again")}
    founding = RICH if ratio == 0.0 else replace(RICH, loan=loan(ratio, collateral))
    return live(market, lineages=range(golems), founding=founding, steers=steers)


def loan_of(row: Any) -> Any:
    """Return the loan in a record, or None."""
    return next((p for p in row["observation"]["positions"] if p["protocol"] == LENDER), None)


def done(rows: Sequence[Any]) -> list[tuple[int, str, str, str | None]]:
    """Return (tick, act, status, reason) of every action on loans."""
    kinds = ("borrow", "repay", "liquidated")
    return [
        (row["tick"], a["action_type"], a["status"], a["block_reason"])
        for row in rows for a in row["actions"] if a["action_type"] in kinds
    ]  # fmt: skip
