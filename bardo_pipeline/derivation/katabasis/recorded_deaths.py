"""Deaths and owners of golems as the log records them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.katabasis.anonymous_votes import DEATH_SCHEMA


def golem_owners(context: DerivationContext) -> pa.Table:
    """Return golem_id and owner_id of every golem that was born."""
    births = context.life("GolemBorn")
    owner_ids = pc.struct_field(births["born"].combine_chunks(), "owner_id")
    return pa.table({"golem_id": births["golem_id"], "owner_id": owner_ids})


def recorded_deaths(context: DerivationContext) -> pa.Table:
    """Return the deaths of golems with a known owner, by golem (DEATH_SCHEMA); of two, the earlier tick counts."""
    return deaths_with_ticks(context).select(DEATH_SCHEMA.names)


def deaths_with_ticks(context: DerivationContext) -> pa.Table:
    """Return `recorded_deaths` with the tick of each death."""
    deaths = context.life("DeathDeclared")
    tick = pc.struct_field(deaths["died"].combine_chunks(), "tick").cast(pa.int64())
    cycle = cycle_of(tick.to_numpy(zero_copy_only=False), context.policy.curator.cycle_ticks)
    columns = {"golem_id": deaths["golem_id"], "cycle": pa.array(cycle, pa.int64()), "at": deaths["observed_at"]}
    rows = pa.table({**columns, "tick": tick}).join(golem_owners(context), "golem_id", join_type="inner")
    rows = rows.sort_by([("golem_id", "ascending"), ("tick", "ascending")])
    golem_ids = rows["golem_id"].to_pylist()
    is_first = pa.array([i == 0 or golem_ids[i] != golem_ids[i - 1] for i in range(len(golem_ids))], pa.bool_())
    schema = DEATH_SCHEMA.append(pa.field("tick", pa.int64()))
    return rows.filter(is_first).select(schema.names).combine_chunks().cast(schema)
