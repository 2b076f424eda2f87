"""Search by columns equals its row-at-a-time twin; its filters and its penalty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.entries import STATUSES
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.hybrid_search import Filters, bm25, fused, likeness, search_entries
from tests.reference.search import bm25 as bm25_by_row
from tests.reference.search import fused as fused_by_row
from tests.reference.search import searched
from tests.support.handmade_grimoires import DAY, DIED, baseline, entry, grimoire

POLICY = Policy()
NOW = int(DIED.timestamp() * 10**6)
VOCABULARY = ("gas", "Gas", "price", "crash", "falling", "trend", "7,700", "Größe", "pool_fee", "re-centring")
TEXTS = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=6).map(" ".join)


def unit(text: str, dimension: int = 8) -> np.ndarray:
    drawn = np.random.default_rng(sum(map(ord, text))).standard_normal(dimension)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


@pytest.mark.row("MEM-10")
@settings(max_examples=80, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=12, unique=True), TEXTS)
def test_bm25_scores_equal_their_twin(texts: list[str], question: str) -> None:
    scores = bm25(pa.array(texts), question, POLICY.retrieval)
    assert scores == pytest.approx(bm25_by_row(texts, question, POLICY))


@pytest.mark.row("MEM-10")
@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_rankings_are_fused_by_reciprocal_rank(pairs: list[tuple[int, int]]) -> None:
    rankings = [[float(pair[at]) for pair in pairs] for at in (0, 1)]
    assert fused([np.array(r) for r in rankings], 60) == pytest.approx(fused_by_row(rankings, 60))


@st.composite
def held(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Entries of three golems, some of one text."""
    rows = []
    for number in range(draw(st.integers(1, 10))):
        fields = {
            "confidence_ppm": draw(st.integers(0, 10**6)), "is_bloodstain": draw(st.booleans()),
            "is_anti_knowledge": draw(st.booleans()), "anchor_at": DIED - draw(st.integers(0, 40)) * DAY,
            "status": draw(st.sampled_from(["active", "active", *STATUSES])), "text": draw(TEXTS),
            "kind": draw(st.sampled_from(["insight", "heuristic", "warning"])),
        }  # fmt: skip
        about: Any = baseline("gas_price", f"pair-{number}") if draw(st.booleans()) else f"tool-{number}"
        rows.append(entry(draw(st.sampled_from(["g-1", "g-2", "g-3"])), about, **fields))
    return rows


def search_rows(
    rows: list[dict[str, Any]], question: str, *, decay: bool = True, **filters: Any
) -> list[dict[str, Any]]:
    table = pa.concat_tables([grimoire(row) for row in rows])
    texts = sorted({row["text"] for row in rows})
    vectors = np.stack([unit(text) for text in texts])
    text_of = np.array([texts.index(row["text"]) for row in rows])
    return search_entries(
        table, vectors, text_of, question, unit(question), at_us=NOW, filters=Filters(**filters), decay=decay,
        policy=POLICY,
    ).to_pylist()  # fmt: skip


@pytest.mark.full
@pytest.mark.row("MEM-10")
@settings(max_examples=120, deadline=None)
@given(held(), TEXTS, st.none() | st.sampled_from(STATUSES), st.none() | st.sampled_from(["insight", "warning"]))
def test_search_equals_its_row_by_row_twin(
    rows: list[dict[str, Any]], question: str, status: str | None, kind: str | None
) -> None:
    hits = search_rows(rows, question, status=status, kind=kind)
    passing = [r for r in rows if status in (None, r["status"]) and kind in (None, r["kind"])]
    plain = [r | {n: int(r[n].timestamp() * 10**6) for n in ("anchor_at", "validated_at")} for r in passing]
    vectors = {row["text"]: [float(x) for x in unit(row["text"])] for row in rows}
    twin = searched(plain, vectors, question, [float(x) for x in unit(question)], NOW, POLICY) if plain else []
    assert [hit["rank"] for hit in hits] == list(range(1, len(twin) + 1))
    assert {hit["text"]: hit["relevance"] for hit in hits} == pytest.approx({t["text"]: t["relevance"] for t in twin})
    assert [hit["score"] for hit in hits] == pytest.approx([t["score"] for t in twin], abs=1e-9)
    assert {hit["text"]: hit["holders"] for hit in hits} == {
        t["text"]: sum(r["text"] == t["text"] for r in passing) for t in twin
    }
    for hit in hits:
        assert hit["score"] == pytest.approx(hit["relevance"] * hit["retained"])


@pytest.mark.row("MEM-10")
def test_texts_with_equal_scores_share_a_rank() -> None:
    texts = ("gas", "Gas", "gas 7,700 7,700", "gas gas gas 7,700")
    hits = search_rows([entry("g-1", str(n), text=text) for n, text in enumerate(texts)], "gas")
    relevance = {hit["text"]: hit["relevance"] for hit in hits}
    assert relevance["gas"] == 2 / (POLICY.retrieval.fusion_k + 1)


@pytest.mark.row("MEM-10")
def test_decay_is_an_optional_penalty() -> None:
    fresh = entry("g-1", "a", text="gas in a crash", confidence_ppm=500_000, anchor_at=DIED)
    faded = entry("g-1", "b", text="gas in a falling crash", confidence_ppm=500_000, anchor_at=DIED - 60 * DAY)
    question = "gas falling crash"
    assert search_rows([fresh, faded], question, decay=False)[0]["text"] == faded["text"]
    assert search_rows([fresh, faded], question)[0]["text"] == fresh["text"]


@pytest.mark.row("MEM-10")
def test_the_minimum_confidence_applies_to_the_confidence_of_the_publisher() -> None:
    entry_row = entry(
        "g-1", "a", text="gas price", confidence_ppm=300_000, confidence_origin_ppm=900_000, anchor_at=DIED
    )
    row = entry(
        "g-1", "b", text="gas crash", provenance="death_testament", confidence_ppm=300_000,
        confidence_origin_ppm=900_000, anchor_at=DIED,
    )  # fmt: skip
    assert {hit["text"] for hit in search_rows([entry_row, row], "gas")} == {"gas price", "gas crash"}
    assert [hit["text"] for hit in search_rows([entry_row, row], "gas", confidence_min=0.5)] == ["gas crash"]
    assert search_rows([entry_row, row], "gas", confidence_min=0.95) == []


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"kind": "foo"}, "no kind is called 'foo'"),
        ({"category": "foo"}, "no category is called 'foo'"),
        ({"domain": "foo"}, "no domain is called 'foo'"),
        ({"regime": "bull"}, "no regime is called 'bull'"),
        ({"status": "foo"}, "no status is called 'foo'"),
        ({"confidence_min": 1.7}, "a confidence is between 0 and 1, not 1.7"),
        ({"confidence_min": float("nan")}, "a confidence is between 0 and 1"),
    ],
)
def test_an_unknown_filter_value_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(QueryError, match=text):
        Filters(**wrong)


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize("name", ["kind", "category", "domain", "regime", "status", "chain", "pair", "tool"])
def test_each_filter_narrows_by_its_own_column(name: str) -> None:
    other = {"kind": "warning", "category": "slippage", "domain": "gas", "regime": "trending_up", "status": "candidate",
             "chain": "base", "pair": "WBTC/USDC", "tool": "swap"}  # fmt: skip
    rows = [entry("g-1", "a", text="gas price"), entry("g-1", "b", text="gas crash") | {name: other[name]}]
    plain = {"status": None} if name != "status" else {}
    assert rows[0][name] != other[name]
    assert {hit["text"] for hit in search_rows(rows, "gas", status=None)} == {"gas price", "gas crash"}
    assert [hit["text"] for hit in search_rows(rows, "gas", **(plain | {name: other[name]}))] == ["gas crash"]


def test_the_likeness_of_opposite_vectors_is_zero() -> None:
    vectors = np.stack([unit("a"), -unit("a")])
    assert likeness(vectors, unit("a")).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
