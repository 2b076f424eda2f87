"""Learning state of the router of chain events, as it crosses a death: whole numbers with ranges. Pure.

Source: HB ("Persistence Across Golem Generations": Hedge, Thompson, LinUCB, epsilon-greedy); INH-8; docs/adr/0111.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

NANO = 10**9
"""Numbers are stored in billionths, arms in thousandths, counts as they are."""

MILLI = 10**3
FEATURES = 12
LINEAR_ROUTES = 3
"""Routes that LinUCB chooses from."""


class RouterState(NamedTuple):
    """Learning state of one golem's router: what a record holds at the first tick of a delta, and an heir inherits.

    log_weights, rule_log_weights: logarithms of the weights beside the heaviest. arms: alpha by regime of arousal and
    arm, then beta. inverse: upper triangles of A^-1 by route, row by row. theta: by route. route_means, route_counts:
    of the baseline. rounds: judged events, one value.
    """

    log_weights: Sequence[float]
    rule_log_weights: Sequence[float]
    arms: Sequence[float]
    inverse: Sequence[float]
    theta: Sequence[float]
    route_means: Sequence[float]
    route_counts: Sequence[float]
    rounds: Sequence[float]


class _Range(NamedTuple):
    """Number of values, their unit, and the least and the largest stored value."""

    size: int
    unit: int
    low: int
    high: int


_COUNT_MAX = 2**53
_RANGES = {
    "log_weights": _Range(5, NANO, -100 * NANO, 0),
    "rule_log_weights": _Range(6, NANO, -100 * NANO, 0),
    "arms": _Range(30, MILLI, MILLI, NANO),
    "inverse": _Range(LINEAR_ROUTES * FEATURES * (FEATURES + 1) // 2, NANO, -NANO, NANO),
    "theta": _Range(LINEAR_ROUTES * FEATURES, NANO, -100 * NANO, 100 * NANO),
    "route_means": _Range(4, NANO, 0, NANO),
    "route_counts": _Range(4, 1, 0, _COUNT_MAX),
    "rounds": _Range(1, 1, 0, _COUNT_MAX),
}


def stored_router(state: Mapping[str, Sequence[float]]) -> dict[str, list[int]]:
    """Return a state in whole numbers, each within its range."""
    return {
        name: np.rint(np.array(state[name]) * to.unit).clip(to.low, to.high).astype(np.int64).tolist()
        for name, to in _RANGES.items()
    }


def router_faults(learning: Any) -> list[str]:
    """Return why the router in a learning state cannot be used; empty without one."""
    router = learning.get("router") if isinstance(learning, dict) else None
    if router is None:
        return []
    if not isinstance(router, dict):
        return ["router: no object"]
    faults = [
        f"router: {name} is not {of.size} integers from {of.low:,} to {of.high:,}"
        for name, of in _RANGES.items()
        if not _are_in_range(router.get(name), of)
    ]
    faults += [
        f"router: {name} has no largest weight of logarithm 0"
        for name in ("log_weights", "rule_log_weights")
        if not faults and max(router[name]) < 0
    ]
    if not faults and not all((np.linalg.eigvalsh(matrix) > 0.0).all() for matrix in matrices(_plain(router).inverse)):
        faults.append("router: inverse is not positive definite")
    return faults


def _are_in_range(values: Any, of: _Range) -> bool:
    return (
        isinstance(values, list)
        and len(values) == of.size
        and all(type(v) is int and of.low <= v <= of.high for v in values)
    )


def router_of(learning: Any) -> RouterState | None:
    """Return the router's state at birth; None without a valid one."""
    if not isinstance(learning, dict) or learning.get("router") is None or router_faults(learning):
        return None
    return _plain(learning["router"])


def _plain(router: Mapping[str, Sequence[int]]) -> RouterState:
    return RouterState(**{name: [v / of.unit for v in router[name]] for name, of in _RANGES.items()})


def matrices(inverse: Sequence[float]) -> np.ndarray:
    """Return the symmetric matrices of upper triangles, [routes, features, features]."""
    upper = np.triu_indices(FEATURES)
    out = np.zeros((LINEAR_ROUTES, FEATURES, FEATURES))
    out[:, upper[0], upper[1]] = out[:, upper[1], upper[0]] = np.array(inverse).reshape(LINEAR_ROUTES, -1)
    return out
