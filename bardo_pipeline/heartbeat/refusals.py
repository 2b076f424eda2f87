"""Status of an action, and the rule that stopped it, with its numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array

EXECUTED, BLOCKED, DEFERRED, REVERTED = range(4)
STATUS = ("executed", "blocked", "deferred", "reverted")

(
    NO_REFUSAL, WARNING, SIMULATION, POOL_SHARE, VALUE_SHARE, GAS_AVAILABLE, GAS_HOURLY, SLIPPAGE, PROTOCOL,
    LIQUIDATION, DEBT_RATIO, BORROW_RATE, GAS_OVER_BONUS, SIMULATED_LOSS, KELLY, EXPOSURE, DRAWDOWN, EXIT_SLIPPAGE,
    LOAN_HEALTH, ACCURACY, NO_PERMIT, CANCELLED, RESTRICTED,
) = range(23)  # fmt: skip

REFUSALS: tuple[tuple[str, ...], ...] = (
    (),
    ("a warning stands against acting here",),
    ("simulation: slippage of ", " ppm is above the limit of ", " ppm"),
    ("policy cage: ", " ppm of the pool is above the limit of ", " ppm"),
    ("policy cage: gas of ", " micro-dollars is above the position's limit of ", " micro-dollars"),
    ("gas gate: gas of ", " micro-dollars is above the partition's available ", " micro-dollars"),
    ("gas gate: gas of ", " micro-dollars is above the multiple of the average hourly cost, ", " micro-dollars"),
    ("inclusion: slippage of ", " ppm is above the limit of ", " ppm"),
    ("policy cage: this protocol may not be touched",),
    ("its loan is being liquidated",),
    ("policy cage: debt of ", " ppm of the collateral is above the limit of ", " ppm"),
    ("policy cage: a yearly borrow rate of ", " ppm is above the limit of ", " ppm"),
    ("gas gate: gas of ", " micro-dollars is above what a liquidation would take, ", " micro-dollars"),
    ("simulation: a cost of ", " ppm of the value is above the limit of ", " ppm"),
    ("risk engine: a cost of ", " micro-dollars is above the Kelly cap of ", " micro-dollars"),
    ("risk engine: an exposure of ", " ppm of the net value is above the limit of ", " ppm"),
    ("risk engine: a drawdown of ", " ppm is above the limit of ", " ppm"),
    ("risk engine: slippage on leaving of ", " ppm is above the limit of ", " ppm"),
    ("risk engine: debt of ", " ppm of what the collateral bears is above the limit of ", " ppm"),
    ("accuracy gate: ", " ppm of the predictions missed, above the limit of ", " ppm"),
    ("its permit does not allow this action now",),
    ("the owner's steer cancelled this call",),
    ("a safety constraint blocked this call",),
)
"""Words of each reason: around its two numbers, or alone."""

Stop = tuple[BoolArray, int, int, Int64Array, Int64Array]
"""(stopped golems, status, reason, size, limit)."""


@dataclass
class Cut:
    """Where the calls of a tick end before their time, [golems].

    left: calls that may still be sent; each sent call takes one. why: CANCELLED or RESTRICTED, NO_REFUSAL for no cut.
    """

    left: Int64Array
    why: Int64Array

    def stops(self, golem: Int64Array) -> tuple[Stop, ...]:
        """Return the stops of the next call of these golems."""
        nothing = np.zeros(len(golem), np.int64)
        ends = self.left[golem] <= 0
        return tuple(
            (ends & (self.why[golem] == why), BLOCKED, why, nothing, nothing) for why in (CANCELLED, RESTRICTED)
        )

    def note(self, golem: Int64Array) -> None:
        """Count a sent call of these golems."""
        self.left[golem] -= 1


def refusal_texts(reason: Int64Array, size: Int64Array, limit: Int64Array) -> pa.Array:
    """Return one sentence per action, null without a refusal: "simulation: slippage of 950 ppm is above ...".

    Parameters
    ----------
    reason : positions in REFUSALS
    size, limit : the two numbers of the rule
    """
    place, parts, done = np.full(len(reason), -1, np.int64), [pa.array([], pa.string())], 0
    for code in np.unique(reason[reason != NO_REFUSAL]).tolist():
        rows = np.flatnonzero(reason == code)
        place[rows] = np.arange(done, done + len(rows))
        done += len(rows)
        words = REFUSALS[code]
        if len(words) == 1:
            parts.append(pa.repeat(words[0], len(rows)))
        else:
            numbers = (pa.array(values[rows].astype(np.int64)).cast(pa.string()) for values in (size, limit))
            first, second = numbers
            parts.append(pc.binary_join_element_wise(words[0], first, words[1], second, words[2], ""))
    return pa.chunked_array(parts).combine_chunks().take(pa.array(place, mask=place < 0))


def ppm_of(share: float) -> int:
    """Return a share in ppm."""
    return round(share * 1e6)
