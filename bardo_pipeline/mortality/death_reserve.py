"""The death reserve: what dying costs, and how far the reserve bears it. Pure, elementwise over golems.

The reserve is set aside at birth (vitality.py, `death_reserve_micros`), apart from the credits that a golem lives on:
nothing in life can spend it. Dying is paid from it alone and never costs more than it holds. Where it bears no
reflection at all, the cheapest death still leaves a snapshot, a handful of pushed insights and a notice.
Source: MEM ("The death moment: Thanatopsis Protocol"); INH-4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bardo_pipeline.mortality.vitality import Ints
from bardo_pipeline.policy import DyingPolicy


class Reflection(NamedTuple):
    """What phase II costs, each int64 [N] in micro-dollars: the reflection itself, and its compression."""

    reflection: Ints
    compression: Ints


class Legacy(NamedTuple):
    """What phase III costs, each int64 [N] in micro-dollars: the bundle's upload, and indexing what is pushed."""

    upload: Ints
    indexing: Ints


def bears_reflection(reserve_micros: Ints, policy: DyingPolicy) -> np.ndarray:
    """Whether a reserve pays for every act of dying at its lowest price, reflection included. bool [N]."""
    least = policy.reflection_micros_min + policy.compression_micros_min + _after_reflection(policy)
    return reserve_micros >= least


def reflection_costs(
    reserve_micros: Ints, looked_over: np.ndarray, written: np.ndarray, policy: DyingPolicy
) -> Reflection:
    """What reflecting costs.

    reserve_micros: >= 0, int64 [N]. looked_over: entries that it looks over, as a share of the most that may cross;
    written: the testament's length as a share of the longest, float64 [N]. Both are clipped to [0, 1] and set each
    price between its bounds. What phase III costs at least is left over. Without the means there is no reflection, and
    the compression of a snapshot is paid as far as the reserve goes.
    """
    means = bears_reflection(reserve_micros, policy)
    after = _after_reflection(policy)
    price = _price(looked_over, policy.reflection_micros_min, policy.reflection_micros_max)
    reflection = np.where(means, np.minimum(price, reserve_micros - after - policy.compression_micros_min), 0)
    price = _price(written, policy.compression_micros_min, policy.compression_micros_max)
    price = np.where(means, price, policy.compression_micros_min)
    return Reflection(reflection, _paid(price, policy.compression_micros_min, reserve_micros - reflection, after))


def legacy_costs(left_micros: Ints, uploaded: np.ndarray, pushed: np.ndarray, policy: DyingPolicy) -> Legacy:
    """What leaving costs.

    left_micros: what is left of the reserve, >= 0, int64 [N]. uploaded, pushed: entries in the bundle and entries
    offered to the clade, as shares of the most that may cross, float64 [N], clipped to [0, 1].
    """
    price = _price(uploaded, policy.upload_micros_min, policy.upload_micros_max)
    upload = _paid(price, policy.upload_micros_min, left_micros, policy.indexing_micros_min)
    price = _price(pushed, policy.indexing_micros_min, policy.indexing_micros_max)
    return Legacy(upload, np.minimum(price, left_micros - upload))


def _after_reflection(policy: DyingPolicy) -> int:
    return policy.upload_micros_min + policy.indexing_micros_min


def _price(share: np.ndarray, low: int, high: int) -> Ints:
    """A price between its bounds by how much there is to do, rounded up."""
    price: Ints = low + np.ceil(np.clip(share, 0.0, 1.0) * (high - low)).astype(np.int64)
    return price


def _paid(price: Ints, least: int, left: Ints, kept: int) -> Ints:
    """As much of a price as is left beside what is kept for later; where both do not fit, the least, if that."""
    paid: Ints = np.where(left >= least + kept, np.minimum(price, left - kept), np.minimum(least, left))
    return paid
