"""Learning state: how far off a golem's forecasts were when it died, and where its thinking came to nothing, so that
its heir need not learn that anew. Pure.

A forecast's spread is what it learned from its own residuals (heartbeat/observe.py); it is read off its last
records, as
the last prediction of each quantity, brought up to what came. Its attention (heartbeat/attention.py) is told again from
the records of its thoughts. Source: HB ("Persistence across golem generations"); INH-8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.policy import Policy

QUANTITIES = ("price", "gas", "health")
"""What golems predict, in the order in which a fleet keeps them."""

LEARNING_COLUMNS = ("golem_id", "tick", "predictions")
"""What of a record its learning state rests on."""

THOUGHT_COLUMNS = ("golem_id", "tick", "tier", "regime", "observation", "actions")
"""What of a record attention rests on."""

BANDS = 5
PLACES = len(REGIMES) * BANDS
"""Situations that attention tells apart: regime x anomaly band, a regime's bands together."""

UNIT = 1e-12
"""Variances are whole numbers of this: parts per million, squared."""


MILLI = 1_000
"""Thoughts are told in thousandths: older ones count for less than one."""


class Attention(TypedDict):
    """Thoughts, and those that came to nothing, by situation [PLACES], in thousandths."""

    thoughts: list[int]
    vain: list[int]


class Learning(TypedDict):
    """attention: where thinking came to nothing. forecast_variance: by quantity, of relative residuals (of health: of
    its changes), whole ppm squared; null for what was not predicted in the golem's last cycle."""

    attention: Attention
    forecast_variance: dict[str, int | None]


_LAST = """
    with told as (select golem_id, tick, unnest(predictions) as p from records),
    last as (
        select golem_id, p.quantity as quantity, max_by(p, tick) as p from told group by all
    )
    select golem_id, quantity, p.expected as expected, p.low as low, p.high as high, p.actual as actual
    from last order by golem_id, quantity
"""


_THOUGHTS = """
    with thought as (
        select golem_id, tick, array_position($regimes, regime) - 1 as regime, observation.anomaly_score as score,
            len(list_filter(actions, lambda a: a.status = 'executed')) > 0 as acted
        from records where tier in ('T1', 'T2')
    ),
    placed as (
        select golem_id, tick, acted,
            regime * $bands + len(list_filter($edges, lambda edge: edge <= score)) as place
        from thought
    ),
    aged as (
        select *, row_number() over (partition by golem_id, place order by tick desc) - 1 as age from placed
    )
    select golem_id, place, count(*) as number, sum(pow($kept, age)) as thoughts,
        coalesce(sum(pow($kept, age)) filter (not acted), 0.0) as vain
    from aged group by all order by golem_id, place
"""


def attended(records: pa.Table, begun: Mapping[str, Sequence[Sequence[float]]], policy: Policy) -> dict[str, Attention]:
    """The attention of each golem after its last record.

    records: THOUGHT_COLUMNS of whole lives. begun: golem to the thoughts and those in vain that it was born with,
    PLACES each; every golem asked for is in it, and in the answer.
    """
    numbers = {
        "regimes": list(REGIMES), "bands": BANDS, "edges": list(policy.curator.anomaly_edges),
        "kept": policy.gate.attention_memory,
    }  # fmt: skip
    rows = query_tables(_THOUGHTS, numbers, records=records.select(list(THOUGHT_COLUMNS)))
    counts = {g: np.array(start, np.float64).reshape(2, PLACES) for g, start in begun.items()}
    kept = policy.gate.attention_memory
    for golem_id, place, number, thoughts, vain in zip(*(c.to_pylist() for c in rows.columns), strict=True):
        mine = counts[golem_id]
        mine[:, place] = mine[:, place] * kept**number + (thoughts, vain)
    return {
        g: Attention(thoughts=told[0].tolist(), vain=told[1].tolist())
        for g, told in ((g, np.rint(both * MILLI).astype(np.int64)) for g, both in counts.items())
    }


def attention_of(learning: Any) -> tuple[list[float], list[float]]:
    """(thoughts, those in vain) to begin with, PLACES each; none where the state does not say, or says wrongly."""
    said = learning.get("attention") if isinstance(learning, dict) else None
    counts: list[Any] = [said.get(name) if isinstance(said, dict) else None for name in ("thoughts", "vain")]
    if not all(isinstance(c, list) and len(c) == PLACES and all(_is_count(v) for v in c) for c in counts):
        return [0.0] * PLACES, [0.0] * PLACES
    thoughts, vain = counts
    return [v / MILLI for v in thoughts], [min(v, t) / MILLI for v, t in zip(vain, thoughts, strict=True)]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def learned(
    records: pa.Table, memory: dict[str, float], attention: Mapping[str, Attention], policy: Policy
) -> dict[str, Learning]:
    """The learning state of each golem at its last record.

    records: LEARNING_COLUMNS of the last cycle of each golem. memory: golem to its trait `forecast_memory`, in [0, 1];
    a golem without records has learned nothing, and is in the answer too. attention: of each of them (`attended`).
    """
    rows = query_tables(_LAST, records=records.select(list(LEARNING_COLUMNS)))
    golems, quantities = rows["golem_id"].to_pylist(), rows["quantity"].to_pylist()
    expected, low, high, actual = (rows[name].to_numpy() for name in ("expected", "low", "high", "actual"))
    scale = np.where(np.array(quantities, object) == "health", 1.0, np.maximum(np.abs(expected), 1e-12))
    sigma = (high - low) / 2.0 / scale / policy.prediction.interval_z
    off = (actual - expected) / scale
    kept = np.array([memory[g] for g in golems])
    variance = np.rint((kept * sigma * sigma + (1.0 - kept) * off * off) / UNIT).astype(np.int64).tolist()
    out: dict[str, Learning] = {
        g: {"attention": attention[g], "forecast_variance": dict.fromkeys(QUANTITIES)} for g in memory
    }
    for golem_id, quantity, value in zip(golems, quantities, variance, strict=True):
        out[golem_id]["forecast_variance"][quantity] = value
    return out


def forecast_variances(learning: Any) -> tuple[float | None, ...]:
    """Variances to begin with, in the order of QUANTITIES; None for what the state does not say, or says wrongly."""
    said = learning.get("forecast_variance") if isinstance(learning, dict) else None
    values = [said.get(name) if isinstance(said, dict) else None for name in QUANTITIES]
    return tuple(
        v * UNIT if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**62 else None for v in values
    )
