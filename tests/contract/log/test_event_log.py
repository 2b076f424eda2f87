"""The event log's rules for ticks, gaps and deaths: one suite for the log on disk and its twin in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.errors import ForkError, OverrideError, RecordError, RegressionError, StoreError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.override_events import Pinned
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home, bucket_of
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, Appended
from bardo_pipeline.storage.log.stream_heads import TickRange
from tests.doubles.memory_event_log import Log
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import (
    GOLEM,
    LATER,
    NOW,
    accepted,
    append,
    content,
    died,
    head,
    on_record,
    same,
    ticks,
)

# one record per golem and tick


@pytest.mark.row("P-1", "EV-1")
def test_a_record_is_read_back_as_it_was_written(log: Log) -> None:
    batch = records(30, golems=3, dense=True)
    result = append(log, batch, segment=7)
    rows = log.read_cycles()
    assert result == Appended(log.version, 30, 0, (), ())
    assert rows.schema.equals(CYCLES_SCHEMA)
    assert same(rows.select(RECORD_SCHEMA.names), batch)
    assert rows["content_hash"].combine_chunks().equals(digest_column(row_digests(rows.select(RECORD_SCHEMA.names))))
    assert rows["bucket"].to_pylist() == [bucket_of(g, 16) for g in rows["golem_id"].to_pylist()]
    assert set(rows["recorded_at"].to_pylist()) == {NOW}
    assert set(zip(rows["writer"].to_pylist(), rows["segment"].to_pylist(), strict=True)) == {("runtime", 7)}


@pytest.mark.row("EV-2")
def test_a_batch_sent_again_changes_nothing(log: Log) -> None:
    batch = ticks(1, 5, golems=3)
    first = append(log, batch, segment=0)
    for again in (append(log, batch, segment=0), append(log, batch), append(log, batch, writer="another")):
        assert again == Appended(first.version, 0, 15, (), ())
    assert same(content(log), batch)


@pytest.mark.row("EV-2")
def test_the_new_rows_of_a_repeated_batch_are_written(log: Log) -> None:
    append(log, ticks(1, 3))
    result = append(log, ticks(2, 5))
    assert (result.written, result.repeated) == (2, 2)
    assert on_record(log) == [1, 2, 3, 4, 5]


@pytest.mark.row("EV-2")
def test_repeats_within_a_batch_are_stored_once(log: Log) -> None:
    batch = ticks(1, 4)
    result = append(log, pa.concat_tables([batch, batch.slice(1, 2), batch]))
    assert (result.written, result.repeated) == (4, 6)
    assert same(content(log), batch)


@pytest.mark.row("EV-2")
def test_two_records_of_one_tick_in_a_batch_are_a_fork(log: Log) -> None:
    batch = pa.concat_tables([ticks(1, 3), ticks(2, seed=1)])
    with pytest.raises(ForkError, match=f"golem {GOLEM}: tick 2 comes twice") as error:
        append(log, batch)
    assert (error.value.golem_id, error.value.tick) == (GOLEM, 2)
    assert on_record(log) == []
    assert log.version == 0


@pytest.mark.row("EV-2")
def test_a_different_record_of_a_recorded_tick_is_a_fork_and_refuses_the_batch(log: Log) -> None:
    append(log, ticks(1, 3, golems=2))
    before = content(log)
    with pytest.raises(
        ForkError, match=r"golem golem-0001: tick 3 is already on record with different content"
    ) as error:
        append(log, pa.concat_tables([ticks(4, golems=2), ticks(3, golems=2, seed=1).slice(1), ticks(5)]))
    assert (error.value.golem_id, error.value.tick) == ("golem-0001", 3)
    assert same(content(log), before)
    assert append(log, ticks(4, golems=2)).written == 2


@pytest.mark.row("EV-2")
def test_one_changed_leaf_deep_in_a_record_is_a_fork(log: Log) -> None:
    batch = records(2, golems=1, dense=True)
    append(log, batch)
    rows = batch.to_pylist()
    rows[1]["probe_results"][1]["value"] += 1e-9
    with pytest.raises(ForkError, match=f"golem {GOLEM}: tick 2 "):
        append(log, pa.Table.from_pylist(rows, schema=RECORD_SCHEMA))


@pytest.mark.row("EV-2")
def test_a_tick_beyond_the_head_is_accepted_and_its_gap_reported(log: Log) -> None:
    append(log, ticks(1, 2))
    result = append(log, pa.concat_tables([ticks(9), ticks(5, 6)]))
    gaps = (TickRange(GOLEM, 3, 4), TickRange(GOLEM, 7, 8))
    assert result == Appended(log.version, 3, 0, gaps, ())
    assert log.gaps() == gaps
    assert head(log) == (2, 9, 4)


@pytest.mark.row("EV-2")
def test_a_first_tick_above_one_leaves_a_gap_from_one(log: Log) -> None:
    assert append(log, ticks(4)).gaps == (TickRange(GOLEM, 1, 3),)
    assert head(log) == (0, 4, 3)


@pytest.mark.row("EV-2")
def test_a_gap_is_reported_once_and_remembered(log: Log) -> None:
    append(log, ticks(3))
    assert append(log, ticks(4)).gaps == ()
    assert append(log, ticks(4)).gaps == ()
    assert log.gaps() == (TickRange(GOLEM, 1, 2),)


@pytest.mark.row("EV-2")
def test_a_late_tick_fills_its_gap(log: Log) -> None:
    append(log, pa.concat_tables([ticks(1), ticks(7)]))
    result = append(log, ticks(4))
    assert result.late == (TickRange(GOLEM, 4, 4),)
    assert result.gaps == ()
    assert log.gaps() == (TickRange(GOLEM, 2, 3), TickRange(GOLEM, 5, 6))
    result = append(log, pa.concat_tables([ticks(5, 8), ticks(2, 3)]))
    assert result.late == (TickRange(GOLEM, 2, 3), TickRange(GOLEM, 5, 6))
    assert head(log) == (8, 8, 0)


@pytest.mark.row("EV-2")
def test_an_accepted_gap_moves_the_head_past_it(log: Log) -> None:
    append(log, pa.concat_tables([ticks(1, 2), ticks(6, 7)]))
    assert head(log) == (2, 7, 3)
    assert log.record([accepted(3, 4)], NOW) == 1
    assert (head(log), log.gaps()) == ((4, 7, 1), (TickRange(GOLEM, 5, 5),))
    assert log.record([accepted(5, 5)], NOW) == 1
    assert (head(log), log.gaps()) == ((7, 7, 0), ())


@pytest.mark.row("EV-2")
def test_a_tick_in_an_accepted_gap_is_a_regression(log: Log) -> None:
    append(log, pa.concat_tables([ticks(1, 2), ticks(6)]))
    log.record([accepted(3, 5)], NOW)
    with pytest.raises(RegressionError, match=f"golem {GOLEM}: tick 4 comes after its gap was accepted") as error:
        append(log, pa.concat_tables([ticks(7), ticks(4)]))
    assert (error.value.golem_id, error.value.tick) == (GOLEM, 4)
    assert on_record(log) == [1, 2, 6]


@pytest.mark.row("EV-2")
def test_a_gap_can_be_accepted_before_the_first_record(log: Log) -> None:
    log.record([accepted(1, 3)], NOW)
    with pytest.raises(RegressionError, match=f"golem {GOLEM}: tick 2 "):
        append(log, ticks(2))
    assert append(log, ticks(5)).gaps == (TickRange(GOLEM, 4, 4),)
    assert head(log) == (3, 5, 1)


@pytest.mark.row("EV-2")
def test_records_inside_an_accepted_gap_stay(log: Log) -> None:
    append(log, pa.concat_tables([ticks(1), ticks(3), ticks(5)]))
    log.record([accepted(2, 4)], NOW)
    assert head(log) == (5, 5, 0)
    assert append(log, ticks(3)).repeated == 1
    with pytest.raises(ForkError, match="tick 3"):
        append(log, ticks(3, seed=1))
    with pytest.raises(RegressionError, match="tick 4"):
        append(log, ticks(4))


@pytest.mark.row("EV-2")
def test_records_after_a_death_are_refused(log: Log) -> None:
    append(log, ticks(1, 3, golems=2))
    assert log.record([died(5)], NOW) == 1
    with pytest.raises(RegressionError, match=f"golem {GOLEM}: tick 6 comes after its death at tick 5") as error:
        append(log, pa.concat_tables([ticks(4, 5, golems=2), ticks(6, 7)]))
    assert (error.value.golem_id, error.value.tick) == (GOLEM, 6)
    assert on_record(log) == [1, 1, 2, 2, 3, 3], "a batch is refused whole"
    assert append(log, pa.concat_tables([ticks(5), ticks(4, 9, golems=2).filter(not_of_golem())])).written == 7
    assert append(log, ticks(4)).late == (TickRange(GOLEM, 4, 4),)
    assert append(log, ticks(4, 5)).repeated == 2
    with pytest.raises(RegressionError, match="tick 6 comes after its death"):
        append(log, ticks(6))


@pytest.mark.row("EV-2")
def test_a_death_recorded_before_the_first_record_is_enforced(log: Log) -> None:
    assert log.record([died(2)], NOW) == 1
    assert log.heads().num_rows == 0
    with pytest.raises(RegressionError, match="tick 3 comes after its death at tick 2"):
        append(log, ticks(1, 3))
    assert append(log, ticks(1, 2)).written == 2


def pinned(tick_seen: int, number: int, golem_id: str = GOLEM) -> LifeEvent:
    payload = Pinned(number=number, entry_id="e", tick_seen=tick_seen, cycle_seen=0, why="I was there")
    return life_event(golem_id, NOW, payload)


@pytest.mark.row("X-8")
def test_an_override_must_name_the_current_tick_and_the_next_number(log: Log) -> None:
    append(log, pa.concat_tables([ticks(1, 4, golems=2), ticks(6)]))
    assert log.record([pinned(4, 1)], NOW) == 1, "the stream has no gap up to tick 4"
    assert log.record([pinned(4, 1)], LATER) == 0
    for stale in (pinned(3, 2), pinned(6, 2)):
        with pytest.raises(OverrideError, match=f"golem {GOLEM}: .* the newest tick is 4: look at the entry again"):
            log.record([stale], NOW)
    for number in (1, 3):
        with pytest.raises(OverrideError, match=f"golem {GOLEM}: the next override has number 2, not {number}"):
            log.record([life_event(GOLEM, LATER, pinned(4, number).payload)], NOW)
    with pytest.raises(OverrideError, match="the newest tick is 4"):
        log.record([pinned(4, 1, "golem-0001"), pinned(3, 2)], NOW)
    assert log.life().num_rows == 1, "events are refused together"
    assert log.record([pinned(4, 3), pinned(4, 2)][::-1], NOW) == 2
    append(log, ticks(5))
    assert log.record([pinned(6, 4)], NOW) == 1
    assert log.record([accepted(7, 9)], NOW) == 1
    assert log.record([pinned(9, 5)], NOW) == 1


@pytest.mark.row("X-8")
def test_an_override_after_a_death_is_refused(log: Log) -> None:
    append(log, ticks(1, 4))
    log.record([died(5)], NOW)
    assert log.record([pinned(4, 1)], NOW) == 1, "tick 5 is to come"
    append(log, ticks(5))
    with pytest.raises(OverrideError, match=f"golem {GOLEM} died at tick 5: its knowledge is closed"):
        log.record([pinned(5, 2)], NOW)
    assert log.record([pinned(4, 1)], LATER) == 0


@pytest.mark.row("X-8")
def test_a_reopened_log_continues_the_numbers_of_overrides(home: Home) -> None:
    with EventLog(home, Policy()) as log:
        log.record([pinned(0, 1), pinned(0, 2)], NOW)
    with EventLog(home, Policy()) as log:
        with pytest.raises(OverrideError, match="the next override has number 3, not 2"):
            log.record([life_event(GOLEM, LATER, pinned(0, 2).payload)], NOW)
        assert log.record([pinned(0, 3)], NOW) == 1


@pytest.mark.row("EV-2")
def test_a_death_below_a_recorded_tick_is_refused(log: Log) -> None:
    append(log, ticks(1, 4, golems=2))
    cure = r"a death at tick 3 lies below tick 4, the highest on record: declare it at tick 4 or later"
    with pytest.raises(RecordError, match=f"golem {GOLEM}: {cure}"):
        log.record([died(4, "golem-0001"), died(3)], NOW)
    assert log.life().num_rows == 0, "events are refused together"
    assert log.record([died(4)], NOW) == 1
    assert log.record([died(4)], LATER) == 0
    assert append(log, ticks(5, golems=2).filter(not_of_golem())).written == 1


@pytest.mark.row("EV-2", "INH-2")
def test_the_first_recorded_of_two_deaths_counts(log: Log) -> None:
    append(log, ticks(1, 2, golems=2))
    assert log.record([died(3), died(3, credits_micros=7)], NOW) == 1
    assert log.record([died(5), died(3, "golem-0001")], NOW) == 1
    assert log.record([died(3), died(2, "golem-0001")], LATER) == 0
    assert sorted(e["died"]["credits_micros"] for e in log.life("DeathDeclared").to_pylist()) == [0, 0]
    for golem in (0, 1):
        with pytest.raises(RegressionError, match=f"golem golem-000{golem}: tick 4 comes after its death at tick 3"):
            append(log, ticks(4, golems=2).slice(golem, 1))


def not_of_golem() -> pc.Expression:
    """Select the records of every golem except GOLEM."""
    return pc.field("golem_id") != GOLEM


@pytest.mark.row("EV-2")
def test_the_error_names_the_first_wrong_row(log: Log) -> None:
    append(log, ticks(1, 5))
    log.record([accepted(8, 8)], NOW)
    with pytest.raises(RegressionError, match="tick 8"):
        append(log, pa.concat_tables([ticks(6), ticks(8), ticks(2, seed=1)]))
    with pytest.raises(ForkError, match="tick 2"):
        append(log, pa.concat_tables([ticks(6), ticks(2, seed=1), ticks(8)]))
    log.record([died(10)], NOW)
    with pytest.raises(RegressionError, match="tick 11 comes after its death"):
        append(log, pa.concat_tables([ticks(6), ticks(11), ticks(11, seed=1), ticks(8)]))
    with pytest.raises(RegressionError, match="tick 8 comes after its gap"):
        append(log, pa.concat_tables([ticks(6), ticks(8), ticks(11), ticks(2, seed=1)]))


@pytest.mark.row("EV-2", "P-1")
def test_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    everything = ticks(1, 6, golems=3)
    rng = np.random.default_rng(5)
    for trial in range(4):
        order = rng.permutation(len(everything))
        pieces = np.array_split(order, 5)
        with EventLog(Home.create(tmp_path / str(trial), Policy(), NOW), Policy()) as log:
            for piece in pieces:
                append(log, everything.take(pa.array(piece)))
            assert same(content(log), everything)
            assert log.gaps() == ()
            assert [head(log, f"golem-000{g}") for g in range(3)] == [(6, 6, 0)] * 3


@pytest.mark.row("EV-2")
def test_a_segment_number_is_refused_for_other_records(log: Log) -> None:
    append(log, ticks(1, 2), segment=3)
    for number in (3, 2):
        with pytest.raises(StoreError, match=f"writer runtime: segment {number}"):
            append(log, ticks(3), segment=number)
    assert on_record(log) == [1, 2]
    assert append(log, ticks(3), segment=4).written == 1


def test_an_empty_batch_changes_nothing(log: Log) -> None:
    assert append(log, RECORD_SCHEMA.empty_table()) == Appended(0, 0, 0, (), ())
    assert log.heads().num_rows == 0
    assert log.gaps() == ()


def test_sliced_tables_are_written_completely(log: Log) -> None:
    batch = records(400, golems=20, dense=True)
    sliced = pa.Table.from_batches(batch.slice(37, 300).to_batches(max_chunksize=50))
    assert append(log, sliced).written == 300
    assert same(content(log), batch.take(pa.array(range(37, 337))))


# reading


def test_a_read_since_a_version_returns_only_newer_rows(log: Log) -> None:
    append(log, ticks(1, 2))
    seen = log.version
    append(log, ticks(3, 4))
    append(log, ticks(5))
    assert sorted(log.read_cycles(["tick"], since_version=seen)["tick"].to_pylist()) == [3, 4, 5]
    assert log.read_cycles(since_version=log.version).num_rows == 0
    assert log.read_cycles(since_version=log.version).schema.equals(CYCLES_SCHEMA)


def test_a_read_selects_nested_columns_and_single_golems(log: Log) -> None:
    batch = ticks(1, 3, golems=4)
    append(log, batch)
    rows = log.read_cycles(["tick", "observation.price", "vitality.economic"], golems=["golem-0002"]).sort_by("tick")
    expected = [r for r in batch.to_pylist() if r["golem_id"] == "golem-0002"]
    assert rows.column_names == ["tick", "observation.price", "vitality.economic"]
    assert rows["observation.price"].to_pylist() == [r["observation"]["price"] for r in expected]
    assert log.read_cycles(golems=[]).num_rows == 0
    assert log.read_cycles(golems=["nobody"]).num_rows == 0
