"""Schemas of the event log, results of an append, and checks of appended events and vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import BardoError, RecordError
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.events.record.arrow_schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.log.stream_heads import TickRange

DECIDING = frozenset({"DeathDeclared", "GapAccepted", "KeyRegistered", "KeyRotated", "KeyRevoked", "SealKeyMade"})
"""Kinds of life events that decide which records of their golem are admitted."""

RUN_WRITER = "run-"
"""Beginning of the names of writers that are runs of fleets in past markets."""

LINK_TYPE = pa.struct(
    [
        required("number", pa.int64()),
        *all_required(pa.binary(), "previous", "hash"),
        pa.field("key_id", pa.string()),
        pa.field("signature", pa.binary()),
    ]
)
"""A link of a golem's chain: number (from 1), previous hash (zeros for the first), own hash, key and signature."""

CYCLES_SCHEMA = pa.schema(
    [
        *RECORD_SCHEMA,
        required("bucket", pa.int32()),
        required("content_hash", pa.binary()),
        required("recorded_at", MOMENT),
        required("writer", pa.string()),
        required("segment", pa.int64()),
        pa.field("version", pa.int64()),
        pa.field("link", LINK_TYPE),
        pa.field("payload", pa.binary()),
    ]
)
"""One row per (golem, tick): record, bucket, digest of the content (16 bytes), writer and time of recording; then the
log version that added the row, its link in the golem's chain, and the sender's bytes of a JSON record.

The last three are null in rows of schema version 1.
"""

LIFE_LOG_SCHEMA = pa.schema([*LIFE_SCHEMA, required("recorded_at", MOMENT)])
"""One row per life event, with its time of recording."""

VECTORS_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "text_hash", "embedder"),
        required("vector", pa.list_(required("element", pa.float32()))),
        *all_required(pa.string(), "model", "version"),
        required("dimension", pa.int32()),
        *all_required(pa.string(), "preprocess_hash", "chunk_config"),
        required("created_at", MOMENT),
    ]
)
"""One row per (embedder, text): the vector and the identity of its embedder; `embedder` is the key of the identity."""

IDENTITY_COLUMNS = ["embedder", *(field.name for field in fields(EmbedderIdentity))]


@dataclass(frozen=True)
class Appended:
    """Result of appending a batch.

    Parameters
    ----------
    version : version of the log that contains the batch
    written, repeated : numbers of new records and of records that are already in the log or twice in the batch
    gaps : runs of ticks that are missing since this batch
    late : missing runs that this batch filled
    """

    version: int
    written: int
    repeated: int
    gaps: tuple[TickRange, ...]
    late: tuple[TickRange, ...]


@dataclass(frozen=True)
class Admitted:
    """Result of admitting the valid rows of a batch. refused: error of each refused row, in the order of rows."""

    appended: Appended
    refused: dict[int, BardoError]


def utc(moment: datetime, what: str) -> datetime:
    """Return the moment if it is in UTC, else raise RecordError."""
    if moment.utcoffset() != timedelta(0):
        raise RecordError(f"{what} is {moment}: give a UTC moment")
    return moment


def check_transaction(writer: str, segment: int) -> None:
    """Raise RecordError for a writer without a name or a segment below 0."""
    if not writer or segment < 0:
        raise RecordError(f"segment {segment} of writer {writer!r}: a writer has a name and numbers from 0 upwards")


def check_events(events: Sequence[LifeEvent]) -> None:
    """Raise RecordError for an event whose id does not match its content."""
    for event in events:
        if event.event_id != event.content_id():
            raise RecordError(f"golem {event.golem_id}: {event.kind} {event.event_id} has not the id of its content")


def check_vectors(vectors: pa.Table) -> None:
    """Raise RecordError for other columns than VECTORS_SCHEMA, a wrong dimension, a non-finite value or a wrong key."""
    if not vectors.schema.equals(VECTORS_SCHEMA):
        raise RecordError(f"vectors need the columns {', '.join(VECTORS_SCHEMA.names)}, in their types")
    try:
        vectors.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordError(f"the vectors are not valid Arrow data: {error}") from error
    components = pc.list_flatten(vectors.column("vector"))
    if components.null_count or any(column.null_count for column in vectors.columns):
        raise RecordError("a vector, or a column of one, is null")
    lengths = pc.list_value_length(vectors.column("vector"))
    if not pc.all(pc.equal(lengths, vectors.column("dimension"))).as_py():
        raise RecordError("the length of a vector differs from its dimension")
    if not pc.all(pc.is_finite(components)).as_py():
        raise RecordError("a vector has a component that is not finite")
    for key, identity in identities_in(vectors):
        if key != identity.key:
            raise RecordError(
                f"a vector has the key {key} but the identity {identity}: write the identity of its embedder"
            )


def identities_in(vectors: pa.Table) -> Iterator[tuple[str, EmbedderIdentity]]:
    """Yield each pair of key and embedder identity in the vectors (IDENTITY_COLUMNS)."""
    pairs = vectors.select(IDENTITY_COLUMNS).group_by(IDENTITY_COLUMNS, use_threads=False).aggregate([])
    return ((row.pop("embedder"), EmbedderIdentity(**row)) for row in pairs.to_pylist())
