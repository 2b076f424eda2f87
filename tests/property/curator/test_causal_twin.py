"""The causal moments equal their row-at-a-time twin, for every division into batches; so do the links."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.causality.lagged_moments import Moments, from_table
from bardo_pipeline.curator.causality.variables import WARM
from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state import grimoire_state as working
from bardo_pipeline.curator.state import level_readings
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from bardo_pipeline.policy import Policy
from tests.reference.learning.causal import moments_by_row
from tests.support.example_count import times
from tests.support.fleets.causal_markets import noise, records_of, with_crashes

QUICK = Policy().model_copy(update={"causal": Policy().causal.model_copy(update={"test_cycles": 4, "ticks_min": 400})})
SPAN = QUICK.curator.cycle_ticks


def _cycles(records: pa.Table) -> np.ndarray:
    return (records.column("tick").to_numpy() - 1) // SPAN + 1


def _sums(moments: Moments) -> dict[tuple[str, int], list[list[int]]]:
    return {
        (key[0], number): stretch.moments.tolist()
        for key, memory in moments.of.items()
        for number, stretch in memory.fresh.items()
        if stretch.moments.any()
    }


def _stored(moments: Moments) -> Moments:
    return from_table(moments.table({golem_id for golem_id, _ in moments.of}))


@pytest.mark.row("MEM-22")
@settings(max_examples=times(5), deadline=None)
@given(st.integers(0, 2**16), st.integers(WARM + 20, WARM + 120), st.sets(st.integers(2, 60), max_size=2))
def test_causal_moments_equal_their_twin_with_gaps_and_several_golems(seed: int, ticks: int, lost: set[int]) -> None:
    falls = {"every": 40, "gas_after": 3, "first": 70}
    parts = [
        records_of(with_crashes(noise(ticks, seed + i % 2), fall=fall, **falls), f"g-{i}")
        for i, fall in enumerate([(4, 0.006), (9, 0.0052), (4, 0.006)])  # the first and the last see the same
    ]
    records = pa.concat_tables(parts)
    records = records.filter(pa.array(~np.isin(records.column("tick").to_numpy(), sorted(lost))))
    moments = Moments()
    moments.add(records, _cycles(records), QUICK)
    assert _sums(moments) == moments_by_row(records.to_pylist(), QUICK)


@pytest.mark.row("MEM-22")
@settings(max_examples=times(10), deadline=None)
@given(st.integers(0, 2**16), st.lists(st.integers(1, 11), max_size=4), st.permutations([0, 1]))
def test_causal_moments_and_links_are_independent_of_batches(seed: int, cuts: list[int], order: list[int]) -> None:
    ticks = 12 * SPAN
    records = [records_of(with_crashes(noise(ticks, seed + i), every=90, gas_after=3), f"g-{i}") for i in (0, 1)]
    whole = GrimoireState()
    everything = pa.concat_tables(records)
    once = curate(whole, Playbooks(), everything, _cycles(everything), policy=QUICK, policy_hash="p")
    parts, states = [], {}
    for i in order:
        state, edges = GrimoireState(), [0, *sorted(set(cuts)), 12]
        for first, last in pairwise(edges):
            piece = records[i].filter(pa.array((_cycles(records[i]) > first) & (_cycles(records[i]) <= last)))
            made = curate(state, Playbooks(), piece, _cycles(piece), policy=QUICK, policy_hash="p")
            parts.append(made.decisions)
            kept = working.from_table(to_table(state, QUICK.curator, QUICK.decay))
            kept.moments = _stored(state.moments)
            kept.readings = level_readings.from_table(state.readings.table({f"g-{i}"}))
            state = kept
        states[i] = state
    keys = [("golem_id", "ascending"), ("cycle", "ascending"), ("seq", "ascending")]
    assert pa.concat_tables(parts).sort_by(keys).equals(once.decisions.sort_by(keys))
    for i, state in states.items():
        golem = {f"g-{i}"}
        assert state.moments.table(golem).equals(whole.moments.table(golem))
