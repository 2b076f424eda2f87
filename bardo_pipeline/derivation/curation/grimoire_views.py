"""Views of the grimoire as tables: facts, links among entries, and the entries that may cross to other golems.

A view is a function of the grimoire, the lessons and the policy; crossings depend on the golem's age too. A view is
replaced in the buckets whose sources changed. Source: MEM (semantic facts; cross-reference; the bridge), P-2, canon 12.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.views.crossings import crossings_of, is_elder, links_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries_of_buckets
from bardo_pipeline.derivation.incremental.incremental_projection import RecomputedProjection
from bardo_pipeline.derivation.incremental.record_queries import values_by_golem
from bardo_pipeline.grimoire.entries import METRIC_UNIT
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.delta.table_specs import FACT_SCHEMA
from bardo_pipeline.storage.home import bucket_of

_FACT_SOURCES = {
    "p10": "level_p10",
    "p25": "effect_low_ppm",
    "median": "effect_mean_ppm",
    "p75": "effect_high_ppm",
    "p90": "level_p90",
    "day_count": "evidence_count",
    "reinforcement_count": "validations",
    "last_reinforced_at": "validated_at",
}
"""Columns of ENTRY_SCHEMA by the names that FACT_SCHEMA gives them."""


def facts_of(entries: pa.Table) -> pa.Table:
    """Return the active baselines among entries (ENTRY_SCHEMA) as facts (FACT_SCHEMA)."""
    is_fact = pc.and_(pc.equal(entries["source"], "baseline"), pc.equal(entries["status"], "active"))
    facts = entries.filter(is_fact)
    columns = {n: facts[_FACT_SOURCES.get(n, n)] for n in FACT_SCHEMA.names if n != "unit"}
    columns["unit"] = pa.array([METRIC_UNIT[m] for m in facts["metric"].to_pylist()], pa.string())
    return pa.table({n: columns[n] for n in FACT_SCHEMA.names}).cast(FACT_SCHEMA)


GRIMOIRE_VIEWS: dict[str, Callable[[pa.Table, Policy, Collection[str]], pa.Table]] = {
    "facts": lambda entries, _, __: facts_of(entries),
    "links": lambda entries, _, __: links_of(entries),
    "crossings": crossings_of,
}
"""Table name to the function (entries, policy, elders) that makes the rows of some golems from their entries."""


def elders(context: DerivationContext, reached: Mapping[str, int] | None = None) -> set[str]:
    """Return the golems near the end of their lifespan, which push more (canon 12), as of their last closed cycle.

    Parameters
    ----------
    reached : golem id to that cycle; by default the last cycle in the grimoire
    """
    births = context.life("GolemBorn")
    if not births.num_rows:
        return set()
    golems, grimoire = births["golem_id"].to_pylist(), context.projections.replaceable("grimoire")
    lifespan = pc.struct_field(births["born"].combine_chunks(), "lifespan_ticks").to_numpy()
    cycle = [grimoire.done(g) if reached is None else reached.get(g) for g in golems]
    age = np.array([c or 0 for c in cycle], np.int64) * context.policy.curator.cycle_ticks
    deaths = context.life("DeathDeclared")
    if deaths.num_rows:
        death_tick = {g: died["tick"] for g, died in values_by_golem(deaths, "died").items()}
        age = np.minimum(age, np.array([death_tick.get(g, 2**62) for g in golems], np.int64))
    return {golems[i] for i in np.flatnonzero(is_elder(age, lifespan, context.policy.bridge))}


class _GrimoireView(RecomputedProjection):
    by_golem = True

    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, context: DerivationContext) -> list[Written]:
        """Replace the view in the buckets in which the grimoire, the lessons or the elders changed."""
        name, table = self._name, context.projections.replaceable(self._name)
        sources: dict[int, str] = {}
        for source in ("grimoire", "lessons"):
            for bucket, digest in context.projections.replaceable(source).digests().items():
                if context.holds_bucket(bucket):
                    sources[bucket] = f"{sources.get(bucket, '')}{source[0]}{digest.low:x}{digest.high:x}"
        old = elders(context) if name == "crossings" else set()
        signatures = dict(sources)
        for bucket, golem_id in sorted((bucket_of(g, context.home.bucket_count), g) for g in old):
            if bucket in signatures:
                signatures[bucket] = hashlib.sha256(f"{signatures[bucket]}/{golem_id}".encode()).hexdigest()
        buckets = _stale_buckets(table, signatures)
        if not buckets:
            return []
        entries = known_entries_of_buckets(context, buckets)
        if name == "crossings":
            rows = crossings_of(entries, context.policy, old, _current_links(context, buckets, sources))
        else:
            rows = GRIMOIRE_VIEWS[name](entries, context.policy, old)
        return [table.replace(rows, buckets, note={"grimoire": {str(b): s for b, s in signatures.items()}})]


def derive_grimoire_views(context: DerivationContext, name: str) -> list[Written]:
    """Replace a view in the buckets in which the grimoire, the lessons or the elders changed."""
    return _GrimoireView(name).update(context)


def _stale_buckets(table: ReplaceableTable, signatures: Mapping[int, str]) -> set[int]:
    """Return the buckets whose noted source signature is not the current one."""
    noted = table.noted("grimoire")
    return {bucket for bucket, signature in signatures.items() if noted.get(str(bucket)) != signature}


def _current_links(context: DerivationContext, buckets: set[int], sources: Mapping[int, str]) -> pa.Table | None:
    """Return the links in these buckets, or None if the table of links is stale there."""
    table = context.projections.replaceable("links")
    return None if buckets & _stale_buckets(table, sources) else table.read(buckets)
