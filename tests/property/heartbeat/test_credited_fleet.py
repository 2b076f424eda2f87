"""Credits, failures and priors of a living fleet: those of its records, and their effect on the recall."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from typing_extensions import override

from bardo_pipeline.curator.curate import Curation
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.heartbeat.recall_table import SCARS, EntryNames, recall_of, with_priors
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.katabasis.lived_failures import LivedFailures
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.retrieval.credit_rules import credits_of, signs_of, totals
from bardo_pipeline.runtime.in_memory_fleet import InMemoryFleet, Start
from tests.property.katabasis.test_lived_failures import easily_hurt
from tests.support.fleets.memory_fleets import lively_market
from tests.support.fleets.shared_fleets import known
from tests.unit.heartbeat.test_choose import fleet_of
from tests.unit.heartbeat.test_priors import prior

POLICY = easily_hurt()
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
    plain = with_priors(plain, fleet.priors(), fleet.fleet.golem_ids, at_us, EntryNames(), POLICY)
    ids = [chunk.recall.names.ids[code] for code in chunk.recall.code.tolist()]
    owners = np.repeat(fleet.fleet.golem_ids, chunk.recall.count).tolist()
    uses = fleet.credits.uses(owners, ids)
    np.testing.assert_array_equal(chunk.recall.last_us, np.maximum(plain.last_us, uses.last_us))
    assert (chunk.recall.last_us > plain.last_us).any()
    misled, useful = uses.misled > 0, (uses.useful > 0) & (uses.misled == 0)
    assert (chunk.recall.importance[misled] < plain.importance[misled] * 1.25).all()
    assert (chunk.recall.importance[useful] >= plain.importance[useful]).all()
    assert (chunk.recall.importance != plain.importance).any()


@pytest.mark.row("KAT-7")
def test_a_fleet_qualifies_the_failures_of_its_closed_cycles_and_retrieves_their_scars() -> None:
    fleet, again = lived(), LivedFailures(POLICY)
    again.close(pa.concat_tables(fleet.kept), fleet._rules_of)
    names = ["golem_id", "tick", "confirmed_tick", "structure", "mechanism"]
    found, expected = (
        rows.select(names).sort_by([(n, "ascending") for n in names]).to_pylist()
        for rows in (fleet.failures.rows, again.rows)
    )
    assert found == expected != []
    chunk, _ = fleet.step_chunk(CYCLES * SPAN, CYCLES * SPAN + 1)
    ids = {chunk.recall.names.ids[code] for code in chunk.recall.code[chunk.recall.shelf == SCARS].tolist()}
    assert ids == set(fleet.priors()["prior_id"].to_pylist()) != set()


@pytest.mark.row("KAT-7")
def test_a_record_names_the_propositions_that_its_golem_held_and_retrieved() -> None:
    fleet = lived()
    golem_id, start = fleet.fleet.golem_ids[0], CYCLES * SPAN
    regimes = {REGIMES[r] for r in fleet.tape.regime[start : start + 40].tolist()}
    rows = [
        prior(
            f"claim {regime}", "quorum", (regime, "broken", "any"), golem_id=golem_id, confirmed_at=fleet.moment(start)
        )
        for regime in REGIMES
    ]
    fleet.propositions = pa.Table.from_pylist(rows, PRIOR_SCHEMA)
    chunk, _ = fleet.step_chunk(start, start + 40)
    fleet.propositions = PRIOR_SCHEMA.empty_table()
    seen = {}
    for row in records_of(chunk).to_pylist():
        if row["retrieval"] is None:
            continue
        claims = [p for p in row["retrieval"]["priors"] if p["kind"] == "proposition"]
        assert not (claims and row["golem_id"] != golem_id)
        assert row["golem_id"] != golem_id or f"claim {row['regime']}" in [p["prior_id"] for p in claims]
        for p in claims:
            assert (p["importance"], p["confidence"]) == (pytest.approx(0.8, abs=0.01), pytest.approx(0.8, abs=0.01))
            assert p["sign"] == -1
        seen |= {p["prior_id"]: row for p in claims}
    assert seen
    assert set(seen) <= {f"claim {regime}" for regime in REGIMES}
    assert regimes


@pytest.mark.row("KAT-7")
def test_a_fleet_weighs_its_beliefs_by_the_decisions_that_they_misled() -> None:
    plain = fleet_of(GOLEMS)
    starts = [Start(g, b, np.uint64(i)) for i, (g, b) in enumerate(zip(plain.golem_ids, plain.births, strict=True))]
    fleet = InMemoryFleet(tape_of(lively_market(900), POLICY), 0, starts, POLICY)
    rows = [
        prior(f"{sign} {regime}", "quorum", (regime, "broken", "any"), golem_id=golem_id, sign=sign,
              confirmed_at=fleet.moment(0))
        for golem_id in plain.golem_ids for regime in REGIMES for sign in (1, -1)
    ]  # fmt: skip
    beliefs = pa.Table.from_pylist(rows, PRIOR_SCHEMA)
    fleet.begin(known().schema.empty_table())
    fleet.believe(beliefs)
    fleet.live(CYCLES * SPAN)
    recall = fleet.recall_at(CYCLES * SPAN)
    places = [recall.names.ids[code][0] in "1-" and " " in recall.names.ids[code] for code in recall.code.tolist()]
    worth = recall.importance[np.array(places)]
    assert len(worth) == len(rows)
    assert (worth < worth.max()).any(), "a belief that misled weighs less"
    assert (worth == worth.max()).any()
