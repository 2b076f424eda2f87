"""Marts of foreign runtimes: records with any valid values, nulls included, build and pass every data test."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline import birth
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import query
from tests.conftest import NOW
from tests.support.records.drawn_records import records

GOLEMS, TICKS = 3, 120
BEGINNING = datetime(2023, 11, 1, tzinfo=UTC)
"""Before the times of the drawn records."""


@pytest.mark.row("P-4", "EV-4")
def test_marts_build_from_records_with_any_valid_values(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), BEGINNING)
    golems = [birth(home, owner="owner-1", lineage=f"drawn/{number}", at=BEGINNING) for number in range(GOLEMS)]
    stores = DerivationContext.open(home.root)
    place = RECORD_SCHEMA.get_field_index("golem_id")
    for number, golem in enumerate(golems):
        drawn = records(TICKS, golems=1, seed=number)
        named = drawn.set_column(place, RECORD_SCHEMA.field(place), pa.array([golem] * TICKS))
        stores.log.append(named, writer="drawn", segment=number + 1, recorded_at=NOW)
    derive_home(stores, clock=lambda: NOW, marts=True)
    (counted,) = query(home, "select count(*), count(is_decided) from fct_tier_verdicts")[1]
    assert counted[0] == counted[1] > 0
    assert query(home, "select count(*) from fct_ticks")[1] == [(GOLEMS * TICKS,)]
    stores.log.close()
