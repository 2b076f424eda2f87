"""Counts of held predictions, beside a list of the latest ones of each golem."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.observe import compare
from bardo_pipeline.policy import Policy
from tests.unit.heartbeat.test_choose import fleet_of

GOLEMS, QUANTITIES = 2, 3
ANSWERS = st.lists(st.sampled_from([None, True, False]), min_size=6, max_size=6)


@pytest.mark.row("HB-24")
@given(st.integers(1, 8), st.lists(ANSWERS, max_size=12))
def test_the_latest_predictions_of_each_golem_are_counted(window: int, ticks: list[list[bool | None]]) -> None:
    policy = Policy()
    policy = policy.model_copy(update={"prediction": policy.prediction.model_copy(update={"fitness_window": window})})
    births = fleet_of(GOLEMS)
    fleet = Fleet(births.golem_ids, births.births, policy)
    tape: Any = SimpleNamespace(price=np.array([1.0]), gas_gwei=np.array([1.0]))
    sight: Any = SimpleNamespace(health=np.ones(GOLEMS))
    latest: list[list[bool]] = [[] for _ in range(GOLEMS)]
    for answers in ticks:
        rows = np.array(answers, object).reshape(QUANTITIES, GOLEMS)
        fleet.expected = np.where(rows == None, np.nan, np.where(rows == True, 1.0, 9.0)).astype(float)  # noqa: E711, E712
        fleet.half = np.ones((QUANTITIES, GOLEMS))
        compare(fleet, tape, 0, sight, policy)
        for golem in range(GOLEMS):
            latest[golem] += [answer for answer in rows[:, golem].tolist() if answer is not None]
    assert fleet.resolved_count.tolist() == [len(held[-window:]) for held in latest]
    assert fleet.held_count.tolist() == [sum(held[-window:]) for held in latest]
