"""A home of 10,000 golems with few ticks each, as Dagster sees it: its sensors and its jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import dagster as dg

from assets.resources import LazyStores
from benchmarks.figures import Figure, seconds
from definitions import defs
from tests.support.homes.large_home import GOLEMS, TICKS, large_home

SENSOR_LIMIT_S, CURATOR_LIMIT_S = 2.0, 120.0
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def large_home_figures(root: Path) -> list[Figure]:
    """Measure the slowest sensor and a curator run of 10,000 golems with 10 ticks each."""
    home = large_home(root)
    with dg.DagsterInstance.ephemeral() as instance, patch.dict(os.environ, {"BARDO_HOME": str(home.root)}):
        looks = {
            sensor.name: min(seconds(_look(sensor, home.root, instance)) for _ in range(2))
            for sensor in defs.sensors or ()
            if type(sensor) is dg.SensorDefinition  # one of failed runs looks at no home
        }
        slowest = max(looks, key=looks.__getitem__)
        curator = defs.resolve_job_def("curator_job")
        curated = seconds(lambda: curator.execute_in_process(instance=instance, run_config=_QUIET))
    what = f"{GOLEMS:,} golems, {TICKS} ticks each"
    return [
        Figure(
            "sensor_10000_s", looks[slowest], "s", SENSOR_LIMIT_S, looks[slowest] / SENSOR_LIMIT_S, "ratio <= 1",
            f"{what}; the slowest of {len(looks)} sensors, {slowest}, which opens the home; the better of two looks; "
            "peer: the limit",
        ),
        Figure(
            "curator_10000_s", curated, "s", CURATOR_LIMIT_S, curated / CURATOR_LIMIT_S, "ratio <= 1",
            f"{what}; a run of the curator job in one process, checks included; peer: the limit",
        ),
    ]  # fmt: skip


def _look(sensor: dg.SensorDefinition, root: Path, instance: dg.DagsterInstance) -> Callable[[], object]:
    def look() -> None:
        lazy = LazyStores(root)
        sensor(dg.build_sensor_context(instance=instance, resources={"home": lazy}))
        lazy.close()

    return look
