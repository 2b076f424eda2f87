"""Laws of the surprise ranking: it equals its twin; contradictions precede new entries, new entries precede known
ones.
"""

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.views.surprise_ranking import parts_apart, ranked
from bardo_pipeline.grimoire.gas_bands import band_keys
from tests.reference.learning.novelty import ranked_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import (
    DAY,
    DIED,
    POLICY,
    baseline,
    causal,
    entry,
    grimoire,
    pattern,
    shuffled,
)

ABOUT = [
    *(pattern(tool, gas_band=band) for tool in ("t", "u") for band in ("cheap", "normal", "dear", "not_dear", "any")),
    baseline("gas_price"), baseline("slippage"), causal("volume", "liquidity"),
]  # fmt: skip
AT_US = int(DIED.timestamp() * 1_000_000)


@st.composite
def grimoires(draw: st.DrawFn, golem: str, statuses: tuple[str, ...]) -> list[dict[str, Any]]:
    """Draw entries of one golem from few distinct values."""
    rows = []
    for about in draw(st.lists(st.sampled_from(ABOUT), unique=True, max_size=7)):
        mean = draw(st.sampled_from([100, 150, 400]))
        aged = draw(st.sampled_from([0, 14])) * DAY if about.source == "pattern" else 0 * DAY
        sign = 0 if about.source == "baseline" else draw(st.sampled_from([1, -1]))
        rows.append(
            entry(golem, about, sign=sign, confidence_ppm=draw(st.sampled_from([0, 200_000, 400_000, 900_000])),
                  status=draw(st.sampled_from(statuses)), effect_mean_ppm=mean, effect_low_ppm=mean - 50,
                  effect_high_ppm=mean + 50, anchor_at=DIED - aged)
        )  # fmt: skip
    return rows


@pytest.mark.row("INH-10")
@settings(deadline=None, max_examples=times(25))
@given(grimoires("g-2", ("active",)), grimoires("g-1", ("active", "active", "pruned", "candidate")), st.integers(0, 99))
def test_the_surprise_ranking_equals_its_twin_in_any_row_order(
    arriving: list[dict[str, Any]], held: list[dict[str, Any]], seed: int
) -> None:
    rows = ranked(shuffled(grimoire(*arriving), seed), shuffled(grimoire(*held), seed), AT_US, POLICY).to_pylist()
    assert [row["priority"] for row in rows] == list(range(1, len(arriving) + 1))
    twin = ranked_by_row(arriving, held, DIED, POLICY)
    assert [(r["entry_id"], r["relation"], r["surprise_ppm"], r["apart"]) for r in rows] == twin
    event(f"opposed: {any(row['relation'] == 'opposed' for row in rows)}")
    tiers = [("opposed", "unknown", "same").index(row["relation"]) for row in rows]
    assert tiers == sorted(tiers), "the order must be opposed, unknown, same"
    assert all(0 <= row["surprise_ppm"] <= 1_000_000 for row in rows)
    assert all((row["held_id"] is None) <= (row["relation"] == "unknown") for row in rows)


@pytest.mark.row("INH-10")
@settings(deadline=None, max_examples=times(10))
@given(grimoires("g-1", ("active",)))
def test_entries_that_are_already_held_rank_as_known(held: list[dict[str, Any]]) -> None:
    held = [row for row in held if not band_keys(row["structure"])]  # wider rules may speak against narrow ones
    table = grimoire(*held)
    assert {row["relation"] for row in ranked(table, table, AT_US, POLICY).to_pylist()} <= {"same"}
    nothing = ranked(table, table.slice(0, 0), AT_US, POLICY).to_pylist()
    assert all((r["relation"], r["surprise_ppm"], r["apart"]) == ("unknown", 500_000, 13) for r in nothing)
    assert not parts_apart(table, table).any()
