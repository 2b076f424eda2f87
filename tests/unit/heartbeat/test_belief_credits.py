"""Beliefs of Lethe that helped a golem's decisions weigh more for it, those that misled it less."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.katabasis.belief_credits import BeliefCredits
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA
from bardo_pipeline.policy import Policy
from tests.conftest import NOW

COLUMNS = ["golem_id", "tick", "retrieval", "resolutions"]
BELIEF: dict[str, Any] = {
    "golem_id": "g", "prior_id": "p", "kind": "proposition", "origin": "quorum", "action_type": "rebalance",
    "regime": "volatile", "anomaly_band": "calm", "gas_band": "normal", "sign": -1, "confidence_ppm": 900_000,
    "confirmed_at": NOW, "is_bloodstain": False, "half_life_days": 30.0, "pleasure": 0.0, "arousal": 0.0,
    "dominance": 0.0,
}  # fmt: skip


def record(tick: int, *, retrieved: bool = False, judged: tuple[int, int] | None = None) -> dict[str, Any]:
    prior = {"prior_id": "p", "kind": "proposition", "origin": "quorum"}
    verdicts = [
        {"decision_tick": at, "effect_ppm": effect, "action_type": "rebalance", "verified": True}
        for at, effect in ([judged] if judged else [])
    ]
    return {
        "golem_id": "g", "tick": tick, "retrieval": {"priors": [prior]} if retrieved else None, "resolutions": verdicts,
    }  # fmt: skip


def ratio(*records: dict[str, Any]) -> float:
    credits, schema = BeliefCredits(), pa.schema([RECORD_SCHEMA.field(name) for name in COLUMNS])
    credits.note(pa.Table.from_pylist([BELIEF], PRIOR_SCHEMA))
    for row in records:
        credits.close(pa.Table.from_pylist([row], schema), Policy().curator)
    return float(credits.ratios(["g"], ["p"])[0])


@pytest.mark.row("KAT-7")
def test_a_belief_is_tested_by_the_decisions_that_retrieved_it() -> None:
    assert ratio() == 1.0
    assert ratio(record(1, retrieved=True), record(31, judged=(1, -900))) == 1.0
    assert ratio(record(1, retrieved=True), record(31, judged=(1, 900))) == 0.5
    assert ratio(record(1, retrieved=True), record(31, judged=(2, 900))) == 1.0, "another decision"
    assert ratio(record(1), record(31, judged=(1, 900))) == 1.0, "it was not retrieved"
