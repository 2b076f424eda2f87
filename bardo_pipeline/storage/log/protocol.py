"""What a log must do, whichever store lies beneath; one contract suite runs on all of them."""

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
from bardo_pipeline.events.record.arrow_columns import required
from bardo_pipeline.events.record.arrow_schema import LIFE_SCHEMA, MOMENT, RECORD_SCHEMA
from bardo_pipeline.events.record.check_batch import Examined
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.log.stream_heads import TickRange

DECIDING = frozenset({"DeathDeclared", "GapAccepted", "KeyRegistered", "KeyRotated", "KeyRevoked", "SealKeyMade"})
"""Life events that decide which records of their golem are taken."""

LINK_TYPE = pa.struct(
    [
        required("number", pa.int64()),
        required("previous", pa.binary()),
        required("hash", pa.binary()),
        pa.field("key_id", pa.string()),
        pa.field("signature", pa.binary()),
    ]
)
"""A link of a golem's chain: its place (from 1), the hash before it (zeros for the first), its own, who signed it."""

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
"""One row per (golem, tick): the record, its hash bucket, the digest of its content (16 bytes), who wrote it, when; the
version of the log that brought it, its link in the golem's chain, and the sender's bytes where it came as JSON.

The last three came with version 2 of the schema: null in rows that version 1 wrote.
"""

LIFE_LOG_SCHEMA = pa.schema([*LIFE_SCHEMA, required("recorded_at", MOMENT)])
"""One row per life event, with the moment of its recording."""

VECTORS_SCHEMA = pa.schema(
    [
        required("text_hash", pa.string()),
        required("embedder", pa.string()),
        required("vector", pa.list_(required("element", pa.float32()))),
        required("model", pa.string()),
        required("version", pa.string()),
        required("dimension", pa.int32()),
        required("preprocess_hash", pa.string()),
        required("chunk_config", pa.string()),
        required("created_at", MOMENT),
    ]
)
"""One row per (embedder, text): the vector, and all that decided it. `embedder` is the key of its identity."""


@dataclass(frozen=True)
class Appended:
    """What became of a batch.

    version: of the log with the batch in it. written, repeated: records that were new, and that were on record already
    (or twice in the batch). gaps: runs of ticks that are missing since. late: missing runs that this batch filled.
    """

    version: int
    written: int
    repeated: int
    gaps: tuple[TickRange, ...]
    late: tuple[TickRange, ...]


@dataclass(frozen=True)
class Refused:
    """A row of a batch that was not taken, and why."""

    row: int
    error: BardoError


@dataclass(frozen=True)
class Admitted:
    """What became of a batch of which the good rows were taken: see `Appended`; refused by row."""

    appended: Appended
    refused: tuple[Refused, ...]


class Log(Protocol):
    """The record of all golems: cycles, life events and vectors. It only grows."""

    def append(
        self,
        records: pa.Table,
        *,
        writer: str,
        segment: int,
        recorded_at: datetime,
        signatures: Mapping[str, Signature] | None = None,
    ) -> Appended:
        """Append a batch (RECORD_SCHEMA), whole or not at all, each (golem, tick) once; one link a golem.

        writer, segment: the transaction; a writer numbers its segments upwards and sends one again under its number.
        signatures: golem to the signature of its slice (custody.py).
        Raises RecordError or SchemaVersionError for a record that does not fit, ForkError for another record of a tick
        on record, RegressionError for a tick in an accepted gap, LeaseError for a golem that a writer holds,
        SignatureError, StoreError for a number that stands for other records.
        """
        ...

    def admit(
        self,
        looked: Examined,
        *,
        writer: str,
        segment: int,
        recorded_at: datetime,
        payloads: Payloads | None = None,
        signatures: Mapping[str, Signature] | Sequence[Signature | None] | None = None,
        mine: frozenset[str] = frozenset(),
    ) -> Admitted:
        """Append those rows of a batch that may be appended; each other one is refused with the error it deserves.

        looked: the batch, as `examine` looked at it. payloads: the sender's bytes of each row, if they came as JSON:
        then each record is a link, and signatures has one a row. mine: golems whose lease the caller holds.
        """
        ...

    def record(self, events: Sequence[LifeEvent], recorded_at: datetime, mine: frozenset[str] = frozenset()) -> int:
        """Append those events whose id is not on record; returns how many were new.

        mine: golems whose lease the caller holds. Raises RecordError or SignatureError for an event that may not
        follow those on record, LeaseError for one that decides which records are taken (DECIDING) of a golem that a
        writer holds: that writer may have acknowledged what the event would refuse.
        """
        ...

    def record_vectors(self, vectors: pa.Table) -> int:
        """Append those vectors (VECTORS_SCHEMA) whose (embedder, text_hash) is not on record; returns how many."""
        ...

    def heads(self) -> pa.Table:
        """How far each golem has come (HEADS_SCHEMA), by id."""
        ...

    def gaps(self) -> tuple[TickRange, ...]:
        """Every run of ticks that is missing and not accepted as lost, by golem and tick."""
        ...

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Cycles (CYCLES_SCHEMA) in no promised order.

        columns: names, or paths into structs ("observation.price"); all for None. since_version: only those committed
        after that version of the log (a reader must bear older ones). golems: only theirs.
        """
        ...

    @property
    def version(self) -> int:
        """The newest version of the cycles."""
        ...

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Life events (LIFE_LOG_SCHEMA) of one kind, or of all, in no promised order."""
        ...

    @property
    def life_version(self) -> int:
        """The newest version of the life events."""
        ...

    def vectors(self, embedder: str, hashes: Sequence[str]) -> pa.Table:
        """The vectors that are on record for these texts (columns text_hash, vector), by text_hash."""
        ...

    def count_vectors(self, embedder: str, since: datetime | None = None) -> int:
        """How many vectors of an embedder are on record, all or those made after a moment."""
        ...

    def identities(self) -> dict[str, EmbedderIdentity]:
        """Every embedder that has vectors on record, by its key."""
        ...

    def close(self) -> None:
        """Let go of it; what makes the next opening faster is kept."""
        ...

    def __enter__(self) -> Self:
        """The log itself."""
        ...

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        ...


def utc(moment: datetime, what: str) -> datetime:
    """The moment, if it is one of UTC; RecordError otherwise."""
    if moment.utcoffset() != timedelta(0):
        raise RecordError(f"{what} is {moment}: give a UTC moment")
    return moment


def check_transaction(writer: str, segment: int) -> None:
    """Raise RecordError for a writer without a name or a segment below 0."""
    if not writer or segment < 0:
        raise RecordError(f"segment {segment} of writer {writer!r}: a writer has a name and numbers from 0 upwards")


def check_events(events: Sequence[LifeEvent]) -> None:
    """Raise RecordError for an event whose id is not that of its content."""
    for event in events:
        if event.event_id != event.content_id():
            raise RecordError(f"golem {event.golem_id}: {event.kind} {event.event_id} has not the id of its content")


def check_vectors(vectors: pa.Table) -> None:
    """Raise RecordError unless the columns are those of VECTORS_SCHEMA, each vector of its dimension and finite.

    And unless what it says of its embedder is what its key was spelt from.
    """
    if not vectors.schema.equals(VECTORS_SCHEMA):
        raise RecordError(f"vectors need the columns {', '.join(VECTORS_SCHEMA.names)}, in their types")
    try:
        vectors.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordError(f"the vectors hold bytes that are none: {error}") from error
    components = pc.list_flatten(vectors.column("vector"))
    if components.null_count or any(column.null_count for column in vectors.columns):
        raise RecordError("a vector, or something about it, is missing")
    lengths = pc.list_value_length(vectors.column("vector"))
    if not pc.all(pc.equal(lengths, vectors.column("dimension"))).as_py():
        raise RecordError("a vector has not the number of components that its dimension says")
    if not pc.all(pc.is_finite(components)).as_py():
        raise RecordError("a vector holds a component that is not finite")
    names = [field.name for field in fields(EmbedderIdentity)]
    for row in vectors.select(["embedder", *names]).group_by(["embedder", *names]).aggregate([]).to_pylist():
        key, identity = row.pop("embedder"), EmbedderIdentity(**row)
        if key != identity.key:
            raise RecordError(f"a vector with the key {key} says that it is of {identity}: keep what made it with it")
