"""Laws of the inheritance preview: it equals its twin, loses no entry, and shows the loss by crossing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.inheritance.bundle_files import CROSSING_COLUMNS
from bardo_pipeline.inheritance.heir_entries import inherited_entries
from bardo_pipeline.inheritance.inheritance_preview import BANDS, GROUPS, histogram, preview
from tests.reference.inheritance.preview import preview_by_rows
from tests.support.example_count import some
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import DAY, DIED, POLICY, deaths, entry, grimoire

pytestmark = pytest.mark.row("INH-17")


@st.composite
def known(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Active entries of few distinct values, warnings among them."""
    rows = []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["insight", "heuristic", "warning"]))
        entry_row = entry(
            "g-1", f"tool_{number}", kind=kind, sign=-1 if kind == "warning" else 1,
            category=draw(st.sampled_from(["slippage", "volatility"])), generation=draw(st.integers(0, 3)),
            is_anti_knowledge=kind == "warning" and draw(st.booleans()),
            confidence_ppm=draw(st.sampled_from([110_000, 400_000, 999_999])),
            anchor_at=DIED - draw(st.sampled_from([0, 7])) * DAY,
        )  # fmt: skip
        rows.append(entry_row)
    return rows


@given(known(), st.booleans())
@some(25)
def test_the_preview_equals_its_twin(rows: list[dict[str, Any]], all_known: bool) -> None:
    bundle = bundle_of(*rows)
    at_us = deaths("g-1")["at"].cast("int64")[0].as_py()
    before = grimoire(*rows)
    result = dict(zip(before["entry_id"].to_pylist(), confidence_of(before, at_us, POLICY.decay).tolist(), strict=True))
    trusted = result if all_known else dict(list(result.items())[::2])
    crossing, heir = bundle.entries(), inherited_entries(bundle, "g-heir", POLICY)
    assert crossing.column_names == list(CROSSING_COLUMNS)
    seen = preview(
        crossing, heir, trusted, golem_id="g-1", bundle_hash="b", generation=1, died_at=DIED, episode_count=0,
        policy=POLICY,
    )  # fmt: skip
    after = dict(zip(heir["entry_id"].to_pylist(), confidence_of(heir, at_us, POLICY.decay).tolist(), strict=True))
    wanted = preview_by_rows(crossing.to_pylist(), after, trusted)
    assert {name: getattr(seen, name) for name in wanted} == wanted
    assert sum(seen.before) == sum(seen.after) == seen.entry_count <= seen.budget
    assert len(seen.before) == len(seen.after) == BANDS
    assert all(sum(getattr(seen, name).values()) == seen.entry_count for name in GROUPS)
    assert seen.mean_after_ppm <= seen.mean_before_ppm, "the mean confidence rose by crossing"


def test_histogram_bands_start_at_tenths_and_the_last_includes_1() -> None:
    assert histogram(np.array([0, 99_999, 100_000, 900_000, 1_000_000])) == (2, 1, *[0] * 7, 2)
