"""Facts: a golem's baselines, and the episodes that count for them."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings

from bardo_pipeline.grimoire.entry_text import banded
from tests.support.example_count import times
from tests.support.knowledge.curated_lives import INSTANT, CuratedLife, Row
from tests.support.records.handmade_records import SPAN, Life, action, lives, outcome, record, table

examples = settings(max_examples=times(20), deadline=None, derandomize=True)


def noted(*counts: int) -> CuratedLife:
    """Return the life of a golem with these numbers of ticks in its cycles; the others are lost."""
    rows = [
        record("g-1", SPAN * cycle + place + 1, every=INSTANT)
        for cycle, count in enumerate(counts)
        for place in range(count)
    ]
    return CuratedLife(table(rows))


@pytest.mark.row("MEM-5", "MEM-6")
def test_three_ticks_create_a_fact_and_three_more_confirm_it() -> None:
    entries = noted(2, 1, 3, 4)
    triples = [
        (r["cycle"], r["operation"], r["confidence_ppm"]) for r in entries.decisions if r["metric"] == "gas_price"
    ]
    assert triples == [
        (1, "staged", 0),
        (2, "created", 700_000),
        (3, "reinforced", 800_000),
        (4, "reinforced", 900_000),
    ]


def metered(*levels: float) -> CuratedLife:
    """One golem, four episodes a cycle, at each cycle's price of gas."""
    ticks = enumerate(({"gas_gwei": gas} for gas in levels for _ in range(SPAN)), 1)
    return CuratedLife(table(record("g-1", tick, odd=True, every=INSTANT, observation=seen) for tick, seen in ticks))


STATED = ("level_p10", "effect_low_ppm", "effect_mean_ppm", "effect_high_ppm", "level_p90")


@pytest.mark.row("MEM-2")
def test_a_fact_states_quantiles_of_every_tick_whatever_its_tail() -> None:
    gas = np.random.default_rng(5).lognormal(3.5, 1.2, 400)
    noticed = gas > np.median(gas)  # a golem deliberates when gas is dear
    rows = [
        record("g-1", tick, odd=bool(odd), every=INSTANT, observation={"gas_gwei": price})
        for tick, (price, odd) in enumerate(zip(gas.tolist(), noticed, strict=True), 1)
    ]
    fact = CuratedLife(table(rows)).metric("gas_price")
    quantiles = np.quantile(gas, (0.1, 0.25, 0.5, 0.75, 0.9)) * 1000
    assert [fact[name] for name in STATED] == pytest.approx(quantiles, rel=0.02)
    assert fact["effect_mean_ppm"] < 0.7 * gas.mean() * 1000  # the mean follows the tail
    middle = " to ".join(banded(fact[name] / 1000) for name in ("effect_low_ppm", "effect_high_ppm"))
    assert f"about {banded(fact['effect_mean_ppm'] / 1000)} gwei (at half of the ticks {middle})" in fact["text"]


@pytest.mark.row("MEM-2")
def test_evidence_of_a_fact_counts_market_days() -> None:
    rows = [record("g-1", tick, every=timedelta(hours=5)) for tick in range(1, 4 * SPAN + 1)]
    fact = CuratedLife(table(rows)).metric("pool_volume")
    days = {row["observed_at"].date() for row in rows}
    assert (fact["own_count"], fact["evidence_count"], fact["own_sumsq"]) == (len(days), len(days), 4 * SPAN)
    assert 1 < len(days) < 4 * SPAN


@pytest.mark.row("MEM-2", "MEM-5")
def test_an_unusual_level_contradicts_a_fact_and_a_lasting_change_is_relearned() -> None:
    pairs = [
        (r["operation"], r["confidence_ppm"]) for r in metered(30, 31, 300).decisions if r["metric"] == "gas_price"
    ]
    assert pairs == [("created", 700_000), ("reinforced", 800_000), ("contradicted", 650_000)]
    entries = metered(*[30.0] * 200, *[900.0] * 12)
    assert "pruned" in {r["operation"] for r in entries.decisions if r["metric"] == "gas_price"}
    assert entries.metric("gas_price")["level_p10"] == pytest.approx(900_000, rel=0.02)


@pytest.mark.row("MEM-1")
def test_gas_costs_of_an_expensive_chain_are_not_clipped() -> None:
    fields = {"tier": "T1", "actions": [action(gas_cost_micros=56_000_000)], "outcome": outcome()}
    life = CuratedLife(table(record("g-1", tick, observation={"gas_gwei": 1e300}, **fields) for tick in (1, 2, 3)))
    assert life.metric("gas_cost")["effect_mean_ppm"] == pytest.approx(56_000_000, rel=0.016)
    assert "cost about 56 dollars of gas" in life.metric("gas_cost")["text"]
    assert life.metric("gas_price")["effect_mean_ppm"] == pytest.approx(10**8, rel=0.016)


@pytest.mark.row("MEM-1")
def test_market_names_with_separators_are_separate_markets() -> None:
    names = [("a\x1fb", "c", "d"), ("a", "b\x1fc", "d"), ("a|b", "c", "d"), ("a", "b|c", "d"), ("a", "-", "d\\")]
    seen = [{"chain": chain, "protocol": protocol, "pair": pair} for chain, protocol, pair in names for _ in range(3)]
    life = CuratedLife(table(record("g-1", tick, odd=True, observation=market) for tick, market in enumerate(seen, 1)))
    known = {(row["chain"], row["protocol"], row["pair"]) for row in life.entries}
    assert known == set(names)
    assert len({row["structure"] for row in life.entries}) == len({row["entry_id"] for row in life.entries}) == 10


def test_evidence_below_the_minimum_is_stored_without_a_vote() -> None:
    entries = noted(3, 1, 2)
    assert [r["operation"] for r in entries.decisions if r["metric"] == "gas_price"] == ["created", "staged", "staged"]
    assert (entries.metric("gas_price")["own_sumsq"], entries.metric("gas_price")["evidence_count"]) == (6, 1)
    assert entries.metric("gas_price")["confidence_ppm"] == 700_000


# verified episodes


def _without_unverified(row: Row) -> Row:
    """Return the record without unverified outcomes."""
    kept = [part for part in row["resolutions"] if part["verified"]]
    is_unverified = row["outcome"] is not None and not row["outcome"]["verified"]
    still = {"actions": [], "outcome": None, "tier": "T0"} if is_unverified else {}
    return row | {"resolutions": kept} | still


@pytest.mark.row("MEM-1")
@examples
@given(lives())
def test_only_verified_episodes_affect_entries(lives: tuple[Life, ...]) -> None:
    rows = [row for item in lives for row in item.rows()]
    whole, verified = CuratedLife(table(rows)), CuratedLife(table(map(_without_unverified, rows)))
    assert whole.decisions == verified.decisions
    assert whole.entries == verified.entries
    assert whole.made.playbooks.equals(verified.made.playbooks)


@pytest.mark.row("MEM-1")
@pytest.mark.parametrize("verified", [True, False])
def test_an_action_creates_a_cost_fact_only_with_a_verified_outcome(verified: bool) -> None:
    fields = {"tier": "T1", "actions": [action()], "outcome": outcome(verified=verified)}
    life = CuratedLife(table(record("g-1", tick, **fields) for tick in (1, 2, 3)))
    metrics = {row["metric"] for row in life.entries}
    assert metrics == (
        {"gas_price", "pool_volume", "slippage", "gas_cost"} if verified else {"gas_price", "pool_volume"}
    )


@pytest.mark.row("MEM-1")
def test_an_action_without_an_outcome_creates_no_cost_fact() -> None:
    rows = [record("g-1", tick, tier="T1", actions=[action()], outcome=None) for tick in (1, 2, 3)]
    life = CuratedLife(table(rows))
    assert {row["metric"] for row in life.entries} == {"gas_price", "pool_volume"}


@pytest.mark.row("MEM-1")
@pytest.mark.parametrize("status", ["blocked", "deferred", "reverted"])
def test_an_action_that_was_not_executed_creates_no_cost_fact(status: str) -> None:
    life = CuratedLife(table(record("g-1", tick, tier="T1", actions=[action(status)]) for tick in (1, 2, 3)))
    assert {row["metric"] for row in life.entries} == {"gas_price", "pool_volume"}
