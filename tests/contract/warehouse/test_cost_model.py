"""The daily cost model of HB S3, as a function and as the mart computes it from recorded ticks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.quality.cost_model import daily_cost_micros
from bardo_pipeline.storage.warehouse.build import build_warehouse, query
from tests.conftest import NOW
from tests.support.fleets.memory_fleets import drawn_market, live
from tests.support.homes.dreaming_homes import home_of

TICKS = 5_760
"""Ticks of a day every 15 seconds."""

PRICES = {"T1": 2_000, "T2": 50_000}
"""Micro-dollars a call."""

VECTOR = {"calm": ((8, 2), 6.68), "normal": ((15, 5), 16.13), "volatile": ((25, 15), 46.08)}
"""Percent of the ticks at T1 and at T2, and dollars a day (canon, section 3)."""


@pytest.mark.row("HB-22")
@pytest.mark.parametrize("market", VECTOR)
def test_the_cost_model_reproduces_the_vector(market: str) -> None:
    (t1, t2), dollars = VECTOR[market]
    cost = daily_cost_micros(TICKS, {"T0": 1.0 - (t1 + t2) / 100, "T1": t1 / 100, "T2": t2 / 100}, PRICES | {"T0": 0})
    assert round(cost / 1e6, 2) == dollars


def a_day(row: pa.Table, t1: int, t2: int) -> pa.Table:
    """Return a golem's day of records like this one, of which so many percent are at T1 and at T2."""
    at_t1, at_t2 = round(TICKS * t1 / 100), round(TICKS * t2 / 100)
    tier = np.repeat(["T1", "T2", "T0"], [at_t1, at_t2, TICKS - at_t1 - at_t2])
    cost = np.select([tier == "T1", tier == "T2"], [PRICES["T1"], PRICES["T2"]], 0)
    day = 19_000 * 86_400 * 1_000_000
    columns: dict[str, Any] = {
        "tick": pa.array(np.arange(1, TICKS + 1)), "tier": pa.array(tier.astype(object), pa.string()),
        "observed_at": pa.array(day + np.arange(TICKS) * 15_000_000),
        "cost": pa.StructArray.from_arrays(
            [pa.array(cost), pa.array(np.zeros(TICKS, np.int64)), pa.array(cost)],
            fields=list(row.schema.field("cost").type),
        ),
    }  # fmt: skip
    records = pa.concat_tables([row] * TICKS).combine_chunks()
    for name, values in columns.items():
        place = records.schema.get_field_index(name)
        records = records.set_column(place, records.schema.field(name), values.cast(records.schema.field(name).type))
    return records


@pytest.mark.full
@pytest.mark.row("HB-22")
def test_the_mart_reproduces_the_vector_from_recorded_ticks(tmp_path: Path) -> None:
    lives = live(drawn_market([200_000] * 4), lineages=range(3))
    golems = dict(zip(sorted(lives.births), VECTOR, strict=True))
    days = [a_day(lives.of(golem_id).slice(1, 1), *VECTOR[market][0]) for golem_id, market in golems.items()]
    stores = home_of(replace(lives, records=pa.concat_tables(days)), tmp_path / "home")
    derive_home(stores, clock=lambda: NOW, marts=False)
    build_warehouse(stores.home, stores.derivation_id, stores.policy)
    figures = "sum(daily_inference_usd), sum(inference_usd), min(ticks_per_day), max(call_usd)"
    rows = query(stores.home, f"select golem_id, {figures} from fct_tier_costs group by all")[1]
    assert len(rows) == len(VECTOR)
    for golem_id, model, recorded, pace, call in rows:
        dollars = VECTOR[golems[golem_id]][1]
        assert model == pytest.approx(dollars, abs=0.01), "2 % of 5,760 ticks is no whole number"
        assert recorded == pytest.approx(model)
        assert (pace, call) == (TICKS, 0.05)
    stores.log.close()
