"""Divergence: how far what a golem leaves is from what it was given; a mere copy is flagged. Pure, set-based.

A golem that inherits and executes without transforming what it was given has taught its successor nothing. What it was
given are the entries that its first decisions received, as of its birth; what it leaves are its active entries, as of
its death. All golems that died in a batch are taken together, and every number rests on decisions that it names.
Source: INH S8 (the anti-proletarianization mandate), canon 43.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.curator.state.decision_log import OPERATIONS, RECEIVED
from bardo_pipeline.events.record.arrow_columns import listed, required
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entry_columns import confidence_of, micros, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.katabasis.anonymous_votes import entries_of_dead_golems
from bardo_pipeline.policy import DivergencePolicy, Policy

AGAINST = ("contradicted", "demoted", "retracted")
"""Operations of the curator that speak against an entry; so does `corrected` where it turns the entry's verdict."""

ENDS = ("retracted", "pruned", "turned", "contradicted")
"""How an inherited entry was invalidated: its owner took it out; what spoke against it brought it below what earns a
place; it says the opposite by now; or it was contradicted more often than confirmed."""

MINIMA = ("divergence", "novel_entries", "invalidated_entries", "explicit_gaps", "question_ratio")
"""What INH S8.1 asks of a generation, by the name under which a shortfall is told."""


INVALIDATED = pa.struct(
    [
        required("entry_id", pa.string()),
        required("how", pa.string()),
        required("text", pa.string()),
        required("cycle", pa.int64()),
        required("seq", pa.int64()),
        required("reason", pa.string()),
        listed("ticks", pa.int64()),
    ]
)
"""An inherited entry that did not stand: how (ENDS), and the last decision that spoke against it, with its reason and
the ticks of this golem's log that are its evidence."""

DIVERGENCE_FIELDS = (
    required("inherited_count", pa.int64()),
    required("left_count", pa.int64()),
    required("novel_count", pa.int64()),
    listed("invalidated", INVALIDATED),
    required("forgotten_count", pa.int64()),
    pa.field("divergence_ppm", pa.int64()),
    required("gap_count", pa.int64()),
    required("question_ratio_ppm", pa.int64()),
    required("low_divergence", pa.bool_()),
    listed("shortfalls", pa.string()),
)
DIVERGENCE_SCHEMA = pa.schema([required("golem_id", pa.string()), *DIVERGENCE_FIELDS])
"""One row per dead golem, key golem_id. divergence_ppm in [0, 1,000,000], null for who inherited nothing.
forgotten_count: inherited entries that faded, no evidence having said that they are wrong. shortfalls: of MINIMA."""

SAID_SCHEMA = pa.schema(
    [required(n, pa.string() if n == "golem_id" else pa.int64()) for n in ("golem_id", "items", "questions", "gaps")]
)
"""One row per golem: sentences of its testament, how many are questions, and how many name something open."""

RULE_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        required("structure", pa.string()),
        pa.field("given_id", pa.string()),
        pa.field("given_sign", pa.int64()),
        pa.field("left_id", pa.string()),
        pa.field("left_sign", pa.int64()),
        required("weight_ppm", pa.int64()),
        required("differs", pa.bool_()),
    ]
)
"""One row per golem and rule of either side: the entry that tells it there, its side of zero, its weight, and whether
the two sides differ in it."""

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
    """The rules of two grimoires side by side: RULE_SCHEMA, by golem and structure.

    given, left: golem_id, entry_id, source, structure, sign, and confidence in ppm of each entry at the moment that
    counts. A rule is a verdict on acting in a situation (source `pattern`), whether it is acted on yet or not: an
    insight that became a heuristic says what it said. A rule that spans several situations counts as one about each.
    Of entries of one side that say the opposite of each other the surest counts, at the moment of that side.
    """
    answer = query_tables(RULES, given=split_by_band(given), left_behind=split_by_band(left))
    return answer.select(RULE_SCHEMA.names).cast(RULE_SCHEMA)


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
    with mine as (
        select decisions.*, given.sign as given_sign from decisions join given using (golem_id, entry_id)
    ),
    last as (
        select * from mine
        qualify row_number() over (partition by golem_id, entry_id order by revision desc, cycle desc, seq desc) = 1
    ),
    against as (
        select * from mine
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


def divergences(entries: pa.Table, decisions: pa.Table, deaths: pa.Table, said: pa.Table, policy: Policy) -> pa.Table:
    """How far each golem that died came from what it was given. Returns DIVERGENCE_SCHEMA sorted by golem.

    entries: ENTRY_SCHEMA as folded at death. decisions: DECISION_SCHEMA of those golems. deaths: golem_id, at.
    said: SAID_SCHEMA of their testaments.

    divergence = sum of w(s) over the rules s in which the two sides differ / sum of w(s) over all rules of either side,
    rounded down to a ppm. A rule is a structure with a verdict (`rules_apart`). w(s) is the larger of the confidence
    with which it was received, as of birth, and the confidence that it had at death, at least 1 ppm. The sides differ
    in a rule that one of them alone holds, or that they hold with opposite verdicts. It is 0 where neither side has a
    rule, for nothing was transformed; and it has no meaning, and no minimum, for a founder.

    novel: active entries of any kind whose structure and verdict were not received. invalidated: received entries that
    ended as ENDS says after a decision against them (AGAINST), which is named; what merely faded is forgotten. gaps:
    sentences about what is open. question_ratio: questions among all sentences. low_divergence: below the policy's
    minimum. A generation that was given fewer entries than are to be invalidated falls short of none by it.
    """
    known, at_us = entries_of_dead_golems(entries.filter(pc.equal(entries["status"], "active")), deaths)
    left = _side(known, confidence_of(known, at_us, policy.decay))
    births = decisions.filter(pc.equal(decisions["operation"], OPERATIONS[RECEIVED]))
    births, _ = entries_of_dead_golems(births, deaths)
    given = _side(births, confidence_of(births, micros(births, "at"), policy.decay))
    shares = query_tables(SHARE, rules=rules_apart(given, left))
    novel = query_tables(NOVEL, given=split_by_band(given), left_behind=split_by_band(left))
    wrong = query_tables(INVALID, {"against": list(AGAINST)}, given=given, decisions=decisions.select(_DECIDED))
    found = _Found(_counts(given), _counts(left), *(_by_golem(t) for t in (shares, novel, wrong, said)))
    rows = [found.row(golem_id, policy.divergence) for golem_id in sorted(deaths["golem_id"].to_pylist())]
    return pa.Table.from_pylist(rows, schema=DIVERGENCE_SCHEMA)


_DECIDED = (
    "golem_id", "entry_id", "revision", "cycle", "seq", "operation", "reason", "status", "sign", "text", "validations",
    "contradictions", "cause_ticks",
)  # fmt: skip


def _side(entries: pa.Table, confidence: NDArray[np.int64]) -> pa.Table:
    return entries.select(_SIDE).append_column("confidence", pa.array(confidence, pa.int64()))


def _counts(side: pa.Table) -> dict[str, int]:
    counted = side.group_by("golem_id").aggregate([("entry_id", "count_distinct")])
    return dict(zip(counted["golem_id"].to_pylist(), counted["entry_id_count_distinct"].to_pylist(), strict=True))


def _by_golem(table: pa.Table) -> dict[str, dict[str, Any]]:
    return {row.pop("golem_id"): row for row in table.to_pylist()}


class _Found(NamedTuple):
    """What was found of each golem; who is not named has none."""

    given: Mapping[str, int]
    left: Mapping[str, int]
    shares: Mapping[str, Mapping[str, Any]]
    novel: Mapping[str, Mapping[str, Any]]
    wrong: Mapping[str, Mapping[str, Any]]
    said: Mapping[str, Mapping[str, Any]]

    def row(self, golem_id: str, rules: DivergencePolicy) -> dict[str, Any]:
        """A row of DIVERGENCE_SCHEMA."""
        given, told = self.given.get(golem_id, 0), self.said.get(golem_id, {})
        wrong = self.wrong.get(golem_id, {"invalidated": [], "forgotten_count": 0})
        share = self.shares.get(golem_id, {"share": 0})["share"] if given else None
        row = {
            "golem_id": golem_id,
            "inherited_count": given,
            "left_count": self.left.get(golem_id, 0),
            "novel_count": self.novel.get(golem_id, {"novel_count": 0})["novel_count"],
            **wrong,
            "divergence_ppm": share,
            "gap_count": told.get("gaps", 0),
            "question_ratio_ppm": told.get("questions", 0) * PPM // max(told.get("items", 0), 1),
            "low_divergence": share is not None and share < ppm(rules.divergence_min),
        }
        return row | {"shortfalls": shortfalls(row, rules)}


def shortfalls(row: Mapping[str, Any], rules: DivergencePolicy) -> list[str]:
    """Which of MINIMA a row (DIVERGENCE_SCHEMA) misses, in their order."""
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
    """A row as what crosses of it: counts, shares and flags, without the entries and ticks behind them."""
    counts = {f.name: row[f.name] for f in DIVERGENCE_FIELDS if f.name != "invalidated"}
    return {**counts, "invalidated_count": len(row["invalidated"])}


def divergence_words(row: Mapping[str, Any]) -> str:
    """A row in words, for whoever reads the testament."""
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
