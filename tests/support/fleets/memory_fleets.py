"""Fleets without a home: the runtime's loop over a market, with records in memory.

An heir is born where its predecessor died, with the entries that a test gives it. For tests of the heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from typing_extensions import override

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.katabasis.line_knowledge import LineKnowledge
from bardo_pipeline.derivation.succession import birth_events
from bardo_pipeline.events.life.events import Born, LifeEvent, Traits
from bardo_pipeline.events.life.override_events import Overrides
from bardo_pipeline.events.life.proposal_events import Proposed
from bardo_pipeline.events.life.received_knowledge import Arrivals
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA
from bardo_pipeline.market.market import Market, price_of_tick
from bardo_pipeline.market.synthetic import SyntheticSpec, synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.runtime.in_memory_fleet import DEATH_TICKS
from tests.support.knowledge import handmade_grimoires

START = datetime(2026, 1, 1, tzinfo=UTC)
FOUNDING = Founding(owners=("owner-1", "owner-2", "owner-3"), budget_micros=50_000_000, credit_share=0.03)
LIVELY = SyntheticSpec(
    native_usd_micros=650_000, calm_share=0.15, volatile_share=0.45, spell_bars_min=30, spell_bars_mean=90,
    trend_drift=0.000_1, excursion_gap_bars_mean=20.0, crash_first_bars=(120, 160), crash_gap_bars=(240, 360),
    gas_own_gap_bars_mean=200.0,
)  # fmt: skip
"""A market in which something happens every few minutes."""


def lively_market(bars: int, seed: int = 7, spec: SyntheticSpec = LIVELY) -> Market:
    """Return a market with rises, falls, crashes and expensive gas."""
    return synthetic_market(seed=seed, bars=bars, start=START, spec=spec)


def drawn_market(ticks: Sequence[int], gas_gwei: Sequence[float] | float = 30.0, **fields: Any) -> Market:
    """A market drawn by hand: the pool's tick at each minute, and the price of gas."""
    tick = np.array(ticks, dtype=np.int32)
    price, bars = price_of_tick(tick), len(tick)
    plain: dict[str, Any] = {
        "name": "by hand", "chain": "polygon", "protocol": "uniswap_v3", "pair": "WETH/USDC", "pool": "0x0",
        "fee_ppm": 500, "native_usd_micros": 650_000,
        "at_us": (int(START.timestamp()) // 60 + np.arange(bars, dtype=np.int64)) * 60_000_000,
        "price": price, "price_low": price, "price_high": price, "tick": tick,
        "volume_usd_micros": np.full(bars, 400_000_000, np.int64), "liquidity": np.full(bars, 2e18),
        "gas_gwei": np.broadcast_to(np.asarray(gas_gwei, dtype=np.float64), bars).copy(),
    }  # fmt: skip
    return Market(**(plain | fields))


@dataclass
class Memory:
    """The records and events of a run, in memory."""

    tables: list[pa.Table] = field(default_factory=list)
    events: list[LifeEvent] = field(default_factory=list)

    def append(self, records: pa.Table, **_: Any) -> None:
        """Keep records."""
        self.tables.append(records)

    def record(self, events: Iterable[LifeEvent], _: datetime) -> None:
        """Keep events."""
        self.events.extend(events)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Birth of the founders: before every market."""


@dataclass(frozen=True)
class Lived:
    """The result of a fleet: its records by golem and tick, its deaths and births by golem."""

    records: pa.Table
    births: Mapping[str, Born]
    deaths: Mapping[str, tuple[int, str]]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The records, one by one. Only for reading."""
        rows: list[dict[str, Any]] = self.records.to_pylist()
        return rows

    def of(self, golem_id: str) -> pa.Table:
        """One golem's records."""
        return self.records.filter(pa.compute.equal(self.records["golem_id"], golem_id))


class MemoryFleetRun(fleet_run.FleetRun):
    """The runtime without a home. lineages: the founders of this fleet."""

    def __init__(
        self,
        run: fleet_run.Run,
        policy: Policy,
        lineages: Sequence[int],
        inherited: pa.Table | None,
        traits: Traits | None,
    ) -> None:
        self.memory, self._lineages, self._inherited, self._traits = Memory(), lineages, inherited, traits
        stores: Any = SimpleNamespace(
            policy=policy,
            derivation_id="by hand",
            frozen=None,
            log=self.memory,
            home=None,
            deriving=nullcontext,
            left_out=LeftOut,
            overrides=Overrides,
            proposed=Proposed,
            arrivals=Arrivals,
        )
        super().__init__(stores, run, lambda: START)

    @override
    def _found_lineages(self) -> None:
        self._welcome([self._birth(f"{self.run.name}/{i}", 0, self._owner(i)) for i in self._lineages], EPOCH)

    @override
    def _hear_others(self, start: int, received: datetime) -> None:
        """Hear nothing: without a home there is no clade."""

    def _owner(self, lineage: int) -> str:
        return self.run.founding.owners[lineage % len(self.run.founding.owners)]

    @override
    def _birth(self, lineage_id: str, generation: int, owner_id: str, **_: Any) -> tuple[str, Born]:
        golem_id, birth = super()._birth(lineage_id, generation, owner_id)
        given: dict[str, Any] = {} if self._traits is None else {"traits": self._traits}
        if self._inherited is not None:
            given["bundle_hash"] = "a bundle"
        return golem_id, birth.model_copy(update=given)

    @override
    def _bury(self, dead: dict[str, int], stop: int) -> list[tuple[str, Born]]:
        gone = [i for i, g in enumerate(self.fleet.golem_ids) if g in dead]
        lives = [self.fleet.births[i] for i in gone]
        self.memory.record([self._death(i, dead) for i in gone], START)
        self.fleet.keep(~np.isin(np.arange(self.fleet.size), gone))
        self.mind.remove_golems(set(dead))
        room = stop < self.tape.ticks
        heirs = [b for b in lives if room and b.generation + 1 < self.run.generations]
        return [self._birth(b.lineage_id, b.generation + 1, b.owner_id) for b in heirs]


def live(
    market: Market, *, lineages: Sequence[int] = (0,), policy: Policy | None = None, founding: Founding = FOUNDING,
    generations: int = 1, steers: Mapping[tuple[str, int], tuple[str, str]] | None = None,
    inherited: pa.Table | None = None, traits: Traits | None = None, killed: Callable[[], bool] = lambda: False,
    learning: Any = None,
) -> Lived:  # fmt: skip
    """Let a fleet live through a market.

    lineages: numbers of its founders; a founder is the same golem in every fleet. inherited: initial entries
    of every golem (ENTRY_SCHEMA). traits: of every golem, instead of drawn ones. learning: state in the bundle of every
    golem with `inherited` entries.
    """
    run = fleet_run.Run("fleet", market, len(lineages), generations, founding, steers=steers or {}, killed=killed)
    fleet = MemoryFleetRun(run, policy or Policy(), lineages, inherited, traits)
    instead = {
        "load_bundle": lambda *_: SimpleNamespace(
            golem_id="g-before", learning=learning, manifest={"died_at": START.isoformat()}
        ),
        "waiting_orders": lambda *_: [],
        "is_sale": lambda *_: False,
        "inherited_entries": lambda _, heir, __, bought: _owned(inherited, heir),
    }
    nothing = LineKnowledge(FAILURE_SCHEMA.empty_table(), DEATH_TICKS.empty_table(), PRIOR_SCHEMA.empty_table())
    with (
        patch.object(fleet_run, "commit_curation", lambda _, mind, golems: mind.pending.clear()),
        patch.object(fleet_run, "line_knowledge", lambda *_: nothing),
        patch.multiple(birth_events, **instead),
    ):
        fleet.live()
    records = pa.concat_tables(fleet.memory.tables).combine_chunks()
    events = fleet.memory.events
    return Lived(
        records.sort_by([("golem_id", "ascending"), ("tick", "ascending")]).cast(RECORD_SCHEMA),
        {e.golem_id: e.born for e in events if e.born is not None},
        {e.golem_id: (e.died.tick, e.died.cause) for e in events if e.died is not None},
    )


def _owned(entries: pa.Table | None, heir: str) -> pa.Table:
    assert entries is not None
    place = entries.schema.get_field_index("golem_id")
    return entries.set_column(place, entries.schema.field(place), pa.array([heir] * entries.num_rows, pa.string()))


def rule(market: Market, regime: str, anomaly_band: str, gas_band: str, **fields: Any) -> dict[str, Any]:
    """Return a confident heuristic to re-centre in a situation; `fields` changes any column."""
    where = (market.chain, market.protocol, market.pair)
    about = Structure("pattern", *where, "uniswap_v3_rebalance", "rebalance", regime, anomaly_band, gas_band)
    plain = {
        "kind": "heuristic", "confidence_ppm": 950_000, "confidence_origin_ppm": 950_000, "anchor_at": START,
        "created_at": START, "validated_at": START, "origin_golem_id": "g-before", "provenance": "death_testament",
        "generation": 1, "effect_mean_ppm": 900,
    }  # fmt: skip
    return handmade_grimoires.entry("g-before", about, **(plain | fields))
