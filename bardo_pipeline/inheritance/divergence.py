"""Measures how far a golem's knowledge at death differs from its inherited knowledge; flags copies. Pure, set-based.

Inherited entries are those received by the golem's first decisions, as of birth. Left entries are its active entries at
death. All golems that died in a batch are computed together.
Source: INH S8 (the anti-proletarianization mandate), canon 43.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.decision_log import OPERATIONS, RECEIVED
from bardo_pipeline.events.record.arrow_columns import all_required, listed, required
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entry_columns import confidence_of, micros, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.katabasis.anonymous_votes import entries_of_dead_golems
from bardo_pipeline.policy import DivergencePolicy, Policy

AGAINST = ("contradicted", "demoted", "retracted")
"""Curator operations against an entry; `corrected` counts too if it changes the entry's sign."""

ENDS = ("retracted", "pruned", "turned", "contradicted")
"""How an inherited entry was invalidated: retracted by its owner; pruned after evidence against it; turned to the
opposite sign; contradicted more often than confirmed."""

MINIMA = ("divergence", "novel_entries", "invalidated_entries", "explicit_gaps", "question_ratio")
"""Names of the minimum requirements on a generation (INH S8.1); a shortfall is reported by this name."""

INVALIDATED = pa.struct(
    [
        *all_required(pa.string(), "entry_id", "how", "text"),
        *all_required(pa.int64(), "cycle", "seq"),
        required("reason", pa.string()),
        listed("ticks", pa.int64()),
    ]
)
"""An invalidated inherited entry. how: one of ENDS. cycle, seq, reason: the last decision against it. ticks: evidence
in this golem's log."""

DIVERGENCE_FIELDS = (
    *all_required(pa.int64(), "inherited_count", "left_count", "novel_count"),
    listed("invalidated", INVALIDATED),
    required("forgotten_count", pa.int64()),
    pa.field("divergence_ppm", pa.int64()),
    *all_required(pa.int64(), "gap_count", "question_ratio_ppm"),
    required("low_divergence", pa.bool_()),
    listed("shortfalls", pa.string()),
)
DIVERGENCE_SCHEMA = pa.schema([required("golem_id", pa.string()), *DIVERGENCE_FIELDS])
"""One row per dead golem; key golem_id. divergence_ppm: in [0, 1,000,000], null without inherited entries.
forgotten_count: inherited entries pruned without evidence against them. shortfalls: the missed MINIMA."""

SENTENCE_COUNT_SCHEMA = pa.schema(
    [required("golem_id", pa.string()), *all_required(pa.int64(), "items", "questions", "gaps")]
)
"""One row per golem: number of sentences in its testament, of questions, and of explicit gaps."""

_DIVERGENCES = """
    with sides as (
        select true as is_given, * from given_bands where source = 'pattern'
        union all select false as is_given, * from left_bands where source = 'pattern'
    ),
    surest as (
        select * from sides
        qualify row_number() over (
            partition by golem_id, structure, is_given order by confidence desc, entry_id
        ) = 1
    ),
    rules as (
        select golem_id, greatest(max(confidence), 1)::bigint as weight_ppm,
            max(sign) filter (is_given) is distinct from max(sign) filter (not is_given) as differs
        from surest group by golem_id, structure
    ),
    shares as (
        select golem_id, (sum(weight_ppm::hugeint * differs::int) * 1000000 // sum(weight_ppm))::bigint as share
        from rules group by golem_id
    ),
    novel as (
        select golem_id, count(distinct entry_id) as novel_count from left_bands
        where (golem_id, structure, sign) not in (select (golem_id, structure, sign) from given_bands)
        group by golem_id
    ),
    inherited as (
        select decisions.*, given.sign as given_sign from decisions join given using (golem_id, entry_id)
    ),
    last as (
        select * from inherited
        qualify row_number() over (partition by golem_id, entry_id order by revision desc, cycle desc, seq desc) = 1
    ),
    against as (
        select * from inherited
        where list_contains($against, operation) or (operation = 'corrected' and sign <> given_sign)
        qualify row_number() over (partition by golem_id, entry_id order by revision desc, cycle desc, seq desc) = 1
    ),
    ended as (
        select last.golem_id, last.entry_id, last.text, against.cycle, against.seq, against.reason, against.cause_ticks,
            against.cycle is not null as spoken, last.status,
            case when last.status in ('retracted', 'pruned') then last.status
                 when last.sign <> last.given_sign then 'turned'
                 when last.contradictions > last.validations then 'contradicted' end as how
        from last left join against using (golem_id, entry_id)
    ),
    lost as (
        select golem_id, list({
                'entry_id': entry_id, 'how': how, 'text': text, 'cycle': cycle, 'seq': seq, 'reason': reason,
                'ticks': cause_ticks
            } order by entry_id) filter (spoken and how is not null) as invalidated,
            count(*) filter (status = 'pruned' and not spoken) as forgotten_count
        from ended group by golem_id
    ),
    received as (select golem_id, count(distinct entry_id) as given_count from given group by golem_id),
    kept as (select golem_id, count(distinct entry_id) as left_count from left_behind group by golem_id)
    select golem_id, coalesce(given_count, 0) as inherited_count, coalesce(left_count, 0) as left_count,
        coalesce(novel_count, 0) as novel_count, coalesce(invalidated, []) as invalidated,
        coalesce(forgotten_count, 0) as forgotten_count,
        if(given_count is null, null, coalesce(share, 0)) as divergence_ppm, coalesce(gaps, 0) as gap_count,
        coalesce(questions * 1000000 // greatest(items, 1), 0) as question_ratio_ppm,
        coalesce(divergence_ppm < $divergence_min, false) as low_divergence
    from deaths left join received using (golem_id) left join kept using (golem_id)
        left join shares using (golem_id) left join novel using (golem_id) left join lost using (golem_id)
        left join sentence_counts using (golem_id)
    order by golem_id
"""


def divergences(
    entries: pa.Table, decisions: pa.Table, deaths: pa.Table, sentence_counts: pa.Table, policy: Policy
) -> pa.Table:
    """Compute the divergence of each dead golem. Returns DIVERGENCE_SCHEMA sorted by golem.

    divergence = sum of w over the rules that differ / sum of w over all rules, rounded down to 1 ppm. A rule is an
    entry of source `pattern`, of any kind; it counts once per band that it spans. Of opposite entries on one side the
    most confident counts. w is the larger of the confidence at birth and the confidence at death, at least 1 ppm. A
    rule differs if only one side has it, or if the signs are opposite. It is 0 without rules and null for founders.

    novel: active entries whose structure and sign were not inherited. invalidated: inherited entries with an end in
    ENDS after a decision in AGAINST. The minimum of invalidated entries is capped at the number of inherited entries.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA as folded at death
    decisions : pa.Table, DECISION_SCHEMA of these golems
    deaths : pa.Table, columns golem_id and at
    sentence_counts : pa.Table, SENTENCE_COUNT_SCHEMA, sentence counts of the testaments
    """
    active, at_us = entries_of_dead_golems(entries.filter(pc.equal(entries["status"], "active")), deaths)
    left = _side(active, confidence_of(active, at_us, policy.decay))
    births = decisions.filter(pc.equal(decisions["operation"], OPERATIONS[RECEIVED]))
    births, _ = entries_of_dead_golems(births, deaths)
    given = _side(births, confidence_of(births, micros(births, "at"), policy.decay))
    rules = policy.divergence
    rows = query_tables(
        _DIVERGENCES,
        {"against": list(AGAINST), "divergence_min": ppm(rules.divergence_min)},
        given=given,
        given_bands=split_by_band(given),
        left_behind=left,
        left_bands=split_by_band(left),
        decisions=decisions.select(_DECIDED),
        deaths=deaths.select(["golem_id"]),
        sentence_counts=sentence_counts,
    ).to_pylist()
    return pa.Table.from_pylist([row | {"shortfalls": shortfalls(row, rules)} for row in rows], DIVERGENCE_SCHEMA)


_DECIDED = (
    "golem_id", "entry_id", "revision", "cycle", "seq", "operation", "reason", "status", "sign", "text", "validations",
    "contradictions", "cause_ticks",
)  # fmt: skip


def _side(entries: pa.Table, confidence: Int64Array) -> pa.Table:
    columns = entries.select(["golem_id", "entry_id", "source", "structure", "sign"])
    return columns.append_column("confidence", pa.array(confidence, pa.int64()))


def shortfalls(row: Mapping[str, Any], rules: DivergencePolicy) -> list[str]:
    """Return the MINIMA that a row of DIVERGENCE_SCHEMA misses, in their order."""
    given = row["inherited_count"]
    missed = {
        "divergence": row["low_divergence"],
        "novel_entries": bool(given) and row["novel_count"] < rules.novel_min,
        "invalidated_entries": len(row["invalidated"]) < min(rules.invalidated_min, given),
        "explicit_gaps": row["gap_count"] < rules.gaps_min,
        "question_ratio": row["question_ratio_ppm"] < ppm(rules.question_ratio_min),
    }
    return [name for name in MINIMA if missed[name]]


def divergence_counts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a row that a bundle holds: counts, shares and flags without entries and ticks."""
    counts = {f.name: row[f.name] for f in DIVERGENCE_FIELDS if f.name != "invalidated"}
    return {**counts, "invalidated_count": len(row["invalidated"])}


def divergence_words(row: Mapping[str, Any]) -> str:
    """Return a row in words for the testament's page."""
    asked_share = f"{row['question_ratio_ppm'] / 1e4:.0f} % of what I say are questions, {row['gap_count']} name a gap"
    given, left = row["inherited_count"], row["left_count"]
    if not given:
        return f"I inherited nothing and leave {_entries(left)}; {asked_share}."
    short = " (low_divergence: little more than a copy)" if row["low_divergence"] else ""
    return (
        f"I inherited {_entries(given)} and leave {left}, {row['novel_count']} of them new; of the rules "
        f"{row['divergence_ppm'] / 1e4:.0f} % differ, by confidence{short}; {len(row['invalidated'])} did not stand; "
        f"{asked_share}."
    )


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
