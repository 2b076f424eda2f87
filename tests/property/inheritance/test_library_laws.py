"""Laws of libraries: they equal their twin, are a function of sets, and owners are apart."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.inheritance.library.deposits import CHANNELS, DEPOSIT_SCHEMA
from bardo_pipeline.inheritance.library.library_entries import EQUIPPED_SCHEMA, LIVES_SCHEMA, libraries
from bardo_pipeline.policy import LibraryPolicy, Policy
from tests.reference.inheritance.library import libraries_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import DAY, DIED, baseline, causal, entry, grimoire, pattern, shuffled

pytestmark = pytest.mark.row("INH-16")

POLICY = Policy(library=LibraryPolicy(overflow_siblings=2, battle_tested_golems=3, default_lineages=2, kit_golems=2))
"""Low minimums, so that few golems fill a library."""

GOLEMS = [f"g-{i}" for i in range(6)]
ABOUT = [
    *(pattern("t", gas_band=band) for band in ("cheap", "normal", "not_dear")),
    baseline("gas_price"),
    causal("crash", "gas_gwei"),
]
DAYS = st.integers(0, 12)
EVENT_CHANNELS = [channel for channel in CHANNELS if channel != "overflow"]


@st.composite
def entries(draw: st.DrawFn, golem: str) -> list[dict[str, Any]]:
    """Draw a golem's entries from few distinct values."""
    rows = []
    for about in draw(st.lists(st.sampled_from(ABOUT), unique=True, max_size=4)):
        level = {"effect_mean_ppm": draw(st.sampled_from([11_000, 19_000, 30_000]))}
        claim = {"sign": draw(st.sampled_from([1, 1, -1]))}
        rows.append(
            entry(
                golem, about, origin_golem_id=draw(st.sampled_from([golem, golem, "g-0", "g-9"])),
                status=draw(st.sampled_from(["active", "active", "active", "pruned"])),
                own_count=draw(st.sampled_from([0, 3, 9])), validations=draw(st.integers(0, 2)),
                contradictions=draw(st.integers(0, 1)), confidence_ppm=draw(st.sampled_from([300_000, 940_000])),
                created_at=DIED - draw(DAYS) * DAY, validated_at=DIED - draw(DAYS) * DAY,
                anchor_at=DIED - draw(DAYS) * DAY, **(level if about.source == "baseline" else claim),
            )
        )  # fmt: skip
    return rows


Clades = tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]


@st.composite
def clades(draw: st.DrawFn) -> Clades:
    """Deposits, entries, lives and equipment of the golems of two owners."""
    held = [row for golem in GOLEMS for row in draw(entries(golem))]
    lives = [
        {
            "golem_id": g,
            "owner_id": draw(st.sampled_from(["o-1", "o-1", "o-2"])),
            "lineage_id": draw(st.sampled_from("xyz")),
        }
        for g in GOLEMS
    ]
    owner = {life["golem_id"]: life["owner_id"] for life in lives}
    equipped = [
        {"golem_id": g, "structure": about.key} for g in GOLEMS for about in draw(st.sets(st.sampled_from(ABOUT)))
    ]
    names = set(DEPOSIT_SCHEMA.names)
    deposits = [
        {n: v for n, v in row.items() if n in names}
        | {"owner_id": owner[row["golem_id"]], "channel": draw(st.sampled_from(EVENT_CHANNELS)),
           "event_id": f"e{number}", "at": DIED - draw(st.integers(0, 2)) * DAY}
        for number, row in enumerate(held) if draw(st.booleans())
    ]  # fmt: skip
    return deposits, held, lives, equipped


def made(some: Clades, *, upset: int | None = None) -> tuple[pa.Table, pa.Table]:
    deposits, held, lives, equipped = some
    tables = [
        pa.Table.from_pylist(deposits, schema=DEPOSIT_SCHEMA),
        grimoire(*held),
        pa.Table.from_pylist(lives, schema=LIVES_SCHEMA),
        pa.Table.from_pylist(equipped, schema=EQUIPPED_SCHEMA),
    ]
    if upset is not None:
        tables = [shuffled(table, upset) for table in tables]
    return libraries(*tables, POLICY)


@settings(max_examples=times(25), deadline=None)
@given(clades(), st.integers(0, 2**32))
def test_libraries_equal_their_twin_in_any_row_order(some: Clades, upset: int) -> None:
    made_library, made_kits = made(some, upset=upset)
    library, kits = libraries_by_row(*some, POLICY)
    for row in library:
        event(f"by {row['channel']}")
        event(f"battle-tested {row['is_battle_tested']}, default {row['is_default']}")
    for kit in kits:
        event(f"a kit is published: {kit['is_published']}")
    assert made_library.to_pylist() == library
    assert made_kits.to_pylist() == kits


@settings(max_examples=times(6), deadline=None)
@given(clades())
def test_a_library_is_independent_of_other_owners(some: Clades) -> None:
    deposits, held, lives, equipped = some
    whole = made(some)
    for owner in ("o-1", "o-2"):
        keys = {life["golem_id"] for life in lives if life["owner_id"] == owner}
        alone = made(
            (
                [d for d in deposits if d["owner_id"] == owner],
                [row for row in held if row["golem_id"] in keys],
                [life for life in lives if life["owner_id"] == owner],
                equipped,
            )
        )
        for golem, other in zip(alone, whole, strict=True):
            assert golem.to_pylist() == [row for row in other.to_pylist() if row["owner_id"] == owner]
