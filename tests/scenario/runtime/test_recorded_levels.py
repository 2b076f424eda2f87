"""Levels on the recorded Polygon market: their quantiles are those of the bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.market.market import Market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.memory_evaluation import lived
from bardo_pipeline.storage.market_data.demeter_trace import read_trace
from tests.conftest import NOW
from tests.scenario.runtime.test_recorded_fleet import DATA, RECORDED
from tests.unit.curator.test_facts import STATED

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def readings_from_bars(market: Market, seen_us: list[int]) -> dict[str, np.ndarray]:
    """Return gas at the bar of each look, in thousandths of a gwei, and the dollars traded since the look before."""
    bar = np.searchsorted(market.at_us, seen_us)
    assert market.at_us[bar].tolist() == seen_us
    traded = np.r_[0, np.cumsum(market.volume_usd_micros)][np.r_[0, bar + 1]]
    return {"gas_price": market.gas_gwei[bar] * 1000, "pool_volume": np.diff(traded) / 1e6}


def costs_from_actions(rows: list[dict[str, object]]) -> dict[str, list[int]]:
    """Return slippage and gas of the verified executed actions of these records."""
    done = [a for r in rows if r["outcome"] and r["outcome"]["verified"] for a in r["actions"]]  # type: ignore[index]
    done = [action for action in done if action["status"] == "executed"]
    slips = [action["slippage_ppm"] for action in done if action["slippage_ppm"] is not None]
    return {"slippage": slips, "gas_cost": [action["gas_cost_micros"] for action in done]}


@pytest.mark.full
@RECORDED
@pytest.mark.row("MEM-2", "X-5")
@pytest.mark.parametrize("days", [(0, 1), (2, 4)])
def test_every_stated_level_has_the_quantiles_of_the_bars(tmp_path: Path, days: tuple[int, int]) -> None:
    whole, _ = read_trace(DATA)
    market = whole.slice(days[0] * 1_440, min(days[1] * 1_440, whole.bars))
    context: DerivationContext = lived(tmp_path / "home", market, 2, Policy(), lambda: NOW, lambda _: None)
    grimoire = context.projections.replaceable("grimoire").read()
    stated = [r for r in grimoire.to_pylist() if r["source"] == "baseline" and r["status"] == "active"]
    records = context.log.read_cycles(["golem_id", "tick", "observed_at", "actions", "outcome"]).to_pylist()
    span = context.policy.curator.cycle_ticks
    assert {row["metric"] for row in stated} >= {"gas_price", "pool_volume"}
    for row in stated:
        lived_ticks = [r for r in records if r["golem_id"] == row["golem_id"]]
        lived_ticks = sorted(lived_ticks, key=lambda r: r["tick"])[: len(lived_ticks) // span * span]
        seen_us = [int(r["observed_at"].timestamp()) * 1_000_000 for r in lived_ticks]
        readings = {**readings_from_bars(market, seen_us), **costs_from_actions(lived_ticks)}[row["metric"]]
        assert row["own_sumsq"] == len(readings), "every tick counts"
        expected = np.quantile(readings, QUANTILES)
        assert [row[name] for name in STATED] == pytest.approx(expected, rel=0.15, abs=1), row["metric"]
