"""What an event log promises: one suite for the log on disk and its twin in memory; then what only disk can break."""

from __future__ import annotations

import errno
import itertools
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from bardo_pipeline.errors import (
    ForkError,
    NoHomeError,
    OverrideError,
    RecordError,
    RegressionError,
    SchemaVersionError,
    StoreError,
)
from bardo_pipeline.events.digest import digest_column, row_digests
from bardo_pipeline.events.life import Died, Gap, LifeEvent, Published, Vitality, life_event
from bardo_pipeline.events.overrides import Pinned
from bardo_pipeline.events.record import SCHEMA_VERSION
from bardo_pipeline.events.schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedding import EmbedderIdentity
from bardo_pipeline.storage import delta
from bardo_pipeline.storage.commits import Added
from bardo_pipeline.storage.delta import AppendOnlyTable
from bardo_pipeline.storage.heads import TickRange
from bardo_pipeline.storage.home import Home, bucket_of, home_root
from bardo_pipeline.storage.log import EventLog
from bardo_pipeline.storage.memory import MemoryEventLog
from bardo_pipeline.storage.parquet import whole
from bardo_pipeline.storage.protocols import CYCLES_SCHEMA, VECTORS_SCHEMA, Appended, Log
from tests.records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
GOLEM = "golem-0000"
ORDER = [("golem_id", "ascending"), ("tick", "ascending")]
SEGMENTS = itertools.count()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


@pytest.fixture
def disk(home: Home) -> Iterator[EventLog]:
    with EventLog(home, Policy()) as log:
        yield log


@pytest.fixture(params=["memory", "disk"])
def log(request: pytest.FixtureRequest) -> Log:
    return MemoryEventLog() if request.param == "memory" else request.getfixturevalue("disk")


def append(log: Log, batch: pa.Table, segment: int | None = None, writer: str = "runtime") -> Appended:
    number = next(SEGMENTS) if segment is None else segment
    return log.append(batch, writer=writer, segment=number, recorded_at=NOW)


def ticks(first: int, last: int | None = None, *, golems: int = 1, seed: int = 0) -> pa.Table:
    """Records of ticks first to last; a tick has the same content in whichever call it is made."""
    count = (last or first) - first + 1
    parts = [records(golems, golems=golems, tick=tick, seed=seed * 1000 + tick) for tick in range(first, first + count)]
    return pa.concat_tables(parts)


def content(log: Log) -> pa.Table:
    return log.read_cycles().sort_by(ORDER).select(RECORD_SCHEMA.names)


def on_record(log: Log) -> list[int]:
    return sorted(log.read_cycles(["tick"])["tick"].to_pylist())


def same(table: pa.Table, other: pa.Table) -> bool:
    return bool(np.array_equal(row_digests(table.sort_by(ORDER)), row_digests(other.sort_by(ORDER))))


def head(log: Log, golem_id: str = GOLEM) -> tuple[int, int, int]:
    rows = {r["golem_id"]: r for r in log.heads().to_pylist()}
    return tuple(rows[golem_id][name] for name in ("contiguous", "highest", "missing_count"))


def accepted(tick_from: int, tick_to: int, golem_id: str = GOLEM) -> LifeEvent:
    return life_event(golem_id, NOW, Gap(tick_from=tick_from, tick_to=tick_to, why="the machine was lost"))


def died(tick: int, golem_id: str = GOLEM, *, credits_micros: int = 0) -> LifeEvent:
    vitality = Vitality(economic=0.0, epistemic=0.5, stochastic=0.5, composite=0.0)
    payload = Died(
        cause="economic",
        tick=tick,
        phase="terminal",
        vitality=vitality,
        credits_micros=credits_micros,
        capital_micros=1,
        earned_micros=0,
    )
    return life_event(golem_id, NOW, payload)


# one record per golem and tick


@pytest.mark.row("P-1", "EV-1")
def test_a_record_is_read_back_as_it_was_written(log: Log) -> None:
    batch = records(30, golems=3, dense=True)
    result = append(log, batch, segment=7)
    found = log.read_cycles()
    assert result == Appended(log.version, 30, 0, (), ())
    assert found.schema.equals(CYCLES_SCHEMA)
    assert same(found.select(RECORD_SCHEMA.names), batch)
    assert found["content_hash"].combine_chunks().equals(digest_column(row_digests(found.select(RECORD_SCHEMA.names))))
    assert found["bucket"].to_pylist() == [bucket_of(g, 16) for g in found["golem_id"].to_pylist()]
    assert set(found["recorded_at"].to_pylist()) == {NOW}
    assert set(zip(found["writer"].to_pylist(), found["segment"].to_pylist(), strict=True)) == {("runtime", 7)}


@pytest.mark.row("EV-2")
def test_a_batch_sent_again_changes_nothing(log: Log) -> None:
    batch = ticks(1, 5, golems=3)
    first = append(log, batch, segment=0)
    for again in (append(log, batch, segment=0), append(log, batch), append(log, batch, writer="another")):
        assert again == Appended(first.version, 0, 15, (), ())
    assert same(content(log), batch)


@pytest.mark.row("EV-2")
def test_what_is_new_in_a_repeated_batch_is_written(log: Log) -> None:
    append(log, ticks(1, 3))
    result = append(log, ticks(2, 5))
    assert (result.written, result.repeated) == (2, 2)
    assert on_record(log) == [1, 2, 3, 4, 5]


@pytest.mark.row("EV-2")
def test_repeats_within_a_batch_collapse(log: Log) -> None:
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
def test_another_record_of_a_tick_on_record_is_a_fork_and_the_whole_batch_is_refused(log: Log) -> None:
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
def test_an_accepted_gap_lets_the_head_go_on(log: Log) -> None:
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
def test_a_gap_can_be_accepted_before_anything_came(log: Log) -> None:
    log.record([accepted(1, 3)], NOW)
    with pytest.raises(RegressionError, match=f"golem {GOLEM}: tick 2 "):
        append(log, ticks(2))
    assert append(log, ticks(5)).gaps == (TickRange(GOLEM, 4, 4),)
    assert head(log) == (3, 5, 1)


@pytest.mark.row("EV-2")
def test_what_is_on_record_inside_an_accepted_gap_stays(log: Log) -> None:
    append(log, pa.concat_tables([ticks(1), ticks(3), ticks(5)]))
    log.record([accepted(2, 4)], NOW)
    assert head(log) == (5, 5, 0)
    assert append(log, ticks(3)).repeated == 1
    with pytest.raises(ForkError, match="tick 3"):
        append(log, ticks(3, seed=1))
    with pytest.raises(RegressionError, match="tick 4"):
        append(log, ticks(4))


@pytest.mark.row("EV-2")
def test_nobody_acts_after_its_death(log: Log) -> None:
    append(log, ticks(1, 3, golems=2))
    assert log.record([died(5)], NOW) == 1
    with pytest.raises(RegressionError, match=f"golem {GOLEM}: tick 6 comes after its death at tick 5") as error:
        append(log, pa.concat_tables([ticks(4, 5, golems=2), ticks(6, 7)]))
    assert (error.value.golem_id, error.value.tick) == (GOLEM, 6)
    assert on_record(log) == [1, 1, 2, 2, 3, 3], "a batch is refused whole"
    assert append(log, pa.concat_tables([ticks(5), ticks(4, 9, golems=2).filter(others())])).written == 7
    assert append(log, ticks(4)).late == (TickRange(GOLEM, 4, 4),)
    assert append(log, ticks(4, 5)).repeated == 2
    with pytest.raises(RegressionError, match="tick 6 comes after its death"):
        append(log, ticks(6))


@pytest.mark.row("EV-2")
def test_a_death_before_anything_came_is_kept_to(log: Log) -> None:
    assert log.record([died(2)], NOW) == 1
    assert log.heads().num_rows == 0
    with pytest.raises(RegressionError, match="tick 3 comes after its death at tick 2"):
        append(log, ticks(1, 3))
    assert append(log, ticks(1, 2)).written == 2


def pinned(tick_seen: int, number: int, golem_id: str = GOLEM) -> LifeEvent:
    said = Pinned(number=number, entry_id="e", tick_seen=tick_seen, cycle_seen=0, why="I was there")
    return life_event(golem_id, NOW, said)


@pytest.mark.row("X-8")
def test_an_owner_s_word_is_taken_of_the_golem_as_it_is_now(log: Log) -> None:
    append(log, pa.concat_tables([ticks(1, 4, golems=2), ticks(6)]))
    assert log.record([pinned(4, 1)], NOW) == 1, "the stream has no gap up to tick 4"
    assert log.record([pinned(4, 1)], LATER) == 0
    for stale in (pinned(3, 2), pinned(6, 2)):
        with pytest.raises(OverrideError, match=f"golem {GOLEM}: .* stands at tick 4 now: look at the entry again"):
            log.record([stale], NOW)
    for number in (1, 3):
        with pytest.raises(OverrideError, match=f"golem {GOLEM}: this is override 2, not {number}"):
            log.record([life_event(GOLEM, LATER, pinned(4, number).payload)], NOW)
    with pytest.raises(OverrideError, match="stands at tick 4 now"):
        log.record([pinned(4, 1, "golem-0001"), pinned(3, 2)], NOW)
    assert log.life().num_rows == 1, "events are refused together"
    assert log.record([pinned(4, 3), pinned(4, 2)][::-1], NOW) == 2
    append(log, ticks(5))
    assert log.record([pinned(6, 4)], NOW) == 1
    assert log.record([accepted(7, 9)], NOW) == 1
    assert log.record([pinned(9, 5)], NOW) == 1


@pytest.mark.row("X-8")
def test_an_owner_s_word_comes_before_the_end_of_a_life(log: Log) -> None:
    append(log, ticks(1, 4))
    log.record([died(5)], NOW)
    assert log.record([pinned(4, 1)], NOW) == 1, "tick 5 is to come"
    append(log, ticks(5))
    with pytest.raises(OverrideError, match=f"golem {GOLEM} died at tick 5: what it knew is closed"):
        log.record([pinned(5, 2)], NOW)
    assert log.record([pinned(4, 1)], LATER) == 0


@pytest.mark.row("X-8")
def test_a_log_that_is_opened_again_knows_how_much_was_said(home: Home) -> None:
    with EventLog(home, Policy()) as log:
        log.record([pinned(0, 1), pinned(0, 2)], NOW)
    with EventLog(home, Policy()) as log:
        with pytest.raises(OverrideError, match="this is override 3, not 2"):
            log.record([life_event(GOLEM, LATER, pinned(0, 2).payload)], NOW)
        assert log.record([pinned(0, 3)], NOW) == 1


@pytest.mark.row("EV-2")
def test_a_death_below_what_is_on_record_is_refused(log: Log) -> None:
    append(log, ticks(1, 4, golems=2))
    cure = r"a death at tick 3 lies below tick 4, the highest on record: declare it at tick 4 or later"
    with pytest.raises(RecordError, match=f"golem {GOLEM}: {cure}"):
        log.record([died(4, "golem-0001"), died(3)], NOW)
    assert log.life().num_rows == 0, "events are refused together"
    assert log.record([died(4)], NOW) == 1
    assert log.record([died(4)], LATER) == 0
    assert append(log, ticks(5, golems=2).filter(others())).written == 1


@pytest.mark.row("EV-2")
def test_of_two_deaths_the_earlier_counts_in_whichever_order(log: Log) -> None:
    append(log, ticks(1, 2, golems=2))
    assert log.record([died(3), died(3, credits_micros=7)], NOW) == 2
    assert log.record([died(5), died(5, "golem-0001")], NOW) == 2
    assert log.record([died(3, "golem-0001")], NOW) == 1
    for golem in (0, 1):
        with pytest.raises(RegressionError, match=f"golem golem-000{golem}: tick 4 comes after its death at tick 3"):
            append(log, ticks(4, golems=2).slice(golem, 1))


def others() -> pc.Expression:
    """The records of everybody but GOLEM."""
    return pc.field("golem_id") != GOLEM


@pytest.mark.row("EV-2")
def test_the_first_row_that_is_wrong_is_named(log: Log) -> None:
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
def test_order_of_arrival_makes_no_difference(tmp_path: Path) -> None:
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
def test_a_segment_number_cannot_stand_for_other_records(log: Log) -> None:
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


def test_slices_are_written_whole(log: Log) -> None:
    batch = records(400, golems=20, dense=True)
    sliced = pa.Table.from_batches(batch.slice(37, 300).to_batches(max_chunksize=50))
    assert append(log, sliced).written == 300
    assert same(content(log), batch.take(pa.array(range(37, 337))))


# reading


def test_what_is_new_since_a_version_is_read_alone(log: Log) -> None:
    append(log, ticks(1, 2))
    seen = log.version
    append(log, ticks(3, 4))
    append(log, ticks(5))
    assert sorted(log.read_cycles(["tick"], since_version=seen)["tick"].to_pylist()) == [3, 4, 5]
    assert log.read_cycles(since_version=log.version).num_rows == 0
    assert log.read_cycles(since_version=log.version).schema.equals(CYCLES_SCHEMA)


def test_columns_inside_structs_and_single_golems_are_read(log: Log) -> None:
    batch = ticks(1, 3, golems=4)
    append(log, batch)
    found = log.read_cycles(["tick", "observation.price", "vitality.economic"], golems=["golem-0002"]).sort_by("tick")
    wanted = [r for r in batch.to_pylist() if r["golem_id"] == "golem-0002"]
    assert found.column_names == ["tick", "observation.price", "vitality.economic"]
    assert found["observation.price"].to_pylist() == [r["observation"]["price"] for r in wanted]
    assert log.read_cycles(golems=[]).num_rows == 0
    assert log.read_cycles(golems=["nobody"]).num_rows == 0


# what may not come in


def with_value(path: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def corrupt(batch: pa.Table) -> pa.Table:
        rows = batch.to_pylist()
        place: Any = rows[3]
        *way, last = path.split(".")
        for step in way:
            place = place[int(step)] if step.isdigit() else place[step]
        place[last] = value
        return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)

    return corrupt


def with_column(name: str, values: Callable[[int], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    return lambda batch: batch.set_column(
        batch.column_names.index(name), RECORD_SCHEMA.field(name), values(batch.num_rows)
    )


def no_utf8(count: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(b"\xff" * count)])


def no_utf8_inside(count: int) -> pa.Array:
    column = records(count, dense=True)["somatic_markers_fired"].combine_chunks()
    fields = list(column.type.value_type)
    parts = [no_utf8(2 * count) if f.name == "situation" else column.values.field(f.name) for f in fields]
    return pa.ListArray.from_arrays(column.offsets, pa.StructArray.from_arrays(parts, fields=fields), type=column.type)


REFUSED = {
    "a NaN": (with_value("observation.price", float("nan")), RecordError, r"tick 4: observation.price is not finite"),
    "an infinity in a list": (
        with_value("probe_results.1.value", float("inf")),
        RecordError,
        r"tick 4: probe_results\[\].value is not finite",
    ),
    "a share above 1": (with_value("vitality.economic", 1.5), RecordError, r"vitality.economic is above 1.0: 1.5"),
    "a mood below -1": (with_value("pad_after.arousal", -1.01), RecordError, r"pad_after.arousal is below -1.0"),
    "tick 0": (with_value("tick", 0), RecordError, r"golem golem-0000, tick 0: tick is below 1"),
    "an unknown regime": (with_value("regime", "sideways"), RecordError, r"regime is none of .*: 'sideways'"),
    "a hash that is none": (
        with_value("actions.0.tx_hash", "0x12"),
        RecordError,
        r"actions\[\].tx_hash does not match",
    ),
    "a null": (with_value("phase", None), RecordError, r"tick 4: phase is missing"),
    "a null in a struct": (with_value("observation.market", None), RecordError, r"observation.market is missing"),
    "a null in a list": (with_value("predictions.0.held", None), RecordError, r"predictions\[\].held is missing"),
    "a list that is none": (with_value("resolutions", None), RecordError, r"tick 4: resolutions is missing"),
    "no golem": (with_value("golem_id", ""), RecordError, r"golem_id is shorter than 1"),
    "too long a name": (with_value("golem_id", "g" * 257), RecordError, r"golem_id is longer than 256"),
    "a newer version": (
        with_value("schema_version", SCHEMA_VERSION + 1),
        SchemaVersionError,
        rf"schema version {SCHEMA_VERSION + 1} is newer than {SCHEMA_VERSION}: upgrade",
    ),
    "bytes that are no text": (
        with_column("gating_reason", no_utf8),
        RecordError,
        r"no valid DecisionCycleRecord.*UTF8",
    ),
    "such bytes in a list": (with_column("somatic_markers_fired", no_utf8_inside), RecordError, r"UTF8"),
    "a moment after the year 9999": (
        with_column("observed_at", lambda count: pa.array([2**60] * count).cast(MOMENT)),
        RecordError,
        r"observed_at is outside the years",
    ),
    "a missing column": (lambda batch: batch.drop_columns(["tick"]), RecordError, r"missing tick"),
    "an unknown column": (lambda batch: batch.append_column("luck", batch["tick"]), RecordError, r"unknown luck"),
    "a column of another type": (
        lambda batch: batch.set_column(2, "tick", batch["tick"].cast(pa.int32())),
        RecordError,
        r"of another type tick",
    ),
}


@pytest.mark.row("P-1", "EV-1", "EV-2")
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_whole(log: Log, name: str) -> None:
    corrupt, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        append(log, corrupt(records(6, golems=1, dense=True)))
    assert log.version == 0


def test_a_large_batch_is_judged_like_a_small_one(disk: EventLog) -> None:
    batch = records(5_000, golems=50)
    bad = batch.set_column(2, RECORD_SCHEMA.field("tick"), pa.array([*batch["tick"].to_pylist()[:-1], 0]))
    with pytest.raises(RecordError, match="golem golem-0049, tick 0"):
        append(disk, bad)
    with pytest.raises(RecordError, match="missing tick"):
        append(disk, batch.drop_columns(["tick"]))
    assert append(disk, batch).written == 5_000


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))])  # noqa: DTZ001
def test_the_moment_of_recording_is_one_of_utc(log: Log, moment: datetime) -> None:
    with pytest.raises(RecordError, match=r"recorded_at .* UTC"):
        log.append(ticks(1), writer="runtime", segment=0, recorded_at=moment)
    with pytest.raises(RecordError, match=r"recorded_at .* UTC"):
        log.record([accepted(1, 1)], moment)


@pytest.mark.parametrize(("writer", "segment"), [("", 1), ("runtime", -1)])
def test_a_writer_has_a_name_and_numbers_its_segments(log: Log, writer: str, segment: int) -> None:
    with pytest.raises(RecordError, match="a writer has a name"):
        log.append(ticks(1), writer=writer, segment=segment, recorded_at=NOW)


# life events


@pytest.mark.row("P-1")
def test_an_event_is_recorded_once(log: Log) -> None:
    one, two = accepted(1, 1), accepted(2, 2)
    assert log.record([one, two, one], NOW) == 2
    assert log.record([two, one], LATER) == 0
    assert log.record([], LATER) == 0
    found = log.life()
    assert sorted(found["event_id"].to_pylist()) == sorted([one.event_id, two.event_id])
    assert set(found["recorded_at"].to_pylist()) == {NOW}


def test_events_are_read_by_kind_and_by_what_is_new(log: Log) -> None:
    published = life_event(GOLEM, NOW, Published(bundle_hash="b", entry_count=1, derivation_id="d"))
    log.record([accepted(1, 1)], NOW)
    seen = log.life_version
    log.record([published], LATER)
    assert log.life("BundlePublished")["event_id"].to_pylist() == [published.event_id]
    assert log.life(since_version=seen)["event_id"].to_pylist() == [published.event_id]
    assert log.life("GapAccepted", since_version=seen).num_rows == 0
    assert log.life("GolemBorn").num_rows == 0
    assert log.life_version > seen


def test_an_event_under_a_foreign_id_is_refused(log: Log) -> None:
    forged = accepted(1, 1).model_copy(update={"event_id": accepted(2, 2).event_id})
    with pytest.raises(RecordError, match=f"golem {GOLEM}: GapAccepted .* has not the id of its content"):
        log.record([forged], NOW)
    assert log.life().num_rows == 0


def test_an_event_carries_the_payload_of_its_kind_and_no_other() -> None:
    event = accepted(1, 2).model_dump()
    with pytest.raises(ValueError, match="GolemBorn carries born and nothing else, not gap"):
        LifeEvent.model_validate(event | {"kind": "GolemBorn"})
    with pytest.raises(ValueError, match="GapAccepted carries gap and nothing else, not nothing"):
        LifeEvent.model_validate(event | {"gap": None})
    with pytest.raises(ValueError, match="holds no tick"):
        Gap(tick_from=3, tick_to=2, why="")


# vectors


def embedder_of(model: str) -> EmbedderIdentity:
    return EmbedderIdentity(model=model, version="1", dimension=2, preprocess_hash="p", chunk_config="none")


MINILM, NOMIC = embedder_of("minilm").key, embedder_of("nomic").key


def vectors(texts: list[str], embedder: str = "minilm", value: float = 0.5) -> pa.Table:
    rows = [
        {
            "text_hash": text,
            "embedder": embedder_of(embedder).key,
            "vector": [value, float(i)],
            **asdict(embedder_of(embedder)),
            "created_at": NOW,
        }
        for i, text in enumerate(texts)
    ]
    return pa.Table.from_pylist(rows, schema=VECTORS_SCHEMA)


def test_a_vector_is_recorded_once_per_text_and_embedder(log: Log) -> None:
    assert log.record_vectors(vectors(["a", "b", "a"])) == 2
    assert log.record_vectors(vectors(["b", "c"], value=0.75)) == 1
    assert log.record_vectors(vectors(["a"], embedder="nomic", value=0.25)) == 1
    found = log.vectors(MINILM, ["c", "a", "b", "unknown", "a"])
    assert found.column_names == ["text_hash", "vector"]
    assert found.to_pylist() == [
        {"text_hash": "a", "vector": [0.5, 0.0]},
        {"text_hash": "b", "vector": [0.5, 1.0]},
        {"text_hash": "c", "vector": [0.75, 1.0]},
    ]
    assert log.vectors(NOMIC, ["a", "b"])["vector"].to_pylist() == [[0.25, 0.0]]
    assert log.vectors("nobody", ["a"]).num_rows == 0
    assert log.vectors(MINILM, []).num_rows == 0
    assert [log.count_vectors(key) for key in (MINILM, NOMIC, "nobody")] == [3, 1, 0]
    assert [log.count_vectors(MINILM, NOW + days * timedelta(days=1)) for days in (-1, 0)] == [3, 0]
    assert log.identities() == {key: embedder_of(name) for key, name in ((MINILM, "minilm"), (NOMIC, "nomic"))}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (vectors(["a"]).drop_columns(["model"]), "need the columns"),
        (vectors(["a"], value=float("nan")), "not finite"),
        (vectors(["a"]).set_column(5, VECTORS_SCHEMA.field("dimension"), pa.array([3], pa.int32())), "components"),
        (vectors(["a"]).set_column(3, VECTORS_SCHEMA.field("model"), pa.array([None], pa.string())), "missing"),
        (
            vectors(["a"]).set_column(3, VECTORS_SCHEMA.field("model"), pa.array(["m"], pa.string())),
            "says that it is of",
        ),
    ],
)
def test_a_vector_that_is_none_is_refused(log: Log, table: pa.Table, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        log.record_vectors(table)


# on disk: append-only


@pytest.mark.row("P-1")
@pytest.mark.parametrize("name", ["cycles", "life", "vectors"])
def test_delta_refuses_to_change_or_remove_a_row(disk: EventLog, home: Home, name: str) -> None:
    append(disk, ticks(1))
    disk.record([accepted(4, 4)], NOW)
    disk.record_vectors(vectors(["a"]))
    table = DeltaTable(getattr(home, name))
    rows = table.to_pyarrow_table().slice(0, 1)
    version = table.version()
    first = rows.column_names[1]
    attempts: list[Callable[[], object]] = [
        table.delete,
        lambda: table.delete(f"{first} is not null"),
        lambda: table.update(updates={first: "'x'"}),
        lambda: write_deltalake(table, rows, mode="overwrite"),
        lambda: write_deltalake(table, rows, mode="overwrite", predicate=f"{first} is not null"),
        lambda: (
            table.merge(rows, f"t.{first} = s.{first}", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .execute()
        ),
    ]
    for attempt in attempts:
        with pytest.raises(CommitFailedError, match="append-only"):
            attempt()
    assert DeltaTable(getattr(home, name)).version() == version


@pytest.mark.row("P-1")
def test_no_code_of_the_log_can_take_a_row_away() -> None:
    rooms = Path(__file__).parents[2] / "bardo_pipeline" / "storage"
    for name in ("delta.py", "commits.py", "parquet.py", "log.py", "heads.py", "home.py", "protocols.py"):
        source = (rooms / name).read_text()
        found = re.findall(
            r"\.(?:vacuum|restore|delete|merge|repair)\(|handle\.update\(|overwrite|RemoveAction", source
        )
        assert found == [], name


@pytest.mark.row("P-1")
def test_the_table_is_an_ordinary_delta_table(disk: EventLog, home: Home) -> None:
    batch = records(50, golems=5, dense=True)
    append(disk, batch)
    table = DeltaTable(home.cycles)
    assert table.metadata().configuration["delta.appendOnly"] == "true"
    assert table.transaction_version("runtime") is not None
    assert same(table.to_pyarrow_table().select(RECORD_SCHEMA.names), batch)
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert [(a["num_records"], a["min.tick"], a["max.tick"]) for a in actions] == [(50, 1, 10)]
    assert (actions[0]["min.golem_id"], actions[0]["max.golem_id"]) == ("golem-0000", "golem-0004")


# on disk: what was learned is what is on record


def test_heads_are_the_same_without_their_index(disk: EventLog, home: Home) -> None:
    append(disk, pa.concat_tables([ticks(1, 4, golems=3), ticks(9)]))
    disk.record([accepted(5, 6)], NOW)
    heads, gaps = disk.heads(), disk.gaps()
    disk.close()
    index = home.index / "heads.arrow"
    assert index.exists()
    for spoil in (lambda: None, lambda: index.write_bytes(b"no arrow"), index.unlink):
        spoil()
        log = EventLog(home, Policy())
        assert log.heads().equals(heads)
        assert log.gaps() == gaps


def test_an_index_that_fell_behind_is_caught_up(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1, 4))
    disk.close()
    append(disk, pa.concat_tables([ticks(5), ticks(8)]))
    log = EventLog(home, Policy())
    assert log.heads().equals(disk.heads())
    assert log.gaps() == (TickRange(GOLEM, 6, 7),)


def test_an_index_of_another_log_is_not_believed(disk: EventLog, home: Home, tmp_path: Path) -> None:
    append(disk, ticks(1, 4))
    disk.close()
    other = Home.create(tmp_path / "other", Policy(), NOW)
    with EventLog(other, Policy()) as log:
        append(log, ticks(1))
    (home.index / "heads.arrow").replace(other.index / "heads.arrow")
    assert head(EventLog(other, Policy())) == (1, 1, 0)


def test_what_another_handle_wrote_is_seen(disk: EventLog, home: Home) -> None:
    other = EventLog(home, Policy())
    append(disk, ticks(1, 3))
    assert head(other) == (3, 3, 0)
    assert append(other, ticks(2, 4), writer="other").written == 1
    with pytest.raises(ForkError, match="tick 4"):
        append(disk, ticks(4, seed=1))
    disk.record([accepted(5, 5)], NOW)
    with pytest.raises(RegressionError, match="tick 5"):
        append(other, ticks(5), writer="other")
    assert other.record([accepted(5, 5)], LATER) == 0
    disk.record([died(6)], NOW)
    with pytest.raises(RegressionError, match="tick 7 comes after its death at tick 6"):
        append(other, ticks(7), writer="other")
    append(other, ticks(6), writer="other")
    with pytest.raises(RecordError, match="a death at tick 5 lies below tick 6"):
        disk.record([died(5)], NOW)
    with pytest.raises(RegressionError, match="tick 7"):
        append(EventLog(home, Policy()), ticks(7))
    disk.record_vectors(vectors(["a"]))
    assert other.record_vectors(vectors(["a"])) == 0


def test_looking_again_reads_only_what_is_new(disk: EventLog, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    other = EventLog(home, Policy())
    for tick in range(1, 9):
        append(disk, ticks(tick))
    other.heads()
    append(disk, ticks(9))
    loaded: list[int] = []
    load = AppendOnlyTable.load
    monkeypatch.setattr(
        AppendOnlyTable,
        "load",
        lambda self, files, *rest: loaded.extend([f.rows for f in files]) or load(self, files, *rest),
    )
    assert head(other) == (9, 9, 0)
    other.heads()
    assert loaded == [1]


def test_a_reader_behind_a_cleaned_up_log_gets_what_is_new_and_nothing_else(disk: EventLog, home: Home) -> None:
    for tick in range(1, 25):
        append(disk, ticks(tick))
    reader = EventLog(home, Policy())
    (home.cycles / "_delta_log" / f"{3:020}.json").unlink()
    assert sorted(reader.read_cycles(["tick"], since_version=2)["tick"].to_pylist()) == list(range(3, 25))
    assert len(reader.read_cycles(["tick"], since_version=20)) == 4


def test_a_compaction_brings_nothing_new(disk: EventLog, home: Home) -> None:
    for tick in range(1, 4):
        append(disk, ticks(tick))
    seen = disk.version
    DeltaTable(home.cycles).optimize.compact()
    assert disk.version > seen
    assert disk.read_cycles(since_version=seen).num_rows == 0
    assert same(content(disk), ticks(1, 3))
    assert append(disk, ticks(2, 4)).written == 1
    assert head(disk) == (4, 4, 0)
    assert same(content(EventLog(home, Policy())), ticks(1, 4))


def test_a_version_is_read_as_it_was(disk: EventLog, home: Home) -> None:
    for tick in range(1, 6):
        append(disk, ticks(tick))
    DeltaTable(home.cycles).optimize.compact()  # one file now holds what came before version 3 and after it
    assert sorted(disk.read_cycles_between(["tick"], None, 3)["tick"].to_pylist()) == [1, 2, 3]
    assert sorted(disk.read_cycles_between(["tick"], 1, 3)["tick"].to_pylist()) == [2, 3]
    assert sorted(disk.read_cycles_between(["tick"], None, disk.version)["tick"].to_pylist()) == [1, 2, 3, 4, 5]
    assert disk.read_cycles_between(None, None, 0).num_rows == 0


def test_a_table_of_other_columns_is_not_touched(tmp_path: Path) -> None:
    AppendOnlyTable(tmp_path / "table", pa.schema([("a", pa.int64())]), ["a"])
    demanding = pa.schema([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    for other in (demanding, pa.schema([("a", pa.string())]), pa.schema([("b", pa.int64())])):
        with pytest.raises(SchemaVersionError, match="other columns"):
            AppendOnlyTable(tmp_path / "table", other, ["a"])


def test_a_column_that_may_be_null_is_added_by_the_first_append(tmp_path: Path) -> None:
    old, new = pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    AppendOnlyTable(tmp_path / "table", old, ["a"]).append(pa.table({"a": [1]}, schema=old), transactions={"w": 1})
    table = AppendOnlyTable(tmp_path / "table", new, ["a"])
    assert table.read().to_pylist() == [{"a": 1, "b": None}]
    table.append(pa.table({"a": [2], "b": [{"c": "x"}]}, schema=new), transactions={"w": 2})
    found = AppendOnlyTable(tmp_path / "table", new, ["a"]).read().sort_by("a").to_pylist()
    assert found == [{"a": 1, "b": None}, {"a": 2, "b": {"c": "x"}}]


@pytest.mark.row("EV-2")
def test_a_transaction_is_committed_once_by_racing_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("a", pa.int64())])
    one, two = (AppendOnlyTable(tmp_path / "table", schema, ["a"]) for _ in range(2))
    rows = pa.table({"a": [1, 2]}, schema=schema)
    assert one.append(rows, transactions={"w": 0}) == 1
    assert two.append(rows, transactions={"w": 0}) is None
    write = AppendOnlyTable.write

    def overtaken(number: int) -> Callable[[AppendOnlyTable, pa.Table], Added]:
        def late(table: AppendOnlyTable, given: pa.Table) -> Added:  # it has looked, and then the other commits
            monkeypatch.setattr(AppendOnlyTable, "write", write)
            assert one.append(given, transactions={"w": number}) == number + 1
            return write(table, given)

        return late

    monkeypatch.setattr(AppendOnlyTable, "write", overtaken(1))
    assert two.append(rows, transactions={"w": 1}) is None
    monkeypatch.setattr(AppendOnlyTable, "write", overtaken(2))
    assert two.append(rows, transactions={"v": 7}) == 4, "another's rows go behind"
    assert one.read().num_rows == 8
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 4, "of the one that lost, nothing stays"


def test_a_commit_of_which_half_is_done_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64())])
    table = AppendOnlyTable(tmp_path / "table", schema, ["a"])
    rows = pa.table({"a": [1]}, schema=schema)
    table.append(rows, transactions={"w": 1})
    with pytest.raises(StoreError, match="only w are on record"):
        table.append(rows, transactions={"w": 1, "v": 1})
    assert table.read().num_rows == 1
    assert table.transaction_version("w") == 1
    assert table.transaction_version("v") is None


def test_whole_tables_have_no_slice_in_them() -> None:
    batch = records(100, dense=True)
    assert whole(batch) is batch
    cut = whole(batch.slice(13, 20))
    assert cut.equals(batch.slice(13, 20))
    assert all(chunk.offset == 0 for column in cut.columns for chunk in column.chunks)


# the home


def test_a_folder_without_a_home_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NoHomeError, match="run `bardo demo` or `bardo run`"):
        Home.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_home_is_made_once(tmp_path: Path) -> None:
    made = Home.create(tmp_path / "a" / "home", Policy(), NOW)
    policy = Policy.model_validate({"log": {"bucket_count": 4}})
    for again in (Home.create(made.root, policy, LATER), Home.open(made.root)):
        assert (again.bucket_count, again.created_at) == (16, NOW)
    assert [p.name for p in made.root.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (b"{", StoreError),
        (b"[]", StoreError),
        (b'{"bucket_count": 16}', StoreError),
        (b'{"bucket_count": 16, "schema_version": 99, "created_at": "2026-01-01T00:00:00+00:00"}', SchemaVersionError),
    ],
)
def test_a_home_that_cannot_be_read_is_not_opened(tmp_path: Path, mark: bytes, error: type[Exception]) -> None:
    (tmp_path / "home.json").write_bytes(mark)
    with pytest.raises(error):
        Home.open(tmp_path)


def test_buckets_are_fixed_for_ever() -> None:
    assert [bucket_of(f"golem-{i}", 16) for i in range(4)] == [7, 1, 4, 13]


def test_the_environment_names_the_home() -> None:
    assert home_root({"BARDO_HOME": "/data/bardo"}) == Path("/data/bardo")
    assert home_root({}) == Path.cwd() / ".bardo"


# what a disk refuses


@contextmanager
def largest_file(count: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_of(home: Home) -> set[str]:
    return {str(path.relative_to(home.root)) for path in home.cycles.parent.rglob("*") if path.is_file()}


@pytest.mark.row("EV-2", "EV-3")
def test_what_a_full_disk_refuses_is_named_and_leaves_nothing(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1))
    writes: list[Callable[[], object]] = [
        lambda: append(disk, records(500, golems=5, tick=2)),
        lambda: disk.record([accepted(9, 9)], NOW),
        lambda: disk.record_vectors(vectors(["a"])),
    ]
    before = files_of(home)
    for write, table in zip(writes, (home.cycles, home.life, home.vectors), strict=True):
        with largest_file(2_000), pytest.raises(StoreError, match=rf"{table} cannot be written .*: raise the limit"):
            write()
        assert files_of(home) == before
    assert (disk.version, disk.life_version, on_record(disk)) == (1, 0, [1])
    for write in writes:
        write()
    assert head(disk) == (101, 101, 0)
    assert [len(disk.life()), disk.vectors(MINILM, ["a"]).num_rows] == [1, 1]


@pytest.mark.row("EV-2", "EV-3")
@pytest.mark.parametrize("step", ["sync_file", "put_commit"])
def test_a_disk_that_fails_before_the_commit_leaves_nothing(
    disk: EventLog, home: Home, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(disk, ticks(1))
    before = files_of(home)

    def fail(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(delta, step, fail)
        with pytest.raises(StoreError, match=r"No space left on device.*: free some space on its disk, then try again"):
            append(disk, ticks(2))
    assert files_of(home) == before
    assert append(disk, ticks(2)).written == 1


@pytest.mark.row("EV-2", "EV-3")
def test_a_disk_that_fails_behind_the_commit_takes_nothing_away(
    disk: EventLog, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = delta.sync_folder

    def fail(path: Path) -> None:
        if path.name == "_delta_log":
            raise OSError(errno.EIO, "Input/output error")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(delta, "sync_folder", fail)
        with pytest.raises(StoreError, match=r"Input/output error.*: look at its disk"):
            append(disk, ticks(1), segment=1)
    for log in (disk, EventLog(home, Policy())):
        assert append(log, ticks(1), segment=1).repeated == 1
        assert on_record(log) == [1]


READ_ONLY = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from bardo_pipeline.errors import StoreError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log import EventLog
from tests.records import records
home = Home.open(Path(sys.argv[1]))
log = EventLog(home)
if os.getuid() == 0:
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
for write in (
    lambda: log.append(records(5), writer="w", segment=1, recorded_at=datetime.now(UTC)),
    lambda: EventLog(home),
):
    try:
        write()
    except StoreError as error:
        print(error)
print(len(log.read_cycles()))
"""


@pytest.mark.row("EV-2", "EV-3")
def test_a_folder_that_may_only_be_read_is_named(home: Home, tmp_path: Path) -> None:
    with EventLog(home, Policy()) as log:
        append(log, ticks(1, 3))
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path.owner() == tmp_path.owner() and path != Path("/"):
            path.chmod(0o755)
    for path in (home.root, *home.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    said = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(home.root)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(said) == 3
    for sentence in said[:2]:
        assert re.search(rf"{home.root}\S* cannot be written .*: let this user write there, then try again", sentence)
    assert said[2] == "3", "what is there is still read"


@pytest.mark.row("EV-2")
def test_a_clock_that_steps_back_changes_nothing(log: Log) -> None:
    for tick, moment in ((1, LATER), (2, NOW), (3, LATER)):
        assert log.append(ticks(tick), writer="w", segment=tick, recorded_at=moment).written == 1
    assert log.record([accepted(4, 4)], LATER) == 1
    assert log.record([accepted(6, 6)], NOW) == 1
    again = log.append(ticks(1, 3), writer="w", segment=4, recorded_at=NOW)
    assert (again.written, again.repeated, head(log)) == (0, 3, (4, 3, 0))
    moments = {row["tick"]: row["recorded_at"] for row in log.read_cycles(["tick", "recorded_at"]).to_pylist()}
    assert moments == {1: LATER, 2: NOW, 3: LATER}


# checkpoints


@pytest.mark.row("EV-3")
def test_a_log_is_read_whatever_became_of_the_hint_at_its_checkpoint(disk: EventLog, home: Home) -> None:
    for tick in range(1, 24):
        append(disk, ticks(tick))
    log = home.cycles / "_delta_log"
    assert (log / f"{20:020}.checkpoint.parquet").exists()
    hint = log / "_last_checkpoint"
    assert orjson.loads(hint.read_bytes())["version"] == 20
    for spoil in (lambda: None, lambda: hint.write_bytes(b""), lambda: hint.write_bytes(bytes(40)), hint.unlink):
        spoil()
        assert on_record(EventLog(home, Policy())) == list(range(1, 24))


@pytest.mark.row("EV-3")
def test_a_checkpoint_bears_its_name_when_it_is_whole_on_the_disk(
    disk: EventLog, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tick in range(1, 21):
        append(disk, ticks(tick))
    log, synced = home.cycles / "_delta_log", []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        if target.name.endswith(".checkpoint.parquet"):
            synced.append(Path(source).read_bytes())
        replace(source, target)

    known: dict[int, bytes] = {}
    fsync = os.fsync

    def noted(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        known[path.stat().st_ino] = path.read_bytes() if path.is_file() else b""
        fsync(handle)

    monkeypatch.setattr(os, "replace", watched)
    monkeypatch.setattr(os, "fsync", noted)
    append(disk, ticks(21))
    checkpoint = log / f"{20:020}.checkpoint.parquet"
    assert synced == [checkpoint.read_bytes()] == [known[checkpoint.stat().st_ino]]


@pytest.mark.row("EV-3")
def test_a_log_goes_on_beside_what_a_killed_one_was_about_to_make(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1))
    beside = home.cycles / ".checkpoint-killed" / "_delta_log"
    beside.mkdir(parents=True)
    (beside / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    (home.cycles / "_delta_log" / "_commit_killed.json.tmp").write_bytes(b'{"add":')
    (home.cycles / "_delta_log" / "_last_checkpoint.killed.tmp").write_bytes(b"{")
    (home.cycles / "part-00000-killed-c000.zstd.parquet").write_bytes(b"PAR1")
    (home.cycles.parent / ".cycles-killed" / "_delta_log").mkdir(parents=True)
    log = EventLog(home, Policy())
    for tick in range(2, 24):
        append(log, ticks(tick))
    assert on_record(EventLog(home, Policy())) == on_record(disk) == list(range(1, 24))
