"""Validate the bytes and values of a batch of records and compute its digests. Pure.

Source: architecture ("validate(full=True) and vectorised checks before every append").
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import UInt64Array
from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import encoded, one
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import column_lanes, folded, row_digests
from bardo_pipeline.events.record.validate import (
    check_bytes,
    check_names,
    column_violations,
    errors_of,
    raise_first,
    violations,
)

_THREADED_ROWS = 16_000  # below this size, threads cost more time than they save


@dataclass(frozen=True)
class Examined:
    """Records (RECORD_SCHEMA, one chunk per column), their digests [rows, 2] and the faults of `violations`."""

    records: pa.Table
    digests: UInt64Array
    faults: list[tuple[int, str]]

    def newer(self) -> bool:
        """Whether a record has a newer schema version than this code."""
        newest = pc.max(self.records.column("schema_version")).as_py()
        return newest is not None and bool(newest > SCHEMA_VERSION)

    def errors(self) -> dict[int, RecordError | SchemaVersionError]:
        """Return the first fault of each invalid row."""
        return errors_of(self.records, self.faults)

    def check(self) -> None:
        """Raise SchemaVersionError or RecordError for the first fault."""
        raise_first(self.records, self.faults)


def examine(records: pa.Table) -> Examined:
    """Validate and digest a batch. Raises RecordError for other columns than RECORD_SCHEMA or invalid Arrow data."""
    check_names(records, DecisionCycleRecord, RECORD_SCHEMA)
    whole = records.combine_chunks()
    if len(whole) < _THREADED_ROWS:
        check_bytes(whole, DecisionCycleRecord)
        return Examined(whole, row_digests(whole), violations(whole, DecisionCycleRecord))
    heaviest = sorted(RECORD_SCHEMA.names, key=lambda name: -whole.column(name).nbytes)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        futures = {name: threads.submit(_examine_column, whole, name) for name in heaviest}
        results = [futures[name].result() for name in RECORD_SCHEMA.names]
    faults = {fault for _, column_faults in results for fault in column_faults}
    return Examined(whole, folded((lanes for lanes, _ in results), len(whole)), sorted(faults))


def _examine_column(records: pa.Table, name: str) -> tuple[UInt64Array | None, list[tuple[int, str]]]:
    check_bytes(records.select([name]), DecisionCycleRecord)
    values = encoded(one(records.column(name)))
    return column_lanes(name, values), column_violations(name, values, DecisionCycleRecord)
