"""SUPER: rank received entries by how much they differ from the recipient's own, most surprising first. Pure.

Entries are compared by structure. An entry that contradicts a held one ranks first, an entry about an unknown structure
second, an entry that repeats a held one last. Equal words or vectors never decide (canon 17).
Source: INH S4 (Gerstgrasser and others 2023), canon 17.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.entry_columns import confidence_of, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy

RELATIONS = ("opposed", "unknown", "same")
"""Relation of a received entry to the held ones, most surprising first."""

PARTS = (
    "chain", "protocol", "pair", "source", "tool", "action_type", "regime", "anomaly_band", "gas_band", "metric",
    "cause", "effect", "lag_ticks",
)  # fmt: skip
"""Fields of a structure, from the most general to the most specific."""

NOVELTY_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "entry_id", "relation"),
        *all_required(pa.int64(), "surprise_ppm", "apart"),
        pa.field("held_id", pa.string()),
        required("priority", pa.int64()),
    ]
)
"""One row per received entry. relation: one of RELATIONS. apart: number of its PARTS, counted from the last, that no
held entry shares. held_id: the held entry that decides its surprise, null for none. priority: rank from 1."""

RANK = """
    with claims as (
        select *, greatest((effect_high_ppm - effect_low_ppm) / 2.0, 1.0) as spread from held
    ),
    met as (
        select arriving.place, arriving.entry_id, arriving.structure, claims.entry_id as held_id, claims.confidence,
            case when claims.entry_id is null then 0.0
                 when arriving.source = 'baseline'
                    then 1 - least(abs(arriving.effect_mean_ppm - claims.effect_mean_ppm) / claims.spread, 2.0)
                 else arriving.sign * claims.sign end as agreement
        from arriving left join claims using (structure)
        qualify row_number() over (
            partition by arriving.place, arriving.structure order by claims.confidence desc, claims.entry_id
        ) = 1
    ),
    rated as (
        select *, floor(500000 - agreement * coalesce(confidence, 0) / 2)::bigint as surprise from met
    ),
    entries as (
        select place, any_value(entry_id) as entry_id, (sum(surprise) // count(*))::bigint as surprise_ppm,
            min(agreement) as worst, count(held_id) = count(*) and min(agreement) > 0 as is_same,
            arg_max(held_id, (abs(surprise - 500000), held_id)) filter (held_id is not null) as held_id
        from rated group by place
    ),
    related as (
        select *, case when worst < 0 then 1 when is_same then 3 else 2 end as tier from entries
    )
    select entry_id, $relations[tier] as relation, surprise_ppm, apart.apart, held_id,
        row_number() over (order by tier, surprise_ppm desc, apart.apart desc, trusted desc, entry_id) as priority
    from related join apart using (place) order by priority
"""


def ranked(arriving: pa.Table, held: pa.Table, at_us: int, policy: Policy) -> pa.Table:
    """Rank the received entries, as NOVELTY_SCHEMA by priority.

    surprise = (1 - agreement x confidence) / 2 in ppm, against the surest held entry about the same structure.
    Agreement is 1 for the same verdict, -1 for the opposite, 0 without a held entry; for a baseline 1 minus the
    distance in spreads, at least -1. A rule over several gas bands has the mean surprise of its bands, rounded down.
    The order is relation, surprise, `apart`, confidence, id.

    Parameters
    ----------
    arriving : pa.Table, CROSSING_SCHEMA, or ENTRY_SCHEMA without own columns
    held : pa.Table, ENTRY_SCHEMA, the recipient's entries; only active ones count
    at_us : int, UTC microseconds, moment of the held entries' confidence
    """
    active = held.filter(pc.equal(held["status"], "active"))
    confidence = pa.array(confidence_of(active, at_us, policy.decay), pa.int64())
    held_bands = split_by_band(active.select(_CLAIM).append_column("confidence", confidence))
    place = pa.array(np.arange(arriving.num_rows), pa.int64())
    bands = split_by_band(arriving.select(_CLAIM).append_column("place", place))
    trusted = arriving["confidence_ppm"].combine_chunks()
    apart = pa.table({"place": place, "apart": parts_apart(arriving, active), "trusted": trusted})
    answer = query_tables(RANK, {"relations": list(RELATIONS)}, arriving=bands, held=held_bands, apart=apart)
    return answer.select(NOVELTY_SCHEMA.names).cast(NOVELTY_SCHEMA)


_CLAIM = ("entry_id", "structure", "source", "sign", "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm")


def parts_apart(entries: pa.Table, held: pa.Table) -> Int64Array:
    """Return how many PARTS, counted from the last, each entry shares with no held one: 0 (held itself) to 13."""
    count = entries.num_rows
    both = pa.concat_tables([entries.select(PARTS), held.select(PARTS)])
    shared, group = np.zeros(count, np.int64), np.zeros(both.num_rows, np.int64)
    for name in PARTS:
        codes = both[name].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        _, group = np.unique(group * (both.num_rows + 1) + codes, return_inverse=True)
        held_counts = np.bincount(group[count:], minlength=len(group) + 1)
        shared += held_counts[group[:count]] > 0
    return len(PARTS) - shared
