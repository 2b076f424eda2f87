"""Negentropy: the reduction of uncertainty by a clade's knowledge. Pure, set-based.

Each judged decision of a golem is predicted twice before its verdict. The count predicts with the share of the golem's
earlier decisions in which acting won (the estimate of Krichevsky and Trofimov). The knowledge predicts with the active
rule of the highest confidence about that situation; its verdict holds with probability (1 + trust x confidence) / 2.
Without a rule, the count predicts. Order = 1 - (log loss of the knowledge) / (log loss of the count): 0 for mere
counting, at most 1, negative if the rules predict worse than the count.

Order measures quality of knowledge rather than its amount. Log loss is a proper score, so a rule whose verdict is
independent of the outcome gains nothing on average. A duplicate rule speaks about a situation that has a rule already.
A wrong rule about a situation that occurs loses in proportion to its confidence. Bits per rule fall if the number of
rules grows without better predictions.
Source: INH S8.3; a prequential comparison, after Dawid (1984).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, codes_of, required
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, micros, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy

BIT = 1_000_000
"""Losses are summed as integers in millionths of a bit, so the order of addition is irrelevant."""

_NEVER = 2**62


ORDER_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        *all_required(
            pa.int64(), "judged_count", "spoken_count", "count_ubits", "known_ubits", "inherited_ubits", "rule_count"
        ),
    ]
)
"""One row per golem with a judged decision in which acting won or lost. spoken_count: decisions with a rule.
count_ubits, known_ubits: loss of the count and of the knowledge, millionths of a bit. inherited_ubits: part of the gain
(count - known) by inherited or admitted rules. rule_count: active rules at the last verdict."""

GROUP_SCHEMA = pa.schema(
    [
        required("group", pa.string()),
        *all_required(pa.int64(), "generation", "golem_count", *ORDER_SCHEMA.names[1:], "order_ppm", "per_rule_ubits"),
    ]
)
"""One row per group (a lineage, or an owner's clade) and generation. order_ppm = (count - known) / count;
per_rule_ubits: gain divided by the number of rules."""

SPANS = """
    with numbered as (
        select *, row_number() over (
                partition by golem_id, structure order by revision, cycle, seq
            ) as turn
        from decisions
    ),
    spans as (
        select place, golem_id, structure, active, at_us as since,
            coalesce(lead(at_us) over (partition by golem_id, structure order by turn), $never) as until
        from numbered
    )
    select place, since, until from spans where active and until > since
"""

SPEAKING = """
    select outcomes.number, spans.number as span
    from outcomes join spans using (golem_id, structure)
    where spans.since < outcomes.at_us and outcomes.at_us <= spans.until
    order by 1, 2
"""

COUNTED = """
    select number,
        coalesce(sum(won) over before, 0)::bigint as won, count(*) over before as judged
    from outcomes
    window before as (
        partition by golem_id order by at_us range between unbounded preceding and 1 preceding
    )
    order by number
"""


def order_of_golems(decisions: pa.Table, outcomes: pa.Table, policy: Policy) -> pa.Table:
    """Measure the reduction of each golem's uncertainty by its knowledge (ORDER_SCHEMA, by golem).

    A rule predicts only decisions judged after the close at which it became active, so never its own evidence.

    Parameters
    ----------
    decisions : DECISION_SCHEMA, valid decisions of whole lives
    outcomes : OUTCOME_SCHEMA, in any order; rows with an effect of 0 are left out
    """
    order = [("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending"), ("effect_ppm", "ascending")]
    outcomes = outcomes.filter(pc.not_equal(outcomes["effect_ppm"], 0)).sort_by(order)
    if not outcomes.num_rows:
        return ORDER_SCHEMA.empty_table()
    won = (int_column(outcomes, "effect_ppm") > 0).astype(np.int64)
    at_us, names = micros(outcomes, "at"), {name: outcomes[name] for name in ("golem_id", "structure")}
    judged = pa.table({**names, "number": np.arange(len(won)), "at_us": at_us, "won": won})
    rules, since, until = _rules(decisions)
    numbered = rules.select(["golem_id", "structure"]).append_column("row", pa.array(np.arange(rules.num_rows)))
    spans = split_by_band(numbered)
    row = int_column(spans, "row")
    for name, values in (("number", np.arange(len(row))), ("since", since[row]), ("until", until[row])):
        spans = spans.append_column(name, pa.array(values, pa.int64()))
    spoken = query_tables(SPEAKING, outcomes=judged, spans=spans)
    which, rule = int_column(spoken, "number"), row[int_column(spoken, "span")]
    which, rule, sure = _surest(rules, which, rule, at_us, policy)
    counted = query_tables(COUNTED, outcomes=judged)
    tally = (int_column(counted, "won") + 0.5) / (int_column(counted, "judged") + 1.0)
    by_count = _ubits(np.where(won == 1, tally, 1.0 - tally))
    agrees = (int_column(rules, "sign")[rule] > 0) == (won[which] == 1)
    trusted = policy.worth.rule_trust * sure / PPM
    known = by_count.copy()
    known[which] = _ubits((1.0 + np.where(agrees, trusted, -trusted)) / 2.0)
    inherited = np.zeros(len(won), np.int64)
    own = int_column(rules, "generation")[rule] == 0
    inherited[which] = np.where(own, 0, by_count[which] - known[which])
    speaks = np.zeros(len(won), np.int64)
    speaks[which] = 1
    sums = {"count_ubits": by_count, "known_ubits": known, "inherited_ubits": inherited, "spoken_count": speaks}
    return _summed(judged, sums, rules, since, until)


def _rules(decisions: pa.Table) -> tuple[pa.Table, Int64Array, Int64Array]:
    """Return the decisions that left a rule active, with start and end of that state (microseconds)."""
    active = pc.and_(pc.equal(decisions["status"], "active"), pc.not_equal(decisions["sign"], 0))
    active = pc.and_(active, pc.equal(decisions["source"], "pattern"))
    table = decisions.select(["golem_id", "structure", "revision", "cycle", "seq"])
    table = table.append_column("active", active).append_column("place", pa.array(np.arange(decisions.num_rows)))
    table = table.append_column("at_us", pa.array(micros(decisions, "at"), pa.int64()))
    held = query_tables(SPANS, {"never": _NEVER}, decisions=table)
    return decisions.take(held["place"]), int_column(held, "since"), int_column(held, "until")


def _surest(
    rules: pa.Table, which: Int64Array, rule: Int64Array, at_us: Int64Array, policy: Policy
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the rule of the highest confidence for each decision at its verdict; ties go to the smaller entry id."""
    spoken = rules.take(pa.array(rule, pa.int64()))
    sure = confidence_of(spoken, at_us[which], policy.decay)
    rank = codes_of(spoken["entry_id"], pa.array(sorted(set(spoken["entry_id"].to_pylist())), pa.string()))
    order = np.lexsort((rank, -sure, which))
    first = order[np.r_[True, which[order][1:] != which[order][:-1]]] if len(order) else order
    return which[first], rule[first], sure[first]


def _ubits(chance: Float64Array) -> Int64Array:
    return np.rint(-np.log2(chance) * BIT).astype(np.int64)


def _summed(
    judged: pa.Table, sums: dict[str, Int64Array], rules: pa.Table, since: Int64Array, until: Int64Array
) -> pa.Table:
    table = judged.select(["golem_id", "at_us"])
    for name, values in sums.items():
        table = table.append_column(name, pa.array(values, pa.int64()))
    summed = table.group_by("golem_id").aggregate(
        [("at_us", "max"), ("at_us", "count"), *((name, "sum") for name in sums)]
    )
    names = {"at_us_max": "last", "at_us_count": "judged_count", **{f"{name}_sum": name for name in sums}}
    summed = summed.rename_columns([names.get(name, name) for name in summed.column_names]).sort_by("golem_id")
    golem = codes_of(rules["golem_id"], summed["golem_id"].combine_chunks())
    last = np.r_[int_column(summed, "last"), 0]
    is_held = (golem >= 0) & (since < last[golem]) & (last[golem] <= until)
    held = np.bincount(golem[is_held], minlength=summed.num_rows).astype(np.int64)
    return summed.append_column("rule_count", pa.array(held)).select(ORDER_SCHEMA.names).cast(ORDER_SCHEMA)


GROUPED = """
    select named.name as group, generation, count(*)::bigint as golem_count,
        sum(judged_count)::bigint as judged_count, sum(spoken_count)::bigint as spoken_count,
        sum(count_ubits)::bigint as count_ubits, sum(known_ubits)::bigint as known_ubits,
        sum(inherited_ubits)::bigint as inherited_ubits, sum(rule_count)::bigint as rule_count
    from orders join named using (golem_id) group by all order by 1, 2
"""


def order_of_groups(orders: pa.Table, named: pa.Table) -> pa.Table:
    """Sum order by group and generation (GROUP_SCHEMA).

    Parameters
    ----------
    named : golem_id, name (lineage or clade), generation
    """
    table = query_tables(GROUPED, orders=orders.select(ORDER_SCHEMA.names), named=named)
    by_count = int_column(table, "count_ubits")
    gain = by_count - int_column(table, "known_ubits")
    share = gain * PPM // np.maximum(by_count, 1)
    per_rule = gain // np.maximum(int_column(table, "rule_count"), 1)
    table = table.append_column("order_ppm", pa.array(share)).append_column("per_rule_ubits", pa.array(per_rule))
    return table.select(GROUP_SCHEMA.names).cast(GROUP_SCHEMA)


@dataclass(frozen=True)
class Trend:
    """Change of order per generation with its 95 % interval; None with too few golems."""

    slope: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """Return "gaining", "losing" or "undecided"."""
        if self.low is None or self.high is None:
            return "undecided"
        return "gaining" if self.low > 0 else "losing" if self.high < 0 else "undecided"


def trend(orders: pa.Table, generations: Iterable[int]) -> Trend:
    """Fit a line to the golems' orders over generations, weighted by the loss of the count.

    The interval uses White's robust error with the factor n / (n - 2). It needs three golems and two generations.

    Parameters
    ----------
    orders : ORDER_SCHEMA
    generations : generation of each row
    """
    weight = int_column(orders, "count_ubits").astype(np.float64)
    y = (weight - int_column(orders, "known_ubits")) / np.maximum(weight, 1.0)
    x = np.array(list(generations), np.float64)
    if len(x) < 3 or len(np.unique(x)) < 2:
        return Trend(None, None, None)
    middle = (weight * x).sum() / weight.sum()
    pull = weight * (x - middle)
    spread = (pull * x).sum()
    slope = (pull * y).sum() / spread
    residual = y - (weight * y).sum() / weight.sum() - slope * (x - middle)
    error = float(np.sqrt((pull**2 * residual**2).sum() * len(x) / (len(x) - 2)) / spread)
    return Trend(float(slope), float(slope) - 1.96 * error, float(slope) + 1.96 * error)
