"""Refusals of the log, its life events and its vectors: one suite for the log on disk and in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.errors import RecordError, RegressionError, SchemaVersionError
from bardo_pipeline.events.life.events import Gap, LifeEvent, Published, Received, life_event
from bardo_pipeline.events.life.received_knowledge import Quarantined
from bardo_pipeline.events.record.arrow_schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.events.record.model import SCHEMA_VERSION
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import VECTORS_SCHEMA
from tests.doubles.memory_event_log import Log
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import (
    GOLEM,
    LATER,
    MINILM,
    NOMIC,
    NOW,
    accepted,
    append,
    embedder_of,
    ticks,
    vectors,
)

# refused batches


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
    "an unknown regime": (with_value("regime", "sideways"), RecordError, r"regime is not one of .*: 'sideways'"),
    "an invalid hash": (
        with_value("actions.0.tx_hash", "0x12"),
        RecordError,
        r"actions\[\].tx_hash does not match",
    ),
    "a null": (with_value("phase", None), RecordError, r"tick 4: phase is missing"),
    "a null in a struct": (with_value("observation.market", None), RecordError, r"observation.market is missing"),
    "a null in a list": (with_value("predictions.0.held", None), RecordError, r"predictions\[\].held is missing"),
    "a null instead of a list": (with_value("resolutions", None), RecordError, r"tick 4: resolutions is missing"),
    "an empty golem id": (with_value("golem_id", ""), RecordError, r"golem_id is shorter than 1"),
    "a golem id that is too long": (with_value("golem_id", "g" * 257), RecordError, r"golem_id is longer than 256"),
    "a newer version": (
        with_value("schema_version", SCHEMA_VERSION + 1),
        SchemaVersionError,
        rf"schema version {SCHEMA_VERSION + 1} is newer than {SCHEMA_VERSION}: upgrade",
    ),
    "bytes that are not UTF-8": (
        with_column("gating_reason", no_utf8),
        RecordError,
        r"no valid DecisionCycleRecord.*UTF8",
    ),
    "bytes in a list that are not UTF-8": (with_column("somatic_markers_fired", no_utf8_inside), RecordError, r"UTF8"),
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
def test_a_batch_with_an_invalid_row_is_refused_as_a_whole(log: Log, name: str) -> None:
    corrupt, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        append(log, corrupt(records(6, golems=1, dense=True)))
    assert log.version == 0


def test_a_large_batch_is_validated_like_a_small_batch(disk: EventLog) -> None:
    batch = records(5_000, golems=50)
    bad = batch.set_column(2, RECORD_SCHEMA.field("tick"), pa.array([*batch["tick"].to_pylist()[:-1], 0]))
    with pytest.raises(RecordError, match="golem golem-0049, tick 0"):
        append(disk, bad)
    with pytest.raises(RecordError, match="missing tick"):
        append(disk, batch.drop_columns(["tick"]))
    assert append(disk, batch).written == 5_000


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))])  # noqa: DTZ001
def test_the_recording_time_must_be_utc(log: Log, moment: datetime) -> None:
    with pytest.raises(RecordError, match=r"recorded_at .* UTC"):
        log.append(ticks(1), writer="runtime", segment=0, recorded_at=moment)
    with pytest.raises(RecordError, match=r"recorded_at .* UTC"):
        log.record([accepted(1, 1)], moment)


@pytest.mark.parametrize(("writer", "segment"), [("", 1), ("runtime", -1)])
def test_a_writer_without_a_name_or_with_a_negative_segment_is_refused(log: Log, writer: str, segment: int) -> None:
    with pytest.raises(RecordError, match="a writer has a name"):
        log.append(ticks(1), writer=writer, segment=segment, recorded_at=NOW)


# life events


@pytest.mark.row("P-1")
def test_an_event_is_recorded_once(log: Log) -> None:
    first, two = accepted(1, 1), accepted(2, 2)
    assert log.record([first, two, first], NOW) == 2
    assert log.record([two, first], LATER) == 0
    assert log.record([], LATER) == 0
    events = log.life()
    assert sorted(events["event_id"].to_pylist()) == sorted([first.event_id, two.event_id])
    assert set(events["recorded_at"].to_pylist()) == {NOW}


def test_events_are_read_by_kind_and_since_a_version(log: Log) -> None:
    published = life_event(GOLEM, NOW, Published(bundle_hash="b", entry_count=1, derivation_id="d"))
    log.record([accepted(1, 1)], NOW)
    version = log.life_version
    log.record([published], LATER)
    assert log.life("BundlePublished")["event_id"].to_pylist() == [published.event_id]
    assert log.life(since_version=version)["event_id"].to_pylist() == [published.event_id]
    assert log.life("GapAccepted", since_version=version).num_rows == 0
    assert log.life("GolemBorn").num_rows == 0
    assert log.life_version > version


@pytest.mark.row("INH-11")
def test_an_import_for_an_earlier_tick_of_a_golem_is_refused(log: Log) -> None:
    append(log, ticks(1, 3))
    received = Received(source="import", from_golem_id="g-far", content_hash="c" * 64, entry_count=1)
    with pytest.raises(RegressionError, match="give it again"):
        log.record([life_event(GOLEM, NOW, received, Quarantined(tick_seen=2))], NOW)
    assert log.record([life_event(GOLEM, NOW, received, Quarantined(tick_seen=3))], NOW) == 1


def test_an_event_with_a_wrong_id_is_refused(log: Log) -> None:
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


def test_a_vector_is_recorded_once_per_text_and_embedder(log: Log) -> None:
    assert log.record_vectors(vectors(["a", "b", "a"])) == 2
    assert log.record_vectors(vectors(["b", "c"], value=0.75)) == 1
    assert log.record_vectors(vectors(["a"], embedder="nomic", value=0.25)) == 1
    result = log.vectors(MINILM, ["c", "a", "b", "unknown", "a"])
    assert result.column_names == ["text_hash", "vector"]
    assert result.to_pylist() == [
        {"text_hash": "a", "vector": [0.5, 0.0]},
        {"text_hash": "b", "vector": [0.5, 1.0]},
        {"text_hash": "c", "vector": [0.75, 1.0]},
    ]
    assert log.vectors(NOMIC, ["a", "b"])["vector"].to_pylist() == [[0.25, 0.0]]
    parts = [row for part in log.vector_parts(MINILM) for row in part.to_pylist()]
    assert sorted(parts, key=lambda row: row["text_hash"]) == result.to_pylist()
    assert not any(part.num_rows for part in log.vector_parts("nobody"))
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
        (
            vectors(["a"]).set_column(5, VECTORS_SCHEMA.field("dimension"), pa.array([3], pa.int32())),
            "differs from its dimension",
        ),
        (vectors(["a"]).set_column(3, VECTORS_SCHEMA.field("model"), pa.array([None], pa.string())), "is null"),
        (
            vectors(["a"]).set_column(3, VECTORS_SCHEMA.field("model"), pa.array(["m"], pa.string())),
            "but the identity",
        ),
    ],
)
def test_an_invalid_vector_is_refused(log: Log, table: pa.Table, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        log.record_vectors(table)
