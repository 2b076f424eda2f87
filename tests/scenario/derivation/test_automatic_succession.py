"""Automatic succession: seven recorded steps, and the four ways in which it fails."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import orjson
import pyarrow.compute as pc
import pytest

from assets.resources import LazyStores
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.graveyard import golem_document, graves
from bardo_pipeline.derivation.death.owner_notices import notices_of
from bardo_pipeline.derivation.event_stream.watch import Fabric
from bardo_pipeline.derivation.legacy.death_queries import (
    births_of,
    commit_credit,
    credit_micros,
    dead_golem,
    standing_of,
    successions_document,
)
from bardo_pipeline.derivation.reports.home_health import Successions, health_of
from bardo_pipeline.derivation.succession.succeed import (
    due_successions,
    retry_registrations,
    run_due_successions,
)
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.events import Died, LifeEvent, life_event
from bardo_pipeline.events.life.succession_events import STEPS
from bardo_pipeline.events.stream.catalogue import GolemEvent
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.storage.provisioning import FileRegistry
from jobs.home_jobs import succession_job
from sensors.home_sensors import successions_due
from tests.conftest import DERIVED, NOW, copy_home, home_without_verdicts
from tests.support.homes.server_routes import faults_of
from tests.support.processes.bardo_command import bardo

pytestmark = [pytest.mark.row("INH-18"), pytest.mark.full]

EAGER = "[succession]\nauto = true\nbudget_usdc = 40\nstrategy_drift_allowed = 0.0\n"


@pytest.fixture
def stores(brief_home: Path, tmp_path: Path) -> DerivationContext:
    """A home with automatic succession, copies included, and without committed credits."""
    stores = DerivationContext.open(copy_home(brief_home, tmp_path / "home"))
    wanted(stores, EAGER)
    return stores


def wanted(stores: DerivationContext, text: str) -> None:
    record_configuration(stores, parse(text, "bardo.toml"), now=NOW, why="a test")


def dead_without_heir(stores: DerivationContext) -> list[str]:
    return sorted(grave.golem_id for grave in graves(stores) if grave.heir_id is None)


def steps(stores: DerivationContext, golem_id: str) -> list[tuple[str, str, int]]:
    """Return the events of a succession: step, outcome, attempt, in the order of steps and attempts."""
    rows = stores.life("SuccessionAdvanced")
    table = rows.filter(pc.equal(rows["golem_id"], golem_id))["advanced"].to_pylist()
    order = sorted(table, key=lambda single: (single["attempt"], STEPS.index(single["step"])))
    return [(item["step"], item["outcome"], item["attempt"]) for item in order]


def test_seven_steps_create_an_heir_funded_by_credit_of_the_owner(stores: DerivationContext) -> None:
    first, second = dead_without_heir(stores)
    owner = dead_golem(stores, first).born.owner_id
    other = dead_golem(stores, second).born.owner_id
    with pytest.raises(ConfigError, match="--why"):
        commit_credit(stores, owner, 1, " ", now=NOW)
    with pytest.raises(ConfigError, match="credit of owner '': owner_id"):
        commit_credit(stores, "", 1, "for heirs", now=NOW)
    commit_credit(stores, owner, 100_000_000, "for heirs", now=NOW)
    assert [succession.golem_id for succession in due_successions(stores, NOW)] == [first, second]
    done = run_due_successions(stores, now=NOW)
    assert steps(stores, first) == [(step, "done", 1) for step in STEPS]
    assert done[first].booted
    heir = dead_golem(stores, first).heir_id
    birth, at = births_of(stores)[heir]
    assert at == dead_golem(stores, first).died_at
    assert birth.credits_micros + birth.reserve_micros + birth.capital_micros == 40_000_000
    assert birth.bundle_hash == dead_golem(stores, first).bundle_hash
    assert done[first].last["registered"].identity == "local:1"
    place = stores.home.root / (done[first].last["provisioned"].place or "")
    assert "budget_usdc = 40.0" in (place / "bardo.toml").read_text()
    spent = 40_000_000 * (2 if other == owner else 1)
    assert credit_micros(stores, owner) == 100_000_000 - spent
    assert due_successions(stores, NOW) == []
    count = stores.log.life().num_rows
    assert run_due_successions(stores, now=NOW + timedelta(days=1)) == {}
    assert stores.log.life().num_rows == count


def test_no_succession_is_due_before_all_four_phases_of_dying(brief_home: Path, tmp_path: Path) -> None:
    home = home_without_verdicts(brief_home, tmp_path / "home")
    stores, known = DerivationContext.open(home), DerivationContext.open(brief_home)
    wanted(stores, EAGER)
    rows = [LifeEvent.model_validate(r) for r in known.log.life().drop_columns("recorded_at").to_pylist()]
    for kind in DERIVED:
        assert due_successions(stores, NOW) == [], f"before {kind}: the bundle is not published yet"
        stores.log.record([event for event in rows if event.kind == kind], NOW)
    assert DERIVED[-1] == "LegacyLeft"
    assert [succession.golem_id for succession in due_successions(stores, NOW)] == dead_without_heir(stores)


def test_a_succession_without_enough_credit_halts_until_a_manual_summon(stores: DerivationContext) -> None:
    dead = dead_without_heir(stores)[0]
    owner = dead_golem(stores, dead).born.owner_id
    commit_credit(stores, owner, 39_999_999, "a little less", now=NOW)
    standing = run_due_successions(stores, now=NOW)[dead]
    assert standing.halted is not None
    assert standing.halted.step == "funded"
    assert f"owner {owner} has $40.00 of committed credit" in standing.halted.why
    summons, credits = re.findall(r"`bardo ([^`]+)`", standing.halted.why)
    assert dead_golem(stores, dead).heir_id not in births_of(stores)
    assert due_successions(stores, NOW + timedelta(days=9)) == [], "a halted succession is not retried"
    stuck = dead_without_heir(stores)
    by_key = {g: f"{g} has no heir, its succession halted (funded): {halt_reason(stores, g)}" for g in stuck}
    assert notices_except_deaths(stores) == sorted(
        (dead_golem(stores, g).born.owner_id, text) for g, text in by_key.items()
    )
    both = len(stuck)
    assert health_of(stores, NOW).successions == Successions(halted=both, waiting=0, unregistered=0)
    assert f"{both} halted without an heir" in bardo("status", home=stores.home.root)
    assert {grave.succession for grave in graves(stores) if grave.heir_id is None} == {"halted: funded"}
    selected = [e for e in mortality(stores) if e.name == "SuccessionAdvanced" and e.payload.outcome == "halted"]
    assert {(e.golem_id, e.payload.step) for e in selected} == {(g, "funded") for g in stuck}
    bardo(*credits.replace("USDC", "10").split(), home=stores.home.root)
    bardo(*summons.split(), "--budget", "40", "--force-similarity", home=stores.home.root)
    after = DerivationContext.open(stores.home.root)
    assert dead_golem(after, dead).heir_id in births_of(after)
    assert credit_micros(after, owner) == 49_999_999, "a manual summon does not use committed credit"


def test_a_succession_of_a_copy_halts_with_its_divergence(stores: DerivationContext) -> None:
    wanted(stores, EAGER.replace("0.0\n", "0.15\n"))
    dead = dead_without_heir(stores)[0]
    commit_credit(stores, dead_golem(stores, dead).born.owner_id, 10**9, "plenty", now=NOW)
    standing = run_due_successions(stores, now=NOW)[dead]
    assert standing.halted is not None
    assert (standing.halted.step, standing.halted.divergence_ppm) == ("compared", 0)
    assert "divergence 0.0%, at least 15.0% is asked" in standing.halted.why
    assert steps(stores, dead)[-1] == ("compared", "halted", 1)
    shown = bardo("golem", "show", dead, home=stores.home.root)
    assert "compared" in shown
    assert "halted" in shown
    assert "halted: compared" in bardo("golem", "successions", home=stores.home.root)
    listed, described = successions_document(stores), golem_document(stores, dead)
    assert listed["successions"]
    taken = [step["step"] for step in described["succession"]]
    assert taken == [step for step in STEPS if step in taken]
    assert len(taken) > 2
    assert described["last_steps"]
    assert faults_of(listed, "/v1/reports/golem-successions") == []
    assert faults_of(described, "/v1/golems/{golem_id}") == []


def test_failed_provisioning_is_retried_at_its_recorded_times(stores: DerivationContext) -> None:
    for owner in {dead_golem(stores, g).born.owner_id for g in dead_without_heir(stores)}:
        commit_credit(stores, owner, 10**9, "plenty", now=NOW)
    (stores.home.root / "golems").write_text("a file lies in the way")
    dead = dead_without_heir(stores)[0]
    moment = NOW
    for attempt, wait in enumerate((30, 120, 480, 3_600, 3_600), 1):
        assert dead in run_due_successions(stores, now=moment)
        standing = standing_of(stores, dead)
        assert standing is not None
        assert standing.last["provisioned"].attempt == attempt
        assert standing.due_at == moment + timedelta(seconds=wait)
        assert due_successions(stores, moment + timedelta(seconds=wait - 1)) == []
        assert run_due_successions(stores, now=moment + timedelta(seconds=wait - 1)) == {}
        moment += timedelta(seconds=wait)
        assert len(notices_except_deaths(stores)) == (len(dead_without_heir(stores)) if attempt > 3 else 0), (
            "one notice for each owner, after the fourth attempt"
        )
    assert all("after 4 attempts it is tried by the hour" in text for _, text in notices_except_deaths(stores))
    assert health_of(stores, moment).successions.waiting == len(dead_without_heir(stores))
    (stores.home.root / "golems").unlink()
    assert run_due_successions(stores, now=moment)[dead].booted
    assert [step for step in steps(stores, dead) if step[0] == "provisioned"][-1] == ("provisioned", "done", 6)
    assert dead_golem(stores, dead).heir_id in births_of(stores)


def test_a_failed_registration_is_retried_at_the_next_heartbeat(stores: DerivationContext) -> None:
    for owner in {dead_golem(stores, g).born.owner_id for g in dead_without_heir(stores)}:
        commit_credit(stores, owner, 10**9, "plenty", now=NOW)
    path = FileRegistry(stores.home).path
    path.parent.mkdir()
    path.write_text("no identity\n")
    dead = dead_without_heir(stores)[0]
    standing = run_due_successions(stores, now=NOW)[dead]
    assert standing.booted, "the heir boots without identity"
    assert standing.unregistered
    assert "restore it from a copy" in standing.last["registered"].why
    assert due_successions(stores, NOW + timedelta(days=1)) == [], "the heir has no heartbeat yet"
    path.unlink()
    home = stores.home.root
    bardo("run", "--bars", "420", "--golems", "0", "--generations", "1", "--no-marts", home=home)
    after = standing_of(DerivationContext.open(home), dead)
    assert after is not None
    assert not after.unregistered, "the heartbeat of the run must register it again"
    assert after.last["registered"].attempt == 2
    retry_registrations(DerivationContext.open(home), {dead_golem(stores, dead).heir_id}, now=NOW)
    assert standing_of(DerivationContext.open(home), dead) == after


def halt_reason(stores: DerivationContext, golem_id: str) -> str:
    """Return the reason for which a succession halted."""
    standing = standing_of(stores, golem_id)
    assert standing is not None
    assert standing.halted is not None
    return standing.halted.why


def notices_except_deaths(stores: DerivationContext) -> list[tuple[str, str]]:
    """Return the owner notices other than deaths."""
    deaths = set(stores.life("LegacyLeft")["event_id"].to_pylist())
    return sorted((item.owner_id, item.text) for item in notices_of(stores) if item.event_id not in deaths)


def mortality(stores: DerivationContext) -> list[GolemEvent]:
    """Return the output of `bardo watch --category mortality`."""
    return list(Fabric(stores, ["mortality"]).newest(100_000))


def rich(stores: DerivationContext) -> list[str]:
    """Commit more than enough credit for every heir, and return the dead golems that wait for one."""
    dead = dead_without_heir(stores)
    for owner in {dead_golem(stores, g).born.owner_id for g in dead}:
        commit_credit(stores, owner, 10**9, "plenty", now=NOW)
    return dead


def test_a_registration_of_a_taken_identity_halts_without_retry(stores: DerivationContext) -> None:
    first, second = rich(stores)
    heir = dead_golem(stores, first).heir_id
    FileRegistry(stores.home).register(heir, lineage_id="another", generation=9, predecessor_id="nobody")
    done = run_due_successions(stores, now=NOW)
    assert (done[first].booted, done[first].nameless) == (True, True), "the heir boots without identity"
    assert done[second].last["registered"].outcome == "done"
    assert "has another golem" in done[first].last["registered"].why
    home = stores.home.root
    bardo("run", "--bars", "420", "--golems", "0", "--generations", "1", "--no-marts", home=home)
    after = DerivationContext.open(home)
    assert [step for step in steps(after, first) if step[0] == "registered"] == [("registered", "halted", 1)]
    assert due_successions(after, NOW + timedelta(days=1)) == [], "a halted registration is not retried"
    selected = [text for _, text in notices_except_deaths(after)]
    assert [text.partition(":")[0] for text in selected] == [f"{heir}, the heir of {first}, has no identity"]
    assert "born, nameless" in bardo("golem", "successions", home=home)


def test_the_registration_of_a_dead_heir_halts(stores: DerivationContext) -> None:
    dead = rich(stores)[0]
    path = FileRegistry(stores.home).path
    path.parent.mkdir()
    path.write_text("no identity\n")
    heir = dead_golem(stores, dead).heir_id
    run_due_successions(stores, now=NOW)
    died = Died.model_validate(stores.life("DeathDeclared")["died"][0].as_py() | {"tick": 1})
    stores.log.record([life_event(heir, births_of(stores)[heir][1], died)], NOW)
    assert [succession.golem_id for succession in due_successions(stores, NOW)] == [dead]
    assert run_due_successions(stores, now=NOW)[dead].nameless
    assert due_successions(stores, NOW) == []
    assert steps(stores, dead)[-1] == ("registered", "halted", 2)


def test_a_missing_bundle_halts_only_its_own_succession(stores: DerivationContext) -> None:
    first, second = rich(stores)
    shutil.rmtree(stores.home.bundles / (dead_golem(stores, first).bundle_hash or ""))
    done = run_due_successions(stores, now=NOW)
    assert done[first].halted is not None
    assert done[first].halted.step == "booted"
    assert "the bundle to inherit differs from the published one" in done[first].halted.why
    assert done[second].booted
    assert dead_golem(stores, first).heir_id not in births_of(stores)
    assert due_successions(stores, NOW + timedelta(days=9)) == []


def test_a_run_creates_heirs_as_configured(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "bardo.toml").write_text(EAGER)
    run = ("run", "--bars", "300", "--golems", "2", "--lifespan", "100-110", "--owner", "ann", "--owner", "bob",
           "--no-marts")  # fmt: skip
    bardo("golem", "credit", "ann", "45", "--why", "one heir", home=home)
    bardo(*run, home=home)
    stores = DerivationContext.open(home)
    births = births_of(stores)
    heirs = {g: b for g, (b, _) in births.items() if b.generation}
    assert {b.owner_id for b in heirs.values()} == {"ann"}, "bob committed nothing"
    (heir,) = heirs
    assert heirs[heir].predecessor_id is not None
    assert steps(stores, heirs[heir].predecessor_id or "") == [(step, "done", 1) for step in STEPS]
    assert stores.log.read_stretch(["tick"], [heir], 1, 10).num_rows == 10, "the heir lives in the same run"
    halted = {g for g in births if (s := standing_of(stores, g)) and s.halted}
    assert {births[g][0].owner_id for g in halted - {heir}} == {"bob"}, "the heir may die, and its owner has $5 left"
    count = stores.log.life().num_rows
    bardo(*run, home=home)
    assert DerivationContext.open(home).log.life().num_rows == count, "a repeated run wrote something"


def test_the_succession_sensor_requests_one_run_for_each_due_time(stores: DerivationContext) -> None:
    for owner in {dead_golem(stores, g).born.owner_id for g in dead_without_heir(stores)}:
        commit_credit(stores, owner, 10**9, "plenty", now=NOW)
    (stores.home.root / "golems").write_text("a file lies in the way")
    moments, dead = [NOW], dead_without_heir(stores)

    class Lazy(LazyStores):
        @staticmethod
        def now() -> datetime:
            return moments[0]

    resources: dict[str, Any] = {"home": Lazy(stores.home.root)}

    def run_sensor() -> Any:
        with (
            dg.DagsterInstance.ephemeral() as instance,
            dg.build_sensor_context(instance=instance, resources=resources) as context,
        ):
            return successions_due(context)

    first = run_sensor()
    assert isinstance(first, dg.RunRequest)
    result = succession_job.execute_in_process(resources=resources)
    assert result.success
    assert isinstance(run_sensor(), dg.SkipReason), "nothing is due before its time"
    moments[0] += timedelta(seconds=30)
    again = run_sensor()
    assert isinstance(again, dg.RunRequest)
    assert again.run_key != first.run_key
    (stores.home.root / "golems").unlink()
    assert succession_job.execute_in_process(resources=resources).success
    assert not set(dead) & set(dead_without_heir(DerivationContext.open(stores.home.root)))
    assert isinstance(run_sensor(), dg.SkipReason)


def test_the_due_command_lists_and_runs_due_successions(stores: DerivationContext) -> None:
    home = stores.home.root
    shown = orjson.loads(bardo("golem", "due", "--dry-run", "--json", home=home))
    assert [line["golem"] for line in shown] == dead_without_heir(stores)
    assert {line["state"] for line in shown} == {"due"}
    done = orjson.loads(bardo("golem", "due", "--json", home=home))
    assert {line["state"] for line in done} == {"halted: funded"}
    assert "nothing is due" in bardo("golem", "due", home=home)
