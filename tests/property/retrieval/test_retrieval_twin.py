"""Retrieval by columns equals its row-at-a-time twin; laws of the contrarian turn."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, DECAY_CLASSES
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.credit_totals import Uses
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.scoring import FACTORS, LAYERS
from bardo_pipeline.retrieval.situation import Situation
from benchmarks.retrieve import START_US
from benchmarks.retrieve import grimoire as drawn
from tests.reference.retrieval import contrarian, retrieved
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import DAY, DIED, baseline, entry, grimoire, pattern, shuffled

POLICY = Policy()
NOW = int(DIED.timestamp() * 10**6)
DIMENSION = 16
MOODS = st.tuples(*[st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])] * 3)
MILLIS = st.integers(-2_000, 2_000) | st.just(0)


def unit(seed: int) -> np.ndarray:
    """A vector of length one; one seed, one vector."""
    drawn = np.random.default_rng(seed).standard_normal(DIMENSION)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


@st.composite
def knowledge(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw entries of two golems with every input of a score; some entries have equal inputs."""
    rows = []
    for number in range(draw(st.integers(1, 12))):
        about: Any = f"tool-{number}"
        if draw(st.integers(0, 4)) == 0:
            about = baseline("gas_price", f"pair-{number}")
        elif draw(st.booleans()):
            regime, band = draw(st.sampled_from(REGIMES)), draw(st.sampled_from(ANOMALY_BANDS))
            about = pattern(f"tool-{number}", regime=regime, anomaly_band=band)
        plain = draw(st.integers(0, 3)) == 0
        fields: dict[str, Any] = {} if plain else {
            "confidence_ppm": draw(st.integers(0, 10**6)), "validations": draw(st.integers(0, 5)),
            "contradictions": draw(st.integers(0, 5)), "is_bloodstain": draw(st.booleans()),
            "is_anti_knowledge": draw(st.booleans()), "decay_class": draw(st.sampled_from(DECAY_CLASSES)),
            "own_count": draw(st.integers(0, 5)), "evidence_count": draw(st.integers(0, 100)),
            "pleasure_sum_milli": draw(MILLIS), "arousal_sum_milli": draw(MILLIS), "dominance_sum_milli": draw(MILLIS),
            "anchor_at": DIED - draw(st.integers(-24, 24 * 40)) * timedelta(hours=1),
            "validated_at": DIED - draw(st.integers(-24, 24 * 40)) * timedelta(hours=1),
        }  # fmt: skip
        more = {
            "text_seed": draw(st.integers(0, 5)), "layer": draw(st.sampled_from(LAYERS)),
            "modifier": draw(st.sampled_from([1.0, 0.8, 0.5])), "useful": draw(st.integers(0, 3)),
            "misled": draw(st.integers(0, 3)), "used_us": draw(st.sampled_from([0, NOW - 3_600 * 10**6, NOW])),
        }  # fmt: skip
        rows.append({"entry": entry(draw(st.sampled_from(["g-1", "g-2"])), about, **fields)} | more)
    return rows


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    return Situation(
        NOW + draw(st.integers(-10, 40)) * 86_400 * 10**6,
        tick=draw(st.integers(1, 350)),
        regime=draw(st.none() | st.sampled_from(REGIMES)),
        regime_before=draw(st.none() | st.sampled_from(REGIMES)),
        regime_ticks=draw(st.integers(0, 60)),
        mood=draw(MOODS),
        tier=draw(st.sampled_from([None, "T1", "T2", "T0"])),
        thought_tick=draw(st.integers(0, 350)),
    )


def grimoire_of_rows(rows: list[dict[str, Any]], seed: int | None = None) -> Grimoire:
    """Return the grimoire of these rows, shuffled by `seed`."""
    order = range(len(rows)) if seed is None else np.random.default_rng(seed).permutation(len(rows)).tolist()
    rows = [rows[at] for at in order]
    table = pa.concat_tables([grimoire(row["entry"]) for row in rows])
    texts = sorted({row["text_seed"] for row in rows})
    uses = Uses(*(np.array([row[n] for row in rows], np.int64) for n in ("useful", "misled", "used_us")))
    return Grimoire(
        table,
        np.stack([unit(seed) for seed in texts]),
        np.array([texts.index(row["text_seed"]) for row in rows]),
        POLICY,
        uses=uses,
        layer=np.array([LAYERS.index(row["layer"]) for row in rows]),
        modifier=np.array([row["modifier"] for row in rows]),
    )


def retrieved_by_row(rows: list[dict[str, Any]], question: np.ndarray, situation: Situation) -> list[dict[str, Any]]:
    """Return the twin's result for the same rows."""
    lines = []
    for row in rows:
        plain = grimoire(row["entry"]).to_pylist()[0]
        micros = {n: int(plain[n].timestamp() * 10**6) for n in ("anchor_at", "validated_at")}
        lines.append(plain | micros | {n: row[n] for n in ("layer", "modifier", "useful", "misled", "used_us")})
    vectors = [[float(x) for x in unit(row["text_seed"])] for row in rows]
    return retrieved(lines, vectors, [float(x) for x in question], situation, POLICY)


@pytest.mark.row("MEM-9")
@settings(max_examples=times(40), deadline=None)
@given(knowledge(), situations(), st.integers(0, 7), st.integers(1, 14), st.integers(0, 9))
def test_retrieval_equals_its_row_by_row_twin(
    rows: list[dict[str, Any]], situation: Situation, question: int, k: int, seed: int
) -> None:
    asked = unit(question)
    answer = grimoire_of_rows(rows, seed).retrieve(asked, situation, k, may_skip=False)
    wanted = retrieved_by_row(rows, asked, situation)
    hits = answer.hits.to_pylist()
    assert answer.awake == len(wanted)
    assert answer.awake + answer.asleep == len(rows)
    assert len(hits) == min(k, len(wanted))
    by_key = {(hit["entry_id"], hit["golem_id"]): hit for hit in wanted}
    for hit, twin in zip(hits, wanted, strict=False):
        assert hit["score_ppm"] / 10**6 == pytest.approx(twin["score"], abs=6e-6), "the same place, the same score"
        same = by_key[hit["entry_id"], hit["golem_id"]]
        assert {n: hit[n] for n in FACTORS} == pytest.approx(same["factors"], abs=3e-6)
        assert {n: hit[f"{n}_ppm"] / 10**6 for n in FACTORS} == pytest.approx(same["parts"], abs=3e-6)
    keys = [(-hit["score_ppm"], hit["entry_id"], hit["golem_id"]) for hit in hits]
    assert keys == sorted(keys)


@pytest.mark.row("MEM-9")
@settings(max_examples=times(25), deadline=None)
@given(knowledge(), situations(), st.integers(0, 7))
def test_a_score_is_the_sum_of_its_parts_and_independent_of_other_entries(
    rows: list[dict[str, Any]], situation: Situation, question: int
) -> None:
    every = grimoire_of_rows(rows).retrieve(unit(question), situation, len(rows), may_skip=False).hits.to_pylist()
    for hit in every:
        assert hit["score_ppm"] == sum(hit[f"{n}_ppm"] for n in FACTORS)
        for name, weight in zip(FACTORS, (0.40, 0.20, 0.25, 0.15), strict=True):
            assert hit[f"{name}_ppm"] == round(hit["wakefulness"] * weight * hit[name] * 10**6)
        stain = 1.2 if hit["is_bloodstain"] else 1.0
        result = hit["confidence_ppm"] / 10**6 * hit["discount"] * hit["validation_ratio"] * stain * hit["modifier"]
        assert hit["importance"] == pytest.approx(result)
    for k in range(1, len(every)):
        few = grimoire_of_rows(rows, k).retrieve(unit(question), situation, k, may_skip=False).hits.to_pylist()
        assert few == every[:k], "the top k depend on k or on the order of rows"


@pytest.mark.row("MEM-9")
@settings(max_examples=times(16), deadline=None)
@given(st.integers(0, 6), st.lists(st.booleans(), min_size=1, max_size=420))
def test_the_first_deliberation_of_each_100_ticks_is_contrarian(first: int, thinks: list[bool]) -> None:
    turns, last = [], 0
    for tick, thought in enumerate(thinks, first * 37 + 1):
        where = Situation(NOW, tick=tick, tier="T1" if thought else "T0", thought_tick=last)
        answer = grimoire_of_rows([plain()]).retrieve(unit(1), where, 1)
        assert answer.contrarian == contrarian(where, POLICY)
        assert answer.decision.skipped == (not thought), "only ticks at T0 skip retrieval"
        turns += [tick] if answer.contrarian else []
        last = tick if thought else last
    thinking = [tick for tick, thought in enumerate(thinks, first * 37 + 1) if thought]
    assert turns == [min(t for t in thinking if t // 100 == h) for h in sorted({t // 100 for t in thinking}) if h]


def plain(**fields: Any) -> dict[str, Any]:
    """Return one ordinary entry without a regime."""
    about = fields.pop("about", baseline("gas_price"))
    more = {"text_seed": 1, "layer": "vault", "modifier": 1.0, "useful": 0, "misled": 0, "used_us": 0}
    return {"entry": entry("g-1", about, **fields)} | more


@pytest.mark.row("MEM-9")
@settings(max_examples=times(16), deadline=None)
@given(MOODS.filter(any), st.integers(0, 10**6))
def test_a_contrarian_turn_ranks_entries_of_the_opposite_mood_first(
    mood: tuple[float, float, float], confidence: int
) -> None:
    milli = {
        f"{n}_sum_milli": round(1_000 * m) for n, m in zip(("pleasure", "arousal", "dominance"), mood, strict=True)
    }
    alike = plain(about="a", own_count=1, confidence_ppm=confidence, **milli)
    other = plain(about="b", own_count=1, confidence_ppm=confidence, **{n: -m for n, m in milli.items()})
    book = grimoire_of_rows([alike, other])
    usual, turned = (
        book.retrieve(unit(1), Situation(NOW, tick=tick, tier="T1", thought_tick=90, mood=mood), 2).hits.to_pylist()
        for tick in (99, 100)
    )
    assert [hit["entry_id"] for hit in usual] == [alike["entry"]["entry_id"], other["entry"]["entry_id"]]
    assert [hit["entry_id"] for hit in turned] == [other["entry"]["entry_id"], alike["entry"]["entry_id"]]
    assert [hit["affect"] for hit in usual] == pytest.approx([1.0, 0.0], abs=1e-5)
    assert [hit["score_ppm"] for hit in usual] == [hit["score_ppm"] for hit in turned]


@pytest.mark.row("MEM-9", "INH-9")
@settings(max_examples=times(16), deadline=None)
@given(knowledge(), st.sampled_from(REGIMES), st.sampled_from(REGIMES), st.integers(0, 7))
def test_entries_of_another_regime_sleep_and_wake_unchanged(
    rows: list[dict[str, Any]], here: str, there: str, question: int
) -> None:
    book = grimoire_of_rows(rows)

    def hits_by_key(regime: str | None, **fields: Any) -> dict[tuple[str, str], dict[str, Any]]:
        hits = book.retrieve(unit(question), Situation(NOW, regime=regime, **fields), len(rows), may_skip=False).hits
        return {(h["entry_id"], h["golem_id"]): {k: v for k, v in h.items() if k != "rank"} for h in hits.to_pylist()}

    everything = hits_by_key(None)
    assert len(everything) == len({(r["entry"]["entry_id"], r["entry"]["golem_id"]) for r in rows})
    awake = hits_by_key(here)
    for key, hit in everything.items():
        if hit["regime"] in (None, here):
            assert awake[key] == hit
        elif here != "unknown":
            assert key not in awake
    back = hits_by_key(here, regime_before=there, regime_ticks=0)
    assert {k for k, h in back.items() if h["regime"] == there} == {
        k for k, h in everything.items() if h["regime"] == there
    }, "entries of the previous regime must be awake"
    shares = [
        [
            h["wakefulness"]
            for h in hits_by_key(here, regime_before=there, regime_ticks=t).values()
            if h["regime"] == there
        ]
        for t in (0, 10, 25, 49)
    ]
    for before, after in pairwise(shares):
        assert here in (there, "unknown") or all(a < b for a, b in zip(after, before, strict=True))


@pytest.mark.row("MEM-9")
@pytest.mark.parametrize("seed", range(4))
def test_the_bounded_search_returns_the_top_k_of_the_full_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    book = drawn(3_000, rng)
    if seed % 2:  # texts that entries share
        book = Grimoire(book.entries, book.vectors[:700], rng.integers(0, 700, len(book)), POLICY)
    for number in range(12):
        mood = tuple((rng.uniform(-1.0, 1.0, 3) * (number != 4)).tolist())
        regime = [None, *REGIMES][number % 6]
        at = START_US + int(rng.integers(-40 * 24, 40 * 24)) * 1_800 * 10**6
        where = Situation(at, tick=number + 1, regime=regime, mood=(mood[0], mood[1], mood[2]))
        asked = rng.standard_normal(book.vectors.shape[1]).astype(np.float32)
        every = book.retrieve(asked, where, len(book)).hits
        assert every.num_rows == sum(
            regime in (None, r) or regime == "unknown" for r in book.entries["regime"].to_pylist()
        )
        for k in (1, 5, 60, 2_000):
            assert book.retrieve(asked, where, k).hits.equals(every.slice(0, k))


def test_retrieval_is_independent_of_row_order() -> None:
    rows = [plain(about=f"tool-{i}", confidence_ppm=500_000) for i in range(7)]
    table = pa.concat_tables([grimoire(row["entry"]) for row in rows])
    where = Situation(NOW + int(DAY.total_seconds()) * 10**6)
    matches = [
        Grimoire(shuffled(table, seed), unit(1)[None, :], np.zeros(7, np.int64), POLICY)
        .retrieve(unit(1), where, 3)
        .hits
        for seed in range(5)
    ]
    assert all(hits.equals(matches[0]) for hits in matches)
    assert matches[0]["entry_id"].to_pylist() == sorted(table["entry_id"].to_pylist())[:3], "ties are ordered by id"
