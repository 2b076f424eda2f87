"""A batch of valid records with its transaction id and time of recording."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import IdentityError
from bardo_pipeline.events.custody.authority import NO_GOLEM, ahead_of_clock
from bardo_pipeline.events.custody.hash_chain import Payloads
from bardo_pipeline.events.life.events import EVERY_GOLEM
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.record.row_digest import digest_column
from bardo_pipeline.events.record.validate import Examined
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.log.admission import BatchRows, Wrong, batch_rows
from bardo_pipeline.storage.log.chain_links import Linked
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, check_transaction, utc
from bardo_pipeline.storage.log.stream_heads import golem_column


@dataclass(frozen=True)
class Stamp:
    """Transaction id and recording time of a batch. Raises RecordError for invalid values.

    checks_clock: whether the recording time bounds `observed_at`. Not for simulated time, and not for records of a
    journal, which were compared with the clock before they were acknowledged.
    """

    writer: str
    segment: int
    recorded_at: datetime
    checks_clock: bool = True

    def __post_init__(self) -> None:
        check_transaction(self.writer, self.segment)
        utc(self.recorded_at, "recorded_at")


@dataclass(frozen=True)
class Batch:
    """Valid records (RECORD_SCHEMA) with their digests and, for JSON, the sender's bytes.

    Parameters
    ----------
    refused : errors of the sent rows that broke a rule
    fit : sent row of each record
    """

    stamp: Stamp
    records: pa.Table
    hashes: pa.Array
    payloads: Payloads | None
    refused: Wrong
    fit: Int64Array

    @classmethod
    def of(cls, stamp: Stamp, examined: Examined, payloads: Payloads | None = None) -> Self:
        """Build the batch of the valid records."""
        refused: Wrong = dict(examined.errors()) if examined.faults or examined.is_newer else {}
        fit = np.setdiff1d(np.arange(len(examined.records)), np.fromiter(refused, np.int64, len(refused)))
        if not refused:
            return cls(stamp, examined.records, digest_column(examined.digests), payloads, {}, fit)
        hashes, lines = digest_column(examined.digests[fit]), None if payloads is None else payloads.take(fit)
        return cls(stamp, examined.records.take(pa.array(fit)), hashes, lines, refused, fit)

    @cached_property
    def grouped(self) -> BatchRows:
        """The records grouped by golem."""
        return batch_rows(self.records, self.hashes)

    def unfit(self, ahead: timedelta) -> Wrong:
        """Return the errors of records of golem `*`, and of those observed more than `ahead` of the recording time."""
        golem_ids, moments = self.grouped.golem_ids, self.records.column("observed_at")
        wrong: Wrong = {}
        if EVERY_GOLEM in self.grouped.groups.names:
            rows = np.flatnonzero(np.asarray(pc.equal(golem_ids, EVERY_GOLEM)))
            wrong |= {row: IdentityError(NO_GOLEM) for row in rows.tolist()}
        # In microseconds, because the last moments of a datetime have no later one.
        limit = pa.scalar(self.stamp.recorded_at, MOMENT).value + ahead // timedelta(microseconds=1)
        if self.stamp.checks_clock and len(moments) and pc.max(moments).value > limit:
            for row in np.flatnonzero(moments.to_numpy().astype(np.int64) > limit).tolist():
                subject = f"golem {golem_ids[row]}: tick {self.grouped.ticks[row]}"
                wrong[row] = ahead_of_clock(subject, moments[row].as_py(), ahead)
        return wrong

    def rows(self, linked: Linked, bucket_count: int, version: int) -> pa.Table:
        """Return the admitted records as rows of the log (CYCLES_SCHEMA) at this version."""
        kept, is_complete = pa.array(linked.rows), len(linked.rows) == len(self.records)
        records = self.records if is_complete else self.records.take(kept)
        lines = None if self.payloads is None else self.payloads.lines
        lines = lines if lines is None or is_complete else lines.take(kept)
        golems = golem_column(records).dictionary_encode()
        buckets = [bucket_of(golem_id, bucket_count) for golem_id in golems.dictionary.to_pylist()]
        count = len(records)
        columns = {
            "bucket": pa.array(buckets, pa.int32()).take(golems.indices),
            "content_hash": self.hashes if is_complete else self.hashes.take(kept),
            "recorded_at": pa.repeat(pa.scalar(self.stamp.recorded_at, MOMENT), count),
            "writer": pa.repeat(pa.scalar(self.stamp.writer, pa.string()), count),
            "segment": pa.repeat(pa.scalar(self.stamp.segment, pa.int64()), count),
            "version": pa.repeat(pa.scalar(version, pa.int64()), count),
            "link": linked.column(),
            "payload": pa.nulls(count, pa.binary()) if lines is None else lines.cast(pa.binary()),
        }
        return pa.Table.from_arrays([*records.columns, *(columns[name] for name in columns)], schema=CYCLES_SCHEMA)
