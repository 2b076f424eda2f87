"""Causes that outcomes report: a reported pair is a hypothesis that the causal test judges over its lags alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.causality.granger import critical_sigmas, reported_sigmas, tasks
from bardo_pipeline.curator.causality.lagged_moments import Moments, from_table
from bardo_pipeline.curator.state.grimoire_state import GrimoireState
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.heartbeat.causal_forecast import foresight_of
from bardo_pipeline.heartbeat.probes import LINK_CANDIDATE
from tests.support.fleets.causal_markets import POLICY, learned, noise, records_of
from tests.unit.heartbeat.test_foresight import tape_with

LINK = ("liquidity", "gas_gwei")


@cache
def weak(ticks: int = 2_000) -> pa.Table:
    """A market in which liquidity moves gas a little one tick later: too little for a search over all pairs."""
    world = noise(ticks, 1)
    world.gas[1:] += 0.1 * world.liquidity[:-1] / 0.03 * 0.05
    return records_of(world)


def reporting(
    records: pa.Table, cause: str = "liquidity", effect: str = "gas_gwei", *, count: int = 3, verified: bool = True,
    first: int = 100,
) -> pa.Table:  # fmt: skip
    """Return the records with outcomes that name a cause and an effect, as a foreign runtime reports them."""
    rows = records.to_pylist()
    for row in rows[first : first + count]:
        row["outcome"] = {
            "verified": verified, "expected": "-", "actual": "-", "pnl_impact_micros": None,
            "ground_truth_source": "runtime", "cause_variable": cause, "effect_variable": effect,
        }  # fmt: skip
    return pa.Table.from_pylist(rows, records.schema)


def staged(records: pa.Table) -> set[tuple[Any, ...]]:
    rows = learned(records).decisions.to_pylist()
    return {(row["cause"], row["effect"]) for row in rows if row["cause"] is not None and row["operation"] == "staged"}


@pytest.mark.row("MEM-22")
def test_a_weak_link_is_found_if_outcomes_report_it() -> None:
    assert staged(weak()) == set()
    assert staged(reporting(weak())) == {LINK}
    assert staged(reporting(weak(), count=2)) == set(), "two reports are no cluster"
    assert staged(reporting(weak(), verified=False)) == set()
    assert staged(reporting(weak(), "volume")) == set(), "a report of another cause"
    assert staged(reporting(weak(), effect="volume")) == set(), "a report of another effect"
    assert staged(reporting(weak(), "my own variable", "my own effect")) == set()


@pytest.mark.row("MEM-22")
def test_a_report_without_an_effect_in_the_market_teaches_nothing() -> None:
    plain = records_of(noise(3_000, 5))
    assert staged(reporting(plain, count=40)) == staged(plain) == set()


@pytest.mark.row("MEM-22")
def test_a_reported_cause_of_the_price_raises_the_causal_probe_of_a_tick() -> None:
    world = noise(2_000, 2)
    world.returns[1:] += 0.1 * world.liquidity[:-1] / 0.03 * 5e-4
    records, tape, probes = records_of(world), tape_with(), []
    for told in (records, reporting(records, effect="price_return")):
        state = GrimoireState()
        learned(told, state=state)
        probes.append(foresight_of(state, ["g-1"], 0, POLICY).look(tape, 30, np.zeros(1), POLICY)[0])
    assert np.isnan(probes[0]), "without the report the link is not found"
    assert probes[1] == LINK_CANDIDATE


@pytest.mark.full
@pytest.mark.row("MEM-22")
def test_a_reported_link_becomes_an_entry_by_later_evidence_alone() -> None:
    rows = learned(reporting(weak(6_000))).decisions.to_pylist()
    own = [row for row in rows if (row["cause"], row["effect"]) == LINK]
    assert own[0]["operation"] == "staged"
    created = next(row for row in own if row["operation"] == "created")
    assert created["cycle"] > own[0]["cycle"]
    assert (created["lag_ticks"], created["sign"], created["kind"]) == (1, 1, "causal_link")
    assert created["own_count"] >= 1


@pytest.mark.row("MEM-22")
def test_reports_are_counted_in_any_division_and_survive_the_cache() -> None:
    records = reporting(weak(), count=5, first=48)
    cycle, whole, parts = cycle_of(records["tick"].to_numpy(), POLICY.curator.cycle_ticks), Moments(), Moments()
    whole.add(records, cycle, POLICY)
    for number in np.unique(cycle).tolist():
        chosen = cycle == number
        parts.add(records.filter(pa.array(chosen)), cycle[chosen], POLICY)
    for moments in (whole, parts, from_table(whole.table({"g-1"}))):
        (memory,) = moments.of.values()
        assert memory.reports.sum() == memory.reports.max() == 5
    assert from_table(Moments().table(set())).of == {}


@pytest.mark.row("MEM-22")
def test_a_given_pair_needs_fewer_sigmas_than_a_search_over_all_pairs() -> None:
    for task in tasks():
        limits = reported_sigmas(task, POLICY.causal)
        assert len(limits) == len(task.causes)
        assert 1.9 < limits.min() <= limits.max() < min(critical_sigmas(POLICY.causal))
