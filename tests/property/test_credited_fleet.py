"""Credits of retrievals in a living fleet: those of the derived table, and their effect on the recall."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from typing_extensions import override

from bardo_pipeline.curator.curate import Curation
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.heartbeat.recall_table import EntryNames, recall_of
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.credit_rules import credits_of, signs_of, totals
from bardo_pipeline.runtime.in_memory_fleet import InMemoryFleet, Start
from tests.support.memory_fleets import lively_market
from tests.support.shared_fleets import known
from tests.unit.test_choose import fleet_of

POLICY = Policy()
GOLEMS, CYCLES = 4, 9
SPAN = POLICY.curator.cycle_ticks


class KeptFleet(InMemoryFleet):
    """A fleet that keeps its records and decisions."""

    @override
    def close_cycles(self, records: pa.Table, upto: dict[str, int]) -> Curation:
        self.kept = [*getattr(self, "kept", []), records]
        made = super().close_cycles(records, upto)
        self.decided = [*getattr(self, "decided", []), made.decisions]
        return made


@cache
def lived() -> KeptFleet:
    """Four golems with inherited rules, which live nine cycles of a lively market."""
    plain = fleet_of(GOLEMS)
    starts = [Start(g, b, np.uint64(i)) for i, (g, b) in enumerate(zip(plain.golem_ids, plain.births, strict=True))]
    fleet = KeptFleet(tape_of(lively_market(900), POLICY), 0, starts, POLICY)
    rows = [row | {"golem_id": s.golem_id} for s in starts for row in known().to_pylist()]
    fleet.begin(pa.Table.from_pylist(rows, known().schema))
    fleet.decided = [pa.Table.from_pylist([], fleet.mind.pending_curation().decisions.schema)]
    fleet.live(CYCLES * SPAN)
    return fleet


@pytest.mark.row("MEM-11")
def test_a_fleet_credits_its_retrievals_as_the_derived_table_does() -> None:
    fleet = lived()
    records = pa.concat_tables(fleet.kept)
    cycle = cycle_of(records["tick"].to_numpy(), SPAN)
    expected = totals(credits_of(records, cycle, fleet.credits.signs, POLICY.curator)).to_pylist()
    uses = fleet.credits.uses([r["golem_id"] for r in expected], [r["entry_id"] for r in expected])
    assert uses.useful.tolist() == [r["useful"] for r in expected]
    assert uses.misled.tolist() == [r["misled"] for r in expected]
    assert uses.last_us.tolist() == [r["last_us"] for r in expected]
    assert sum(uses.useful) > 5
    assert sum(uses.misled) > 0


@pytest.mark.row("MEM-11")
def test_signs_noted_cycle_by_cycle_are_those_of_all_decisions() -> None:
    fleet = lived()
    decided = pa.concat_tables(fleet.decided)
    whole = signs_of(decided)
    noted = {(r["golem_id"], r["entry_id"], r["cycle"]): r["sign"] for r in fleet.credits.signs.to_pylist()}
    once = {(r["golem_id"], r["entry_id"], r["cycle"]): r["sign"] for r in whole.to_pylist()}
    inherited = {pair: sign for pair, sign in noted.items() if pair[2] == 0}
    assert len(inherited) == GOLEMS * known().num_rows
    repeated = {(g, e): s for (g, e, _), s in inherited.items()}
    first = {key for key in once if key not in noted}
    assert {key: sign for key, sign in noted.items() if key[2] > 0}.items() <= once.items()
    assert all(once[key] == repeated[key[:2]] for key in first), "a decision that keeps the inherited sign is no change"


@pytest.mark.row("MEM-11")
def test_a_fleet_recalls_with_the_credits_of_its_closed_cycles() -> None:
    fleet = lived()
    chunk, _ = fleet.step_chunk(CYCLES * SPAN, CYCLES * SPAN + 1)
    at_us = int(fleet.tape.at_us[CYCLES * SPAN])
    plain = recall_of(fleet.mind.state, fleet.fleet.golem_ids, at_us, EntryNames(), POLICY)
    ids = [chunk.recall.names.ids[code] for code in chunk.recall.code.tolist()]
    owners = np.repeat(fleet.fleet.golem_ids, chunk.recall.count).tolist()
    uses = fleet.credits.uses(owners, ids)
    np.testing.assert_array_equal(chunk.recall.last_us, np.maximum(plain.last_us, uses.last_us))
    assert (chunk.recall.last_us > plain.last_us).any()
    misled, useful = uses.misled > 0, (uses.useful > 0) & (uses.misled == 0)
    assert (chunk.recall.importance[misled] < plain.importance[misled] * 1.25).all()
    assert (chunk.recall.importance[useful] >= plain.importance[useful]).all()
    assert (chunk.recall.importance != plain.importance).any()
