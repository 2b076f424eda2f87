"""The learned gate and the router of chain events across a death: from the log to the bundle to the heir."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.rebuild import derive_everything, rebuild
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW
from tests.support.fleets.routed_fleets import ROUTED, market


@pytest.mark.row("HB-10", "P-2")
def test_an_heir_gets_gate_and_router_after_a_delta_longer_than_a_cycle_and_the_home_rebuilds(tmp_path: Path) -> None:
    policy = ROUTED.model_copy(update={"gating": ROUTED.gating.model_copy(update={"delta_ticks": 100})})
    assert policy.gating.delta_ticks > policy.curator.cycle_ticks
    Home.create(tmp_path / "home", policy, NOW)
    stores = DerivationContext.open(tmp_path / "home", policy=policy)
    founding = Founding(owners=("owner-1",), budget_micros=60_000_000, lifespan_ticks=(165, 175))
    FleetRun(stores, Run("inherited-gate", market().slice(0, 420), 1, 2, founding), lambda: NOW).live()
    derive_everything(stores, now=NOW)
    births = {row["golem_id"]: row["born"] for row in stores.log.life("GolemBorn").to_pylist()}
    heir = next(golem_id for golem_id, born in births.items() if born["bundle_hash"])
    rows = [r for r in stores.log.read_cycles(["golem_id", "tick", "gating", "triage"]).to_pylist() if r["tick"] < 3]
    rounds = {r["golem_id"]: r["triage"]["state"]["rounds"][0] for r in rows if r["tick"] == 1}
    assert {golem_id for golem_id, number in rounds.items() if number > 50} == {heir}
    decided = {r["golem_id"] for r in rows if r["gating"]["boundary_t1"]["threshold"] is not None}
    assert decided == {heir}
    assert [compared.table for compared in rebuild(stores, now=NOW) if not compared.equal] == []
