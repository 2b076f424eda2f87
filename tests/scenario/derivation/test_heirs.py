"""An owner summons successors by hand, looks at graves, and starts fresh."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.graveyard import golem_report, graves
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.death_queries import HeirRequest, births_of, dead_golem
from bardo_pipeline.derivation.reports.home_health import faults, health_of
from bardo_pipeline.derivation.succession.succeed import (
    due_successions,
    found_new_lineage,
    summon,
)
from bardo_pipeline.errors import ConfigError, ProvisioningError, QueryError, SuccessionError
from bardo_pipeline.events.life.events import Received
from bardo_pipeline.runtime.fleet_run import waiting
from bardo_pipeline.storage.leases import Lease
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo

pytestmark = pytest.mark.full

RUN = ("run", "--bars", "540", "--golems", "0", "--generations", "1", "--no-marts")


@pytest.fixture
def home(brief_home: Path, tmp_path: Path) -> Path:
    return copy_home(brief_home, tmp_path / "home")


def json_of(*words: str, home: Path) -> Any:
    return orjson.loads(bardo(*words, "--json", home=home))


def dead_without_heir(stores: DerivationContext) -> str:
    """A dead golem that has no heir."""
    return min(grave.golem_id for grave in graves(stores) if grave.heir_id is None)


@pytest.mark.row("INH-17")
def test_a_successor_is_previewed_born_and_lives_in_the_next_run(home: Path) -> None:
    dead = dead_without_heir(DerivationContext.open(home))
    answer = json_of("golem", "successor", dead, "--dry-run", home=home)
    assert answer["born"] is False
    assert births_of(DerivationContext.open(home)).keys() & {answer["heir"]} == set()
    seen = answer["preview"]
    bundle = load_bundle(DerivationContext.open(home).home, seen["bundle_hash"])
    entries = bundle.rows("entries.jsonl")
    assert seen["entry_count"] == len(entries) > 0
    assert sum(seen["before"]) == sum(seen["after"]) == len(entries)
    assert seen["mean_after_ppm"] == pytest.approx(0.85 * seen["mean_before_ppm"], rel=1e-3), "one crossing"
    assert seen["generation"] == answer["generation"] == bundle.manifest["generation"] + 1
    assert seen["bloodstain_count"] == sum(e["is_bloodstain"] for e in entries)
    assert sum(seen["by_domain"].values()) == sum(seen["by_category"].values()) == len(entries)
    assert set(answer["recommendations"]) == {"forget", "ask", "failed", "suspected", "untested"}
    assert answer["configuration"]["clock"]["delta_theta_ticks"] == 50

    words = ("golem", "successor", dead, "--budget", "40", "--lifespan", "120-120", "--force-similarity")
    shown = bardo(*words, home=home)
    assert "entries are inherited (of at most 2,048)" in shown
    assert "is born, generation" in shown
    stores = DerivationContext.open(home)
    heir = answer["heir"]
    birth, at = births_of(stores)[heir]
    assert (birth.predecessor_id, birth.bundle_hash) == (dead, seen["bundle_hash"])
    assert birth.credits_micros + birth.reserve_micros + birth.capital_micros == 40_000_000
    received = stores.life("KnowledgeReceived")
    (own,) = received.filter(pc.equal(received["golem_id"], heir)).to_pylist()
    assert own["observed_at"] == at == dead_golem(stores, dead).died_at
    assert Received.model_validate(own["received"]).entry_count == len(entries)
    assert (home / "golems" / heir / "bardo.toml").read_text().startswith("[clock]")

    count = stores.log.life().num_rows
    assert "is already the heir of" in bardo(*words, home=home)
    assert DerivationContext.open(home).log.life().num_rows == count
    other = bardo("golem", "successor", dead, "--budget", "41", "--force-similarity", home=home, expect=2)
    assert heir in other
    assert "has an heir already" in other

    assert "1 died" in bardo(*RUN, home=home), "the next run must include the heir"
    lived = DerivationContext.open(home)
    assert not waiting(lived)
    first = lived.log.read_stretch(["observed_at", "cycle_seen"], [heir], 1, 1).to_pylist()
    assert first[0]["observed_at"] >= at, "an heir lives from its birth on"
    assert golem_report(lived, heir).died is not None
    life = lived.log.life().num_rows
    bardo(*RUN, home=home)
    assert DerivationContext.open(home).log.life().num_rows == life, "a repeated run wrote something"
    assert "DIFFERENT" not in bardo("rebuild", home=home)


@pytest.mark.row("INH-17")
def test_an_invalid_succession_is_refused_before_any_record(home: Path) -> None:
    stores = DerivationContext.open(home)
    dead = dead_golem(stores, dead_without_heir(stores))
    count = stores.log.life().num_rows
    with pytest.raises(QueryError, match="no golem of this name"):
        dead_golem(stores, "g-nobody")
    with pytest.raises(ConfigError, match="give --budget"):
        summon(stores, dead, HeirRequest(500_000), now=NOW)
    apart = golem_report(stores, dead.golem_id).divergence_ppm
    assert apart is not None
    assert apart < 150_000, "this golem must be a copy"
    with pytest.raises(SuccessionError, match=r"too similar to its inheritance.* at least 15.0% .* --force-similarity"):
        summon(stores, dead, HeirRequest(40_000_000), now=NOW)
    nothing = dead_golem(stores, dead.golem_id).__class__(dead.golem_id, dead.born, dead.died, dead.died_at, None)
    with pytest.raises(SuccessionError, match=r"no published bundle.*--no-inherit"):
        summon(stores, nothing, HeirRequest(40_000_000), now=NOW)
    assert stores.log.life().num_rows == count

    standing = summon(stores, nothing, HeirRequest(40_000_000, inherit=False), now=NOW)
    assert standing.booted
    birth, _ = births_of(stores)[dead.heir_id]
    assert (birth.bundle_hash, birth.predecessor_id) == (None, dead.golem_id)
    assert birth.traits == dead.born.traits
    with pytest.raises(SuccessionError, match=r"lives: only a dead golem is succeeded"):
        dead_golem(stores, dead.heir_id)
    seen = golem_report(stores, dead.heir_id)
    assert (seen.died, seen.tick, seen.lineage[-2:]) == (None, 0, [dead.golem_id, dead.heir_id])
    assert seen.configuration["succession"]["budget_usdc"] == 40.0
    assert seen.configuration["succession"]["inherit_grimoire"] is False


@pytest.mark.row("INH-17")
def test_failed_provisioning_is_resumed_by_the_same_command(home: Path) -> None:
    stores = DerivationContext.open(home)
    dead = dead_golem(stores, dead_without_heir(stores))
    wish = HeirRequest(40_000_000, force=True)
    lease = Lease(stores.home, dead.heir_id, "somebody")
    try:
        with pytest.raises(ProvisioningError, match=r"held by writer somebody.*tried again"):
            summon(stores, dead, wish, now=NOW)
    finally:
        lease.release()
    assert dead.heir_id not in births_of(stores)
    with pytest.raises(SuccessionError, match="under way"):
        summon(stores, dead, HeirRequest(45_000_000, force=True), now=NOW)
    assert summon(stores, dead, wish, now=NOW).booted
    assert due_successions(stores, NOW) == []
    assert pc.max(stores.log.life()["recorded_at"]).as_py() == NOW, "an immediate retry records no later time"


@pytest.mark.row("INH-21")
def test_the_graveyard_lists_every_dead_golem_with_its_legacy(home: Path) -> None:
    stores = DerivationContext.open(home)
    by_key = {grave.golem_id: grave for grave in graves(stores)}
    deaths = stores.life("DeathDeclared").to_pylist()
    assert by_key.keys() == {row["golem_id"] for row in deaths}
    for row in deaths:
        grave = by_key[row["golem_id"]]
        assert (grave.cause, grave.ticks, grave.died_at) == (
            row["died"]["cause"], row["died"]["tick"], row["observed_at"],
        )  # fmt: skip
        assert grave.entry_count == len(load_bundle(stores.home, grave.bundle_hash or "").rows("entries.jsonl"))
    assert [g.died_at for g in graves(stores)] == sorted((g.died_at for g in graves(stores)), reverse=True)
    heirs = {g.golem_id: g.heir_id for g in by_key.values() if g.heir_id}
    assert heirs
    dead, heir = min(heirs.items())
    assert {g.golem_id for g in graves(stores, lineage=dead)} == {dead, heir}
    with pytest.raises(QueryError, match="no golem of this name"):
        graves(stores, lineage="g-nobody")
    seen = golem_report(stores, dead)
    assert (seen.heirs, seen.lineage, seen.bundle_hash) == ([heir], [dead], by_key[dead].bundle_hash)
    assert seen.testament is not None
    assert seen.testament["failed"][0].startswith("I died at tick")
    assert (
        sum(row["entries"] for row in seen.knows)
        == stores.projections.replaceable("grimoire").read(only=[dead]).num_rows
    )
    page = bardo("graveyard", home=home)
    assert all(golem in page for golem in by_key)
    assert len(json_of("graveyard", home=home)) == len(by_key)
    shown = bardo("golem", "show", dead, home=home)
    assert "phase terminal" in shown
    assert heir in shown
    assert json_of("golem", "show", dead, home=home)["testament"] == seen.testament


@pytest.mark.row("INH-21")
def test_a_new_lineage_has_no_predecessor_and_no_bundle(home: Path) -> None:
    stores = DerivationContext.open(home)
    dead = dead_golem(stores, dead_without_heir(stores))
    wish = HeirRequest(30_000_000, lifespan_ticks=(60, 60))
    golem, fresh = found_new_lineage(stores, dead, wish, number=1, now=NOW)
    assert fresh
    assert found_new_lineage(stores, dead, wish, number=1, now=NOW) == (golem, False)
    birth, at = births_of(stores)[golem]
    assert (birth.predecessor_id, birth.bundle_hash, birth.generation) == (None, None, 0)
    assert (birth.owner_id, birth.market, at) == (dead.born.owner_id, dead.born.market, dead.died_at)
    assert [heir.golem_id for heir in waiting(stores)] == [golem]
    declared = declare_silent_golems(stores, now=NOW + timedelta(hours=2), silence=timedelta(seconds=1), dry_run=True)
    assert golem not in {item.golem_id for item in declared}, "a golem that waits for a run is not silent"
    assert health_of(stores, NOW).golems.waiting == 1
    assert "log.silence" not in {fault.measure for fault in faults(health_of(stores, NOW), stores.policy)}
    assert in_force_now(stores, golem).configuration.succession.budget_usdc == 30.0
    assert "exists already" in bardo("golem", "found", "--like", dead.golem_id, home=home)


def test_a_home_without_successions_shows_a_hint(home: Path) -> None:
    hint = "no succession was started: use `bardo golem successor DEAD`, or `auto = true` under [succession]"
    assert hint in bardo("golem", "successions", home=home), "brackets are text, not the markup of the terminal"
