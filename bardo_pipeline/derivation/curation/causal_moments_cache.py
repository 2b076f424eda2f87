"""Cache of the golems' causal moments at their last curated cycle.

The moments follow from the log alone. A golem's moments are read from its records again if the cache does not hold
them for the wanted cycle and the current retractions. Source: HB S4; architecture (law 5).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from bardo_pipeline.curator.causality.lagged_moments import MOMENTS_SCHEMA, Moments, from_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.golem_cache import GolemCache
from bardo_pipeline.derivation.incremental.record_queries import closed_records, cycle_of
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import required

_RECORD_COLUMNS = ("golem_id", "tick", "observed_at", "observation")
_CACHE_SCHEMA = pa.schema([*MOMENTS_SCHEMA, required("cycle", pa.int64()), required("left", pa.string())])
"""`left` is the signature of the golem's retractions."""


def load_moments(context: DerivationContext, done: Mapping[str, int], left_out: LeftOut) -> Moments:
    """Return the moments of golems at their last cycles; a golem at cycle 0 has none.

    Parameters
    ----------
    done : golem id to last cycle
    """
    wanted = {g: cycle for g, cycle in done.items() if cycle > 0}
    moments = Moments()
    cached = GolemCache(context, "moments", _CACHE_SCHEMA).read(wanted)
    is_current = [
        wanted.get(g) == cycle and _signature(left_out, g) == signature
        for g, cycle, signature in zip(*(cached[n].to_pylist() for n in ("golem_id", "cycle", "left")), strict=True)
    ]
    moments.absorb(from_table(cached.filter(pa.array(is_current, pa.bool_())).select(MOMENTS_SCHEMA.names)))
    loaded = {golem_id for golem_id, _ in moments.of}
    missing = {g: cycle for g, cycle in wanted.items() if g not in loaded}
    if missing:
        records = closed_records(context, _RECORD_COLUMNS, dict.fromkeys(missing, 1), missing, left_out)
        cycle = cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
        computed = Moments()
        computed.add(records, cycle, context.policy)
        computed.settle(missing, context.policy)
        moments.absorb(computed)
    return moments


def save_moments(context: DerivationContext, moments: Moments, done: Mapping[str, int], left_out: LeftOut) -> None:
    """Cache the moments of these golems at their last cycles; those of dead golems are dropped."""
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    rows = moments.table(set(done) - dead)
    golems = rows["golem_id"].to_pylist()
    signatures = [_signature(left_out, g) for g in golems]
    rows = rows.append_column(_CACHE_SCHEMA.field("cycle"), pa.array([done[g] for g in golems], pa.int64()))
    rows = rows.append_column(_CACHE_SCHEMA.field("left"), pa.array(signatures, pa.string()))
    GolemCache(context, "moments", _CACHE_SCHEMA).replace(rows, done)


def _signature(left_out: LeftOut, golem_id: str) -> str:
    """Return a text that identifies the retracted ticks of a golem."""
    return repr(left_out.of_golem(golem_id)[0])
