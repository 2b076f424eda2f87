"""Examine: the bytes, the rules and the digests of a batch of records, on all processors. Pure.

Source: architecture ("validate(full=True) and vectorised checks before every append").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.digest import row_digests
from bardo_pipeline.events.parts import at_once, divided
from bardo_pipeline.events.record import SCHEMA_VERSION, DecisionCycleRecord
from bardo_pipeline.events.schema import RECORD_SCHEMA
from bardo_pipeline.events.validate import check_bytes, check_names, errors_of, raise_first, violations


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
    looked = at_once(_look, divided(whole))
    faults: list[tuple[int, str]] = []
    start = 0
    for digests, found in looked:
        faults += [(start + row, sentence) for row, sentence in found]
        start += len(digests)
    return Examined(whole, np.concatenate([digests for digests, _ in looked]), faults)


def _look(part: pa.Table) -> tuple[np.ndarray, list[tuple[int, str]]]:
    check_bytes(part, DecisionCycleRecord)
    return row_digests(part), violations(part, DecisionCycleRecord)
