"""Costs of the death protocol, paid from the death reserve. Pure, elementwise over golems.

The reserve is set aside at birth (`vitality.death_reserve_micros`), apart from the spendable credits. It alone pays for
the death protocol. If it is too small for a reflection, the death still leaves a snapshot, insights and a notice.
Source: MEM ("The death moment: Thanatopsis Protocol"); INH-4.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.policy import DyingPolicy


def bears_reflection(reserve_micros: Int64Array, policy: DyingPolicy) -> BoolArray:
    """Whether each reserve pays for all steps, including the reflection, at their minimum prices."""
    cost_min = policy.reflection_micros_min + policy.compression_micros_min + _after_reflection(policy)
    return reserve_micros >= cost_min


def reflection_costs(
    reserve_micros: Int64Array, entry_share: Float64Array, text_share: Float64Array, policy: DyingPolicy
) -> tuple[Int64Array, Int64Array]:
    """Return the costs of phase II, reflection and compression; the minimum cost of phase III stays in the reserve.

    A reserve that cannot pay for a reflection pays only the compression of a snapshot, as far as it suffices.

    Parameters
    ----------
    reserve_micros : >= 0
    entry_share : reviewed entries over the maximum in a bundle; sets the reflection's price between its bounds
    text_share : length of the testament over the maximum; sets the compression's price between its bounds
    """
    means = bears_reflection(reserve_micros, policy)
    after = _after_reflection(policy)
    price = _price(entry_share, policy.reflection_micros_min, policy.reflection_micros_max)
    reflection = np.where(means, np.minimum(price, reserve_micros - after - policy.compression_micros_min), 0)
    price = _price(text_share, policy.compression_micros_min, policy.compression_micros_max)
    price = np.where(means, price, policy.compression_micros_min)
    return reflection, _paid(price, policy.compression_micros_min, reserve_micros - reflection, after)


def legacy_costs(
    balance_micros: Int64Array, bundle_share: Float64Array, pushed_share: Float64Array, policy: DyingPolicy
) -> tuple[Int64Array, Int64Array]:
    """Return the costs of phase III: upload of the bundle, indexing of the pushed entries.

    Parameters
    ----------
    balance_micros : rest of the reserve after phase II, >= 0
    bundle_share, pushed_share : entries in the bundle, and offered to the clade, over the maximum in a bundle
    """
    price = _price(bundle_share, policy.upload_micros_min, policy.upload_micros_max)
    upload = _paid(price, policy.upload_micros_min, balance_micros, policy.indexing_micros_min)
    price = _price(pushed_share, policy.indexing_micros_min, policy.indexing_micros_max)
    return upload, np.minimum(price, balance_micros - upload)


def _after_reflection(policy: DyingPolicy) -> int:
    return policy.upload_micros_min + policy.indexing_micros_min


def _price(share: Float64Array, low: int, high: int) -> Int64Array:
    """Interpolate a price between its bounds by the amount of work (clipped to [0, 1]), rounded up."""
    return low + np.ceil(np.clip(share, 0.0, 1.0) * (high - low)).astype(np.int64)


def _paid(price: Int64Array, price_min: int, balance: Int64Array, later: int) -> Int64Array:
    """Cap a price so that `later` stays in the balance; pay at most the minimum if the balance is too small."""
    return np.where(balance >= price_min + later, np.minimum(price, balance - later), np.minimum(price_min, balance))
