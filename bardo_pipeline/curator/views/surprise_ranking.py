"""SUPER: what arrives is ranked by how much it would surprise whoever gets it, and tried in that order. Pure.

Surprise is how far a claim lies from what the recipient goes by. By structure first: the opposite of what it holds is
most surprising, what it has nothing about is new, the same again is redundant. Sameness of words or vectors never
decides (canon 17): every entry of ours has a structure, and cosines are for free text alone.
Source: INH S4 (Gerstgrasser and others 2023), canon 17.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.grimoire.entry_columns import confidence_of, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy

Ints = NDArray[np.int64]

RELATIONS = ("opposed", "unknown", "same")
"""What an entry that arrives is to what is held, most surprising first."""

PARTS = (
    "chain", "protocol", "pair", "source", "tool", "action_type", "regime", "anomaly_band", "gas_band", "metric",
    "cause", "effect", "lag_ticks",
)  # fmt: skip
"""What a structure is made of, from what it is about at large to the last detail."""

NOVELTY_SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("surprise_ppm", pa.int64(), nullable=False),
        pa.field("apart", pa.int64(), nullable=False),
        pa.field("held_id", pa.string()),
        pa.field("priority", pa.int64(), nullable=False),
    ]
)
"""One row per entry that arrives: what it is to what is held (RELATIONS), its surprise in ppm, how many of its PARTS,
from the last one back, no held entry shares, the entry that bears most on it (null for none), and its turn, from 1."""

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
    told as (
        select *, floor(500000 - agreement * coalesce(confidence, 0) / 2)::bigint as surprise from met
    ),
    found as (
        select place, any_value(entry_id) as entry_id, (sum(surprise) // count(*))::bigint as surprise_ppm,
            min(agreement) as worst, count(held_id) = count(*) and min(agreement) > 0 as known,
            arg_max(held_id, (abs(surprise - 500000), held_id)) filter (held_id is not null) as held_id
        from told group by place
    ),
    related as (
        select *, case when worst < 0 then 1 when known then 3 else 2 end as tier from found
    )
    select entry_id, $relations[tier] as relation, surprise_ppm, apart.apart, held_id,
        row_number() over (order by tier, surprise_ppm desc, apart.apart desc, trusted desc, entry_id) as priority
    from related join apart using (place) order by priority
"""


def ranked(arriving: pa.Table, held: pa.Table, at_us: int, policy: Policy) -> pa.Table:
    """In which order a recipient should try what arrives. Returns NOVELTY_SCHEMA by priority.

    arriving: columns of ENTRY_SCHEMA without the recipient's own (CROSSING_SCHEMA will do), one row an entry. held: the
    recipient's entries (ENTRY_SCHEMA); only active ones count. at_us: the moment, UTC microseconds.

    surprise = (1 - agreement x confidence) / 2 in ppm, over what is held about the same structure, the surest first:
    agreement is 1 for the same verdict, -1 for the opposite, and 0 where nothing is held; of a baseline 1 less the
    spreads that it lies from what is held, at least -1. A rule that spans several gas bands counts as one about each,
    and its surprise is their mean, rounded down. What opposes comes before what is unknown, and that before what is
    known, each by surprise; then what is further from all that is held (`apart`), surer, and first by id.
    """
    known = held.filter(pc.equal(held["status"], "active"))
    trusted = pa.array(confidence_of(known, at_us, policy.decay), pa.int64())
    mine = split_by_band(known.select(_CLAIM).append_column("confidence", trusted))
    place = pa.array(np.arange(arriving.num_rows), pa.int64())
    told = split_by_band(arriving.select(_CLAIM).append_column("place", place))
    apart = pa.table(
        {"place": place, "apart": parts_apart(arriving, known), "trusted": arriving["confidence_ppm"].combine_chunks()}
    )
    answer = query_tables(RANK, {"relations": list(RELATIONS)}, arriving=told, held=mine, apart=apart)
    return answer.select(NOVELTY_SCHEMA.names).cast(NOVELTY_SCHEMA)


_CLAIM = ("entry_id", "structure", "source", "sign", "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm")


def parts_apart(some: pa.Table, held: pa.Table) -> Ints:
    """How many of PARTS, from the last one back, each structure shares with no held one. int64 [rows of some], 0 to 13.

    A structure that is held itself is 0 apart.
    """
    count = some.num_rows
    both = pa.concat_tables([some.select(PARTS), held.select(PARTS)])
    shared, group = np.zeros(count, np.int64), np.zeros(both.num_rows, np.int64)
    for name in PARTS:
        codes = both[name].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        _, group = np.unique(group * (both.num_rows + 1) + codes, return_inverse=True)
        there = np.bincount(group[count:], minlength=len(group) + 1)
        shared += there[group[:count]] > 0
    return len(PARTS) - shared
