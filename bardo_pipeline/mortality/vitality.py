"""Vitality: how much life a golem has left, and what it dies of. Pure, elementwise over golems.

Three components, each in [0, 1]: money, understanding, age. They are multiplied, so any of them at zero kills.
Source: MEM; INH-1; the canon's words ("economic, epistemic, stochastic vitality"), canon 33.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.policy import Policy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
Codes = NDArray[np.int8]

PPM = 1_000_000

CAUSES = ("economic", "epistemic", "stochastic")
"""What a golem dies of; codes are positions, -1 is alive. The first that applies is named."""

ALIVE, ECONOMIC, EPISTEMIC, STOCHASTIC = -1, 0, 1, 2


@dataclass(frozen=True, eq=False)
class Vitality:
    """Components and their product, each float64 [N] in [0, 1]."""

    economic: Floats
    epistemic: Floats
    stochastic: Floats
    composite: Floats


def death_reserve_micros(first_balance_micros: Ints, policy: Policy) -> Ints:
    """What is set aside at birth to pay for dying: max($0.30, 2 % of the first balance), micro-dollars, rounded up.

    first_balance_micros: >= 0. Whole numbers throughout; it may exceed a tiny balance, which a birth then refuses.
    """
    share_ppm = round(policy.mortality.reserve_share * PPM)
    whole, rest = np.divmod(first_balance_micros, PPM)
    share = whole * share_ppm - (-rest * share_ppm // PPM)
    reserve: Ints = np.maximum(share, policy.mortality.reserve_min_micros)
    return reserve


def predictive_fitness(held_count: Numbers, resolved_count: Numbers, policy: Policy) -> Floats:
    """Share of predictions that held, drawn towards the prior: (held + 0.7 * 50) / (resolved + 50), in [0, 1].

    The counts are those of the last 500 resolved predictions (policy.prediction.fitness_window); the caller keeps that
    window. 0 <= held <= resolved.
    """
    rules = policy.prediction
    prior_held = rules.fitness_prior * rules.fitness_prior_weight
    return (held_count + prior_held) / (resolved_count + rules.fitness_prior_weight)


def hayflick_ratio(age: Numbers, lifespan: Numbers) -> Floats:
    """Age over lifespan, both in ticks; lifespan > 0. From 1 on the golem has outlived what it drew."""
    return age / lifespan


def vitality(
    credits: Numbers, first_credits: Numbers, fitness: Floats, age: Numbers, lifespan: Numbers, policy: Policy
) -> Vitality:
    """The three components and their product.

    credits, first_credits: micro-dollars with the death reserve apart, first_credits > 0. fitness: predictive_fitness.
    age, lifespan: ticks, lifespan > 0. Economic: credits over first credits. Epistemic: the fitness, 0 below senescence
    (0.35). Stochastic: 1 - (age / lifespan)^4. All clipped to [0, 1]: a golem that earned more than it was born with is
    no more than whole.
    """
    economic = (credits / first_credits).clip(0.0, 1.0)
    epistemic = fitness.clip(0.0, 1.0) * (fitness >= policy.prediction.senescence)
    aged = _power(hayflick_ratio(age, lifespan).clip(0.0, 1.0), policy.mortality.age_exponent)
    stochastic = 1.0 - aged
    return Vitality(economic, epistemic, stochastic, economic * epistemic * stochastic)


def phase_codes(composite: Floats, policy: Policy) -> Codes:
    """Phase as a position in PHASES, int8: lower bounds belong to it, but thriving begins above 0.7 (canon 33)."""
    rules = policy.mortality
    code = 4 - (composite >= rules.declining).astype(np.int8)
    code -= composite >= rules.conservation
    code -= composite >= rules.stable
    code -= composite > rules.thriving
    return code


def cause_of_death(alive: Vitality) -> Codes:
    """Position in CAUSES of the first component at zero, -1 for the living. int8 [N].

    Asked of the components, not of their product, which can underflow to zero without any of them being zero.
    """
    code = np.where(alive.stochastic <= 0.0, STOCHASTIC, ALIVE).astype(np.int8)
    code[alive.epistemic <= 0.0] = EPISTEMIC
    code[alive.economic <= 0.0] = ECONOMIC
    return code


def _power(base: Floats, exponent: float) -> Floats:
    """base ** exponent; whole exponents by multiplication, which gives every machine the same bytes."""
    if exponent != int(exponent):
        return np.power(base, exponent)
    power, square, left = np.ones_like(base), base, int(exponent)
    while left:
        if left & 1:
            power = power * square
        square, left = square * square, left >> 1
    return power
