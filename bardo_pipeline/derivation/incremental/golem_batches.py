"""Slices: the dead of a batch, so many at a time, so that what they knew is never in memory all at once.

Whoever lies in the same bucket is taken together: a slice reads few files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.home import bucket_of

GOLEMS_AT_ONCE = 128


def in_batches(context: DerivationContext, deaths: pa.Table) -> Iterator[pa.Table]:
    """The deaths (golem_id and more), slice by slice."""
    for golems in golem_batches(context, deaths["golem_id"].to_pylist()):
        yield deaths.filter(pc.is_in(deaths["golem_id"], value_set=pa.array(golems, pa.string())))


def golem_batches(context: DerivationContext, golems: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """These golems, slice by slice."""
    count = context.projections.bucket_count
    ordered = sorted(golems, key=lambda golem_id: (bucket_of(golem_id, count), golem_id))
    yield from (tuple(ordered[at : at + GOLEMS_AT_ONCE]) for at in range(0, len(ordered), GOLEMS_AT_ONCE))
