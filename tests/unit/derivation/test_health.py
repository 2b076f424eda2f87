"""Health measures, each on a home in the state that it measures."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.derivation.reports.home_health import faults, health_of
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import HealthPolicy, Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.leases import Lease
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.health_metrics import (
    Backlog,
    backlog,
    intake,
    journals,
    leases,
    quarantined,
    spool,
)
from tests.conftest import NOW, home_without_verdicts
from tests.crash.roles import line_of
from tests.support.processes.forked_processes import Forked, die
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("X-11")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


def item(line: int) -> QuarantineItem:
    return QuarantineItem("spool", "bad.jsonl", line, None, None, "RecordError", "no number", b"{%d}" % line)


def aged(path: Path, age: timedelta) -> Path:
    path.write_bytes(b"1234")
    os.utime(path, ((NOW - age).timestamp(),) * 2)
    return path


def founder(stores: DerivationContext) -> dict:
    """The birth of a golem without a predecessor."""
    births = stores.log.life("GolemBorn").drop_columns("recorded_at").to_pylist()
    return next(birth for birth in births if birth["born"]["bundle_hash"] is None)


def measures(stores: DerivationContext, now: datetime, policy: Policy | None = None) -> set[str]:
    return {fault.measure for fault in faults(health_of(stores, now), policy or stores.policy)}


def test_a_new_home_has_no_faults(home: Home) -> None:
    stores = DerivationContext.open(home.root)
    health = health_of(stores, NOW)
    assert faults(health, stores.policy) == []
    assert (health.silent_seconds, health.intake.recorded_at, health.curation.cycles) == (None, None, 0)


def test_intake_counts_records_of_the_last_minute_hour_and_day(home: Home) -> None:
    moments = [timedelta(days=3), timedelta(hours=2), timedelta(minutes=5), timedelta(seconds=5)]
    with EventLog(home) as log:
        for number, age in enumerate(moments):
            rows = records(10, golems=2, tick=5 * number + 1)
            log.append(rows, writer="w", segment=number, recorded_at=NOW - age)
        result = intake(log, NOW)
    assert (result.minute, result.hour, result.day) == (10, 20, 30)
    assert result.recorded_at == NOW - moments[-1]


def test_intake_reads_back_over_a_whole_day(home: Home) -> None:
    with EventLog(home) as log:
        for number in range(12):
            rows = records(2, golems=1, tick=2 * number + 1)
            log.append(rows, writer="w", segment=number, recorded_at=NOW - timedelta(hours=36 - 2 * number))
        assert intake(log, NOW).day == 2 * 5


def test_the_spool_measure_counts_waiting_files_and_the_age_of_the_oldest(home: Home) -> None:
    aged(home.spool / "one.jsonl", timedelta(minutes=2))
    aged(home.spool / "two.jsonl", timedelta(minutes=7))
    aged(home.spool / ".half.jsonl", timedelta(minutes=9))
    result = spool(home, NOW)
    assert (result.files, result.bytes, result.oldest_seconds) == (2, 8, 420.0)
    assert backlog([home.spool / "gone.jsonl"], NOW).files == 0, "a file taken meanwhile is not counted"


UNTAKEN = ("notes.txt", "d.json", "g-1/deep/f.jsonl", ".half.jsonl", "lone.jsonl.sig", ".drafts/e.jsonl", "link.jsonl")


@pytest.mark.row("X-11")
@pytest.mark.parametrize("name", UNTAKEN)
def test_a_file_that_is_never_taken_from_the_spool_is_a_fault(home: Home, name: str) -> None:
    path = home.spool / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "link.jsonl":
        path.symlink_to(home.root / "home.json")
        os.utime(path, ((NOW - timedelta(minutes=7)).timestamp(),) * 2, follow_symlinks=False)
    else:
        aged(path, timedelta(minutes=7))
    assert spool(home, NOW).files == 0
    health = health_of(DerivationContext.open(home.root), NOW)
    (fault,) = faults(health, Policy())
    assert (fault.measure, health.untaken.files, health.untaken.oldest) == ("spool.untaken", 1, name)
    assert f"such as {name}: only *.jsonl and *.arrow" in fault.says
    assert measures(DerivationContext.open(home.root), NOW - timedelta(minutes=4)) == set()


def test_a_file_that_is_being_taken_with_its_signatures_is_no_fault(home: Home) -> None:
    for name in ("a.jsonl", "a.jsonl.sig", ".taking/g-1/b.arrow", ".taking/g-1/b.arrow.sig"):
        (home.spool / name).parent.mkdir(parents=True, exist_ok=True)
        aged(home.spool / name, timedelta(minutes=7))
    assert measures(DerivationContext.open(home.root), NOW) == {"spool.age"}


def test_the_depth_of_a_journal_counts_acknowledged_undrained_records(home: Home) -> None:
    moments = iter([NOW + timedelta(seconds=10 * number) for number in (0, 0, 1, 1, 2, 2)])  # checked, then accepted
    with EventWriter.open(home, "g-1", clock=lambda: next(moments, NOW), writer="runtime-1", drain="none") as writer:
        assert journals(home, NOW, Policy().writer)[0].depth == Backlog(0, 0, None), (
            "a segment without a record has no depth"
        )
        lines = [line_of("g-1", tick) for tick in (1, 2, 3)]
        for line in lines:
            writer.append(line)
        (result,) = journals(home, NOW + timedelta(seconds=90), Policy().writer)
        assert (result.writer, result.alive) == ("runtime-1", True)
        assert (result.depth.files, result.depth.oldest_seconds) == (1, 90.0)
        assert 0 < result.depth.bytes - sum(map(len, lines)) < 3 * 200
    assert journals(home, NOW, Policy().writer) == [], "closing drained it"


def test_a_nearly_full_journal_is_a_fault(home: Home) -> None:
    tight = Policy(writer=WriterPolicy(journal_bytes_max=40_000))
    with EventWriter.open(home, "g-1", clock=lambda: NOW, policy=tight, drain="none") as writer:
        writer.append(line_of("g-1", 1))
        assert measures(DerivationContext.open(home.root), NOW, tight) == set()
        tick = 1
        while writer.append(line_of("g-1", tick := tick + 1), wait=False):
            if "journal.bytes" in measures(DerivationContext.open(home.root), NOW, tight):
                break
        assert "journal.bytes" in measures(DerivationContext.open(home.root), NOW, tight)
    assert measures(DerivationContext.open(home.root), NOW, tight) == set()


def test_an_old_file_in_the_spool_is_a_fault(home: Home) -> None:
    aged(home.spool / "one.jsonl", timedelta(minutes=7))
    assert measures(DerivationContext.open(home.root), NOW) == {"spool.age"}
    assert measures(DerivationContext.open(home.root), NOW - timedelta(minutes=4)) == set()


def test_the_quarantine_share_is_relative_to_the_records_of_a_day(home: Home) -> None:
    assert quarantined(home, 0, NOW).open == 0
    assert not (home.quarantine / "items").exists(), "a measurement creates no table"
    box = Quarantine(home)
    box.put([item(1)], NOW - timedelta(days=2))
    box.put([item(2), item(3)], NOW - timedelta(hours=1))
    result = quarantined(home, 98, NOW)
    assert (result.open, result.day, result.day_share) == (3, 2, 0.02)
    box.rule([item(2).item_id], "dropped", at=NOW, why="noise")
    assert quarantined(home, 98, NOW).day == 1


def test_many_refusals_are_a_fault(home: Home) -> None:
    stores = DerivationContext.open(home.root)
    stores.log.append(records(100, golems=1), writer="w", segment=1, recorded_at=NOW)
    Quarantine(home).put([item(1)], NOW)
    assert measures(stores, NOW) == set(), "one refusal of 101 is below the limit"
    Quarantine(home).put([item(2)], NOW)
    assert measures(stores, NOW) == {"quarantine.share"}


def hold_and_die(root: str) -> None:
    held = Lease(Home.open(Path(root)), "g-2", "x")
    assert held
    die()


def test_the_lease_of_a_killed_holder_is_stale(home: Home) -> None:
    held = Lease(home, "g-1", "w")
    Forked(hold_and_die, str(home.root)).wait()
    assert (leases(home).held, leases(home).stale) == (1, 1)
    assert measures(DerivationContext.open(home.root), NOW) == {"leases.stale"}
    held.release()
    assert leases(home).held == 0


def test_silence_is_a_fault_only_while_a_golem_is_alive(small_home: Path, home: Home) -> None:
    known = DerivationContext.open(small_home)
    born = founder(known)
    later = NOW + timedelta(hours=1)
    dead = DerivationContext.open(small_home)
    assert "log.silence" not in measures(dead, later), "all golems are dead, so no record is expected"
    stores = DerivationContext.open(home.root)
    stores.log.record([LifeEvent.model_validate(born)], NOW)
    rows = known.log.read_cycles(RECORD_SCHEMA.names, golems=[born["golem_id"]]).cast(RECORD_SCHEMA)
    stores.log.append(rows, writer="w", segment=1, recorded_at=NOW)
    assert "log.silence" not in measures(stores, NOW + timedelta(minutes=9))
    assert "log.silence" in measures(stores, later)


def test_golems_that_outlive_a_finished_run_are_no_silence(half_lived: Path) -> None:
    stores = DerivationContext.open(half_lived)
    later = NOW + timedelta(hours=1)
    health = health_of(stores, later)
    assert health.golems.born > health.golems.dead
    assert (health.intake.awaited_at, health.silent_seconds) == (None, 3600.0)
    assert "log.silence" not in measures(stores, later)


def test_a_gap_is_a_fault_until_it_is_filled(home: Home) -> None:
    stores = DerivationContext.open(home.root)
    rows = records(10, golems=1)
    stores.log.append(rows.take([0, 1, 2, 5, 6]), writer="w", segment=1, recorded_at=NOW)
    assert health_of(stores, NOW).golems.missing_ticks == 2
    assert measures(stores, NOW) == {"log.missing_ticks"}
    stores.log.append(rows.take([3, 4]), writer="w", segment=2, recorded_at=NOW)
    assert measures(stores, NOW) == set()


class TestLag:
    """The lag of derivation on the small home's log, before and after deriving."""

    @pytest.fixture
    def stores(self, small_home: Path, tmp_path: Path) -> DerivationContext:
        return DerivationContext.open(home_without_verdicts(small_home, tmp_path / "home"))

    def test_the_lag_of_an_underived_log_counts_all_ticks_since_their_recording(
        self, stores: DerivationContext
    ) -> None:
        health = health_of(stores, NOW + timedelta(seconds=90))
        heads = {r["golem_id"]: r["contiguous"] for r in stores.log.heads().to_pylist()}
        assert health.curation.ticks == sum(heads.values())
        assert (health.curation.ticks_max, heads[health.curation.golem_max]) == (max(heads.values()),) * 2
        assert health.curation.cycles == health.episodes.cycles > len(heads)
        assert health.curation.waiting_seconds == 90.0
        assert health.curation.derived_at is None

    def test_lag_is_a_fault_after_three_intervals_of_the_schedule(self, stores: DerivationContext) -> None:
        assert measures(stores, NOW + timedelta(minutes=29)) == set()
        assert measures(stores, NOW + timedelta(minutes=31)) == {"curation.waiting", "episodes.waiting"}

    def test_the_lag_of_each_derivation_is_measured_separately(self, stores: DerivationContext) -> None:
        derive_curation(stores)
        health = health_of(stores, NOW + timedelta(minutes=31))
        assert (health.curation.ticks, health.curation.cycles, health.curation.waiting_seconds) == (0, 0, None)
        assert health.curation.derived_at is not None
        assert health.episodes.cycles > 0
        derive_episodes(stores, now=NOW)
        assert measures(stores, NOW + timedelta(minutes=31)) == set()

    def test_the_wait_starts_when_a_cycle_closes(self, small_home: Path, home: Home) -> None:
        known, stores = DerivationContext.open(small_home), DerivationContext.open(home.root)
        born = founder(known)
        stores.log.record([LifeEvent.model_validate(born)], NOW)
        rows = known.log.read_cycles(RECORD_SCHEMA.names, golems=[born["golem_id"]]).cast(RECORD_SCHEMA)
        rows = rows.sort_by("tick")
        for number, (first, last, minute) in enumerate([(0, 50, 0), (50, 80, 10), (80, 99, 20), (99, 100, 30)]):
            moment = NOW + timedelta(minutes=minute)
            part = rows.take(pa.array(range(first, last)))
            stores.log.append(part, writer="w", segment=number, recorded_at=moment)
            if number == 0:
                derive_curation(stores)
        lag = health_of(stores, NOW + timedelta(minutes=31)).curation
        assert (lag.cycles, lag.ticks, lag.waiting_seconds) == (1, 50, 60.0)


def test_thresholds_come_from_the_policy_and_do_not_change_its_hash(home: Home) -> None:
    aged(home.spool / "one.jsonl", timedelta(minutes=7))
    patient = Policy(health=HealthPolicy(spool_seconds_max=3_600.0), writer=WriterPolicy(flush_seconds=5.0))
    assert measures(DerivationContext.open(home.root), NOW, patient) == set()
    assert patient.hash == Policy().hash
