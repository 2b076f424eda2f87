"""Learning state: how far off a golem's forecasts were when it died, so that its heir need not learn that anew. Pure.

A forecast's spread is what it learned from its own residuals (heartbeat/sense.py); it is read off its last records, as
the last prediction of each quantity, brought up to what came. Source: HB ("Persistence across golem generations");
INH-8.
"""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from bardo_pipeline.grimoire.columns import asked
from bardo_pipeline.policy import Policy

QUANTITIES = ("price", "gas", "health")
"""What golems predict, in the order in which a fleet keeps them."""

LEARNING_COLUMNS = ("golem_id", "tick", "predictions")
"""What of a record its learning state rests on."""

UNIT = 1e-12
"""Variances are whole numbers of this: parts per million, squared."""


class Learning(TypedDict):
    """forecast_variance: by quantity, of relative residuals (of health: of its changes), whole ppm squared; null for
    what was not predicted in the golem's last cycle."""

    forecast_variance: dict[str, int | None]


_LAST = """
    with told as (select golem_id, tick, unnest(predictions) as p from records),
    last as (
        select golem_id, p.quantity as quantity, max_by(p, tick) as p from told group by all
    )
    select golem_id, quantity, p.expected as expected, p.low as low, p.high as high, p.actual as actual
    from last order by golem_id, quantity
"""


def learned(records: pa.Table, memory: dict[str, float], policy: Policy) -> dict[str, Learning]:
    """The learning state of each golem at its last record.

    records: LEARNING_COLUMNS of the last cycle of each golem. memory: golem to its trait `forecast_memory`, in [0, 1];
    a golem without records has learned nothing, and is in the answer too.
    """
    rows = asked(_LAST, records=records.select(list(LEARNING_COLUMNS)))
    golems, quantities = rows["golem_id"].to_pylist(), rows["quantity"].to_pylist()
    expected, low, high, actual = (rows[name].to_numpy() for name in ("expected", "low", "high", "actual"))
    scale = np.where(np.array(quantities, object) == "health", 1.0, np.maximum(np.abs(expected), 1e-12))
    sigma = (high - low) / 2.0 / scale / policy.prediction.interval_z
    off = (actual - expected) / scale
    kept = np.array([memory[g] for g in golems])
    variance = np.rint((kept * sigma * sigma + (1.0 - kept) * off * off) / UNIT).astype(np.int64).tolist()
    out: dict[str, Learning] = {g: {"forecast_variance": dict.fromkeys(QUANTITIES)} for g in memory}
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
