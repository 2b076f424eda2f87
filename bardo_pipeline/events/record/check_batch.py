"""Examine: the bytes, the rules and the digests of a batch of records. Pure.

Source: architecture ("validate(full=True) and vectorised checks before every append").
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

_BESIDE_ROWS = 16_000  # up to so many, threads that wait for each other cost more than a second processor helps


@dataclass(frozen=True)
class Examined:
    """Records (RECORD_SCHEMA, each column in one piece), their digests (uint64 [rows, 2]) and what is wrong with them.

    faults: as `violations` finds them.
    """

    records: pa.Table
    digests: np.ndarray
    faults: list[tuple[int, str]]

    def newer(self) -> bool:
        """Whether a record is of a newer version than this code can read."""
        newest = pc.max(self.records.column("schema_version")).as_py()
        return newest is not None and bool(newest > SCHEMA_VERSION)

    def errors(self) -> dict[int, RecordError | SchemaVersionError]:
        """Each row that breaks a rule, with its first fault."""
        return errors_of(self.records, self.faults)

    def check(self) -> None:
        """Raise SchemaVersionError or RecordError for the first fault, if there is one."""
        raise_first(self.records, self.faults)


def examine(records: pa.Table) -> Examined:
    """Look at every value once. Raises RecordError for other columns than RECORD_SCHEMA's or bytes that are none."""
    check_names(records, DecisionCycleRecord, RECORD_SCHEMA)
    whole = records.combine_chunks()
    if len(whole) < _BESIDE_ROWS:
        check_bytes(whole, DecisionCycleRecord)
        return Examined(whole, row_digests(whole), violations(whole, DecisionCycleRecord))
    heaviest = sorted(RECORD_SCHEMA.names, key=lambda name: -whole.column(name).nbytes)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        begun = {name: threads.submit(_look, whole, name) for name in heaviest}
        looked = [begun[name].result() for name in RECORD_SCHEMA.names]
    faults = {fault for _, found in looked for fault in found}
    return Examined(whole, folded((lanes for lanes, _ in looked), len(whole)), sorted(faults))


def _look(records: pa.Table, name: str) -> tuple[np.ndarray | None, list[tuple[int, str]]]:
    check_bytes(records.select([name]), DecisionCycleRecord)
    values = encoded(one(records.column(name)))
    return column_lanes(name, values), column_violations(name, values, DecisionCycleRecord)
