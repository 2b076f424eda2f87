"""Succession in a run: which heirs are born, and which policy and knowledge an heir has."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy import publish_legacies
from bardo_pipeline.derivation.legacy.bundle_candidates import candidate_folder
from bardo_pipeline.derivation.legacy.bundle_store import invalid_publications, published_bundles
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW, copy_home, one_at_a_time

START = datetime(2026, 1, 1, tzinfo=UTC)


def run_of() -> fleet_run.Run:
    """Return a run of three golems that all die at tick 150."""
    market = synthetic_market(seed=7, bars=420, start=START)
    founding = Founding(lifespan_ticks=(150, 150))
    return fleet_run.Run("s", market, golems=3, generations=2, founding=founding)


def lived(root: Path) -> tuple[DerivationContext, fleet_run.Ending]:
    """The run in a fresh home, or once more."""
    if not root.exists():
        Home.create(root, Policy(), NOW)
    stores = DerivationContext.open(root)
    return stores, fleet_run.FleetRun(stores, run_of(), lambda: NOW).live()


@pytest.fixture(scope="session")
def succeeded(session_folder: Path) -> Path:
    """A home in which the run was lived. Only for copying."""
    root = session_folder / "succeeded"
    with one_at_a_time(session_folder / "succeeded.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            stores, ending = lived(root)
            stores.log.close()
            assert (ending.births, ending.deaths, ending.refused) == (6, 6, 0)
            (root / "done").touch()
    return root


@pytest.fixture
def stores(succeeded: Path, tmp_path: Path) -> DerivationContext:
    """A copy of the run's home that a test may change."""
    return DerivationContext.open(copy_home(succeeded, tmp_path / "home"))


@pytest.mark.full
@pytest.mark.row("P-5", "INH-5")
def test_an_invalid_bundle_blocks_only_its_own_heir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt: list[str] = []

    def bequeath_with_a_spoiler(stores: DerivationContext, *, now: datetime, golems: Collection[str]) -> list[str]:
        derive_episodes(stores, now=now, golems=golems)
        derive_testaments(stores, golems)
        derive_candidates(stores)
        if not spoilt:
            victim = publish_legacies.unjudged_candidates(stores)[0]
            spoilt.append(victim["golem_id"])
            page = candidate_folder(stores) / victim["bundle_hash"] / "entries.jsonl"
            page.write_bytes(page.read_bytes().replace(b'"confidence_ppm":', b'"confidence_ppm":9', 1))
        publish_legacies.judge_candidates(stores, now=now)
        return publish_legacies.publish_candidates(stores, now=now)

    monkeypatch.setattr(fleet_run, "complete_deaths", bequeath_with_a_spoiler)
    stores, ending = lived(tmp_path / "home")
    births = stores.log.life("GolemBorn")["born"].to_pylist()
    heirs_of = {b["predecessor_id"] for b in births if b["predecessor_id"]}
    founders = {
        g
        for g, b in zip(stores.log.life("GolemBorn")["golem_id"].to_pylist(), births, strict=True)
        if not b["generation"]
    }
    assert heirs_of == founders - set(spoilt)
    assert ending.refused == 1
    verdicts = {j["bundle_hash"]: j for j in stores.log.life("BundleJudged")["judged"].to_pylist()}
    failed = [j for j in verdicts.values() if not j["passed"]]
    assert len(failed) == 1
    assert any(f["severity"] == "critical" for f in failed[0]["failed"])
    assert failed[0]["bundle_hash"] not in set(published_bundles(stores).values())
    assert invalid_publications(stores) == []


@pytest.mark.row("INH-6", "P-2")
def test_an_heir_starts_with_the_received_entries_in_cycle_0(stores: DerivationContext) -> None:
    events = stores.log.life("GolemBorn")
    births = dict(zip(events["golem_id"].to_pylist(), events["born"].to_pylist(), strict=True))
    received = stores.log.life("KnowledgeReceived")
    decisions = stores.projections.growing("curation").read()
    for golem, got in zip(received["golem_id"].to_pylist(), received["received"].to_pylist(), strict=True):
        assert births[golem]["bundle_hash"] == got["content_hash"]
        first = decisions.filter(
            pc.and_(pc.equal(decisions["golem_id"], golem), pc.equal(decisions["operation"], "received"))
        )
        assert first.num_rows == got["entry_count"] > 0
        assert set(first["cycle"].to_pylist()) == {0}
        assert min(first["generation"].to_pylist()) >= 1
        records = stores.log.read_cycles(["tick", "cycle_seen", "playbook_version"], golems=[golem]).sort_by("tick")
        assert records["cycle_seen"].to_pylist()[:51] == [0] * 50 + [1]
        assert records["playbook_version"][0].as_py() >= 1


@pytest.mark.row("EV-2")
def test_a_repeated_run_changes_nothing(stores: DerivationContext) -> None:
    before = (stores.log.version, stores.log.life_version)
    born, records = stores.log.life("GolemBorn").num_rows, stores.log.read_cycles(["tick"]).num_rows
    again, ending = lived(stores.home.root)
    assert (again.log.version, again.log.life_version) == before
    assert (ending.births, ending.records) == (born, records)
    assert (ending.published, ending.refused) == (6, 0), "published bundles are not refused again"


@pytest.mark.full
@pytest.mark.row("P-2")
def test_a_run_derives_equal_content_in_two_homes(stores: DerivationContext, tmp_path: Path) -> None:
    item = stores
    other, _ = lived(tmp_path / "other")
    for name in ("curation", "cycles", "playbooks", "grimoire", "testaments", "candidates", "episodes"):
        assert item.projections.digest(name) == other.projections.digest(name), name
    assert published_bundles(item) == published_bundles(other)


@pytest.mark.row("P-5")
def test_only_the_bundle_altered_after_its_verdict_is_not_published(stores: DerivationContext, tmp_path: Path) -> None:
    folder, fresh = candidate_folder(stores), tmp_path / "fresh"
    Home.create(fresh, Policy(), NOW)
    rows = stores.projections.growing("candidates").read().to_pylist()
    victim = folder / rows[0]["bundle_hash"] / "playbook.md"
    victim.write_text("# something else\n")
    events = [e for e in to_models(stores.log.life(), LifeEvent) if e.kind != "BundlePublished"]
    again = DerivationContext.open(fresh)
    again.projections = stores.projections
    again.log.record(events, NOW)
    published = publish_legacies.publish_candidates(again, now=NOW)
    assert sorted(published) == sorted(r["bundle_hash"] for r in rows[1:])
    assert publish_legacies.publish_candidates(again, now=NOW) == []


@pytest.mark.row("P-5")
def test_a_refused_bundle_is_not_published(stores: DerivationContext, tmp_path: Path) -> None:
    selected = [e for e in to_models(stores.log.life(), LifeEvent) if e.kind != "BundlePublished"]
    victim = next(e for e in selected if e.judged is not None)
    assert victim.judged is not None
    refused = life_event(victim.golem_id, victim.observed_at, victim.judged.model_copy(update={"passed": False}))
    Home.create(tmp_path / "fresh", Policy(), NOW)
    again = DerivationContext.open(tmp_path / "fresh")
    again.projections = stores.projections
    again.log.record([refused if e is victim else e for e in selected], NOW)
    hashes = set(stores.projections.growing("candidates").read()["bundle_hash"].to_pylist())
    assert set(publish_legacies.publish_candidates(again, now=NOW)) == hashes - {victim.judged.bundle_hash}
