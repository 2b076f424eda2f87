"""Credit partitions for inference and for gas, each with a balance and an average hourly cost. Pure, over columns.

Gas is paid from the gas partition only, so the gas gate is a hard limit. If the inference partition cannot pay a
deliberation, what remains of both is split anew, as a golem dies only when all its credits are spent (INH-1).
Source: HB S9 (credit probe), S10 (gas gate), S15 (S3 allocates resources).
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.policy import Policy

INFERENCE, GAS = 0, 1
"""The partitions; the first axis of all partition columns."""

_PPM = 1_000_000
_HOUR_US = 3_600_000_000


def split(credits: Int64Array, policy: Policy) -> Int64Array:
    """Split credits into partitions, [2, golems]; integer arithmetic, the remainder is for inference."""
    whole, rest = np.divmod(credits, _PPM)
    share = round(policy.credit.gas_share * _PPM)
    gas = whole * share + rest * share // _PPM
    return np.stack([credits - gas, gas])


def pay_inference(balance: Int64Array, bill: Int64Array, policy: Policy) -> tuple[Int64Array, Int64Array]:
    """Pay the deliberations of a tick.

    Returns
    -------
    balance [2, golems] and amounts paid; less than the bill only where both partitions are then empty
    """
    total = balance[INFERENCE] + balance[GAS]
    paid = np.minimum(bill, total)
    own = np.stack([balance[INFERENCE] - paid, balance[GAS]])
    return np.where(paid > balance[INFERENCE], split(total - paid, policy), own), paid


def kept_share(elapsed_us: int, policy: Policy) -> float:
    """Return the weight that earlier payments keep in the average after this time."""
    return float(2.0 ** (-elapsed_us / _HOUR_US / policy.credit.hourly_half_life_hours))


def hour_of(at_us: int) -> int:
    """Return the number of the hour of a moment."""
    return int(at_us) // _HOUR_US


def hourly_cost(paid: Float64Array, hours: Float64Array, usual: Float64Array, policy: Policy) -> Int64Array:
    """Return the average cost of the hours in which a partition paid, in micro-dollars, [2, golems].

    Hours without a payment do not count; otherwise a golem that holds for a day could not afford to act again.

    Parameters
    ----------
    paid, hours : discounted payments, and hours with a payment
    usual : cost of one usual act, which counts as `hourly_prior_weight` hours
    """
    prior = policy.credit.hourly_prior_weight
    return np.rint((paid + prior * usual) / (hours + prior)).astype(np.int64)
