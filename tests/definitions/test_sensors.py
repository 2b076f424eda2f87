"""Sensors and the schedule: when they request a run, and their cursors."""

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

Evaluator = Callable[[str | None], dg.SensorResult | dg.SkipReason]


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


def evaluator(sensor: dg.SensorDefinition, root: Path) -> Evaluator:
    def evaluate(cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        lazy = LazyStores(root)
        context = dg.build_sensor_context(cursor=cursor, resources={"home": lazy})
        result = sensor(context)
        lazy.close()
        return result

    return evaluate


@pytest.fixture
def empty(tmp_path: Path) -> DerivationContext:
    root = tmp_path / "home"
    Home.create(root, Policy(), NOW)
    return DerivationContext.open(root)


def run_keys(result: dg.SensorResult | dg.SkipReason) -> list[str]:
    return [r.run_key for r in result.run_requests or []] if isinstance(result, dg.SensorResult) else []


@pytest.mark.row("P-3")
class TestDeathsRecorded:
    def test_a_missing_home_is_skipped(self, tmp_path: Path) -> None:
        evaluation = evaluator(deaths_recorded, tmp_path / "nowhere")(None)
        assert isinstance(evaluation, dg.SkipReason)
        assert "there is no home" in evaluation.skip_message
        assert not (tmp_path / "nowhere").exists()

    def test_the_first_tick_requests_a_run_for_existing_deaths(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1"), death("g-2")], NOW)
        evaluation = evaluator(deaths_recorded, empty.home.root)(None)
        (request,) = evaluation.run_requests
        assert request.run_key.endswith(f"/life-{empty.log.life_version}")
        assert request.tags["bardo/why"] == "g-1, g-2 died"

    def test_the_second_tick_requests_no_run(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        evaluate = evaluator(deaths_recorded, empty.home.root)
        evaluation = evaluate(evaluate(None).cursor)
        assert run_keys(evaluation) == []
        assert evaluation.skip_reason.skip_message == "no death since the last look"

    def test_a_later_death_requests_its_own_run(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        evaluate = evaluator(deaths_recorded, empty.home.root)
        first = evaluate(None)
        empty.log.record([death("g-2")], NOW)
        second = evaluate(first.cursor)
        assert second.run_requests[0].tags["bardo/why"] == "g-2 died"
        assert run_keys(first) != run_keys(second)

    def test_a_repeated_death_requests_no_second_run(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        evaluate = evaluator(deaths_recorded, empty.home.root)
        first = evaluate(None)
        empty.log.record([death("g-1")], NOW)
        assert run_keys(evaluate(first.cursor)) == []

    def test_two_ticks_on_the_same_log_use_the_same_run_key(self, empty: DerivationContext) -> None:
        empty.log.record([death("g-1")], NOW)
        evaluate = evaluator(deaths_recorded, empty.home.root)
        assert run_keys(evaluate(None)) == run_keys(evaluate(None)), "a lost cursor must not start a second run"

    def test_a_tick_without_deaths_advances_the_cursor(self, empty: DerivationContext, small_home: Path) -> None:
        evaluate = evaluator(deaths_recorded, empty.home.root)
        before = evaluate(None)
        born = DerivationContext.open(small_home).log.life("GolemBorn").drop_columns("recorded_at").to_pylist()
        empty.log.record([LifeEvent.model_validate(born[0])], NOW)
        after = evaluate(before.cursor)
        assert run_keys(after) == []
        assert json.loads(after.cursor)["life_version"] == empty.log.life_version

    def test_the_cursor_of_another_home_is_ignored(self, empty: DerivationContext, tmp_path: Path) -> None:
        other = Home.create(tmp_path / "other", Policy(), NOW + timedelta(days=1))
        stores = DerivationContext.open(other.root)
        stores.log.record([death("g-1")], NOW)
        ahead = json.dumps({"home": empty.home.created_at.isoformat(), "log_version": 900, "life_version": 900})
        assert len(run_keys(evaluator(deaths_recorded, other.root)(ahead))) == 1

    @pytest.mark.parametrize("cursor", ["", "17", "{", '{"home": 1}', "[]"])
    def test_an_unreadable_cursor_is_ignored(self, empty: DerivationContext, cursor: str) -> None:
        empty.log.record([death("g-1")], NOW)
        assert len(run_keys(evaluator(deaths_recorded, empty.home.root)(cursor))) == 1


@pytest.mark.row("P-3")
class TestCyclesClosed:
    def test_closed_cycles_request_one_curator_run(self, small_home: Path, tmp_path: Path) -> None:
        root = home_without_verdicts(small_home, tmp_path / "home")
        evaluate = evaluator(cycles_closed, root)
        first = evaluate(None)
        assert "closed cycles of" in first.run_requests[0].tags["bardo/why"]
        again = evaluate(first.cursor)
        assert isinstance(again, dg.SkipReason)
        assert again.skip_message == "nothing was recorded since the last look"

    def test_records_that_close_no_cycle_request_no_run(self, empty: DerivationContext) -> None:
        evaluate = evaluator(cycles_closed, empty.home.root)
        first = evaluate(None)
        assert run_keys(first) == []
        empty.log.record([death("g-1")], NOW)
        second = evaluate(first.cursor)
        assert run_keys(second) == []
        assert second.cursor != first.cursor

    def test_a_missing_home_is_skipped(self, tmp_path: Path) -> None:
        assert "there is no home" in evaluator(cycles_closed, tmp_path / "nowhere")(None).skip_message


@pytest.mark.row("P-3")
class TestEveryTenMinutes:
    def tick(self, root: Path) -> dg.RunRequest | dg.SkipReason:
        return every_ten_minutes(dg.build_schedule_context(resources={"home": LazyStores(root)}))

    def test_the_schedule_runs_only_if_work_is_pending(self, small_home: Path, tmp_path: Path) -> None:
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

    def test_the_schedule_skips_a_missing_home(self, tmp_path: Path) -> None:
        assert "there is no home" in self.tick(tmp_path / "nowhere").skip_message
