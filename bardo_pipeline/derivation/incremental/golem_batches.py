"""Batches of golems: 128 at a time, so that the entries of many dead golems are never all in memory.

Golems of one bucket come in the same batch, so a batch reads few files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import rows_of_golems
from bardo_pipeline.storage.home import bucket_of

GOLEMS_AT_ONCE = 128


def in_batches(context: DerivationContext, rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows (golem_id and more) of one batch of golems after the other."""
    for golem_ids in golem_batches(context, rows["golem_id"].to_pylist()):
        yield rows_of_golems(rows, golem_ids)


def golem_batches(context: DerivationContext, golem_ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield golem ids by bucket and id, batch by batch."""
    count = context.projections.bucket_count
    ordered = sorted(golem_ids, key=lambda golem_id: (bucket_of(golem_id, count), golem_id))
    yield from (tuple(ordered[at : at + GOLEMS_AT_ONCE]) for at in range(0, len(ordered), GOLEMS_AT_ONCE))
