"""Sensors and the schedule: when they ask for a run, when they do not, and what they remember."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.events.life.events import Died, LifeEvent, Vitality, life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from jobs.home_jobs import pending_work
from jobs.schedules import every_ten_minutes
from sensors.home_sensors import cycles_closed, deaths_recorded
from tests.conftest import NOW, home_without_verdicts

Look = Callable[[str | None], dg.SensorResult | dg.SkipReason]


def death(golem_id: str) -> LifeEvent:
    vitality = Vitality(economic=0.0, epistemic=0.5, stochastic=0.5, composite=0.0)
    died = Died(
        cause="economic",
        tick=60,
        phase="terminal",
        vitality=vitality,
        credits_micros=0,
        capital_micros=1,
        earned_micros=0,
    )
    return life_event(golem_id, NOW + timedelta(minutes=int(golem_id[2:])), died)


def looking(sensor: dg.SensorDefinition, root: Path) -> Look:
    def look(cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        lazy = LazyStores(root)
        context = dg.build_sensor_context(cursor=cursor, resources={"home": lazy})
        result = sensor(context)
        lazy.close()
        return result

    return look


@pytest.fixture
def empty(tmp_path: Path) -> DerivationContext:
    root = tmp_path / "home"
    Home.create(root, Policy(), NOW)
    return DerivationContext.open(root)


def asked(result: dg.SensorResult | dg.SkipReason) -> list[str]:
    return [r.run_key for r in result.run_requests or []] if isinstance(result, dg.SensorResult) else []


@pytest.mark.row("P-3")
class TestDeathsRecorded:
    def test_without_a_home_it_says_so(self, tmp_path: Path) -> None:
        evaluation = looking(deaths_recorded, tmp_path / "nowhere")(None)
        assert isinstance(evaluation, dg.SkipReason)
        assert "there is no home" in evaluation.skip_message
        assert not (tmp_path / "nowhere").exists()

    def test_the_first_look_finds_the_deaths_that_are_there(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1"), death("g-2")], NOW)
        evaluation = looking(deaths_recorded, empty.home.root)(None)
        (request,) = evaluation.run_requests
        assert request.run_key.endswith(f"/life-{empty.log.life_version}")
        assert request.tags["bardo/why"] == "g-1, g-2 died"

    def test_the_second_look_finds_none(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        look = looking(deaths_recorded, empty.home.root)
        evaluation = look(look(None).cursor)
        assert asked(evaluation) == []
        assert evaluation.skip_reason.skip_message == "no death since the last look"

    def test_a_later_death_asks_again_for_itself_alone(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        look = looking(deaths_recorded, empty.home.root)
        first = look(None)
        empty.log.record([death("g-2")], NOW)
        second = look(first.cursor)
        assert second.run_requests[0].tags["bardo/why"] == "g-2 died"
        assert asked(first) != asked(second)

    def test_a_death_recorded_twice_asks_once(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        look = looking(deaths_recorded, empty.home.root)
        first = look(None)
        empty.log.record([death("g-1")], NOW)
        assert asked(look(first.cursor)) == []

    def test_two_looks_at_the_same_log_ask_under_the_same_key(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        look = looking(deaths_recorded, empty.home.root)
        assert asked(look(None)) == asked(look(None)), "a look whose cursor was lost starts no second run"

    def test_a_look_that_finds_nothing_moves_on(self, empty: DerivationContext, small_home: Path) -> None:
        look = looking(deaths_recorded, empty.home.root)
        before = look(None)
        born = DerivationContext.open(small_home).log.life("GolemBorn").drop_columns("recorded_at").to_pylist()
        empty.log.record([LifeEvent.model_validate(born[0])], NOW)
        after = look(before.cursor)
        assert asked(after) == []
        assert json.loads(after.cursor)["life_version"] == empty.log.life_version

    def test_the_cursor_of_another_home_counts_for_nothing(self, empty: DerivationContext, tmp_path: Path) -> None:
        other = Home.create(tmp_path / "other", Policy(), NOW + timedelta(days=1))
        stores = DerivationContext.open(other.root)
        stores.log.record([death("g-1")], NOW)
        ahead = json.dumps({"home": empty.home.created_at.isoformat(), "log_version": 900, "life_version": 900})
        assert len(asked(looking(deaths_recorded, other.root)(ahead))) == 1

    @pytest.mark.parametrize("cursor", ["", "17", "{", '{"home": 1}', "[]"])
    def test_a_cursor_that_cannot_be_read_is_a_first_look(self, empty: DerivationContext, cursor: str) -> None:
        empty.log.record([death("g-1")], NOW)
        assert len(asked(looking(deaths_recorded, empty.home.root)(cursor))) == 1


@pytest.mark.row("P-3")
class TestCyclesClosed:
    def test_closed_cycles_ask_for_the_curator_once(self, small_home: Path, tmp_path: Path) -> None:
        root = home_without_verdicts(small_home, tmp_path / "home")
        look = looking(cycles_closed, root)
        first = look(None)
        assert "closed cycles of" in first.run_requests[0].tags["bardo/why"]
        again = look(first.cursor)
        assert isinstance(again, dg.SkipReason)
        assert again.skip_message == "nothing was recorded since the last look"

    def test_what_is_recorded_without_closing_a_cycle_asks_for_nothing(self, empty: DerivationContext) -> None:
        look = looking(cycles_closed, empty.home.root)
        first = look(None)
        assert asked(first) == []
        empty.log.record([death("g-1")], NOW)
        second = look(first.cursor)
        assert asked(second) == []
        assert second.cursor != first.cursor

    def test_without_a_home_it_says_so(self, tmp_path: Path) -> None:
        assert "there is no home" in looking(cycles_closed, tmp_path / "nowhere")(None).skip_message


@pytest.mark.row("P-3")
class TestEveryTenMinutes:
    def tick(self, root: Path) -> dg.RunRequest | dg.SkipReason:
        return every_ten_minutes(dg.build_schedule_context(resources={"home": LazyStores(root)}))

    def test_it_runs_where_something_is_new_and_skips_where_nothing_is(self, small_home: Path, tmp_path: Path) -> None:
        root = home_without_verdicts(small_home, tmp_path / "home")
        assert "closed cycles of" in self.tick(root).tags["bardo/why"]
        stores = DerivationContext.open(root)
        derive_episodes(stores, now=NOW)
        derive_curation(stores)
        assert pending_work(stores) == "decisions without their votes"
        derive_votes(stores)
        skipped = self.tick(root)
        assert isinstance(skipped, dg.SkipReason)
        assert skipped.skip_message == "no cycle closed since the last run"

    def test_without_a_home_it_skips(self, tmp_path: Path) -> None:
        assert "there is no home" in self.tick(tmp_path / "nowhere").skip_message
