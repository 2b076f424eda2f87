"""Golems with a loan in the crash of 17 August 2023, with recorded rates, prices and gas."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstain
from bardo_pipeline.derivation.katabasis.scars import failures_with_scars
from bardo_pipeline.derivation.versions.rebuild import derive_everything, rebuild
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.chain_events import EVENT_KINDS
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun, Run
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.market_data.demeter_trace import read_trace
from tests.conftest import NOW
from tests.support.fleets.loan_markets import RICH, done, loan
from tests.support.fleets.memory_fleets import live
from tests.support.fleets.routed_fleets import ROUTED

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
CRASH = (datetime(2023, 8, 17, 21, 40, tzinfo=UTC), datetime(2023, 8, 17, 22, 15, tzinfo=UTC))

pytestmark = [pytest.mark.skipif(not DATA.is_dir(), reason=f"the recorded market is not at {DATA}"), pytest.mark.full]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    """Golems that owe three quarters of their collateral on the day of the crash, and die of age soon after it."""
    market, _ = read_trace(DATA, rates=True)
    root = tmp_path_factory.mktemp("indebted") / "home"
    Home.create(root, Policy(), NOW)
    stores = DerivationContext.open(root)
    founding = Founding(owners=("owner-1",), lifespan_ticks=(385, 395), loan=loan(0.75))
    FleetRun(stores, Run("indebted", market.slice(5_200, 5_720), 3, 2, founding), lambda: NOW).live()
    derive_everything(stores, now=NOW)
    return stores


@pytest.mark.row("KAT-1", "KAT-2", "HB-13")
def test_a_large_loan_is_liquidated_in_the_crash_and_leaves_a_scar(stores: DerivationContext) -> None:
    rows = stores.log.read_cycles(["golem_id", "tick", "observed_at", "actions", "anomalies"]).to_pylist()
    taken = [row for row in rows if any(act[1] == "liquidated" for act in done([row]))]
    assert taken
    assert all(CRASH[0] <= row["observed_at"] <= CRASH[1] for row in taken)
    assert all("position_health" in {a["probe"] for a in row["anomalies"]} for row in taken)
    others = [act for row in taken for act in row["actions"] if act["action_type"] != "liquidated"]
    assert {(act["status"], act["block_reason"]) for act in others} == {("deferred", "its loan is being liquidated")}
    selected = [row for row in failures_with_scars(stores, None) if row["action_type"] == "liquidated"]
    assert {(row["golem_id"], row["tick"]) for row in selected} == {(row["golem_id"], row["tick"]) for row in taken}
    assert {(row["outcome_class"], row["mechanism"], row["confirmed"]) for row in selected} == {
        ("drawdown", "cause", "immediate")
    }
    scars = [row for row in selected if row["is_scar"]]
    assert scars
    assert all("keeping the loan lost 4.8 % at once" in row["causal_narrative"] for row in scars)


@pytest.mark.row("KAT-2", "KAT-8")
def test_a_liquidation_before_a_death_becomes_a_bloodstain(stores: DerivationContext) -> None:
    stained = [row for row in failures_with_scars(stores, None) if row["is_scar"] and row["is_bloodstain"]]
    own_row = next(row for row in stained if row["action_type"] == "liquidated")
    artefact = bloodstain(stores, own_row["golem_id"])
    assert own_row["scar_id"] in {scar["scar_id"] for scar in artefact["scars"]}
    assert any("a large move of the price" in statement for statement in artefact["echo"]["failure_patterns"])


def test_a_loan_is_granted_to_every_golem_and_its_heirs(
    stores: DerivationContext,
) -> None:
    births = {row["golem_id"]: row["born"] for row in stores.log.life("GolemBorn").to_pylist()}
    granted = {row["golem_id"]: row["granted"] for row in stores.log.life("LoanGranted").to_pylist()}
    assert granted == dict.fromkeys(births, loan(0.75).model_dump())
    assert {birth["generation"] for birth in births.values()} == {0, 1}


@pytest.mark.row("P-2")
def test_a_rebuild_of_golems_with_loans_is_equal(stores: DerivationContext) -> None:
    assert [compared.table for compared in rebuild(stores, now=NOW) if not compared.equal] == []


@pytest.mark.row("HB-31", "HB-8")
def test_the_router_reads_the_swaps_and_the_loans_of_the_recorded_crash() -> None:
    market, _ = read_trace(DATA, rates=True)
    lived = live(market.slice(market.bars - 400, market.bars), founding=RICH, policy=ROUTED)
    events = [event for row in lived.rows for event in row["triage"]["events"]]
    counted = Counter(event["kind"] for event in events)
    assert counted.keys() == set(EVENT_KINDS)
    assert counted["swap"] > 0.9 * len(lived.rows), "hardly a minute of the crash has no swap"
    assert {event["route"] for event in events} >= {"escalate", "emit", "count"}
    assert len({event["route"] for event in events if event["kind"] == "loan_usdc"}) > 1
