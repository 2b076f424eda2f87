"""Row-at-a-time twins of the costs of dying and of silence detection."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from bardo_pipeline.policy import DyingPolicy

Row = dict[str, Any]


def costs_by_row(
    reserve: int, looked: float, written: float, uploaded: float, pushed: float, rules: DyingPolicy
) -> tuple[int, int, int, int]:
    """Reflection, compression, upload and indexing of one golem, each paid in turn from the remaining credits."""
    low = {n: getattr(rules, f"{n}_micros_min") for n in ("reflection", "compression", "upload", "indexing")}
    high = {n: getattr(rules, f"{n}_micros_max") for n in low}

    def price(name: str, share: float) -> int:
        return int(low[name] + math.ceil(min(max(share, 0.0), 1.0) * (high[name] - low[name])))

    left, means = int(reserve), reserve >= sum(low.values())
    paid = []
    for name, share, later in (
        ("reflection", looked, ("compression", "upload", "indexing")),
        ("compression", written, ("upload", "indexing")),
        ("upload", uploaded, ("indexing",)),
        ("indexing", pushed, ()),
    ):
        kept = sum(low[n] for n in later)
        if name == "reflection" and not means:
            cost = 0
        elif name == "indexing":
            cost = min(price(name, share), left)
        else:
            wanted = low[name] if name == "compression" and not means else price(name, share)
            cost = min(wanted, left - kept) if left >= low[name] + kept else min(low[name], left)
        left -= cost
        paid.append(cost)
    return paid[0], paid[1], paid[2], paid[3]


def silent_by_row(items: Iterable[Row], silence: timedelta, at: datetime | None, now: datetime | None) -> list[Row]:
    """Return each living golem that was silent for longer than the limit, by id."""
    rows = list(items)
    lines = []
    for row in sorted(rows, key=lambda r: r["golem_id"]):
        until = at
        if at is None:
            witnesses = sorted(other["at"] for other in rows if other["market"] == row["market"])
            if len(witnesses) < 2:
                continue
            until = witnesses[-2] if now is None else min(now, witnesses[-2])
        if row["lives"] and until - row["at"] > silence:
            lines.append({**{n: row[n] for n in ("golem_id", "tick", "at")}, "until": until})
    return lines
