"""A fleet on the recorded Polygon market of August 2023, with the crash and default budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import flat_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun, Run
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.market_data.demeter_trace import read_trace
from tests.conftest import NOW

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
RECORDED = pytest.mark.skipif(not DATA.is_dir(), reason=f"the recorded market is not at {DATA}")


def deaths(root: Path, market: Market, golems: int) -> tuple[DerivationContext, list[dict[str, object]]]:
    """Run golems with the default founding through a market, and return their deaths."""
    Home.create(root, Policy(), NOW)
    stores = DerivationContext.open(root)
    FleetRun(stores, Run("recorded", market, golems, 3, Founding()), lambda: NOW).live()
    return stores, stores.log.life("DeathDeclared")["died"].to_pylist()


@pytest.mark.full
@RECORDED
@pytest.mark.row("P-1", "INH-1")
def test_golems_die_and_are_succeeded_on_the_recorded_market(tmp_path: Path) -> None:
    market, _ = read_trace(DATA)
    stores, died = deaths(tmp_path / "home", market.slice(market.bars - 3_000, market.bars), 3)
    births = stores.log.life("GolemBorn")["born"].to_pylist()
    assert died
    assert any(b["generation"] == 1 for b in births)
    crash = datetime(2023, 8, 17, 21, 45, tzinfo=UTC)
    rows = stores.log.read_cycles(["observed_at", "regime", "tier", "prediction_error", "anomalies"]).to_pylist()
    then = [r for r in rows if abs((r["observed_at"] - crash).total_seconds()) <= 300]
    assert then
    assert {r["regime"] for r in then} <= {"volatile", "trending_down"}
    assert any(r["tier"] in ("T1", "T2") for r in then)
    assert all(r["anomalies"] for r in then)


@pytest.mark.full
def test_no_golem_dies_an_economic_death_on_a_flat_market(tmp_path: Path) -> None:
    _, died = deaths(tmp_path / "home", flat_market(bars=5_760, start=datetime(2026, 1, 1, tzinfo=UTC)), 8)
    assert died, "no golem reached its lifespan"
    assert all(d["cause"] != "economic" for d in died)
