"""Measures how far a golem's knowledge at death differs from its inherited knowledge; flags copies. Pure, set-based.

Inherited entries are those received by the golem's first decisions, as of birth. Left entries are its active entries at
death. All golems that died in a batch are computed together.
Source: INH S8 (the anti-proletarianization mandate), canon 43.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.decision_log import OPERATIONS, RECEIVED
from bardo_pipeline.events.record.arrow_columns import all_required, listed, required
from bardo_pipeline.grimoire.confidence import PPM, ppm
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

RULE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "structure"),
        pa.field("given_id", pa.string()),
        pa.field("given_sign", pa.int64()),
        pa.field("left_id", pa.string()),
        pa.field("left_sign", pa.int64()),
        required("weight_ppm", pa.int64()),
        required("differs", pa.bool_()),
    ]
)
"""One row per golem and rule: the inherited (given) and the left entry with their signs, the rule's weight, and whether
the two differ. An entry is null if its side lacks the rule."""

_SIDE = ("golem_id", "entry_id", "source", "structure", "sign")

RULES = """
    with sides as (
        select true as given, given.* from given where source = 'pattern'
        union all select false as given, left_behind.* from left_behind where source = 'pattern'
    ),
    surest as (
        select * from sides
        qualify row_number() over (
            partition by golem_id, structure, given order by confidence desc, entry_id
        ) = 1
    )
    select golem_id, structure,
        max(entry_id) filter (given) as given_id, max(sign) filter (given)::bigint as given_sign,
        max(entry_id) filter (not given) as left_id, max(sign) filter (not given)::bigint as left_sign,
        greatest(max(confidence), 1)::bigint as weight_ppm,
        given_sign is null or left_sign is null or given_sign <> left_sign as differs
    from surest group by golem_id, structure order by golem_id, structure
"""


def rules_apart(given: pa.Table, left: pa.Table) -> pa.Table:
    """Join the rules of two grimoires by golem and structure (RULE_SCHEMA).

    given, left: columns golem_id, entry_id, source, structure, sign, and confidence in ppm (at birth, at death). A rule
    is an entry of source `pattern`, of any kind. A rule that spans several bands counts once per band. Of opposite
    entries on one side the most confident counts.
    """
    rules = query_tables(RULES, given=split_by_band(given), left_behind=split_by_band(left))
    return rules.select(RULE_SCHEMA.names).cast(RULE_SCHEMA)


SHARE = """
    select golem_id, (sum(weight_ppm::hugeint * differs::int) * 1000000 // sum(weight_ppm))::bigint as share
    from rules group by golem_id
"""

NOVEL = """
    select golem_id, count(distinct entry_id) as novel_count from left_behind
    where (golem_id, structure, sign) not in (select (golem_id, structure, sign) from given)
    group by golem_id
"""

INVALID = """
    with inherited as (
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
    )
    select golem_id,
        coalesce(
            list({
                'entry_id': entry_id, 'how': how, 'text': text, 'cycle': cycle, 'seq': seq, 'reason': reason,
                'ticks': cause_ticks
            } order by entry_id) filter (spoken and how is not null), []
        ) as invalidated,
        count(*) filter (status = 'pruned' and not spoken) as forgotten_count
    from ended group by golem_id
"""


def divergences(
    entries: pa.Table, decisions: pa.Table, deaths: pa.Table, sentence_counts: pa.Table, policy: Policy
) -> pa.Table:
    """Compute the divergence of each dead golem. Returns DIVERGENCE_SCHEMA sorted by golem.

    divergence = sum of w over the rules that differ / sum of w over all rules (`rules_apart`), rounded down to 1 ppm.
    w is the larger of the confidence at birth and the confidence at death, at least 1 ppm. A rule differs if only one
    side has it, or if the signs are opposite. Divergence is 0 without rules and null for founders.

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
    shares = query_tables(SHARE, rules=rules_apart(given, left))
    novel = query_tables(NOVEL, given=split_by_band(given), left_behind=split_by_band(left))
    invalidated = query_tables(INVALID, {"against": list(AGAINST)}, given=given, decisions=decisions.select(_DECIDED))
    figures = _Figures(
        _counts(given), _counts(left), *(_by_golem(t) for t in (shares, novel, invalidated, sentence_counts))
    )
    rows = [figures.row(golem_id, policy.divergence) for golem_id in sorted(deaths["golem_id"].to_pylist())]
    return pa.Table.from_pylist(rows, schema=DIVERGENCE_SCHEMA)


_DECIDED = (
    "golem_id", "entry_id", "revision", "cycle", "seq", "operation", "reason", "status", "sign", "text", "validations",
    "contradictions", "cause_ticks",
)  # fmt: skip


def _side(entries: pa.Table, confidence: Int64Array) -> pa.Table:
    return entries.select(_SIDE).append_column("confidence", pa.array(confidence, pa.int64()))


def _counts(side: pa.Table) -> dict[str, int]:
    counted = side.group_by("golem_id").aggregate([("entry_id", "count_distinct")])
    return dict(zip(counted["golem_id"].to_pylist(), counted["entry_id_count_distinct"].to_pylist(), strict=True))


def _by_golem(table: pa.Table) -> dict[str, dict[str, Any]]:
    return {row.pop("golem_id"): row for row in table.to_pylist()}


class _Figures(NamedTuple):
    """Intermediate figures by golem id; a golem without an item is absent."""

    given: Mapping[str, int]
    left: Mapping[str, int]
    shares: Mapping[str, Mapping[str, Any]]
    novel: Mapping[str, Mapping[str, Any]]
    invalidated: Mapping[str, Mapping[str, Any]]
    sentence_counts: Mapping[str, Mapping[str, Any]]

    def row(self, golem_id: str, rules: DivergencePolicy) -> dict[str, Any]:
        """Return the row of DIVERGENCE_SCHEMA of a golem."""
        given, counts = self.given.get(golem_id, 0), self.sentence_counts.get(golem_id, {})
        invalidated = self.invalidated.get(golem_id, {"invalidated": [], "forgotten_count": 0})
        share = self.shares.get(golem_id, {"share": 0})["share"] if given else None
        row = {
            "golem_id": golem_id,
            "inherited_count": given,
            "left_count": self.left.get(golem_id, 0),
            "novel_count": self.novel.get(golem_id, {"novel_count": 0})["novel_count"],
            **invalidated,
            "divergence_ppm": share,
            "gap_count": counts.get("gaps", 0),
            "question_ratio_ppm": counts.get("questions", 0) * PPM // max(counts.get("items", 0), 1),
            "low_divergence": share is not None and share < ppm(rules.divergence_min),
        }
        return row | {"shortfalls": shortfalls(row, rules)}


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
