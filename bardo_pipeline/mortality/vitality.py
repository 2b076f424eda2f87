"""Vitality of golems and their causes of death. Pure, elementwise over golems.

Vitality is the product of three components in [0, 1]: credits, predictive fitness, age. A golem dies if one is zero.
Source: MEM; INH-1; the canon's words ("economic, epistemic, stochastic vitality"), canon 33.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import Float64Array, Int8Array, Int64Array
from bardo_pipeline.policy import Policy

Numbers = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]

PPM = 1_000_000

CAUSES = ("economic", "epistemic", "stochastic")
"""Causes of death; codes are positions, -1 is alive. The first that applies is recorded."""

ALIVE, ECONOMIC, EPISTEMIC, STOCHASTIC = -1, 0, 1, 2


@dataclass(frozen=True, eq=False)
class Vitality:
    """The three components and their product, [N] in [0, 1]."""

    economic: Float64Array
    epistemic: Float64Array
    stochastic: Float64Array
    composite: Float64Array


def death_reserve_micros(first_balance_micros: Int64Array, policy: Policy) -> Int64Array:
    """Return the death reserve: max($0.30, 2 % of the first balance), rounded up, in integer arithmetic.

    The reserve can exceed a tiny balance; the birth then fails.
    """
    share_ppm = round(policy.mortality.reserve_share * PPM)
    whole, rest = np.divmod(first_balance_micros, PPM)
    share = whole * share_ppm - (-rest * share_ppm // PPM)
    return np.maximum(share, policy.mortality.reserve_min_micros)


def predictive_fitness(held_count: Numbers, resolved_count: Numbers, policy: Policy) -> Float64Array:
    """Return (held + 0.7 * 50) / (resolved + 50): the share of predictions that held, shrunk towards the prior.

    The caller counts the last 500 resolved predictions (policy.prediction.fitness_window).
    """
    rules = policy.prediction
    prior_held = rules.fitness_prior * rules.fitness_prior_weight
    return (held_count + prior_held) / (resolved_count + rules.fitness_prior_weight)


def vitality(
    credits: Numbers, first_credits: Numbers, fitness: Float64Array, age: Numbers, lifespan: Numbers, policy: Policy
) -> Vitality:
    """Compute the components, clipped to [0, 1], and their product.

    Economic: credits over first credits. Epistemic: the fitness, 0 below senescence (0.35). Stochastic:
    1 - (age / lifespan)^4.

    Parameters
    ----------
    credits, first_credits : micro-dollars without the death reserve, first_credits > 0
    fitness : result of predictive_fitness
    age, lifespan : ticks, lifespan > 0
    """
    economic = (credits / first_credits).clip(0.0, 1.0)
    epistemic = fitness.clip(0.0, 1.0) * (fitness >= policy.prediction.senescence)
    aged = _power((age / lifespan).clip(0.0, 1.0), policy.mortality.age_exponent)
    stochastic = 1.0 - aged
    return Vitality(economic, epistemic, stochastic, economic * epistemic * stochastic)


def phase_codes(composite: Float64Array, policy: Policy) -> Int8Array:
    """Return positions in PHASES. Lower bounds are inclusive, except that thriving begins above 0.7 (canon 33)."""
    rules = policy.mortality
    code = 4 - (composite >= rules.declining).astype(np.int8)
    code -= composite >= rules.conservation
    code -= composite >= rules.stable
    code -= composite > rules.thriving
    return code


def cause_of_death(alive: Vitality) -> Int8Array:
    """Return the position in CAUSES of the first component that is zero, -1 for living golems.

    The product is not used, because it can underflow to zero while all components are positive.
    """
    code = np.where(alive.stochastic <= 0.0, STOCHASTIC, ALIVE).astype(np.int8)
    code[alive.epistemic <= 0.0] = EPISTEMIC
    code[alive.economic <= 0.0] = ECONOMIC
    return code


def _power(base: Float64Array, exponent: float) -> Float64Array:
    """Return base ** exponent; integer exponents by multiplication, so that all machines give the same bytes."""
    if exponent != int(exponent):
        return np.power(base, exponent)
    power, square, bits = np.ones_like(base), base, int(exponent)
    while bits:
        if bits & 1:
            power = power * square
        square, bits = square * square, bits >> 1
    return power
