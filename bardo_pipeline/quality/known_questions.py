"""Questions with known answers, in other words than the entries that answer them. Pure.

Source: X-5 ("retrieval on questions with known answers").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.quality.grimoire_precision import RIGHT, with_verdict

_REGIMES = {
    "trending_up": "The price keeps climbing",
    "trending_down": "The price keeps sliding",
    "range_bound": "The price goes sideways",
    "volatile": "The price swings wildly",
    "unknown": "It is hard to say where the price is heading",
}
_BANDS = {
    "calm": "lies well within its bounds",
    "stirred": "has drifted away from the middle of its bounds",
    "strained": "has come close to one of its bounds",
    "stretched": "has only just left its bounds",
    "broken": "is a long way outside of its bounds",
}
_FEES = {
    "cheap": "lower than usual",
    "normal": "as usual",
    "dear": "much higher than usual",
    "not_dear": "as usual or lower",
    "not_cheap": "as usual or much higher",
    "any": "whatever they are",
}
_LEVELS = {
    "gas_price": "What does a unit of gas usually cost in gwei?",
    "pool_volume": "How many dollars change hands in the pool between two looks?",
    "slippage": "How much of a swap is usually lost to slippage?",
    "gas_cost": "How many dollars of gas does an action take?",
}
_CAUSES = {
    "crash": "After the price has crashed",
    "price_return": "After the price has risen or fallen",
    "price_move": "After the price has jumped",
    "past_return": "After an hour of rising prices",
    "price_excursion": "When the price stands far from its mean",
    "volume": "After much was traded",
    "liquidity": "After liquidity has changed",
    "gas_gwei": "After gas has become dear",
    "hour_14_to_16_utc": "In the early afternoon",
}
_EFFECTS = {
    "gas_gwei": "what happens to the gas price?",
    "volume": "what happens to trading volume?",
    "liquidity": "what happens to the depth of the pool?",
    "price_move": "how large are the moves that follow?",
    "price_return": "where does the price go next?",
}


class Question(NamedTuple):
    """A question to one golem: words, regime of the asking, and the entry that answers it."""

    golem_id: str
    words: str
    regime: str | None
    entry_id: str


class QuestionScore(NamedTuple):
    """Number of questions, share answered within the first places, and mean of 1 / place of the answer."""

    number: int
    hit_rate: float | None
    reciprocal_rank: float | None
    first: int


def words_for(entry: dict[str, Any]) -> str:
    """Return the question that an entry (a row of ENTRY_SCHEMA) answers."""
    if entry["source"] == "baseline":
        return _LEVELS[entry["metric"]]
    if entry["source"] == "causal":
        return f"{_CAUSES[entry['cause']]}, {_EFFECTS[entry['effect']]}"
    scene = f"{_REGIMES[entry['regime']]}, my liquidity {_BANDS[entry['anomaly_band']]}"
    return (
        f"{scene}, and transaction fees are {_FEES[entry['gas_band']]}. Should I move it to the price of now, or wait?"
    )


def questions(living: pa.Table, verdicts: pa.Table) -> list[Question]:
    """Return a question for each right entry of `living` (ENTRY_SCHEMA) by its verdicts (VERDICT_SCHEMA).

    Rules about choices are not asked for: the playbook states them at each tick, so a golem need not find them.
    """
    right = with_verdict(verdicts, RIGHT)
    keys = set(zip(right["golem_id"].to_pylist(), right["entry_id"].to_pylist(), strict=True))
    names = ["golem_id", "entry_id", "source", "metric", "regime", "anomaly_band", "gas_band", "cause", "effect"]
    asked = living.select(names).filter(pc.not_equal(living["source"], "choice"))
    rows = [row for row in asked.to_pylist() if (row["golem_id"], row["entry_id"]) in keys]
    rows.sort(key=lambda row: (row["golem_id"], row["entry_id"]))
    return [Question(row["golem_id"], words_for(row), row["regime"], row["entry_id"]) for row in rows]


def score_answers(places: Sequence[int | None], first: int) -> QuestionScore:
    """Score the place of each answer among the hits (from 1; None if it is missing)."""
    if not places:
        return QuestionScore(0, None, None, first)
    hits = [place for place in places if place is not None and place <= first]
    return QuestionScore(len(places), len(hits) / len(places), sum(1 / place for place in hits) / len(places), first)
