"""A batch on its way into the log: records that keep the model's rules, who sends them, and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.custody.hash_chain import Payloads
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.record.check_batch import Examined
from bardo_pipeline.events.record.row_digest import digest_column
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.log.admission import Sent, Wrong, sent
from bardo_pipeline.storage.log.chain_links import Linked
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, check_transaction, utc
from bardo_pipeline.storage.log.stream_heads import golem_column


@dataclass(frozen=True)
class Stamp:
    """Under which transaction a batch comes, and when. Raises RecordError for one that cannot be."""

    writer: str
    segment: int
    recorded_at: datetime

    def __post_init__(self) -> None:
        check_transaction(self.writer, self.segment)
        utc(self.recorded_at, "recorded_at")


@dataclass(frozen=True)
class Batch:
    """Records (RECORD_SCHEMA) with their digests, and, if they came as JSON, the senders' bytes.

    refused: rows of what was sent that broke a rule and were left out, with what is wrong with them. fit: of each
    record, which row of what was sent it was.
    """

    stamp: Stamp
    records: pa.Table
    hashes: pa.Array
    payloads: Payloads | None
    refused: Wrong
    fit: np.ndarray

    @classmethod
    def of(cls, stamp: Stamp, looked: Examined, payloads: Payloads | None = None) -> Batch:
        """Those of the records that keep the rules."""
        refused: Wrong = dict(looked.errors()) if looked.faults or looked.newer() else {}
        fit = np.setdiff1d(np.arange(len(looked.records)), np.fromiter(refused, np.int64, len(refused)))
        if not refused:
            return cls(stamp, looked.records, digest_column(looked.digests), payloads, {}, fit)
        hashes, left = digest_column(looked.digests[fit]), None if payloads is None else payloads.take(fit)
        return cls(stamp, looked.records.take(pa.array(fit)), hashes, left, refused, fit)

    @cached_property
    def sent(self) -> Sent:
        """Whose they are, their ticks, and their order."""
        return sent(self.records, self.hashes)

    def rows(self, linked: Linked, bucket_count: int, version: int) -> pa.Table:
        """Those that come in, as rows of the log (CYCLES_SCHEMA) of that version."""
        kept, all_of_them = pa.array(linked.rows), len(linked.rows) == len(self.records)
        records = self.records if all_of_them else self.records.take(kept)
        lines = None if self.payloads is None else self.payloads.lines
        lines = lines if lines is None or all_of_them else lines.take(kept)
        golems = golem_column(records).dictionary_encode()
        buckets = [bucket_of(golem_id, bucket_count) for golem_id in golems.dictionary.to_pylist()]
        count = len(records)
        columns = {
            "bucket": pa.array(buckets, pa.int32()).take(golems.indices),
            "content_hash": self.hashes if all_of_them else self.hashes.take(kept),
            "recorded_at": pa.repeat(pa.scalar(self.stamp.recorded_at, MOMENT), count),
            "writer": pa.repeat(pa.scalar(self.stamp.writer, pa.string()), count),
            "segment": pa.repeat(pa.scalar(self.stamp.segment, pa.int64()), count),
            "version": pa.repeat(pa.scalar(version, pa.int64()), count),
            "link": linked.column(),
            "payload": pa.nulls(count, pa.binary()) if lines is None else lines.cast(pa.binary()),
        }
        return pa.Table.from_arrays([*records.columns, *(columns[name] for name in columns)], schema=CYCLES_SCHEMA)
