"""Benchmark data: records of golems that ran through a synthetic market."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curator_state import CuratorState
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.heartbeat.recall_table import recall_of
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers, Chunk
from bardo_pipeline.heartbeat.step import step
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import GatePolicy, Policy
from bardo_pipeline.storage.home import Home

GOLEMS, SPAN = 64, 50
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """Golems, one owner each, that live `ticks` ticks without dying. cycles[k]: all records of cycle k + 1.

    curates: run the curator after each cycle; otherwise golems keep their initial playbook. gate: None for the
    policy's default.
    """

    def __init__(
        self, ticks: int, golems: int = GOLEMS, *, curates: bool = True, gate: GatePolicy | None = None
    ) -> None:
        self.policy, self.golems = Policy(gate=gate or GatePolicy()), golems
        market = synthetic_market(seed=7, bars=int(ticks * 1.3) + 200, start=NOW)
        self.tape = tape_of(market, self.policy)
        founding = Founding(budget_micros=10**10, credit_share=0.995, lifespan_ticks=(10**9, 10**9))
        self.births = [
            born(
                lineage_id=f"bench/{i}", generation=0, owner_id=f"owner-{i}", founding=founding, market=market.name,
                market_hash=market.content_hash, derivation_id="bench", policy=self.policy,
            )
            for i in range(golems)
        ]  # fmt: skip
        self.live_seconds = 0.0
        self.cycles: list[pa.Table] = []
        self._live(min(ticks, self.tape.ticks) // SPAN, curates)
        self.records = sum(t.num_rows for t in self.cycles)

    def _live(self, cycles: int, curates: bool) -> None:
        ids = [g for g, _ in self.births]
        fleet = Fleet(ids, [b for _, b in self.births], self.policy)
        mind, names = CuratorState(self.policy), EntryNames()
        for golem_id, birth in self.births:
            mind.begin_life(
                golem_id, at=NOW, base_threshold=birth.traits.rebalance_threshold, inherited=None, bundle_hash=None
            )
        for k in range(cycles):
            started = time.perf_counter()
            start = k * SPAN
            recall = recall_of(mind.state, ids, int(self.tape.at_us[start]), names, self.policy)
            out = Buffers(self.golems, SPAN)
            for j in range(SPAN):
                step(
                    fleet, self.tape, start + j, recall=recall, interventions=None, killed=False, policy=self.policy,
                    out=out, at=j,
                )  # fmt: skip
            records = records_of(Chunk(out, self.tape, start, ids, recall, "bench", self.policy))
            self.live_seconds += time.perf_counter() - started
            self.cycles.append(records)
            if not curates:
                continue
            mind.advance(records, np.full(records.num_rows, k + 1), dict.fromkeys(ids, k + 1))
            mind.pending.clear()
            for i, golem_id in enumerate(ids):
                books = mind.playbooks
                fleet.follow(i, *books.of(golem_id, self.policy), books.choices_of(golem_id), names)
                fleet.cycle_seen[i] = k + 1

    def home(self, root: Path) -> DerivationContext:
        """Create a home with the births of these golems."""
        Home.create(root, self.policy, NOW)
        stores = DerivationContext.open(root, policy=self.policy)
        stores.log.record([life_event(g, NOW, b) for g, b in self.births], NOW)
        return stores

    def fill(self, stores: DerivationContext, first: int, last: int, *, batch: int, writer: str) -> None:
        """Append cycles first to last (0-based, end excluded) in batches of about `batch` records."""
        tables = self.cycles[first:last]
        each = max(batch // (self.golems * SPAN), 1)
        for segment, at in enumerate(range(0, len(tables), each), 1):
            table = pa.concat_tables(tables[at : at + each]).combine_chunks()
            stores.log.append(table, writer=writer, segment=segment, recorded_at=NOW, simulated=True)
