"""Tables that say in other words what golems know: its facts, the links among its entries, what may cross to others.

Each is a function of the grimoire, the lessons and the policy alone, what may cross of who is old by the last closed
cycle, too; and is renewed by the buckets where one changed. Source: MEM (semantic facts; cross-reference; the bridge),
P-2, canon 12.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.views.crossings import crossings_of, is_elder
from bardo_pipeline.curator.views.entry_links import links_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries_of_buckets
from bardo_pipeline.grimoire.entries import METRIC_UNIT
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.projections.table_specs import FACT_SCHEMA


def facts_of(entries: pa.Table) -> pa.Table:
    """The facts among entries (ENTRY_SCHEMA): active baselines, as FACT_SCHEMA."""
    known = entries.filter(pc.and_(pc.equal(entries["source"], "baseline"), pc.equal(entries["status"], "active")))
    metric = known["metric"].to_pylist()
    renamed = {
        "mean": "effect_mean_ppm",
        "low": "effect_low_ppm",
        "high": "effect_high_ppm",
        "episode_count": "evidence_count",
        "reinforcement_count": "validations",
        "last_reinforced_at": "validated_at",
    }
    columns = {n: known[renamed.get(n, n)] for n in FACT_SCHEMA.names if n != "unit"}
    columns["unit"] = pa.array([METRIC_UNIT[m] for m in metric], pa.string())
    return pa.table({n: columns[n] for n in FACT_SCHEMA.names}).cast(FACT_SCHEMA)


GRIMOIRE_VIEWS: dict[str, Callable[[pa.Table, Policy, Collection[str]], pa.Table]] = {
    "facts": lambda entries, _, __: facts_of(entries),
    "links": lambda entries, _, __: links_of(entries),
    "crossings": crossings_of,
}
"""What each table makes of the entries (ENTRY_SCHEMA) of some golems, of whom these are old (`elders`)."""


def elders(context: DerivationContext, reached: Mapping[str, int] | None = None) -> set[str]:
    """Golems so near the end of their lifespan that they push more (canon 12), as of their last closed cycle.

    reached: that cycle of each golem; None for how far each one's grimoire has come.
    """
    births = context.life("GolemBorn")
    if not births.num_rows:
        return set()
    names, grimoire = births["golem_id"].to_pylist(), context.projections.replaceable("grimoire")
    lifespan = pc.struct_field(births["born"].combine_chunks(), "lifespan_ticks").to_numpy()
    cycle = [grimoire.done(g) if reached is None else reached.get(g) for g in names]
    age = np.array([c or 0 for c in cycle], np.int64) * context.policy.curator.cycle_ticks
    deaths = context.life("DeathDeclared")
    if deaths.num_rows:
        ended = dict(
            zip(
                deaths["golem_id"].to_pylist(),
                pc.struct_field(deaths["died"].combine_chunks(), "tick").to_pylist(),
                strict=True,
            )
        )
        age = np.minimum(age, np.array([ended.get(g, 2**62) for g in names], np.int64))
    return {names[i] for i in np.flatnonzero(is_elder(age, lifespan, context.policy.bridge))}


def derive_grimoire_views(context: DerivationContext, name: str) -> list[Written]:
    """Renew one of these tables for the buckets in which grimoire or lessons changed since."""
    with context.deriving():
        table = context.projections.replaceable(name)
        sources: dict[int, str] = {}
        for one in ("grimoire", "lessons"):
            for bucket, d in context.projections.replaceable(one).digests().items():
                sources[bucket] = f"{sources.get(bucket, '')}{one[0]}{d.low:x}{d.high:x}"
        old = elders(context) if name == "crossings" else set()
        wanted = dict(sources)
        for bucket, some in sorted((bucket_of(g, context.home.bucket_count), g) for g in old):
            if bucket in wanted:
                wanted[bucket] = hashlib.sha256(f"{wanted[bucket]}/{some}".encode()).hexdigest()
        buckets = _behind(table, wanted)
        if not buckets:
            return []
        known = known_entries_of_buckets(context, buckets)
        if name == "crossings":
            made = crossings_of(known, context.policy, old, _linked(context, buckets, sources))
        else:
            made = GRIMOIRE_VIEWS[name](known, context.policy, old)
        return [table.replace(made, buckets, note={"grimoire": {str(b): d for b, d in wanted.items()}})]


def _behind(table: ReplaceableTable, sources: Mapping[int, str]) -> set[int]:
    """Buckets that the table was not made of as they are now."""
    seen = table.noted("grimoire")
    return {b for b, d in sources.items() if seen.get(str(b)) != d}


def _linked(context: DerivationContext, buckets: set[int], sources: Mapping[int, str]) -> pa.Table | None:
    """The links among what the golems of these buckets know, if their table is up to it."""
    table = context.projections.replaceable("links")
    return None if buckets & _behind(table, sources) else table.read(buckets, trusting=True)
