"""The sensor for silence and its job: a golem silent by the market's clock is requested once and declared dead."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from sensors.home_sensors import golems_silent
from tests.conftest import NOW
from tests.definitions.running import run

pytestmark = pytest.mark.row("INH-2", "P-3")


def settled(root: Path, **hours: float) -> dict[str, str]:
    """A home of golems born this many hours after a golem without ticks; maps lineage to golem."""
    Home.create(root, Policy(), NOW)
    stores, ids = DerivationContext.open(root), {}
    for name, late in hours.items():
        market = "elsewhere" if name.startswith("far") else "here"
        ids[name], birth = born(lineage_id=name, generation=0, owner_id="a", founding=Founding(), market=market,
                                market_hash="h", derivation_id="d", policy=stores.policy)  # fmt: skip
        stores.log.record([life_event(ids[name], NOW + timedelta(hours=late), birth)], NOW)
    stores.log.close()
    return ids


def run_sensor(root: Path) -> dg.RunRequest | dg.SkipReason:
    lazy = LazyStores(root)
    with dg.DagsterInstance.ephemeral() as instance:
        evaluation = golems_silent(dg.build_sensor_context(instance=instance, resources={"home": lazy}))
    lazy.close()
    return evaluation


def test_a_silent_golem_is_requested_once_and_declared_dead_by_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "home"
    ids = settled(root, early=0, later=24.5, far_off=0, last=24.2)
    evaluation = run_sensor(root)
    assert isinstance(evaluation, dg.RunRequest)
    assert evaluation.tags["bardo/why"] == f"{ids['early']} fell silent"
    assert run_sensor(root).run_key == evaluation.run_key, "the same silence must have the same run key"
    with EventWriter.open(Home.open(root), ids["early"], clock=lambda: NOW, drain="nobody"):
        assert isinstance(run_sensor(root), dg.SkipReason), "a golem with a running writer is skipped"
    assert run_sensor(root).run_key == evaluation.run_key, "the golem is requested after its writer closed"
    monkeypatch.setenv("BARDO_HOME", str(root))
    done = run("observe_job", dg.DagsterInstance.ephemeral())
    assert done.success
    stores = DerivationContext.open(root)
    assert stores.life("DeathDeclared")["golem_id"].to_pylist() == [ids["early"]]
    assert stores.log.cause_of_death(ids["early"]) == "silence"
    assert isinstance(run_sensor(root), dg.SkipReason)
    assert run("observe_job", dg.DagsterInstance.ephemeral()).success
    assert DerivationContext.open(root).life("DeathDeclared").num_rows == 1


def test_the_silence_sensor_skips_a_missing_home_and_an_empty_home(tmp_path: Path) -> None:
    assert "there is no home" in run_sensor(tmp_path / "nowhere").skip_message
    settled(tmp_path / "home")
    assert "no living golem is silent" in run_sensor(tmp_path / "home").skip_message
