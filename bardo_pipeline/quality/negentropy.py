"""Negentropy: the reduction of uncertainty by a clade's knowledge. Pure, set-based.

Each judged decision of a golem is predicted twice before its verdict. The count predicts with the share of the golem's
earlier decisions in which acting won (the estimate of Krichevsky and Trofimov). The knowledge predicts with the active
rule of the highest confidence about that situation; its verdict holds with probability (1 + trust x confidence) / 2.
Without a rule, the count predicts. Order = 1 - (log loss of the knowledge) / (log loss of the count): 0 for mere
counting, at most 1, negative if the rules predict worse than the count.

Log loss is a proper score, so duplicates and rules that are independent of the outcome gain nothing (docs/adr/0042).
Source: INH S8.3; a prequential comparison, after Dawid (1984).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import bool_column, confidence_of, int_column, micros, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy

BIT = 1_000_000
"""Losses are summed as integers in millionths of a bit, so the order of addition is irrelevant."""

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

_RULES = """
    with spans as (
        select place, golem_id, structure, status = 'active' and sign <> 0 and source = 'pattern' as active,
            "at" as since, lead("at") over (partition by golem_id, structure order by revision, cycle, seq) as until
        from decisions
    )
    select place, golem_id, structure, since, until from spans where active and (until is null or until > since)
"""
"""Decisions (place) that left a rule active, with start and end of that state; until is null for the last one."""

_SPEAKING = """
    select number, place, outcomes."at" from outcomes join spans using (golem_id, structure)
    where since < outcomes."at" and (until is null or outcomes."at" <= until)
"""
"""Every rule about the situation of a judged decision (number) that was active before its verdict."""

_PREDICTED = """
    with surest as (
        select number, confidence, sign, generation from speaking join decisions using (place)
        qualify row_number() over (partition by number order by confidence desc, entry_id) = 1
    )
    select golem_id, "at", (effect_ppm > 0)::int as won, count(*) over before as judged_before,
        count(*) filter (effect_ppm > 0) over before as won_before, sign is not null as is_spoken,
        coalesce(confidence, 0) as confidence, coalesce(sign, 0) as sign, coalesce(generation, 0) as generation
    from outcomes left join surest using (number)
    window before as (
        partition by golem_id order by epoch_us("at") range between unbounded preceding and 1 preceding
    )
"""

_SUMMED = """
    with summed as (
        select golem_id, count(*) as judged_count, count(*) filter (is_spoken) as spoken_count,
            sum(count_ubits)::bigint as count_ubits, sum(known_ubits)::bigint as known_ubits,
            coalesce(sum(count_ubits - known_ubits) filter (generation > 0), 0)::bigint as inherited_ubits,
            max("at") as last_at
        from losses group by golem_id
    )
    select summed.* exclude (last_at), count(rules.golem_id) as rule_count
    from summed left join rules
        on rules.golem_id = summed.golem_id and since < last_at and (until is null or last_at <= until)
    group by all order by golem_id
"""


def order_of_golems(decisions: pa.Table, outcomes: pa.Table, policy: Policy) -> pa.Table:
    """Measure the reduction of each golem's uncertainty by its knowledge (ORDER_SCHEMA, by golem).

    A rule predicts only decisions judged after the close at which it became active, so never its own evidence. Of
    several rules the most confident predicts; ties go to the smaller entry id.

    Parameters
    ----------
    decisions : DECISION_SCHEMA, valid decisions of whole lives
    outcomes : OUTCOME_SCHEMA, in any order; rows with an effect of 0 are left out
    """
    outcomes = outcomes.filter(pc.not_equal(outcomes["effect_ppm"], 0))
    outcomes = outcomes.append_column("number", pa.array(np.arange(outcomes.num_rows)))
    states = decisions.select(_STATE).append_column("place", pa.array(np.arange(decisions.num_rows)))
    rules = query_tables(_RULES, decisions=states)
    speaking = query_tables(_SPEAKING, outcomes=outcomes, spans=split_by_band(rules))
    confidence = confidence_of(decisions.take(speaking["place"]), micros(speaking, "at"), policy.decay)
    speaking = speaking.append_column("confidence", pa.array(confidence))
    predicted = query_tables(_PREDICTED, outcomes=outcomes, speaking=speaking, decisions=states)
    is_won = int_column(predicted, "won") == 1
    tally = (int_column(predicted, "won_before") + 0.5) / (int_column(predicted, "judged_before") + 1.0)
    by_count = _ubits(np.where(is_won, tally, 1.0 - tally))
    trusted = policy.worth.rule_trust * int_column(predicted, "confidence") / PPM
    agrees = (int_column(predicted, "sign") > 0) == is_won
    by_rule = _ubits((1.0 + np.where(agrees, trusted, -trusted)) / 2.0)
    known = np.where(bool_column(predicted, "is_spoken"), by_rule, by_count)
    losses = predicted.append_column("count_ubits", pa.array(by_count)).append_column("known_ubits", pa.array(known))
    return query_tables(_SUMMED, losses=losses, rules=rules).select(ORDER_SCHEMA.names).cast(ORDER_SCHEMA)


_STATE = (
    "golem_id", "entry_id", "structure", "revision", "cycle", "seq", "status", "source", "sign", "generation", "at",
)  # fmt: skip


def _ubits(chance: Float64Array) -> Int64Array:
    return np.rint(-np.log2(chance) * BIT).astype(np.int64)


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
