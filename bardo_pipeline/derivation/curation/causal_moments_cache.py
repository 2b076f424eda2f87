"""Causes: the causal moments of golems at a closed cycle, kept by bucket beside the readers' places.

They are a function of the log alone. The files only save time: a golem whose moments are not kept, or not as of the
cycle and the records asked for, is read again from the log. Source: HB S4; architecture (law 5).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from bardo_pipeline.curator.causality.lagged_moments import MOMENTS_SCHEMA, Moments, from_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.golem_cache import GolemCache
from bardo_pipeline.derivation.incremental.record_queries import closed_records, cycle_of
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.life.retractions import LeftOut

_READ = ("golem_id", "tick", "observed_at", "observation")
_KEPT_SCHEMA = pa.schema(
    [*MOMENTS_SCHEMA, pa.field("cycle", pa.int64(), nullable=False), pa.field("left", pa.string(), nullable=False)]
)


def load_moments(context: DerivationContext, done: Mapping[str, int], left: LeftOut) -> Moments:
    """The moments of these golems at their last cycles. done: golem to cycle; 0 and below has lived through nothing."""
    wanted = {g: cycle for g, cycle in done.items() if cycle > 0}
    made = Moments()
    kept = GolemCache(context, "moments", _KEPT_SCHEMA).read(wanted)
    current = [
        wanted.get(g) == cycle and _signature(left, g) == signature
        for g, cycle, signature in zip(*(kept[n].to_pylist() for n in ("golem_id", "cycle", "left")), strict=True)
    ]
    made.absorb(from_table(kept.filter(pa.array(current, pa.bool_())).select(MOMENTS_SCHEMA.names)))
    known = {golem_id for golem_id, _ in made.of}
    missing = {g: cycle for g, cycle in wanted.items() if g not in known}
    if missing:
        records = without_retracted(closed_records(context, _READ, dict.fromkeys(missing, 1), missing), left)
        cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
        read = Moments()
        read.add(records, cycle, context.policy)
        read.settle(missing, context.policy)
        made.absorb(read)
    return made


def save_moments(context: DerivationContext, moments: Moments, done: Mapping[str, int], left: LeftOut) -> None:
    """Keep the moments of these golems as of their last cycles; those of the dead are let go."""
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    mine = moments.table(set(done) - dead)
    owners = mine["golem_id"].to_pylist()
    mine = mine.append_column(_KEPT_SCHEMA.field("cycle"), pa.array([done[g] for g in owners], pa.int64()))
    mine = mine.append_column(_KEPT_SCHEMA.field("left"), pa.array([_signature(left, g) for g in owners], pa.string()))
    GolemCache(context, "moments", _KEPT_SCHEMA).replace(mine, done)


def _signature(left: LeftOut, golem_id: str) -> str:
    """What is left out of a golem's records, in words."""
    return repr(left.of_golem(golem_id)[0])
