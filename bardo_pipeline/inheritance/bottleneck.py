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
    confidence = confidence_of(dead, at_us, policy.decay)
    table = dead.select(
        [
            "golem_id",
            "entry_id",
            "category",
            "status",
            "is_anti_knowledge",
            "is_bloodstain",
            "generation",
            "validations",
            "contradictions",
        ]
    )
    table = table.append_column("place", pa.array(np.arange(dead.num_rows)))
    table = table.append_column("confidence", pa.array(confidence)).append_column(
        "validated", pa.array(micros(dead, "validated_at"))
    )
    answer = asked(_query(policy), candidates=table)
    chosen = dead.take(answer.column("place")).select(ENTRY_SCHEMA.names)
    for name, source in (
        ("selected_by", "rule"),
        ("rank", "rank"),
        ("quality_ppm", "quality"),
        ("confidence_death_ppm", "confidence"),
    ):
        chosen = chosen.append_column(name, answer.column(source))
    return chosen.cast(SELECTED_SCHEMA)


def _query(policy: Policy) -> str:
    rules = policy.inheritance
    quarter, half = int(rules.budget * rules.priority_share), int(rules.budget * rules.diversity_share)
    best = "quality desc, validated desc, entry_id"
    return f"""
        with weighed as (
            select *, confidence * (validations + 1) // (validations + contradictions + 2) as quality,
                case when is_anti_knowledge then 0 when is_bloodstain then 1
                     when generation >= {rules.baldwin_generation}
                          and confidence >= {ppm(rules.baldwin_confidence)} then 2 else 3 end as class
            from candidates where status = 'active'
        ),
        first_come as (
            select *, row_number() over (partition by golem_id order by class, {best}) as turn,
                count(*) filter (class <= 1) over (partition by golem_id) as bound
            from weighed
        ),
        priority as (
            select * from first_come
            where (class <= 1 and turn <= {rules.budget}) or (class = 2 and turn <= greatest(bound, {quarter}))
        ),
        taken as (
            select golem_id, count(*) as priority_taken from priority group by golem_id
        ),
        others as (
            select weighed.*, coalesce(priority_taken, 0) as priority_taken,
                row_number() over (partition by golem_id, category order by {best}) as round
            from weighed left join taken using (golem_id)
            where place not in (select place from priority)
        ),
        by_category as (
            select *, row_number() over (partition by golem_id order by round, {best}) as turn from others
            qualify turn <= least({half}, {rules.budget} - priority_taken)
        ),
        filled as (
            select * from others where place not in (select place from by_category)
            qualify row_number() over (partition by golem_id order by {best})
                <= {rules.budget} - priority_taken - least({half}, {rules.budget} - priority_taken)
        ),
        chosen as (
            select place, golem_id, entry_id, class as stage, turn as inner_turn, quality, validated, confidence from priority
            union all
            select place, golem_id, entry_id, 3, turn, quality, validated, confidence from by_category
            union all
            select place, golem_id, entry_id, 4, 0, quality, validated, confidence from filled
        )
        select place, {list(RULES)}[stage + 1] as rule, quality, confidence,
            row_number() over (partition by golem_id order by stage, inner_turn, {best}) as rank
        from chosen order by golem_id, rank
    """
