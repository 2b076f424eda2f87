"""Yardsticks measured by another process during a run equal those measured alone."""

from __future__ import annotations

import numpy as np
import pytest

from bardo_pipeline.market.synthetic_spec import START, graded_spec
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime import truth_measurement
from bardo_pipeline.runtime.memory_evaluation import lasting
from bardo_pipeline.runtime.truth_measurement import Other, market_of, readings_on

GROUPS = [[Other(11 + number, graded_spec(turn), 800, START, number) for number in range(2)] for turn in (None, 0)]


@pytest.mark.full
@pytest.mark.row("X-5")
def test_measurements_in_another_process_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy()
    rows: list[float] = []
    with truth_measurement.measuring(GROUPS, lasting(800), policy) as measured:
        alone = measured(rows.append)
    assert rows == [0.0, 0.25, 0.5, 0.75]
    monkeypatch.setattr(truth_measurement, "_ALONE_BARS", 0)
    monkeypatch.setattr(truth_measurement.os, "cpu_count", lambda: 2)
    with truth_measurement.measuring(GROUPS, lasting(800), policy) as measured:
        beside = measured(rows.append)
    assert len(alone) == 2
    assert alone[0].windows.sum() > 3
    for golem, other in zip(alone, beside, strict=True):
        for name, values in vars(golem).items():
            np.testing.assert_array_equal(values, getattr(other, name), err_msg=name)
    assert not np.array_equal(alone[0].effect, alone[1].effect, equal_nan=True), "the turn shows"


def test_readings_are_those_of_every_tick() -> None:
    levels = readings_on([market_of(other) for other in GROUPS[0]], Policy())
    now = int(levels.at_us[-1])
    low, high = levels.quartiles("g-1", "gas_price", now) or (0.0, 0.0)
    assert 20_000 < low < high < 90_000
    assert all(least < most for least, most in levels.usual.values())
    assert levels.quartiles("g-1", "slippage", now) is None
