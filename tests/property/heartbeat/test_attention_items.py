"""Attention to items of the environment, beside a row-at-a-time fold of the same market."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any

import pytest

from bardo_pipeline.events.record.model import ItemResiduals
from bardo_pipeline.heartbeat.attention_items import hear_residuals, readings
from bardo_pipeline.heartbeat.fleet import ITEMS
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.policy import GatewayPolicy, Policy
from tests.support.fleets.memory_fleets import Lived, live
from tests.support.fleets.routed_fleets import market, routed
from tests.unit.heartbeat.test_choose import fleet_of

RULES, SPAN = Policy().watch, Policy().curator.cycle_ticks


@cache
def tape() -> Tape:
    return tape_of(market(), Policy())


def folded(last_tick: int, starts: int) -> tuple[dict[int, list[tuple[Any, ...]]], dict[int, list[tuple[Any, ...]]]]:
    """Return the changes and the digests of a golem by tick, one item at a time. starts: its first tick on the tape."""
    changes: dict[int, list[tuple[Any, ...]]] = {}
    digests: dict[int, list[tuple[Any, ...]]] = {}
    for place, item in enumerate(ITEMS):
        level, last, variance, quiet = "unknown", math.nan, RULES.first_sigma**2, 0
        residuals: list[tuple[float, bool]] = []
        for tick in range(1, last_tick + 1):
            now, ends = float(readings(tape(), starts + tick - 1)[place]), tick % SPAN == 0
            change, cause, residual, before = None, None, None, level
            if before in ("watched", "active"):
                step, violated = now - last, False
                if not math.isnan(now):
                    violated = abs(step) > RULES.violation_sigma * math.sqrt(variance)
                    variance += (1.0 - RULES.memory) * (step * step - variance)
                    last = now
                    residuals.append((step, violated))
                quiet = 0 if violated else quiet
                if violated and before == "watched":
                    change, cause, residual = "active", "violation", step
                elif ends and quiet >= RULES.quiet_deltas:
                    change, cause = {"active": "watched", "watched": "dormant"}[before], "dull"
                quiet += ends
            elif before == "unknown" and not math.isnan(now) and (ends or tick == 1):
                change, cause, last = "watched", "discovered", now
            elif before == "dormant" and ends and not math.isnan(now):
                if abs(now - last) > RULES.violation_sigma * math.sqrt(variance * SPAN):
                    change, cause, residual = "watched", "violation", now - last
                last = now
            if change is not None:
                level, quiet = change, 0
                changes.setdefault(tick, []).append((item, change, cause, residual))
            if ends and residuals:
                steps = [step for step, _ in residuals]
                mean = sum(steps) / len(steps)
                spread = sum((step - mean) ** 2 for step in steps) / len(steps)
                digests.setdefault(tick, []).append((item, len(steps), sum(v for _, v in residuals), mean, spread))
                residuals = []
    return changes, digests


def rows_of(lived: Lived) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in lived.rows:
        rows.setdefault(row["golem_id"], []).append(row)
    return rows


@pytest.mark.row("HB-26")
def test_items_are_discovered_promoted_demoted_and_digested_as_a_fold_of_the_market_says() -> None:
    at = {int(moment): place for place, moment in enumerate(tape().at_us.tolist())}
    seen: Counter[tuple[str, str]] = Counter()
    for rows in rows_of(routed()).values():
        starts = at[round(rows[0]["observed_at"].timestamp() * 1e6)]
        changes, digests = folded(rows[-1]["tick"], starts)
        for row in rows:
            expected = changes.get(row["tick"], [])
            recorded = row["attention_changes"] or []
            assert [(c["item"], c["level"], c["cause"]) for c in recorded] == [e[:3] for e in expected], row["tick"]
            for change, (*_, residual) in zip(recorded, expected, strict=True):
                assert change["residual"] == (None if residual is None else pytest.approx(residual))
                seen[change["level"], change["cause"]] += 1
            kept = [list(d.values()) for d in row["residual_digest"] or []]
            for own, (item, *counts, mean, variance) in zip(kept, digests.get(row["tick"], []), strict=True):
                assert own[:3] == [item, *counts]
                assert own[3:] == [pytest.approx(mean, abs=1e-12), pytest.approx(variance, abs=1e-12)]
    assert set(seen) == {
        ("watched", "discovered"), ("active", "violation"), ("watched", "violation"), ("watched", "dull"),
        ("dormant", "dull"),
    }  # fmt: skip


@pytest.mark.row("HB-17", "HB-26")
def test_a_golem_beyond_its_daily_budget_reads_no_item() -> None:
    policy = Policy().model_copy(update={"gateway": GatewayPolicy(daily_budget_micros=1)})
    rows = live(market(), policy=policy).rows
    beyond = [row for row in rows if (row["spending"] or {}).get("band") == "no_query"]
    assert len(beyond) > 100
    assert not any(row["attention_changes"] for row in beyond)
    assert sum(d["resolved"] for row in rows for d in row["residual_digest"] or []) < len(rows)


@pytest.mark.row("HB-26")
def test_a_sibling_s_residuals_are_what_a_golem_expects_of_an_item_that_it_never_read() -> None:
    fleet = fleet_of(2)
    gas, volume = ITEMS.index("gas"), ITEMS.index("volume")
    fleet.item_variance[gas, 1] = 0.5
    told = [
        ItemResiduals(item=name, resolved=50, violations=1, mean=0.0, variance=0.25) for name in ("gas", "volume", "x")
    ]
    for golem in (0, 1):
        hear_residuals(fleet, golem, told, Policy())
    assert fleet.item_variance[gas].tolist() == [0.25, 0.5]
    assert fleet.item_variance[volume].tolist() == [0.25, 0.25]
    assert (fleet.item_variance[0] == RULES.first_sigma**2).all()
