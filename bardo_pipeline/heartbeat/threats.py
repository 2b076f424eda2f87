"""Threats that a golem heard of: the strongest one fades with a half-life, and reaches the next tick's probes. Pure.

A threat never enters the context of a deliberation by itself: it raises the probe `pheromone_threat` and the surprise.
Source: INH S6.4; HB S4, S9; canon 49.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.policy import Policy

_HOUR_US = 3_600_000_000


def hear_threat(fleet: Fleet, i: int, intensity: float, at_us: int, policy: Policy) -> None:
    """Let golem i hear of a threat; of two, the one that is stronger at the same moment counts.

    Parameters
    ----------
    intensity : in [0, 1], at `at_us`
    """
    half_life = policy.clade.threat_half_life_hours * _HOUR_US
    held = fleet.threat[i] * 2.0 ** (-(at_us - int(fleet.threat_us[i])) / half_life)
    if not held >= intensity:
        fleet.threat[i], fleet.threat_us[i] = intensity, at_us


def threat_now(fleet: Fleet, at_us: int, policy: Policy) -> Float64Array:
    """Return the intensity of each golem's threat at a time; 0 once it faded, NaN for a golem that heard of none."""
    if np.isnan(fleet.threat).all():
        return fleet.threat
    rules = policy.clade
    age = np.maximum(at_us - fleet.threat_us, 0) / (rules.threat_half_life_hours * _HOUR_US)
    intensity = fleet.threat * 2.0**-age
    return np.where(intensity < rules.threat_floor, 0.0, intensity)
