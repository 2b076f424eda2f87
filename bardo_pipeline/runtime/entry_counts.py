"""Counts of attempts to enter a pool, and the statement about a run in which no golem could enter. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.heartbeat.defi.rebalance import gas_micros
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality.credit_partitions import GAS, split
from bardo_pipeline.mortality.vitality import death_reserve_micros
from bardo_pipeline.policy import Policy

ENTER = "add_liquidity"
"""The type of an action that opens a position."""


@dataclass(frozen=True)
class EntryCounts:
    """Attempts of a fleet to enter a pool.

    Parameters
    ----------
    executed : entries that opened a position
    refused : (status, rule) of the other attempts, and their number; the rule is the reason up to its first colon
    """

    executed: int = 0
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __add__(self, other: EntryCounts) -> EntryCounts:
        return EntryCounts(self.executed + other.executed, self.refused + other.refused)

    @property
    def tried(self) -> int:
        """Number of attempts."""
        return self.executed + self.refused.total()


def count_entries(records: pa.Table) -> EntryCounts:
    """Count the attempts in the `actions` of records."""
    actions = pc.list_flatten(records["actions"].combine_chunks())
    attempts = actions.filter(pc.equal(pc.struct_field(actions, "action_type"), ENTER))
    status = pc.struct_field(attempts, "status").to_pylist()
    reason = pc.struct_field(attempts, "block_reason").to_pylist()
    pairs = [(s, (r or "no reason").partition(":")[0]) for s, r in zip(status, reason, strict=True) if s != "executed"]
    return EntryCounts(len(status) - len(pairs), Counter(pairs))


def state_no_entry(counts: EntryCounts, tape: Tape, founding: Founding, policy: Policy) -> str | None:
    """Return a statement with figures if all attempts were refused; None without an attempt or with an executed one.

    It compares the gas of an entry over the market with the gas that cage and gas gate allow a founder.
    """
    if counts.executed or not counts.tried:
        return None
    spans = [gas_micros(tape, t, policy.cost.enter_gas_units) for t in range(tape.ticks)]
    low, middle, high = (float(x) / 1e6 for x in np.quantile(spans, (0.0, 0.5, 1.0)))
    cage = policy.cage
    credits = np.array([founding.credits_micros])
    free = credits - death_reserve_micros(credits, policy)
    of_value, of_credits = founding.capital_micros * cage.gas_share_max / 1e6, int(split(free, policy)[GAS][0]) / 1e6
    refused = ", ".join(f"{count:,} {status} ({rule})" for (status, rule), count in counts.refused.most_common())
    return (
        f"No golem could enter the pool: {counts.tried:,} attempts, none executed"
        + (f"; {refused}" if refused else "")
        + f". The gas of an entry cost ${low:,.2f} to ${high:,.2f} (median ${middle:,.2f}). "
        f"A golem of ${founding.budget_micros / 1e6:,.2f} may spend ${min(of_value, of_credits):,.2f}: "
        f"{100 * cage.gas_share_max:g} % of its position's value (${of_value:,.2f}), its gas partition "
        f"(${of_credits:,.2f}), and {policy.credit.hourly_multiple:g} times the average hourly cost of its gas. "
        "Give a larger --budget or a market with cheaper gas."
    )
