"""Computes the learning state that a dead golem passes on: forecast variances, attention, learned gate, router. Pure.

The forecast variance (heartbeat/observe.py) comes from the last prediction of each quantity, updated with its actual
value. Attention (heartbeat/gate.py) is recomputed from the records of deliberating ticks. The learned gate's state is
that of the last record.
Source: HB ("Persistence across golem generations"); INH-8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.record.model import REGIMES, ExpertWeights
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.inheritance.router_learning import stored_router
from bardo_pipeline.policy import Policy

QUANTITIES = ("price", "gas", "health")
"""Predicted quantities, in a fleet's order."""

LEARNING_COLUMNS = ("golem_id", "tick", "predictions", "gating", "triage")
"""Record columns from which forecast variances and the states of the learned gate and the router are computed."""

THOUGHT_COLUMNS = ("golem_id", "tick", "tier", "regime", "observation", "actions")
"""Record columns from which attention is computed."""

BANDS = 5
PLACES = len(REGIMES) * BANDS
"""Number of situations of attention: regime x anomaly band, ordered by regime."""

UNIT = 1e-12
"""Unit of integer variances: ppm squared."""

MICRO = 1e-6
_GATE_MAX = 10**9
MILLI = 1_000
"""Thoughts are stored in thousandths, because older thoughts count less than one."""


class Attention(TypedDict):
    """Thoughts, and vain thoughts (without an executed action), by situation [PLACES], in thousandths."""

    thoughts: list[int]
    vain: list[int]


class Gate(TypedDict):
    """State of the learned gate.

    log_weights: of its experts beside the heaviest one, in millionths, 0 or less, in the order of ExpertWeights.
    boundaries: alpha and beta of T2, T1 and T0, in thousandths, 1,000 or more.
    """

    log_weights: list[int]
    boundaries: list[list[int]]


class Learning(TypedDict):
    """gate, router: absent in a golem without the learned gate, or without the router of chain events.

    forecast_variance: by quantity, of relative residuals (health: absolute), in ppm squared; null if the last cycle has
    no prediction of the quantity.
    """

    attention: Attention
    gate: NotRequired[Gate]
    router: NotRequired[dict[str, list[int]]]
    forecast_variance: dict[str, int | None]


_LAST = """
    with predictions as (select golem_id, tick, unnest(predictions) as p from records),
    last as (
        select golem_id, p.quantity as quantity, max_by(p, tick) as p from predictions group by all
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
    """Return the attention of each golem in `begun` after its last record.

    records: THOUGHT_COLUMNS of whole lives. begun: golem -> (thoughts, vain thoughts) at birth, PLACES values each.
    """
    numbers = {
        "regimes": list(REGIMES), "bands": BANDS, "edges": list(policy.curator.anomaly_edges),
        "kept": policy.gate.attention_memory,
    }  # fmt: skip
    rows = query_tables(_THOUGHTS, numbers, records=records.select(list(THOUGHT_COLUMNS)))
    counts = {g: np.array(start, np.float64).reshape(2, PLACES) for g, start in begun.items()}
    kept = policy.gate.attention_memory
    for golem_id, place, number, thoughts, vain in zip(*(c.to_pylist() for c in rows.columns), strict=True):
        golem_counts = counts[golem_id]
        golem_counts[:, place] = golem_counts[:, place] * kept**number + (thoughts, vain)
    milli = {g: np.rint(both * MILLI).astype(np.int64).tolist() for g, both in counts.items()}
    return {g: Attention(thoughts=thoughts, vain=vain) for g, (thoughts, vain) in milli.items()}


def attention_of(learning: Any) -> tuple[list[float], list[float]]:
    """Return (thoughts, vain thoughts) at birth, PLACES values each; zeros if the state lacks valid values."""
    attention = learning.get("attention") if isinstance(learning, dict) else None
    counts: list[Any] = [attention.get(n) if isinstance(attention, dict) else None for n in ("thoughts", "vain")]
    if not all(
        isinstance(c, list) and len(c) == PLACES and all(type(v) is int and 0 <= v < 2**31 for v in c) for c in counts
    ):
        return [0.0] * PLACES, [0.0] * PLACES
    thoughts, vain = counts
    return [v / MILLI for v in thoughts], [min(v, t) / MILLI for v, t in zip(vain, thoughts, strict=True)]


def learned(
    records: pa.Table, memory: dict[str, float], attention: Mapping[str, Attention], policy: Policy
) -> dict[str, Learning]:
    """Return the learning state of each golem in `memory`; a golem without records has no variances.

    records: LEARNING_COLUMNS of each golem's last cycle and last delta. memory: golem -> its trait `forecast_memory`,
    in [0, 1]. attention: golem -> attention (`attended`).
    """
    rows = query_tables(_LAST, records=records.select(list(LEARNING_COLUMNS)))
    golems, quantities = rows["golem_id"].to_pylist(), rows["quantity"].to_pylist()
    expected, low, high, actual = (rows[name].to_numpy() for name in ("expected", "low", "high", "actual"))
    scale = np.where(np.array(quantities, object) == "health", 1.0, np.maximum(np.abs(expected), 1e-12))
    sigma = (high - low) / 2.0 / scale / policy.prediction.interval_z
    residual = (actual - expected) / scale
    kept = np.array([memory[g] for g in golems])
    variance = np.rint((kept * sigma * sigma + (1.0 - kept) * residual * residual) / UNIT).astype(np.int64).tolist()
    out: dict[str, Learning] = {
        g: {"attention": attention[g], "forecast_variance": dict.fromkeys(QUANTITIES)} for g in memory
    }
    for golem_id, quantity, value in zip(golems, quantities, variance, strict=True):
        out[golem_id]["forecast_variance"][quantity] = value
    for golem_id, gating in zip(*(c.to_pylist() for c in query_tables(_GATES, records=records).columns), strict=True):
        out[golem_id]["gate"] = _gate(gating)
    routers = query_tables(_ROUTERS, records=records.select(list(LEARNING_COLUMNS)))
    for golem_id, state in zip(*(c.to_pylist() for c in routers.columns), strict=True):
        out[golem_id]["router"] = stored_router(state)
    return out


_GATES = """
    select golem_id, max_by(gating, tick) as gating from records where gating is not null group by all order by golem_id
"""


_ROUTERS = """
    select golem_id, max_by(triage.state, tick) as state from records where triage.state is not null
    group by all order by golem_id
"""


def _gate(gating: dict[str, Any]) -> Gate:
    weights = np.maximum(np.array([gating["weights"][name] for name in ExpertWeights.model_fields]), 1e-300)
    boundaries = (gating[f"boundary_{name}"] for name in ("t2", "t1", "t0"))
    return Gate(
        log_weights=np.rint(np.log(weights / weights.max()) / MICRO).astype(np.int64).tolist(),
        boundaries=[[max(round(b[name] * MILLI), MILLI) for name in ("alpha", "beta")] for b in boundaries],
    )


def gate_faults(learning: Any) -> list[str]:
    """Return why the gate in a learning state cannot be used; empty without one."""
    gate = learning.get("gate", {}) if isinstance(learning, dict) else {}
    if not gate:
        return []
    parts: list[Any] = [gate.get(n) if isinstance(gate, dict) else None for n in ("log_weights", "boundaries")]
    log_weights, boundaries = parts
    faults, experts = [], len(ExpertWeights.model_fields)
    if not (_are_ints(log_weights, -_GATE_MAX, 0) and len(log_weights) == experts and max(log_weights) == 0):
        faults.append(f"gate: log_weights are not {experts} integers of 0 or less, the largest 0")
    if not (isinstance(boundaries, list) and len(boundaries) == 3 and all(map(_is_boundary, boundaries))):
        faults.append(f"gate: boundaries are not 3 pairs of integers from {MILLI:,} to {_GATE_MAX:,}")
    return faults


def _is_boundary(pair: Any) -> bool:
    return _are_ints(pair, MILLI, _GATE_MAX) and len(pair) == 2


def _are_ints(values: Any, low: int, high: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and low <= v <= high for v in values)


def gate_of(learning: Any) -> tuple[list[float], list[list[float]]] | None:
    """Return the logarithms of the weights and the boundaries at birth; None without a valid state."""
    if not isinstance(learning, dict) or not learning.get("gate") or gate_faults(learning):
        return None
    gate = learning["gate"]
    return [v * MICRO for v in gate["log_weights"]], [[v / MILLI for v in pair] for pair in gate["boundaries"]]


def forecast_variances(learning: Any) -> tuple[float | None, ...]:
    """Return the variances at birth, in the order of QUANTITIES; None for a missing or invalid value."""
    stored = learning.get("forecast_variance") if isinstance(learning, dict) else None
    values = [stored.get(name) if isinstance(stored, dict) else None for name in QUANTITIES]
    return tuple(
        v * UNIT if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**62 else None for v in values
    )
