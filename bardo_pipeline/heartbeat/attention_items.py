"""Items of the environment, and the attention of each golem to them: active, watched, dormant. Pure, over columns.

At gamma an active or watched item is read. A change beside a random walk is its residual; a residual outside of the
expected interval is a violation and promotes a watched item. At delta, items without a violation fall by one step, a
scan discovers new items and promotes dormant ones that moved, and the residuals are digested for the clade.
Source: HB adaptive clock (gamma steps 1 to 5, delta steps 2 to 5); canon ("attention tiers").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.events.record.model import ItemResiduals
from bardo_pipeline.heartbeat.fleet import ITEMS, Fleet
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy

UNKNOWN, DORMANT, WATCHED, ACTIVE = range(4)
LEVELS = ("unknown", "dormant", "watched", "active")
NOTHING, DISCOVERED, VIOLATION, DULL = range(4)
CAUSES = ("nothing", "discovered", "violation", "dull")


@dataclass
class Attending:
    """Changes of attention at a tick, [items, golems]: new level, cause (NOTHING for no change) and residual."""

    level: Int64Array
    cause: Int64Array
    residual: Float64Array


@dataclass
class Digest:
    """Residuals since the last digest, [items, golems], valid for golems that end a delta (`due`, [golems])."""

    due: BoolArray
    resolved: Int64Array
    violations: Int64Array
    mean: Float64Array
    variance: Float64Array


def readings(tape: Tape, t: int) -> Float64Array:
    """Return the logarithm of each item at a tick, [items]; NaN for an item that the market lacks."""
    return tape.log_levels[:, t]


def attend(fleet: Fleet, tape: Tape, t: int, queries: BoolArray, policy: Policy) -> Attending | None:
    """Read the items that each golem attends to, and change its attention; None if nothing can change.

    queries: golems whose budget allows to read their environment.
    """
    now, looks, span = readings(tape, t)[:, None], fleet.alive & queries, policy.curator.cycle_ticks
    reads = (fleet.item_level >= WATCHED) & looks & ~np.isnan(now)
    residual = np.where(reads, now - fleet.item_last, 0.0)
    violated = _note(fleet, now, reads, residual, policy)
    place = fleet.tick % span
    ends, begins = looks & (place == 0), looks & (fleet.tick == 1)
    if not (violated.any() or ends.any() or begins.any()):
        return None
    fleet.item_quiet[violated] = 0
    before = fleet.item_level
    cause = np.where(violated & (before == WATCHED), VIOLATION, NOTHING)
    level, moved = np.where(cause == VIOLATION, ACTIVE, before), residual
    found = (ends | begins) & (before == UNKNOWN) & ~np.isnan(now)
    level, cause = np.where(found, WATCHED, level), np.where(found, DISCOVERED, cause)
    seen = found
    if ends.any():
        dull = ends & (before >= WATCHED) & (fleet.item_quiet >= policy.watch.quiet_deltas) & (cause == NOTHING)
        fleet.item_quiet += ends & (before >= WATCHED)
        dormant = ends & (before == DORMANT) & ~np.isnan(now)
        moved = np.where(dormant, now - fleet.item_last, residual)
        woken = dormant & (moved * moved > policy.watch.violation_sigma**2 * fleet.item_variance * span)
        level = np.where(dull, before - 1, np.where(woken, WATCHED, level))
        cause = np.where(dull, DULL, np.where(woken, VIOLATION, cause))
        seen = found | dormant
    fleet.item_last = np.where(seen, now, fleet.item_last)
    fleet.item_quiet[cause != NOTHING] = 0
    fleet.item_level = level
    return Attending(level, cause, np.where(cause == VIOLATION, moved, np.nan))


def _note(fleet: Fleet, now: Float64Array, reads: BoolArray, residual: Float64Array, policy: Policy) -> BoolArray:
    """Count residuals, and update the variances that they are compared with; return the violations."""
    square = residual * residual
    violated: BoolArray = square > policy.watch.violation_sigma**2 * fleet.item_variance
    fleet.item_variance += (1.0 - policy.watch.memory) * reads * (square - fleet.item_variance)
    np.copyto(fleet.item_last, now, where=reads)
    fleet.item_resolved += reads
    fleet.item_violations += violated
    fleet.item_sum += residual
    fleet.item_square += square
    return violated


def digest(fleet: Fleet, policy: Policy) -> Digest | None:
    """Digest the residuals of golems that end a delta, and begin anew; None if none does."""
    due = fleet.alive & (fleet.tick % policy.curator.cycle_ticks == 0)
    if not due.any():
        return None
    resolved, count = fleet.item_resolved.copy(), np.maximum(fleet.item_resolved, 1)
    mean = fleet.item_sum / count
    variance = np.maximum(fleet.item_square / count - mean * mean, 0.0)
    made = Digest(due, resolved, fleet.item_violations.copy(), mean, variance)
    for name in ("resolved", "violations", "sum", "square"):
        column = getattr(fleet, f"item_{name}")
        setattr(fleet, f"item_{name}", np.where(due, 0, column))
    return made


def hear_residuals(fleet: Fleet, i: int, items: Sequence[ItemResiduals], policy: Policy) -> None:
    """Let golem i expect of items that it never read the changes that a sibling measured."""
    for own in items:
        if own.item in ITEMS and own.resolved and own.variance > 0.0:
            place = ITEMS.index(own.item)
            if fleet.item_variance[place, i] == policy.watch.first_sigma**2:
                fleet.item_variance[place, i] = own.variance
