"""Records whose private parts contain a mark, and a key to seal them."""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from tests.support.records.drawn_records import records

SECRET = bytes(range(32))
MARK = "the-whale-of-Turin"
"""The mark in every private value of these tests, and nowhere else."""


def private(table: pa.Table) -> pa.Table:
    """The records without seals, the mark in every private part."""
    rows = table.to_pylist()
    for row in rows:
        row["sealed"] = None
        for position in row["observation"]["positions"]:
            position["pair"] = MARK
        if row["deliberation"] is not None:
            row["deliberation"]["reasoning_summary"] = MARK
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)


def some(count: int, *, golems: int = 1, tick: int = 1, seed: int = 0) -> pa.Table:
    """Records that all have private parts."""
    return private(records(count, golems=golems, tick=tick, seed=seed, dense=True))


def models(table: pa.Table) -> list[DecisionCycleRecord]:
    return to_models(table, DecisionCycleRecord)
