"""How golems of a fleet die: changing phases of life, a death reserve that ticks cannot spend, four phases of dying."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of, record_phases
from bardo_pipeline.derivation.derive_home import curate_and_complete_deaths
from bardo_pipeline.derivation.event_stream.watch import watch
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, published_bundles
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import PHASES
from bardo_pipeline.events.stream.catalogue import GolemEvent
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun, Run
from bardo_pipeline.storage.home import Home
from tests.conftest import LIVELY, NOW

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    """A home of two golems that deliberate at every tick, have few credits, and die of poverty."""
    root = tmp_path_factory.mktemp("poor") / "home"
    Home.create(root, LIVELY, NOW)
    stores = DerivationContext.open(root, policy=LIVELY)
    founding = Founding(budget_micros=25_000_000, lifespan_ticks=(5_000, 6_000))
    run = Run("poor", synthetic_market(seed=7, bars=150, start=START), golems=2, generations=1, founding=founding)
    FleetRun(stores, run, lambda: NOW).live()
    return stores


def mortality_events(home: Path, policy: Policy) -> list[GolemEvent]:
    """Return the mortality events from the beginning."""

    async def listen() -> list[GolemEvent]:
        return [e async for e in watch(home, {"mortality"}, replay=100_000, follow=False, policy=policy)]

    return asyncio.run(listen())


@pytest.mark.full
@pytest.mark.row("INH-1")
def test_watch_reports_every_phase_transition_before_a_death(
    poor: DerivationContext,
) -> None:
    collected: dict[str, list[tuple[Any, ...]]] = {}
    for event in mortality_events(poor.home.root, LIVELY):
        if event.name == "mortality:phase_transition":
            answer = event.payload.model_dump()
            collected.setdefault(event.golem_id, []).append((event.tick, answer["before"], answer["after"]))
    rows = poor.log.read_cycles(["golem_id", "tick", "phase", "vitality"]).sort_by("tick")
    lived: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        lived.setdefault(row["golem_id"], []).append(row)
    assert len(lived) == 2
    for golem_id, ticks in lived.items():
        changes = [
            (b["tick"], a["phase"], b["phase"]) for a, b in itertools.pairwise(ticks) if a["phase"] != b["phase"]
        ]
        assert collected[golem_id] == changes
        assert {after for _, _, after in changes} >= set(PHASES[1:]), "every phase must occur"
        last = ticks[-1]
        assert last["phase"] == "terminal"
        assert last["vitality"]["economic"] == last["vitality"]["composite"] == 0.0
    ends = [e for e in mortality_events(poor.home.root, LIVELY) if e.name == "DeathDeclared"]
    assert {e.golem_id: e.payload.model_dump()["cause"] for e in ends} == dict.fromkeys(lived, "economic")


@pytest.mark.row("INH-4")
def test_an_economic_death_spends_all_credits_but_not_the_reserve(poor: DerivationContext) -> None:
    births = {e["golem_id"]: e["born"] for e in poor.life("GolemBorn").to_pylist()}
    for death in poor.life("DeathDeclared").to_pylist():
        born, died = births[death["golem_id"]], death["died"]
        rows = poor.log.read_cycles(["credits_micros", "credit_consumed_micros"], golems=[death["golem_id"]])
        assert pc.min(rows["credits_micros"]).as_py() == died["credits_micros"] == 0
        paid = pc.sum(rows["credit_consumed_micros"]).as_py()
        assert paid == born["credits_micros"] + died["earned_micros"], "life was paid from the credits alone"
        accepted, *_, left = phases_of(poor)[death["golem_id"]]
        assert accepted.payload["reserve_micros"] == born["reserve_micros"] == 300_000
        assert accepted.payload["means"] == "full"
        assert 130_000 <= left.payload["spent_micros"] <= 300_000


@pytest.mark.row("INH-2", "INH-4", "INH-20")
def test_recorded_phases_of_dying_match_the_published_legacy(brief_home: Path) -> None:
    stores = DerivationContext.open(brief_home)
    done, bundles = phases_of(stores), published_bundles(stores)
    deaths = {e["golem_id"]: e for e in stores.life("DeathDeclared").to_pylist()}
    assert set(done) == set(deaths) == set(bundles)
    causes, crossings = stores.projections.read("vote_causes"), stores.projections.read("crossings")
    votes = stores.projections.read("votes")
    death_vote_ids = votes.filter(votes["is_death_vote"])["vote_id"]
    for golem_id, phases in done.items():
        assert [p.kind for p in phases] == list(PHASES_OF_DYING)
        ids = [deaths[golem_id]["event_id"], *(p.event_id for p in phases)]
        assert [p.payload["follows"] for p in phases] == ids[:-1]
        spent = list(itertools.accumulate(p.payload["cost_micros"] for p in phases))
        assert [p.payload["spent_micros"] for p in phases] == spent
        _, settled, reflected, left = (p.payload for p in phases)
        assert settled["capital_micros"] == deaths[golem_id]["died"]["capital_micros"]
        bundle = load_bundle(stores.home, bundles[golem_id])
        assert left["bundle_hash"] == bundle.bundle_hash
        assert reflected["testament_hash"] == hashlib.sha256(bundle.files["testament.md"]).hexdigest()
        rows = causes.filter(pc.equal(causes["golem_id"], golem_id))
        assert (
            left["vote_count"] == pc.sum(pc.is_in(rows["vote_id"], value_set=death_vote_ids.combine_chunks())).as_py()
        )
        assert left["push_confidence"] == 0.4, "an elder pushes from 0.4"
        crossed = crossings.filter(pc.and_(pc.equal(crossings["golem_id"], golem_id), crossings["crosses"]))
        assert sorted(left["pushed_entry_ids"]) == sorted(crossed["entry_id"].to_pylist()) != []
        assert golem_id in left["notice"]
    assert record_phases(stores, now=NOW) == []


@pytest.mark.row("INH-4")
def test_the_cheapest_death_leaves_a_snapshot_pushed_insights_and_a_notice(brief_home: Path, tmp_path: Path) -> None:
    known, home = DerivationContext.open(brief_home), Home.create(tmp_path / "home", Policy(), NOW)
    stores = DerivationContext.open(home.root)
    births, deaths = (
        to_models(known.life(kind).drop_columns("recorded_at"), LifeEvent) for kind in ("GolemBorn", "DeathDeclared")
    )
    first = min((e for e in births if e.born is not None and e.born.generation == 0), key=lambda e: e.golem_id)
    assert first.born is not None
    beggar = first.born.model_copy(update={"reserve_micros": 12_000})
    death = next(e for e in deaths if e.golem_id == first.golem_id)
    stores.log.record([life_event(first.golem_id, first.observed_at, beggar)], NOW)
    rows = known.log.read_cycles(RECORD_SCHEMA.names, golems=[first.golem_id]).cast(RECORD_SCHEMA)
    stores.log.append(rows, writer="w", segment=1, recorded_at=NOW)
    stores.log.record([death], NOW)
    (published,) = curate_and_complete_deaths(stores, now=NOW)
    accepted, _, reflected, left = (p.payload for p in phases_of(stores)[first.golem_id])
    assert accepted["means"] == "cheapest"
    assert (reflected["reflection_micros"], reflected["compression_micros"]) == (0, 10_000)
    assert left["spent_micros"] == 12_000 == left["reserve_micros"]
    assert (left["bundle_hash"], left["published"]) == (published, True)
    assert 0 < len(left["pushed_entry_ids"]) <= Policy().dying.cheapest_push_count
    notices = [
        e.payload.model_dump()["notice"] for e in mortality_events(home.root, Policy()) if e.name == "LegacyLeft"
    ]
    assert notices == [left["notice"]]
