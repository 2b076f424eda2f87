"""The interface and schemas of an event log. One contract suite runs on every implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import BardoError, RecordError
from bardo_pipeline.events.custody.hash_chain import Payloads, Signature
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.events.record.arrow_schema import LIFE_SCHEMA, MOMENT, RECORD_SCHEMA
from bardo_pipeline.events.record.validate import Examined
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.log.stream_heads import TickRange

DECIDING = frozenset({"DeathDeclared", "GapAccepted", "KeyRegistered", "KeyRotated", "KeyRevoked", "SealKeyMade"})
"""Kinds of life events that decide which records of their golem are admitted."""

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
class Refused:
    """A refused row of a batch and its error."""

    row: int
    error: BardoError


@dataclass(frozen=True)
class Admitted:
    """Result of admitting the valid rows of a batch; refused rows are sorted by row."""

    appended: Appended
    refused: tuple[Refused, ...]


class Log(Protocol):
    """The append-only log of all golems: cycles, life events and vectors."""

    def append(
        self,
        records: pa.Table,
        *,
        writer: str,
        segment: int,
        recorded_at: datetime,
        signatures: Mapping[str, Signature] | None = None,
    ) -> Appended:
        """Append a batch (RECORD_SCHEMA) atomically, each (golem, tick) once, with one link per golem.

        Parameters
        ----------
        writer, segment : transaction id; a writer numbers its segments upwards and retries under the same number
        signatures : golem -> signature of its slice

        Raises
        ------
        RecordError, SchemaVersionError : a record is invalid
        ForkError : another record of this tick is in the log
        RegressionError : the tick lies in an accepted gap
        LeaseError : a writer holds the lease of the golem
        SignatureError : a signature is missing or wrong
        StoreError : the segment number belongs to other records
        """
        ...

    def admit(
        self,
        examined: Examined,
        *,
        writer: str,
        segment: int,
        recorded_at: datetime,
        payloads: Payloads | None = None,
        signatures: Mapping[str, Signature] | Sequence[Signature | None] | None = None,
        leased_golems: frozenset[str] = frozenset(),
    ) -> Admitted:
        """Append the valid rows of a batch; refuse each other row with its error.

        Parameters
        ----------
        examined : result of `examine`
        payloads : the sender's bytes of each row of a JSON batch; each record then has a link and a signature
        leased_golems : golems whose lease the caller holds
        """
        ...

    def record(
        self, events: Sequence[LifeEvent], recorded_at: datetime, leased_golems: frozenset[str] = frozenset()
    ) -> int:
        """Append the events with new ids; return their number.

        Parameters
        ----------
        leased_golems : golems whose lease the caller holds

        Raises
        ------
        RecordError, SignatureError : an event contradicts the log
        LeaseError : a DECIDING event of a golem whose lease a writer holds, which may have acknowledged records
            that the event would refuse
        """
        ...

    def record_vectors(self, vectors: pa.Table) -> int:
        """Append the vectors (VECTORS_SCHEMA) with a new (embedder, text_hash); return their number."""
        ...

    def heads(self) -> pa.Table:
        """Return the head of each golem's stream (HEADS_SCHEMA) by id."""
        ...

    def gaps(self) -> tuple[TickRange, ...]:
        """Return all missing runs of ticks that were not accepted as lost, by golem and tick."""
        ...

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Read cycles (CYCLES_SCHEMA) in any order.

        Parameters
        ----------
        columns : names or dotted paths into structs ("observation.price"); None for all
        since_version : only rows committed after this version (older rows may also be returned)
        golems : only these golems
        """
        ...

    @property
    def version(self) -> int:
        """Newest version of the cycles."""
        ...

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Read life events (LIFE_LOG_SCHEMA) of one kind or all, in any order."""
        ...

    @property
    def life_version(self) -> int:
        """Newest version of the life events."""
        ...

    def vectors(self, embedder: str, hashes: Sequence[str]) -> pa.Table:
        """Read the vectors of these texts (columns text_hash, vector) by text_hash."""
        ...

    def count_vectors(self, embedder: str, since: datetime | None = None) -> int:
        """Count the vectors of an embedder, all or those made after a time."""
        ...

    def identities(self) -> dict[str, EmbedderIdentity]:
        """Return the embedders with vectors in the log by key."""
        ...

    def close(self) -> None:
        """Close the log and save the cache of stream heads."""
        ...

    def __enter__(self) -> Self:
        """Return the log."""
        ...

    def __exit__(self, *exc: object) -> None:
        """Close the log."""
        ...


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
    names = [field.name for field in fields(EmbedderIdentity)]
    for row in vectors.select(["embedder", *names]).group_by(["embedder", *names]).aggregate([]).to_pylist():
        key, identity = row.pop("embedder"), EmbedderIdentity(**row)
        if key != identity.key:
            raise RecordError(
                f"a vector has the key {key} but the identity {identity}: write the identity of its embedder"
            )
