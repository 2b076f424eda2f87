"""A run in lanes: the rows of a plain run, deaths completed in another process, errors of that process."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime import laned_run
from bardo_pipeline.runtime.death_process import DeathProcess
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.laned_run import LanedRun, has_lanes
from bardo_pipeline.runtime.run_settings import Heir, Run
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from tests.conftest import copy_home
from tests.support.records.handmade_births import birth_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def settings(golems: int, **changes: Any) -> Run:
    market = synthetic_market(seed=5, bars=330, start=NOW)
    founding = Founding(owners=("owner-1", "owner-2"), lifespan_ticks=(60, 190))
    return Run(name="lanes", market=market, golems=golems, generations=3, founding=founding, **changes)


def opened(root: Path) -> DerivationContext:
    Home.create(root, Policy(), NOW)
    return DerivationContext.open(root)


def ending(stores: DerivationContext, kind: type[FleetRun], golems: int) -> Any:
    progress: list[Any] = []
    result = kind(stores, settings(golems), lambda: NOW).live(progress.append)
    return result, progress


@pytest.mark.row("INH-17")
def test_a_run_without_founders_lives_the_golems_that_wait(tmp_path: Path) -> None:
    stores = opened(tmp_path / "home")
    born = birth_of("g-waits").born
    assert born is not None
    means = {"lifespan_ticks": 60, "credits_micros": 10_000_000, "capital_micros": 50_000_000}
    waits = Heir("g-waits", born.model_copy(update=means), NOW)
    run = replace(settings(0, heirs=(waits,)), generations=1)
    result = FleetRun(stores, run, lambda: NOW).live()
    assert (result.births, result.records) == (1, 60)


class PatientProcess(DeathProcess):
    """A process whose batch lasts until it is asked for the second time."""

    asked = 0

    def has_finished(self) -> bool:
        self.asked = self.asked + 1 if self.is_busy else 0
        return self.asked > 1 and self._pipe.poll(None)


class WatchedRun(LanedRun):
    """A run in lanes that counts commits of curation and begun lanes since the last step."""

    work = 0

    def _commit(self, *golems: Any) -> None:
        self.work += 1
        super()._commit(*golems)

    def _begin_lane(self, *births: Any) -> None:
        self.work += 1
        super()._begin_lane(*births)

    def _step_lane(self, lane: Any) -> None:
        self.work = 0
        super()._step_lane(lane)

    def _progress(self) -> Any:
        assert self.work <= 1, "the fleet waits for one commit or one welcome between two steps"
        return super()._progress()


def content(stores: DerivationContext) -> dict[str, Any]:
    """Fingerprints of all tables, records by golem and tick, and ids of all life events."""
    derive_everything(stores, now=NOW)
    tables: dict[str, Any] = {name: stores.projections.digest(name) for name in TABLES}
    records = pa.concat_tables(part.rows for part in stores.log.cycles_in_parts(RECORD_SCHEMA.names))
    tables["records"] = records.sort_by([("golem_id", "ascending"), ("tick", "ascending")]).combine_chunks()
    tables["events"] = sorted(stores.log.life()["event_id"].to_pylist())
    return tables


@pytest.mark.full
def test_a_run_in_lanes_writes_what_a_plain_run_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laned_run, "LANE_GOLEMS_MAX", 3)
    monkeypatch.setattr(laned_run, "BATCH_GOLEMS_MAX", 2)
    monkeypatch.setattr(laned_run, "COMMIT_CHUNKS", 2)
    monkeypatch.setattr(laned_run, "DeathProcess", PatientProcess)
    plain, laned = opened(tmp_path / "plain"), opened(tmp_path / "laned")
    expected, _ = ending(plain, FleetRun, 7)
    result, progress = ending(laned, WatchedRun, 7)
    assert result == expected
    assert expected.deaths > 7, "heirs die too"
    assert expected.births > 14
    ticks = [p.ticks_done for p in progress]
    assert ticks == sorted(ticks)
    assert max(p.living for p in progress) <= 7
    plain_content, laned_content = content(plain), content(laned)
    assert [name for name in plain_content if plain_content[name] != laned_content[name]] == []
    again, _ = ending(laned, LanedRun, 7)
    assert again == expected
    assert content(laned) == laned_content, "a repeated run adds nothing"


@pytest.mark.full
def test_the_process_gives_the_error_of_a_batch_and_names_its_own_end(tmp_path: Path) -> None:
    stores = opened(tmp_path / "home")
    with DeathProcess(stores) as deaths:
        deaths.begin(["g-unknown"], NOW)
        assert deaths.bundles() == {}, "a golem that did not die leaves nothing"
        shutil.rmtree(stores.projections.root)
        stores.projections.root.touch()
        deaths.begin(["g-unknown"], NOW)
        with pytest.raises(DerivationError, match=r"not complete: FileExistsError: .*: remove the cause"):
            deaths.bundles()
        assert not deaths.is_busy
        deaths._process.kill()
        deaths._process.join()
        with pytest.raises(DerivationError, match="exit code -9: run again"):
            deaths.begin(["g-1"], NOW)


@pytest.mark.parametrize(
    ("changes", "golems", "laned"),
    [
        ({}, 129, True),
        ({}, 128, False),
        ({"replicants": 1}, 500, False),
        ({"succeed": lambda lives, at: []}, 500, False),
    ],
)
def test_large_runs_have_lanes_unless_lives_depend_on_their_order(
    changes: dict[str, Any], golems: int, laned: bool
) -> None:
    assert has_lanes(settings(golems, **changes)) is laned


@pytest.mark.full
def test_the_episodes_of_some_golems_and_then_of_all_are_those_of_one_derivation(
    brief_home: Path, tmp_path: Path
) -> None:
    source = DerivationContext.open(copy_home(brief_home, tmp_path / "home"))
    whole, parted = (DerivationContext.open(source.home.root, beside=tmp_path / name) for name in ("whole", "parted"))
    derive_episodes(whole, now=NOW)
    golems = sorted(source.log.life("GolemBorn")["golem_id"].to_pylist())
    derive_episodes(parted, now=NOW, golems=golems[::2])
    episodes = parted.projections.growing("episodes")
    assert set(episodes.read(["golem_id"])["golem_id"].to_pylist()) == set(golems[::2])
    assert episodes.digest() != whole.projections.growing("episodes").digest()
    derive_episodes(parted, now=NOW, golems=golems[::2])
    derive_episodes(parted, now=NOW)
    assert episodes.digest() == whole.projections.growing("episodes").digest()
