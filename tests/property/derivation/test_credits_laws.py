"""Credits by columns equal the row-at-a-time twin for every division into batches; and their effect on retrieval."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.memory.ask import golem_moment, grimoire_of
from bardo_pipeline.derivation.memory.retrieval_credits import derive_credits
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.retrieval.credit_rules import CREDIT_COLUMNS, CREDIT_SCHEMA, credits_of, signs_of, totals
from tests.conftest import NOW
from tests.property.derivation.test_laws import BRIEF, beside, birth_of, stores_at
from tests.reference.learning.credits import credits_by_row
from tests.support.example_count import times
from tests.support.records.handmade_records import FOG, SPAN, STORIES, STORM, Life, cycles_of, full, lives

CREDITED = pa.schema([RECORD_SCHEMA.field(name) for name in CREDIT_COLUMNS])
LIFE = Life("g-0", {STORM: STORIES[0] * 3, FOG: STORIES[5] * 3}, (3, 1), timedelta(minutes=2), SPAN * 12)


def decided(lived: tuple[Life, ...]) -> pa.Table:
    """Return the curator's decisions for these lives."""
    records = full([row for life in lived for row in life.rows()])
    made = curate(GrimoireState(), Playbooks(), records, cycles_of(records), policy=BRIEF, policy_hash=BRIEF.hash)
    return made.decisions


def credited(lived: tuple[Life, ...]) -> pa.Table:
    return pa.Table.from_pylist([row for life in lived for row in life.rows()], schema=CREDITED)


def by_key(table: pa.Table) -> dict[tuple[str, int, str], dict[str, Any]]:
    return {
        (r["golem_id"], r["cycle"], r["entry_id"]): {
            n: set(r[n]) if n == "cause_ticks" else r[n] for n in CREDIT_SCHEMA.names[3:]
        }
        for r in table.to_pylist()
    }


@pytest.mark.row("MEM-11")
@settings(max_examples=times(10), deadline=None)
@given(lives())
def test_credits_equal_their_row_at_a_time_twin(lived: tuple[Life, ...]) -> None:
    decisions, records = decided(lived), credited(lived)
    derived = credits_of(records, cycles_of(records), signs_of(decisions), BRIEF.curator)
    assert derived.schema == CREDIT_SCHEMA
    assert len(by_key(derived)) == derived.num_rows
    assert by_key(derived) == credits_by_row(records.to_pylist(), decisions.to_pylist(), BRIEF.curator)


@pytest.mark.row("MEM-11")
@settings(max_examples=times(10), deadline=None)
@given(lives(), st.data())
def test_signs_computed_in_parts_equal_signs_computed_at_once(lived: tuple[Life, ...], data: st.DataObject) -> None:
    decisions = decided(lived)
    known, at = None, data.draw(st.integers(0, 12))
    cycle = decisions["cycle"].to_numpy()
    for part in (cycle <= at, (cycle > at) & (cycle <= at + 3), cycle > at + 3):
        known = signs_of(decisions.filter(pa.array(part)), known)
    assert known is not None
    assert known.equals(signs_of(decisions))


@pytest.mark.row("MEM-11")
def test_reversed_verdicts_swap_useful_and_misled_credits() -> None:
    decisions, records = decided((LIFE,)), credited((LIFE,))
    derived = credits_of(records, cycles_of(records), signs_of(decisions), BRIEF.curator)
    summed = {r["entry_id"]: r for r in totals(derived).to_pylist()}
    assert sum(r["useful"] for r in summed.values()) > 0
    assert summed["f" * 24]["useful"] == summed["f" * 24]["misled"] == 0
    turned = credits_of(_turned(records), cycles_of(records), signs_of(decisions), BRIEF.curator)
    other = {r["entry_id"]: r for r in totals(turned).to_pylist()}
    assert {i: (r["useful"], r["misled"]) for i, r in summed.items()} == {
        i: (r["misled"], r["useful"]) for i, r in other.items()
    }, "reversed verdicts must swap useful and misled"


def _turned(records: pa.Table) -> pa.Table:
    rows = records.to_pylist()
    for row in rows:
        row["resolutions"] = [r | {"effect_ppm": -r["effect_ppm"]} for r in row["resolutions"]]
    return pa.Table.from_pylist(rows, schema=records.schema)


@pytest.mark.row("MEM-11")
@settings(max_examples=times(3), deadline=None)
@given(st.lists(st.integers(1, SPAN * 12), max_size=4), st.booleans())
def test_the_credits_table_is_independent_of_batches(cuts: list[int], late: bool) -> None:
    with TemporaryDirectory() as folder:
        stores, rows = stores_at(Path(folder) / "home"), LIFE.rows()
        stores.log.record([birth_of(LIFE)], NOW)
        bounds = [0, *sorted(cuts), len(rows)]
        for segment, (first, last) in enumerate(pairwise(bounds)):
            if first < last:
                stores.log.append(full(rows[first:last]), writer="w", segment=segment, recorded_at=NOW)
            for derive in (derive_credits, derive_curation) if late else (derive_curation, derive_credits):
                derive(stores)
        derive_curation(stores)
        derive_credits(stores)
        again = beside(stores, Path(folder) / "beside")
        derive_curation(again)
        derive_credits(again)
        own, foreign = (item.projections.read("credits") for item in (stores, again))
        assert own.num_rows > 0
        assert own.equals(foreign)
        assert not derive_credits(stores), "nothing is new"


@pytest.mark.row("MEM-11")
def test_credits_change_validation_ratio_and_last_use_of_retrieved_entries(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    stores.log.record([birth_of(LIFE)], NOW)
    stores.log.append(full(LIFE.rows()), writer="w", segment=0, recorded_at=NOW)
    derive_curation(stores)
    where = golem_moment(stores, "g-0")
    asked = stores.embedder.embed(["should I re-centre?"])[0]

    def hits_by_entry() -> dict[str, dict[str, Any]]:
        hits = grimoire_of(stores, where, now=NOW).retrieve(asked, where.situation, 50, may_skip=False).hits
        return {hit["entry_id"]: hit for hit in hits.to_pylist()}

    before = hits_by_entry()
    derive_credits(stores)
    after = hits_by_entry()
    summed = {r["entry_id"]: r for r in totals(stores.projections.read("credits")).to_pylist()}
    assert set(before) == set(after)
    moved = [i for i in after if i in summed and summed[i]["useful"] + summed[i]["misled"]]
    assert moved, "no entry has a credit"
    for entry, hit in after.items():
        credit = summed.get(entry, {"useful": 0, "misled": 0, "last_us": 0})
        old, new = before[entry], hit
        held = np.sign(credit["useful"] * _failed(old) - credit["misled"] * _held(old))
        assert np.sign(round(new["validation_ratio"] - old["validation_ratio"], 12)) == held
        assert int(new["last_used_at"].timestamp() * 10**6) == max(
            credit["last_us"], int(old["last_used_at"].timestamp() * 10**6)
        )
        assert new["recency"] >= old["recency"]


def _held(hit: dict[str, Any]) -> float:
    return float(hit["validation_ratio"])


def _failed(hit: dict[str, Any]) -> float:
    return 1.0 - float(hit["validation_ratio"])


def test_credits_wait_until_the_cycle_is_curated(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    stores.log.record([birth_of(LIFE)], NOW)
    stores.log.append(full(LIFE.rows()), writer="w", segment=0, recorded_at=NOW)
    derive_credits(stores)
    assert stores.projections.read("credits").num_rows == 0
    derive_curation(stores)
    derive_credits(stores)
    cycles = stores.projections.read("credits")["cycle"]
    assert pc.max(cycles).as_py() == 12
