"""Laws of divergence: it equals its twin for golems that died at the same time, and a copy is always flagged."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.grimoire.gas_bands import band_keys
from bardo_pipeline.inheritance.divergence import SENTENCE_COUNT_SCHEMA, divergences
from tests.reference.inheritance.divergence import divergence_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import (
    DAY,
    DIED,
    POLICY,
    baseline,
    deaths,
    decided,
    decisions,
    entry,
    grimoire,
    pattern,
    shuffled,
)

SAID = {"g-1": {"items": 7, "questions": 1, "gaps": 2}, "g-2": {"items": 0, "questions": 0, "gaps": 0}}
ABOUT = [
    *(pattern(tool, gas_band=band) for tool in ("t", "u") for band in ("cheap", "normal", "dear", "not_dear", "any")),
    baseline("gas_price"),
]


def state(draw: st.DrawFn, structure: Any) -> dict[str, Any]:
    """Draw an entry's state from few distinct values."""
    return {
        "sign": draw(st.sampled_from([1, -1])) if structure.source == "pattern" else 0,
        "confidence_ppm": draw(st.sampled_from([0, 100_000, 400_000, 900_000])),
        "status": draw(st.sampled_from(["active", "active", "active", "pruned", "retracted", "folded"])),
        "validations": draw(st.integers(0, 1)),
        "contradictions": draw(st.integers(0, 2)),
        "anchor_at": DIED - draw(st.sampled_from([0, 14, 35])) * DAY,
        "decay_class": draw(st.sampled_from(["structural", "tactical"])),
    }


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Entries and decisions of two golems."""
    entries, result = [], []
    for golem in ("g-1", "g-2"):
        for structure in draw(st.lists(st.sampled_from(ABOUT), unique=True, max_size=8)):
            own, given = draw(st.booleans()), draw(st.booleans())
            if given:
                first = {"status": "active", "validations": 0, "contradictions": 0,
                         "anchor_at": DIED - draw(st.sampled_from([30, 44])) * DAY}  # fmt: skip
                result.append(decided("received", 0, golem_id=golem, about=structure, origin_golem_id="g-0",
                                    **(state(draw, structure) | first)))  # fmt: skip
                for cycle in range(1, draw(st.integers(1, 3))):
                    operation = draw(st.sampled_from(["contradicted", "demoted", "corrected", "pruned", "reinforced"]))
                    result.append(decided(operation, cycle, golem_id=golem, about=structure, origin_golem_id="g-0",
                                        **state(draw, structure)))  # fmt: skip
            if own or not given:
                origin = "g-0" if given and draw(st.booleans()) else golem
                entries.append(entry(golem, structure, origin_golem_id=origin, **state(draw, structure)))
    return entries, result


@pytest.mark.row("INH-14")
@settings(deadline=None, max_examples=times(60))
@given(lives(), st.integers(0, 2**32))
def test_divergence_equals_its_twin_in_any_row_order(
    life: tuple[list[dict[str, Any]], list[dict[str, Any]]], seed: int
) -> None:
    entries, result = life
    table = decisions(*result)
    selected = pa.Table.from_pylist([{"golem_id": g, **row} for g, row in SAID.items()], schema=SENTENCE_COUNT_SCHEMA)
    rows = divergences(
        shuffled(grimoire(*entries), seed), shuffled(table, seed), deaths("g-2", "g-1"), selected, POLICY
    ).to_pylist()
    got = {row.pop("golem_id"): row for row in rows}
    for row in rows:
        assert row["low_divergence"] == ("divergence" in row.pop("shortfalls"))
        row["invalidated"] = [(i["entry_id"], i["how"], i["cycle"], i["seq"]) for i in row["invalidated"]]
        event(f"flagged: {row['low_divergence']}, invalidated: {bool(row['invalidated'])}")
    died = {"g-1": DIED, "g-2": DIED}
    assert got == divergence_by_row(entries, table.to_pylist(), died, SAID, POLICY)


def agreeing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without contradictions: of two opposite rules of a situation the more confident one counts, and
    which that is may change between birth and death."""
    kept: list[dict[str, Any]] = []
    signs: dict[tuple[str, str], int] = {}
    for row in rows:
        about = [(row["golem_id"], part) for part in band_keys(row["structure"]) or (row["structure"],)]
        if all(signs.get(item, row["sign"]) == row["sign"] for item in about):
            kept.append(row)
            signs |= dict.fromkeys(about, row["sign"])
    return kept


@pytest.mark.row("INH-14")
@settings(deadline=None, max_examples=times(30))
@given(lives())
def test_a_golem_that_leaves_only_inherited_entries_has_low_divergence(
    life: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    given_rows = agreeing([row for row in life[1] if row["operation"] == "received"])
    names = [name for name in entry() if name in given_rows[0]] if given_rows else []
    copies = [{name: row[name] for name in names} for row in given_rows]
    for row in divergences(
        grimoire(*copies), decisions(*given_rows), deaths("g-1", "g-2"), SENTENCE_COUNT_SCHEMA.empty_table(), POLICY
    ).to_pylist():
        assert row["divergence_ppm"] == (0 if row["inherited_count"] else None)
        assert row["low_divergence"] == bool(row["inherited_count"])
        assert (row["novel_count"], row["invalidated"]) == (0, [])
