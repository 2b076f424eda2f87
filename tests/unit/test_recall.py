"""Recall: the five entries that fit a situation best, and the warning that blocks acting."""

from datetime import timedelta
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import CELLS, RECALL
from bardo_pipeline.heartbeat.recall_table import Recall, recall_of
from bardo_pipeline.policy import Policy
from tests.support.example_count import times
from tests.support.handmade_grimoires import DAY, DIED, baseline, confidence_at, entry, grimoire, pattern

POLICY = Policy()
NOW = int(DIED.timestamp() * 10**6)
ALL_CELLS = list(product(REGIMES, ANOMALY_BANDS, GAS_BANDS))
HERE = ("volatile", "strained", "normal")
BELIEVED = round(POLICY.retrieval.confidence_min * 10**6)

Row = dict[str, Any]


def about(cell: tuple[str, str, str], tool: str = "uniswap_rebalance", **parts: Any) -> Any:
    return pattern(tool, regime=cell[0], anomaly_band=cell[1], gas_band=cell[2], **parts)


def laid_out(*rows: Row, golems: list[str] | None = None, at_us: int = NOW) -> Recall:
    return recall_of(from_table(grimoire(*rows)), golems or ["g-1"], at_us, EntryNames(), POLICY)


def recalled_ids(recall: Recall, cell: tuple[str, str, str], golem: int = 0) -> list[str]:
    """Return the ids of the entries recalled in a situation, best first."""
    entries = recall.top[:, ALL_CELLS.index(cell), golem]
    return [recall.names.ids[recall.code[e]] for e in entries if e >= 0]


def likeness(structure: Any, cell: tuple[str, str, str]) -> float:
    """Return 0.5 for the regime, up to 0.3 for the band by its distance and 0.2 for gas; 0.3 for a baseline."""
    if structure["regime"] is None:
        return 0.3
    away = abs(ANOMALY_BANDS.index(structure["anomaly_band"]) - ANOMALY_BANDS.index(cell[1]))
    return 0.5 * (structure["regime"] == cell[0]) + 0.3 * (1 - away / 4) + 0.2 * (structure["gas_band"] == cell[2])


def worth(table: pa.Table) -> dict[str, float]:
    """Importance of each entry: confidence by how often it held, more for bloodstains."""
    out = {}
    for row, confidence in zip(table.to_pylist(), confidence_at(table, DIED), strict=True):
        votes = row["validations"] + row["contradictions"]
        stained = POLICY.retrieval.bloodstain_boost if row["is_bloodstain"] else 1.0
        out[row["entry_id"]] = confidence / 10**6 * (row["validations"] + 1) / (votes + 1) * stained
    return out


@st.composite
def knowledge(draw: st.DrawFn) -> list[Row]:
    """Entries of two golems, some of them pruned or candidates."""
    cells = draw(st.lists(st.sampled_from(ALL_CELLS), min_size=1, max_size=10, unique=True))
    rows = []
    for golem_id in ("g-1", "g-2"):
        for cell in cells[: draw(st.integers(0, 10))]:
            fields = {
                "confidence_ppm": draw(st.integers(0, 10**6)), "validations": draw(st.integers(0, 5)),
                "contradictions": draw(st.integers(0, 5)), "is_bloodstain": draw(st.booleans()),
                "kind": draw(st.sampled_from(["insight", "heuristic", "warning"])),
                "sign": draw(st.sampled_from([-1, 1])),
                "status": draw(st.sampled_from(["active", "active", "active", "candidate", "pruned"])),
            }  # fmt: skip
            rows.append(entry(golem_id, about(cell), **fields))
        rows.append(entry(golem_id, baseline("gas_price")))
    return rows


@settings(max_examples=times(30), deadline=None, derandomize=True)
@given(knowledge())
def test_recall_equals_a_ranking_of_every_entry(rows: list[Row]) -> None:
    table = grimoire(*rows)
    recall, value = laid_out(*rows, golems=["g-2", "g-1"]), worth(table)
    weights = POLICY.retrieval
    items = list(zip(table.to_pylist(), confidence_at(table, DIED), strict=True))
    for place, golem_id in enumerate(["g-2", "g-1"]):
        known = [(r, c) for r, c in items if r["golem_id"] == golem_id and r["status"] == "active"]
        own_known = [r for r, c in known if c >= BELIEVED]
        for cell in ALL_CELLS:
            score = {
                r["entry_id"]: weights.semantic * likeness(r, cell) + weights.importance * value[r["entry_id"]]
                for r in own_known
            }
            got = recalled_ids(recall, cell, place)
            assert len(got) == len(set(got)) == min(RECALL, len(own_known))
            best = sorted(score.values(), reverse=True)[: len(got)]
            assert [score[i] for i in got] == pytest.approx(best, abs=2e-6)
            bars = [
                (r["entry_id"], c)
                for r, c in known
                if r["kind"] == "warning" and likeness(r, cell) == pytest.approx(1) and c >= 500_000
            ]
            block = recall.block[ALL_CELLS.index(cell), place]
            assert (recall.names.ids[recall.code[block]] if block >= 0 else None) == (
                max(bars, key=lambda b: b[1])[0] if bars else None
            )


def test_a_golem_without_entries_recalls_nothing() -> None:
    for recall in (laid_out(golems=["g-1", "g-2"]), laid_out(entry("g-9"), golems=["g-1", "g-2"])):
        assert recall.top.shape == (RECALL, CELLS, 2)
        assert (recall.top == -1).all()
        assert (recall.block == -1).all()


@pytest.mark.row("HB-28", "MEM-9")
def test_likeness_is_1_only_in_the_same_situation() -> None:
    recall = laid_out(entry(about=about(HERE), anchor_at=DIED))
    whole = {cell for i, cell in enumerate(ALL_CELLS) if recall.likeness[0, i, 0] > 1 - 1e-9}
    assert whole == {HERE}
    row = about(HERE)._asdict()
    for i, cell in enumerate(ALL_CELLS):
        assert recall.likeness[0, i, 0] == pytest.approx(likeness(row, cell))


@pytest.mark.row("HB-1")
def test_a_believed_warning_blocks_only_recentring_in_its_situation() -> None:
    def blocked(**fields: Any) -> set[tuple[str, str, str]]:
        when = fields.pop("about", about(HERE))
        recall = laid_out(entry(about=when, **({"kind": "warning", "sign": -1, "confidence_ppm": 900_000} | fields)))
        return {cell for i, cell in enumerate(ALL_CELLS) if recall.block[i, 0] >= 0}

    assert blocked() == {HERE}
    assert blocked(kind="heuristic", sign=1) == set()
    assert blocked(about=about(HERE, action_type="add_liquidity")) == set()
    assert blocked(confidence_ppm=499_999, anchor_at=DIED) == set()
    assert blocked(confidence_ppm=500_000, anchor_at=DIED) == {HERE}
    assert blocked(confidence_ppm=900_000, anchor_at=DIED - 14 * DAY) == set(), "a decayed warning does not block"


@pytest.mark.row("MEM-9")
def test_an_entry_below_the_retrieval_threshold_is_not_recalled() -> None:
    def recalled(**fields: Any) -> bool:
        return bool(recalled_ids(laid_out(entry(about=about(HERE), **({"anchor_at": DIED} | fields))), HERE))

    assert recalled(confidence_ppm=500_000)
    assert not recalled(confidence_ppm=499_999)
    assert recalled(confidence_ppm=900_000)
    assert not recalled(confidence_ppm=900_000, anchor_at=DIED - 14 * DAY)
    assert recalled(confidence_ppm=900_000, anchor_at=DIED - 14 * DAY, pinned_ppm=900_000), "its owner pinned it"
    inherited = {"confidence_ppm": 400_000, "confidence_origin_ppm": 700_000}
    assert not recalled(**inherited, provenance="death_testament", generation=1), (
        "an inherited entry counts by its present confidence"
    )
    assert recalled(**inherited, provenance="import", generation=1), (
        "an import counts by its confidence at the origin (canon 23)"
    )


def test_recency_halves_with_the_half_life_of_the_entry_since_validation() -> None:
    rows = [
        entry(about=about(HERE), validated_at=DIED - 14 * DAY, anchor_at=DIED),
        entry(about=about(HERE, "b"), validated_at=DIED - 14 * DAY, decay_class="structural", anchor_at=DIED),
        entry(about=about(HERE, "c"), validated_at=DIED - 14 * DAY, decay_class="tactical", anchor_at=DIED),
        entry(about=about(HERE, "d"), validated_at=DIED + 1 * DAY, anchor_at=DIED),
    ]
    recall = laid_out(*rows)
    recency, _ = recall.factors(recall.top[:4, 0, 0], NOW)
    by_id = dict(zip(recalled_ids(recall, ALL_CELLS[0]), recency.tolist(), strict=True))
    assert [by_id[row["entry_id"]] for row in rows] == pytest.approx([0.5, 0.5, 0.25, 1.0])


def test_the_mood_of_an_entry_is_the_mean_of_its_evidence() -> None:
    row = entry(own_count=4, pleasure_sum_milli=2_000, arousal_sum_milli=-1_000, dominance_sum_milli=0)
    assert laid_out(row).pad[:, 0].tolist() == [0.5, -0.25, 0.0]


def test_an_entry_keeps_its_code_when_more_entries_are_added() -> None:
    names = EntryNames()
    state = from_table(grimoire(entry(about=about(HERE))))
    first = recall_of(state, ["g-1"], NOW, names, POLICY)
    more = from_table(grimoire(*[entry(about=about(cell)) for cell in ALL_CELLS[:6]], entry(about=about(HERE))))
    later = recall_of(more, ["g-1"], NOW + int(timedelta(hours=1).total_seconds() * 10**6), names, POLICY)
    known = names.ids[first.code[0]]
    place = next(e for e in range(len(later.code)) if later.code[e] == first.code[0])
    assert names.ids[later.code[place]] == known
    assert len(set(names.ids)) == len(names.ids) == 7
    assert np.unique(later.code).size == 7
