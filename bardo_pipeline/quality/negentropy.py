"""Negentropy: whether a clade's knowledge is gaining order, or merely piling up. Pure, set-based.

Order is what knowledge takes off the uncertainty of what comes next. Each judged decision of a golem is foretold twice
before its verdict is known: by a mind that only counts (the share of its own earlier decisions in which acting won,
Krichevsky and Trofimov's estimate: raw data, no lesson), and by what the golem knew then: of its active rules about
that situation the surest, whose verdict holds with (1 + trust x confidence) / 2. Where no rule speaks, the count does.
In bits, order = 1 - (loss of knowledge) / (loss of the count): 0 for who merely counts, up to 1, below 0 for who would
know more by forgetting.

Why it rises when knowledge is organised and not when there is more of it: log loss is a proper score, so a verdict
that does not depend on what comes gains nothing on average, whatever its confidence. A duplicate speaks of the same
situation, in which one rule speaks already: no bit more. Junk about situations that are not met is silent: no bit
more; junk about those that are met is wrong as often as right and loses by its confidence. Only a distinction that
holds in the world, and confidence that follows how well it held, takes uncertainty away: revalidation raises it, and
decay lowers what nobody confirmed. Beside it stand the rules by which it was reached: bits per rule fall where
knowledge piles up.
Source: INH S8.3; a prequential comparison, after Dawid (1984).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.events.record.arrow_columns import required
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import floor_of, half_life_of, int_column, micros, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy

Ints = NDArray[np.int64]

BIT = 1_000_000
"""Losses are summed in millionths of a bit, as integers: no order of addition shows."""

_NEVER = 2**62


ORDER_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        *[
            required(name, pa.int64())
            for name in ("judged_count", "spoken_count", "count_ubits", "known_ubits", "inherited_ubits", "rule_count")
        ],
    ]
)
"""One row per golem with a judged decision that acting won or lost. spoken_count: those of which a rule spoke.
count_ubits, known_ubits: loss of the count and of knowledge, in millionths of a bit. inherited_ubits: what of the gain
(count - known) came by rules that others had before it: inherited, or let in later. rule_count: rules that it held when
its last verdict came."""

GROUP_SCHEMA = pa.schema(
    [
        required("group", pa.string()),
        required("generation", pa.int64()),
        *[required(name, pa.int64()) for name in ("golem_count", *ORDER_SCHEMA.names[1:])],
        required("order_ppm", pa.int64()),
        required("per_rule_ubits", pa.int64()),
    ]
)
"""One row per group (a lineage, or an owner's clade) and generation. order_ppm = (count - known) / count;
per_rule_ubits: the gain by the rules that were held."""

SPANS = """
    with told as (
        select *, row_number() over (
                partition by golem_id, structure order by revision, cycle, seq
            ) as turn
        from decisions
    ),
    spans as (
        select place, golem_id, structure, active, at_us as since,
            coalesce(lead(at_us) over (partition by golem_id, structure order by turn), $never) as until
        from told
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
    """How much of each golem's uncertainty its knowledge took away: ORDER_SCHEMA, by golem.

    decisions: those that stand (DECISION_SCHEMA), whole lives. outcomes: OUTCOME_SCHEMA, in any order; an effect of
    nothing tells neither way and is left out. A rule counts from the close after which its golem held it, and for what
    was judged later than that, never for its own evidence.
    """
    order = [("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending"), ("effect_ppm", "ascending")]
    outcomes = outcomes.filter(pc.not_equal(outcomes["effect_ppm"], 0)).sort_by(order)
    if not outcomes.num_rows:
        return ORDER_SCHEMA.empty_table()
    won = (int_column(outcomes, "effect_ppm") > 0).astype(np.int64)
    at_us, told = micros(outcomes, "at"), outcomes.select(["golem_id", "structure"])
    for name, values in (("number", np.arange(len(won))), ("at_us", at_us), ("won", won)):
        told = told.append_column(name, pa.array(values, pa.int64()))
    rules, since, until = _rules(decisions)
    numbered = rules.select(["golem_id", "structure"]).append_column("row", pa.array(np.arange(rules.num_rows)))
    spans = split_by_band(numbered)
    row = int_column(spans, "row")
    for name, values in (("number", np.arange(len(row))), ("since", since[row]), ("until", until[row])):
        spans = spans.append_column(name, pa.array(values, pa.int64()))
    spoken = query_tables(SPEAKING, outcomes=told, spans=spans)
    which, rule = int_column(spoken, "number"), row[int_column(spoken, "span")]
    which, rule, sure = _surest(rules, which, rule, at_us, policy)
    counted = query_tables(COUNTED, outcomes=told)
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
    return _summed(told, sums, rules, since, until)


def _rules(decisions: pa.Table) -> tuple[pa.Table, Ints, Ints]:
    """Active rules as golems held them: the decisions that left them so, and from when to when (microseconds)."""
    active = pc.and_(pc.equal(decisions["status"], "active"), pc.not_equal(decisions["sign"], 0))
    active = pc.and_(active, pc.equal(decisions["source"], "pattern"))
    table = decisions.select(["golem_id", "structure", "revision", "cycle", "seq"])
    table = table.append_column("active", active).append_column("place", pa.array(np.arange(decisions.num_rows)))
    table = table.append_column("at_us", pa.array(micros(decisions, "at"), pa.int64()))
    held = query_tables(SPANS, {"never": _NEVER}, decisions=table)
    return decisions.take(held["place"]), int_column(held, "since"), int_column(held, "until")


def _surest(rules: pa.Table, which: Ints, rule: Ints, at_us: Ints, policy: Policy) -> tuple[Ints, Ints, Ints]:
    """Of the rules that speak of one decision the surest when its verdict came; ties to the smaller entry id."""
    sure = conf.confidence_at(
        int_column(rules, "confidence_ppm")[rule],
        micros(rules, "anchor_at")[rule],
        at_us[which],
        half_life_of(rules, policy.decay)[rule],
        floor_of(rules, policy.decay)[rule],
    )
    ids = rules["entry_id"].combine_chunks() if rules.num_rows else pa.array([], pa.string())
    rank = pc.rank(ids, tiebreaker="dense").to_numpy().astype(np.int64) if rules.num_rows else np.zeros(0, np.int64)
    order = np.lexsort((rank[rule], -sure, which))
    first = order[np.r_[True, which[order][1:] != which[order][:-1]]] if len(order) else order
    return which[first], rule[first], sure[first]


def _ubits(chance: NDArray[np.float64]) -> Ints:
    return np.rint(-np.log2(chance) * BIT).astype(np.int64)


def _summed(told: pa.Table, sums: dict[str, Ints], rules: pa.Table, since: Ints, until: Ints) -> pa.Table:
    table = told.select(["golem_id", "at_us"])
    for name, values in sums.items():
        table = table.append_column(name, pa.array(values, pa.int64()))
    summed = table.group_by("golem_id").aggregate(
        [("at_us", "max"), ("at_us", "count"), *((name, "sum") for name in sums)]
    )
    names = {"at_us_max": "last", "at_us_count": "judged_count", **{f"{name}_sum": name for name in sums}}
    summed = summed.rename_columns([names.get(name, name) for name in summed.column_names]).sort_by("golem_id")
    place = pc.index_in(rules["golem_id"], value_set=summed["golem_id"].combine_chunks())
    mine = pc.fill_null(place, -1).to_numpy().astype(np.int64)
    last = np.r_[int_column(summed, "last"), 0]
    there = (mine >= 0) & (since < last[mine]) & (last[mine] <= until)
    held = np.bincount(mine[there], minlength=summed.num_rows).astype(np.int64)
    return summed.append_column("rule_count", pa.array(held)).select(ORDER_SCHEMA.names).cast(ORDER_SCHEMA)


GROUPED = """
    select named.name as group, generation, count(*)::bigint as golem_count,
        sum(judged_count)::bigint as judged_count, sum(spoken_count)::bigint as spoken_count,
        sum(count_ubits)::bigint as count_ubits, sum(known_ubits)::bigint as known_ubits,
        sum(inherited_ubits)::bigint as inherited_ubits, sum(rule_count)::bigint as rule_count
    from orders join named using (golem_id) group by all order by 1, 2
"""


def order_of_groups(orders: pa.Table, named: pa.Table) -> pa.Table:
    """Order by group and generation: GROUP_SCHEMA. named: golem_id, name (its lineage or clade), generation."""
    table = query_tables(GROUPED, orders=orders.select(ORDER_SCHEMA.names), named=named)
    by_count, gain = (
        int_column(table, "count_ubits"),
        int_column(table, "count_ubits") - int_column(table, "known_ubits"),
    )
    share = gain * PPM // np.maximum(by_count, 1)
    per_rule = gain // np.maximum(int_column(table, "rule_count"), 1)
    table = table.append_column("order_ppm", pa.array(share)).append_column("per_rule_ubits", pa.array(per_rule))
    return table.select(GROUP_SCHEMA.names).cast(GROUP_SCHEMA)


@dataclass(frozen=True)
class Trend:
    """Change of order a generation, with the ends of its 95 % interval (None: it cannot be told)."""

    slope: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """In a word: gaining or losing order, or undecided."""
        if self.low is None or self.high is None:
            return "undecided"
        return "gaining" if self.low > 0 else "losing" if self.high < 0 else "undecided"


def trend(orders: pa.Table, generations: Iterable[int]) -> Trend:
    """The straight line through golems' orders over their generations, each weighing what there was to know.

    orders: ORDER_SCHEMA; generations: of each of its rows. The interval is White's, for weights that are not variances,
    with n / (n - 2); it needs three golems and two generations.
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
    rest = y - (weight * y).sum() / weight.sum() - slope * (x - middle)
    error = float(np.sqrt((pull**2 * rest**2).sum() * len(x) / (len(x) - 2)) / spread)
    return Trend(float(slope), float(slope) - 1.96 * error, float(slope) + 1.96 * error)
