"""Histograms of readings grow with the number of keys, not with the number of calls."""

from __future__ import annotations

import numpy as np

from bardo_pipeline.curator.state.level_readings import LevelReadings


def test_histograms_grow_with_their_keys_alone() -> None:
    readings = LevelReadings()
    for structure in range(9):
        readings.slot([("g-1", f"level-{structure}")])
    size = len(readings.counts)
    assert 9 <= size <= 18
    for _ in range(20):
        assert np.array_equal(readings.slot([("g-1", "level-0"), ("g-1", "level-8")]), [0, 8])
    assert len(readings.counts) == len(readings.day_last) == size
