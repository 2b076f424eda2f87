"""Handmade markets with known causal links, as records with the columns of causal learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from bardo_pipeline.policy import Policy
from tests.support.records.handmade_records import record, table

POLICY = Policy()


@dataclass
class World:
    """A golem's observations by tick: log returns, changes of log gas and log liquidity, volume in dollars."""

    returns: np.ndarray
    gas: np.ndarray
    liquidity: np.ndarray
    volume: np.ndarray


def noise(ticks: int, seed: int) -> World:
    """Return a world of independent random series."""
    rng = np.random.default_rng(seed)
    return World(
        rng.normal(0.0, 5e-4, ticks), rng.normal(0.0, 0.05, ticks), rng.normal(0.0, 0.03, ticks),
        100.0 * np.exp(rng.normal(0.0, 1.0, ticks)),
    )  # fmt: skip


def with_crashes(
    world: World,
    *,
    every: int,
    gas_after: int | None,
    until: int | None = None,
    first: int = 300,
    fall: tuple[int, float] = (4, 0.006),
) -> World:
    """Add sharp falls at an interval, with this length and depth; gas rises this many ticks later, up to a tick, or
    never.
    """
    for start in range(first, len(world.returns) - 80, every):
        world.returns[start : start + fall[0]] -= fall[1]
        if gas_after is not None and (until is None or start < until):
            world.gas[start + gas_after] += 1.5
    return world


def records_of(world: World, golem_id: str = "g-1") -> pa.Table:
    """The world as records (EVIDENCE_COLUMNS) of one golem, a minute a tick."""
    ticks = len(world.returns)
    price = 2_000.0 * np.exp(np.cumsum(world.returns))
    level = {"gas_gwei": 30.0 * np.exp(_around(world.gas)), "liquidity": 1e18 * np.exp(_around(world.liquidity))}
    rows = [
        record(
            golem_id, tick + 1,
            observation={
                "price": float(price[tick]), "price_return": float(world.returns[tick]),
                "sma": float(price[max(tick - 19, 0) : tick + 1].mean()) if tick >= 19 else None,
                "gas_gwei": float(level["gas_gwei"][tick]), "liquidity": float(level["liquidity"][tick]),
                "volume_micros": int(world.volume[tick] * 1e6), "gas_hour_ratio": 1.0,
            },
        )
        for tick in range(ticks)
    ]  # fmt: skip
    return table(rows)


def _around(changes: np.ndarray) -> np.ndarray:
    """Return the cumulative changes, mean-reverting around zero."""
    out, level = np.empty(len(changes)), 0.0
    for place, change in enumerate(changes):
        level = 0.98 * level + change
        out[place] = level
    return out


def learned(records: pa.Table, policy: Policy = POLICY, state: GrimoireState | None = None) -> Curation:
    """Return the curator's result for these records, in one run."""
    cycle = (records.column("tick").to_numpy() - 1) // policy.curator.cycle_ticks + 1
    return curate(state or GrimoireState(), Playbooks(), records, cycle, policy=policy, policy_hash=policy.hash)


def links(records: pa.Table, policy: Policy = POLICY) -> list[dict[str, Any]]:
    """The causal links that a golem holds after these records."""
    state = GrimoireState()
    learned(records, policy, state)
    rows = to_table(state, policy.curator, policy.decay).to_pylist()
    return [row for row in rows if row["source"] == "causal" and row["status"] == "active"]
