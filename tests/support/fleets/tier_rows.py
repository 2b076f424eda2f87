"""Records as the ticks that a golem judges later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.reference.learning.gating import EXPERTS, Past


def past_ticks(rows: Mapping[int, Mapping[str, Any]]) -> dict[int, Past]:
    """Return the ticks of one golem. rows: its records by tick."""
    past = {tick: _past(row) for tick, row in sorted(rows.items())}
    for tick, row in sorted(rows.items()):
        for resolution in row["resolutions"]:
            past[resolution["decision_tick"]].effects.append((tick, resolution["effect_ppm"]))
    return past


def _past(row: Mapping[str, Any]) -> Past:
    figures = row["gating"]
    limit, composite = figures["boundary_t0"]["threshold"], figures["composite"]
    tier, decided = row["tier"], limit is not None
    if figures["explored"]:
        tier = "T0" if composite > limit else "suppress"
    elif tier == "suppress" and decided and composite > limit:
        decided = False  # the playbook settled it
    elif tier == "T1" and decided and composite <= figures["boundary_t1"]["threshold"]:
        decided = False  # an event woke it
    if row["spending"] is not None and row["spending"]["wanted_tier"] is not None:
        decided = False  # the daily budget lowered it
    if row["cached_decision"] is not None and row["cached_decision"]["result"] == "hit":
        decided = False  # the decision cache answered it
    return Past(
        row["tick"], tier, tuple(figures["signals"][name] for name in EXPERTS), decided, figures["explored"],
        figures["found"], row["prediction_error"], row["observation"]["net_asset_value_micros"],
    )  # fmt: skip
