"""Laws of calibration: it equals its row-at-a-time twin, and neither order nor chunks show."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.curate import CYCLE_SCHEMA
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.calibration import (
    BELIEF_SCHEMA,
    JUDGED_SCHEMA,
    OUTCOME_SCHEMA,
    beliefs_at_closes,
    calibration,
    judge_beliefs,
)
from tests.reference.learning.calibration import beliefs_by_row, judged_by_row
from tests.support.knowledge.handmade_grimoires import shuffled

pytestmark = pytest.mark.row("X-3")

START = datetime(2026, 1, 1, tzinfo=UTC)
DECAY = Policy().decay
CYCLE_HOURS = 5
BLANK: dict[str, Any] = {
    field.name: {"string": "x", "int64": 0, "bool": False}.get(str(field.type), START)
    for field in DECISION_SCHEMA
    if not field.nullable and not pa.types.is_list(field.type)
} | {"cause_ticks": []}


def moment(hours: float) -> datetime:
    return START + timedelta(hours=hours)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Decisions about a few rules of a few golems, the closes of their cycles, and outcomes with their times."""
    decisions, closes, outcomes = [], [], []
    for golem_id in draw(st.sampled_from([["g1"], ["g1", "g2"], ["g3", "g1", "g2"]])):
        last = draw(st.integers(1, 8))
        lost = draw(st.sets(st.integers(1, last), max_size=2))
        closes += [
            {"golem_id": golem_id, "cycle": k, "closed_at": moment(k * CYCLE_HOURS)}
            for k in range(1, last + 1)
            if k not in lost
        ]
        for seq in range(draw(st.integers(0, 10))):
            cycle = draw(st.integers(0, last))
            decisions.append(
                BLANK
                | {
                    "golem_id": golem_id, "structure": draw(st.sampled_from("pqr")), "cycle": cycle, "seq": seq,
                    "revision": draw(st.integers(0, 1)), "entry_id": f"e{seq}",
                    "status": draw(st.sampled_from(["active", "active", "candidate", "pruned"])),
                    "source": draw(st.sampled_from(["pattern", "choice"])),
                    "sign": draw(st.sampled_from([1, -1, 0])), "confidence_ppm": draw(st.integers(0, 10**6)),
                    "decay_class": draw(st.sampled_from(["structural", "regime_conditional", "tactical", "fact"])),
                    "is_anti_knowledge": draw(st.booleans()), "is_bloodstain": draw(st.booleans()),
                    "evidence_count": draw(st.integers(0, 30)), "own_count": draw(st.integers(0, 30)),
                    "regime": draw(st.sampled_from([None, "volatile"])),
                    "anchor_at": moment(draw(st.integers(0, cycle * CYCLE_HOURS))),
                }
            )  # fmt: skip
        for _ in range(draw(st.integers(0, 12))):
            outcomes.append(
                {
                    "golem_id": golem_id,
                    "structure": draw(st.sampled_from("pqs")),
                    "at": moment(draw(st.integers(0, 60))),
                    "effect_ppm": draw(st.integers(-3, 3)) * 100,
                }
            )
    return decisions, closes, outcomes


def tables(history: tuple[list[dict[str, Any]], ...], seed: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    schemas = (DECISION_SCHEMA, pa.schema([CYCLE_SCHEMA.field(n) for n in ("golem_id", "cycle", "closed_at")]))
    decisions, closes, outcomes = (
        pa.Table.from_pylist(rows, schema=schema)
        for rows, schema in zip(history, (*schemas, OUTCOME_SCHEMA), strict=True)
    )
    return shuffled(decisions, seed), shuffled(closes, seed), shuffled(outcomes, seed)


@settings(deadline=None)
@given(histories(), st.integers(0, 2**32), st.integers(1, 30))
def test_calibration_equals_its_twin(history: tuple[list[dict[str, Any]], ...], seed: int, horizon_hours: int) -> None:
    decisions, closes, outcomes = tables(history, seed)
    horizon = timedelta(hours=horizon_hours)
    beliefs = beliefs_at_closes(decisions, closes, DECAY)
    order = [(name, "ascending") for name in ("golem_id", "structure", "cycle")]
    assert beliefs.schema.equals(BELIEF_SCHEMA)
    twin = list(beliefs_by_row(history[0], history[1], DECAY))
    assert beliefs.sort_by(order).select(list(twin[0]) if twin else BELIEF_SCHEMA.names).to_pylist() == twin
    judged = judge_beliefs(beliefs, outcomes, horizon_us=horizon // timedelta(microseconds=1))
    expected = list(judged_by_row(beliefs.to_pylist(), history[2], horizon))
    assert judged.to_pylist() == expected
    _scores_equal_the_rows(calibration(judged), expected)
    event(f"judged {any(row['outcome_count'] for row in expected)}")


def _scores_equal_the_rows(value: Any, rows: list[dict[str, Any]]) -> None:
    selected_rows = [r for r in rows if r["outcome_count"]]
    pairs = sum(r["outcome_count"] for r in selected_rows)
    assert (value.belief_count, value.unjudged_count, value.outcome_count) == (
        len(selected_rows),
        len(rows) - len(selected_rows),
        pairs,
    )
    if not selected_rows:
        assert value.brier_held_ppm is None
        return
    held = [r["effect_sum_ppm"] * r["sign"] > 0 for r in selected_rows]
    exact = sum((r["confidence_ppm"] / 1e6 - h) ** 2 for r, h in zip(selected_rows, held, strict=True)) / len(
        selected_rows
    )
    assert value.brier_held_ppm == pytest.approx(exact * 1e6, abs=2)
    each = sum(
        (1 - r["confidence_ppm"] / 1e6) ** 2 * r["agreed_count"]
        + (r["confidence_ppm"] / 1e6) ** 2 * (r["outcome_count"] - r["agreed_count"])
        for r in selected_rows
    )
    assert value.brier_agreed_ppm == pytest.approx(each / pairs * 1e6, abs=2)
    for band in value.bands.to_pylist():
        low, high = band["confidence_low_ppm"], band["confidence_high_ppm"]
        own_rows = [
            i for i, r in enumerate(selected_rows) if min(r["confidence_ppm"], 999_999) // 100_000 == low // 100_000
        ]
        assert band["belief_count"] == len(own_rows)
        assert high == low + 100_000
        assert band["held_ppm"] == sum(held[i] for i in own_rows) * 10**6 // len(own_rows)
    assert sum(b["belief_count"] for b in value.bands.to_pylist()) == len(selected_rows)
    subjects = {row["subject"]: row for row in value.subjects.to_pylist()}
    assert sum(row["belief_count"] for row in subjects.values()) == len(selected_rows)
    named = ["choice" if r["source"] == "choice" else r["kind"] for r in selected_rows]
    for subject, row in subjects.items():
        own = [i for i, name in enumerate(named) if name == subject]
        share = sum(held[i] for i in own) / len(own)
        loss = sum((selected_rows[i]["confidence_ppm"] / 1e6 - held[i]) ** 2 for i in own) / len(own)
        assert row["belief_count"] == len(own)
        assert row["held_ppm"] == int(share * 10**6 + 1e-6)
        assert row["brier_held_ppm"] == pytest.approx(loss * 1e6, abs=2)
        assert row["brier_base_ppm"] == pytest.approx(share * (1 - share) * 1e6, abs=2)


def test_the_brier_score_is_lower_for_the_better_calibrated_confidence() -> None:
    closes = [{"golem_id": "g", "cycle": k, "closed_at": moment(k)} for k in (1, 2)]
    outcomes = [{"golem_id": "g", "structure": "p", "at": moment(k + 0.5), "effect_ppm": 200} for k in (1, 2)]
    scores = []
    for sure in (900_000, 400_000):
        decision = BLANK | {"golem_id": "g", "structure": "p", "cycle": 1, "status": "active", "sign": 1}
        decision |= {"confidence_ppm": sure, "decay_class": "structural"}
        decided, closed, judged = tables(([decision], closes, outcomes), 0)
        result = calibration(judge_beliefs(beliefs_at_closes(decided, closed, DECAY), judged))
        scores.append(result.brier_held_ppm)
        assert result.bands["held_ppm"].to_pylist() == [10**6]
    assert scores == [10_000, 360_000]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), min_size=1, max_size=60), st.floats(0.0, 1.0))
def test_small_bands_join_the_next_one_and_keep_every_belief(beliefs: list[tuple[int, bool]], least: float) -> None:
    blank = {"golem_id": "g", "entry_id": "e", "structure": "p", "source": "choice", "kind": "heuristic", "cycle": 1}
    blank |= {"at": START, "sign": 1, "outcome_count": 1}
    rows = [
        blank | {"confidence_ppm": stated, "agreed_count": int(held), "effect_sum_ppm": 100 if held else -100}
        for stated, held in beliefs
    ]
    judged = pa.Table.from_pylist(rows, schema=JUDGED_SCHEMA)
    plain, joined = calibration(judged, band_count=5), calibration(judged, band_count=5, belief_share_min=least)
    assert (joined.brier_held_ppm, joined.brier_base_ppm) == (plain.brier_held_ppm, plain.brier_base_ppm)
    bands = joined.bands.to_pylist()
    assert all(band["belief_count"] >= least * len(beliefs) for band in bands)
    assert bands[-1]["confidence_high_ppm"] <= 10**6
    for band in bands:
        last = band["confidence_high_ppm"] == 10**6
        own = [
            held
            for stated, held in beliefs
            if band["confidence_low_ppm"] <= stated and (last or stated < band["confidence_high_ppm"])
        ]
        assert band["belief_count"] == len(own)
        assert band["held_ppm"] == sum(own) * 10**6 // len(own)
    assert sum(band["belief_count"] for band in bands) == len(beliefs)
