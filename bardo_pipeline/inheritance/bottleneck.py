"""The genomic bottleneck: at most 2,048 entries cross a death, and every place has its reason. Pure, set-based.

All golems that died in a batch are taken together; each is ranked among its own. Source: INH S7.1, canon 40.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bardo_pipeline.grimoire.columns import asked, confidence_of, micros
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.katabasis.votes import of_the_dead
from bardo_pipeline.policy import Policy

RULES = ("anti_knowledge", "bloodstain", "baldwin", "diversity", "fill")
"""Why an entry was chosen, in the order in which places are given."""

SELECTED_SCHEMA = pa.schema(
    [
        *ENTRY_SCHEMA,
        pa.field("selected_by", pa.string(), nullable=False),
        pa.field("rank", pa.int64(), nullable=False),
        pa.field("quality_ppm", pa.int64(), nullable=False),
        pa.field("confidence_death_ppm", pa.int64(), nullable=False),
    ]
)
"""One row per (golem, selected entry): the entry untouched, the rule that chose it (RULES), its rank from 1 within its
golem, its quality and its confidence at death in ppm."""

_CANDIDATE = (
    "golem_id", "entry_id", "category", "status", "is_anti_knowledge", "is_bloodstain", "generation", "validations",
    "contradictions",
)  # fmt: skip

SELECT = """
    with weighed as (
        select *, confidence * (validations + 1) // (validations + contradictions + 2) as quality,
            case when is_anti_knowledge then 0
                 when is_bloodstain then 1
                 when generation >= $baldwin_generation and confidence >= $baldwin_confidence then 2
                 else 3 end as rule
        from candidates where status = 'active'
    ),
    in_order as (
        select *,
            row_number() over (partition by golem_id order by rule, quality desc, validated desc, entry_id) as turn,
            count(*) filter (rule <= 1) over (partition by golem_id) as always
        from weighed
    ),
    priority as (
        select * from in_order
        where (rule <= 1 and turn <= $budget) or (rule = 2 and turn <= greatest(always, $quarter))
    ),
    others as (
        select weighed.*, coalesce(taken, 0) as taken,
            row_number() over (partition by golem_id, category order by quality desc, validated desc, entry_id) as round
        from weighed left join (select golem_id, count(*) as taken from priority group by golem_id) using (golem_id)
        where place not in (select place from priority)
    ),
    by_category as (
        select *, row_number() over (
            partition by golem_id order by round, quality desc, validated desc, entry_id
        ) as turn
        from others qualify turn <= least($half, $budget - taken)
    ),
    filled as (
        select *, row_number() over (partition by golem_id order by quality desc, validated desc, entry_id) as turn
        from others where place not in (select place from by_category)
        qualify turn <= greatest($budget - taken - $half, 0)
    ),
    chosen as (
        select place, golem_id, rule, turn, quality, confidence from priority
        union all select place, golem_id, 3, turn, quality, confidence from by_category
        union all select place, golem_id, 4, turn, quality, confidence from filled
    )
    select place, quality, confidence, $rules[rule + 1] as selected_by,
        row_number() over (partition by golem_id order by rule, turn) as rank
    from chosen order by golem_id, rank
"""


def bottleneck(entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Choose what crosses. Returns SELECTED_SCHEMA sorted by golem and rank.

    entries: ENTRY_SCHEMA with bloodstains left (`leave_bloodstains`); only active entries of golems in `deaths`
    (golem_id, at) are candidates. Places are given in this order:

    - anti-knowledge, then bloodstains, as many as there are, up to the budget;
    - Baldwin entries (generation >= 3, confidence >= 0.7 at death) while the first quarter has room;
    - half of the budget by category, in turns: the best of each category left, then the second best of each, ...;
    - the rest, by quality, in every place that is left.

    quality = confidence at death x (validations + 1) / (validations + contradictions + 2), rounded down: HB's
    "confidence x validation ratio" with Laplace's rule of succession, so that what nothing tested counts half.
    Ties: quality, last validated, entry id.
    """
    dead, at_us = of_the_dead(entries, deaths)
    candidates = dead.select(_CANDIDATE)
    for name, values in (
        ("place", np.arange(dead.num_rows)),
        ("confidence", confidence_of(dead, at_us, policy.decay)),
        ("validated", micros(dead, "validated_at")),
    ):
        candidates = candidates.append_column(name, pa.array(values, pa.int64()))
    answer = asked(SELECT, _numbers(policy), candidates=candidates)
    chosen = dead.take(answer.column("place")).select(ENTRY_SCHEMA.names)
    for name, source in (("rank", "rank"), ("quality_ppm", "quality"), ("confidence_death_ppm", "confidence")):
        chosen = chosen.append_column(name, answer.column(source).cast(pa.int64()))
    chosen = chosen.append_column("selected_by", answer.column("selected_by").cast(pa.string()))
    return chosen.select(SELECTED_SCHEMA.names).cast(SELECTED_SCHEMA)


def _numbers(policy: Policy) -> dict[str, int | list[str]]:
    rules = policy.inheritance
    return {
        "budget": rules.budget,
        "quarter": int(rules.budget * rules.priority_share),
        "half": int(rules.budget * rules.diversity_share),
        "baldwin_generation": rules.baldwin_generation,
        "baldwin_confidence": ppm(rules.baldwin_confidence),
        "rules": list(RULES),
    }
