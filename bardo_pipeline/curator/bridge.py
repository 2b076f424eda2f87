"""Bridge: what of a grimoire may cross from a golem's own mind to others, and through which gate. Pure, over columns.

Insights and causal links pass the admission gate, the mean of five parts; heuristics must have been acted on and borne
out; warnings only have to be new, since a false alarm costs less than a missed one; what was dreamt has been confirmed
by live outcomes before it is here, and crosses from 0.5 on. A golem that has lived 0.85 of its lifespan pushes insights
from a confidence of 0.4 on instead of 0.6. Nothing crosses that the golem has no evidence of itself.
Episodes, sizes and outcomes never cross: this table names entries, and holds none of them.
Source: MEM ("The bridge: what crosses between loops", "Bridge quality gates"), canon 12, canon ("admission gate").
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.links import links_of
from bardo_pipeline.grimoire.columns import asked
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.policy import BridgePolicy, Policy

PARTS = ("specificity", "actionability", "novelty", "verifiability", "consistency")
"""The five parts of the admission gate (MEM)."""

CROSSING_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("entry_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        *[pa.field(f"{part}_ppm", pa.int64(), nullable=False) for part in PARTS],
        pa.field("admission_ppm", pa.int64(), nullable=False),
        pa.field("gate", pa.string(), nullable=False),
        pa.field("crosses", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
"""One row per active entry that its golem has evidence of; key (golem_id, entry_id).

at: the moment of its last vote, as of which it is judged. *_ppm: the five parts of the admission gate and their mean,
in parts per million. gate: which one it has to pass (admission, outcomes or
novelty); reason: why it crosses, or what it lacks."""

_CROSSINGS = """
with agreeing as (
    select golem_id, entry_id, count(*) as agreeing from (
        select golem_id, entry_id from links where relation = 'agrees'
        union all select golem_id, other_id from links where relation = 'agrees'
    ) group by all
),
known as (
    select e.*, coalesce(a.agreeing, 0) as agreeing, abs(effect_mean_ppm)::hugeint as size,
        ((effect_high_ppm - effect_low_ppm) // 2)::hugeint as doubt
    from entries as e left join agreeing as a using (golem_id, entry_id)
    where status = 'active' and own_count > 0
),
parts as (
    select *,
        case
            when source in ('pattern', 'dream') then ((tool is not null)::int + (action_type is not null)::int
                + (anomaly_band is not null)::int + (gas_band is not null)::int
                + (regime is not null and regime <> 'unknown')::int) * $whole // 5
            when source = 'baseline' then $whole - least(doubt * $whole // greatest(size, 1), $whole)
            else ((cause is not null)::int + (effect is not null)::int + (lag_ticks is not null)::int
                + (regime is not null)::int) * $whole // 4
        end::bigint as specificity_ppm,
        case
            when source in ('pattern', 'dream') then size * $whole // greatest(size + doubt, 1)
            when source = 'baseline' then 0
            else size * $whole // greatest(size + doubt, 1) // 2
        end::bigint as actionability_ppm,
        $whole // (1 + agreeing) as novelty_ppm,
        own_count * $whole // (own_count + $witnesses) as verifiability_ppm,
        (validations + 1) * $whole // (validations + contradictions + 1) as consistency_ppm
    from known
),
judged as (
    select *,
        (specificity_ppm + actionability_ppm + novelty_ppm + verifiability_ppm + consistency_ppm) // 5 as admission_ppm,
        case
            when source = 'dream' then 'validation'
            when kind = 'heuristic' then 'outcomes'
            when kind = 'warning' then 'novelty'
            else 'admission'
        end as gate
    from parts
),
told as (
    select *,
        case
            when gate = 'validation' and confidence_ppm < $dream then 'confidence is below what a dream needs'
            when gate = 'novelty' and novelty_ppm < $novelty then 'others of the golem say as much'
            when gate = 'outcomes' and confidence_ppm < $heuristic then 'confidence is below what a heuristic needs'
            when gate = 'outcomes' and validated_at <= created_at then 'not acted on since it was made'
            when gate = 'outcomes' and validations <= contradictions then 'outcomes did not bear it out'
            when gate = 'admission' and confidence_ppm < if(is_elder, $legacy, $insight)
                then 'confidence is below what an insight needs'
            when gate = 'admission' and admission_ppm <= $admission then 'its five parts do not add up to admission'
        end as lacks
    from judged
)
select golem_id, entry_id, kind, anchor_at as at, specificity_ppm, actionability_ppm, novelty_ppm, verifiability_ppm,
    consistency_ppm, admission_ppm, gate, lacks is null as crosses, coalesce(lacks, 'passes by ' || gate) as reason
from told order by golem_id, entry_id
"""


def dreams_that_cross(entries: pa.Table, policy: Policy) -> pa.Array:
    """Which entries (ENTRY_SCHEMA) the clade may hear of: all but what was dreamt and is not sure enough yet."""
    unsure = pc.less(entries["confidence_ppm"], ppm(policy.dreams.clade_confidence))
    return pc.invert(pc.and_(pc.equal(entries["source"], "dream"), unsure))


def is_elder(age: np.ndarray, lifespan: np.ndarray, policy: BridgePolicy) -> np.ndarray:
    """Whether golems are so old that they push more: a hayflick ratio above 0.85. age, lifespan: ticks, [N]."""
    return np.asarray(age) > policy.legacy_hayflick * np.asarray(lifespan)


def crossings_of(
    entries: pa.Table, policy: Policy, elders: Collection[str] = (), links: pa.Table | None = None
) -> pa.Table:
    """What crosses of these entries (ENTRY_SCHEMA) and why not: CROSSING_SCHEMA, in the order of its key.

    elders: golems near the end of their lifespan (`is_elder`): their insights cross from a lower confidence on, so that
    what they know is left before it is lost. links: those among the entries (LINK_SCHEMA), if they are known.
    """
    rules = policy.bridge
    numbers = {
        "whole": PPM,
        "witnesses": policy.curator.cluster_min,
        "novelty": ppm(rules.warning_novelty_min),
        "insight": ppm(rules.insight_confidence),
        "legacy": min(ppm(rules.legacy_confidence), ppm(rules.insight_confidence)),
        "heuristic": ppm(rules.heuristic_confidence),
        "admission": ppm(rules.admission_min),
        "dream": ppm(policy.dreams.clade_confidence),
    }
    links, old = (
        links_of(entries) if links is None else links,
        pc.is_in(entries["golem_id"], value_set=pa.array(sorted(elders), pa.string())),
    )
    entries = entries.append_column("is_elder", old)
    return asked(_CROSSINGS, numbers, entries=entries, links=links).cast(CROSSING_SCHEMA)
