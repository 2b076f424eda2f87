"""Checks of records against the bands of the daily budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

import numpy as np

from bardo_pipeline.heartbeat.safety.spending import BANDS, band_of
from bardo_pipeline.policy import Policy


def check_bands(rows: Iterable[Mapping[str, Any]], policy: Policy) -> tuple[set[date], set[tuple[str, str | None]]]:
    """Check that each record keeps to the band of what its golem's records of that UTC day cost before it.

    Parameters
    ----------
    rows : records of golems, all from their first tick

    Returns
    -------
    days : UTC days of the records
    lowered : band and force of each tick whose tier a band lowered
    """
    spent: dict[tuple[str, date], int] = defaultdict(int)
    lowered: set[tuple[str, str | None]] = set()
    cap = policy.gateway.daily_budget_micros
    for row in sorted(rows, key=lambda row: (row["golem_id"], row["tick"])):
        day = row["golem_id"], row["observed_at"].date()
        before, spending, tier = spent[day], row["spending"], row["tier"]
        band = int(band_of(np.array([before]), policy)[0])
        assert (None if spending is None else spending["band"]) == (BANDS[band] if band else None)
        if spending is not None:
            assert (spending["day_spent_micros"], spending["day_cap_micros"]) == (before, cap)
            assert tier in (("T0", "T1", "suppress") if band == 1 else ("T0", "suppress"))
            assert (row["deliberation"] is not None) == (tier == "T1")
            if spending["wanted_tier"] is not None:
                lowered.add((spending["band"], row["forced_by"]))
                assert f"lowers {spending['wanted_tier']}: {before} of {cap} " in row["gating_reason"]
        spent[day] += row["cost"]["total_micros"]
    return {day for _, day in spent}, lowered
