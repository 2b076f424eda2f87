"""Causal moments: cached or rebuilt, read at once or in parts, with retractions or without, they give the same
links.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.curator_state import load_moments, load_readings, load_state
from bardo_pipeline.events.life.events import Struck, life_event
from bardo_pipeline.policy import Policy
from tests.conftest import NOW
from tests.property.derivation.test_laws import beside, birth_of, stores_at
from tests.support.fleets.causal_markets import noise, records_of, with_crashes
from tests.support.records.handmade_records import START, Life, full

QUICK = Policy().model_copy(update={"causal": Policy().causal.model_copy(update={"test_cycles": 2, "ticks_min": 300})})
GOLEM, TICKS = "g-0", 1_200
KEPT, READINGS = Path("readers") / "moments", Path("readers") / "readings"


@pytest.fixture(scope="module")
def records() -> pa.Table:
    """Return the records of a golem in a market where gas rises after each crash."""
    return full(records_of(with_crashes(noise(TICKS, 8), every=60, gas_after=3), GOLEM).to_pylist())


def derived(
    root: Path,
    records: pa.Table,
    ends: Iterable[int],
    between: Callable[[DerivationContext], object] = lambda stores: None,
) -> DerivationContext:
    """Return a home that derived after each of these ticks."""
    stores, start = stores_at(root, QUICK), 0
    stores.log.record([birth_of(Life(GOLEM, {}, (0,), START - START, TICKS), QUICK)], NOW)
    for segment, stop in enumerate(ends):
        stores.log.append(records.slice(start, stop - start).take(list(range(stop - start))), writer="w",
                          segment=segment + 1, recorded_at=NOW)  # fmt: skip
        derive_curation(stores)
        between(stores)
        start = stop
    return stores


def fingerprints(stores: DerivationContext) -> list[str]:
    """Return the rows that curation wrote."""
    return [stores.projections.digest(name).fingerprint for name in ("curation", "grimoire")]


def links(stores: DerivationContext) -> set[str]:
    """The keys of active links."""
    rows = stores.projections.read("grimoire").to_pylist()
    return {row["structure"] for row in rows if row["source"] == "causal" and row["status"] == "active"}


@pytest.mark.row("MEM-22")
def test_links_are_equal_after_one_run_several_runs_and_a_lost_cache(tmp_path: Path, records: pa.Table) -> None:
    once = derived(tmp_path / "once", records, [TICKS])
    parts = derived(tmp_path / "parts", records, [130, 575, 1_010, TICKS])

    def lose(stores: DerivationContext) -> None:
        shutil.rmtree(stores.projections.root / KEPT)
        shutil.rmtree(stores.projections.root / READINGS)

    lost = derived(tmp_path / "lost", records, [130, 575, 1_010, TICKS], lose)
    assert fingerprints(once) == fingerprints(parts) == fingerprints(lost)
    gas = Structure("causal", "polygon", "uniswap_v3", "WETH/USDC", cause="crash", effect="gas_gwei", lag_ticks=3)
    assert gas.key in links(once)


@pytest.mark.row("MEM-22", "X-4")
def test_cached_moments_leave_out_a_struck_record_as_a_rebuild_does(tmp_path: Path, records: pa.Table) -> None:
    stores = derived(tmp_path / "home", records, [575, 1_010])
    stores.log.record([life_event(GOLEM, START, Struck(tick=421, why="a wrong price"))], NOW)
    derive_curation(stores)
    again = beside(stores, tmp_path / "beside")
    derive_curation(again)
    assert fingerprints(stores) == fingerprints(again)
    kept = load_moments(stores, {GOLEM: 20}, stores.left_out())
    shutil.rmtree(stores.projections.root / KEPT)
    assert kept.table({GOLEM}).equals(load_moments(stores, {GOLEM: 20}, stores.left_out()).table({GOLEM}))
    with_it = load_moments(stores, {GOLEM: 20}, type(stores.left_out())())
    assert not kept.table({GOLEM}).equals(with_it.table({GOLEM}))


@pytest.mark.row("MEM-2", "X-4")
def test_cached_readings_of_levels_leave_out_a_struck_record_as_a_recount_does(
    tmp_path: Path, records: pa.Table
) -> None:
    stores = derived(tmp_path / "home", records, [575, 1_010])
    stores.log.record([life_event(GOLEM, START, Struck(tick=421, why="a wrong price"))], NOW)
    derive_curation(stores)
    state = load_state(stores, [GOLEM], stores.left_out())
    kept = state.state.readings.table({GOLEM})
    shutil.rmtree(stores.projections.root / READINGS)
    assert kept.equals(load_readings(stores, state.state, state.done, stores.left_out()).table({GOLEM}))
    counts = [sum(row["counts"]) for row in kept.to_pylist()]
    assert set(counts) == {state.done[GOLEM] * QUICK.curator.cycle_ticks - 1}
    with_it = load_readings(stores, state.state, state.done, type(stores.left_out())())
    assert not kept.equals(with_it.table({GOLEM}))


@pytest.mark.row("MEM-22")
def test_an_unreadable_cache_file_does_not_change_the_derived_rows(tmp_path: Path, records: pa.Table) -> None:
    def spoil(stores: DerivationContext) -> None:
        for file in (stores.projections.root / KEPT).iterdir():
            file.write_bytes(b"torn")

    once = derived(tmp_path / "once", records, [TICKS])
    spoilt = derived(tmp_path / "spoilt", records, [700, TICKS], spoil)
    assert fingerprints(once) == fingerprints(spoilt)
