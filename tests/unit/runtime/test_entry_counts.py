"""A run in which no golem could enter the pool states the attempts, the gas of an entry and the limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.entry_counts import EntryCounts, count_entries, state_no_entry
from bardo_pipeline.runtime.run_settings import Ending
from tests.support.fleets.memory_fleets import live, lively_market
from tests.support.processes.bardo_command import bardo
from tests.unit.market.test_traces import GAS_COLUMNS, GAS_FILE, POOL_COLUMNS, POOL_FILE, gas_rows, pool_rows, write

DEAR = EntryCounts(0, Counter({("deferred", "gas gate"): 3, ("blocked", "policy cage"): 1}))
FOUNDING = Founding(budget_micros=50_000_000)


def test_a_run_without_an_entry_states_the_figures() -> None:
    market = replace(lively_market(120), native_usd_micros=2_000_000_000)
    text = state_no_entry(DEAR, tape_of(market, Policy()), FOUNDING, Policy())
    assert text is not None
    gas = [480_000 * g * 1e-9 * 2_000 for g in market.gas_gwei]
    for part in (
        "4 attempts, none executed; 3 deferred (gas gate), 1 blocked (policy cage)",
        "(median $",
        "A golem of $50.00 may spend $0.24: 0.5 % of its position's value ($0.24), its gas partition ($0.38), and 2",
    ):
        assert part in text
    assert f"${min(gas):,.2f} to " in text
    assert state_no_entry(EntryCounts(1, DEAR.refused), tape_of(market, Policy()), FOUNDING, Policy()) is None


def test_a_run_that_ended_before_any_attempt_says_nothing_about_gas() -> None:
    tape = tape_of(lively_market(60), Policy())
    assert state_no_entry(EntryCounts(), tape, FOUNDING, Policy()) is None


def test_attempts_are_counted_by_result_and_rule() -> None:
    for dollars in (1, 5_000):
        market = replace(lively_market(240), native_usd_micros=dollars * 1_000_000)
        counts = count_entries(live(market, lineages=(0, 1)).records)
        assert (counts.executed > 0) == (dollars == 1)
        assert counts.tried >= 2
    assert {rule for _, rule in counts.refused} == {"policy cage"}


def test_an_entry_in_one_pass_refutes_the_statement_of_another() -> None:
    assert (Ending(no_entry="none", entries=DEAR) + Ending(records=3, entries=EntryCounts(1))).no_entry is None
    both = Ending(records=2, no_entry="none", entries=DEAR) + Ending(records=3, no_entry="none", entries=DEAR)
    assert (both.records, both.no_entry, both.entries.tried) == (5, "none", 8)


@pytest.mark.full
def test_a_run_on_a_recorded_market_takes_the_price_of_the_gas_token_from_the_option(tmp_path: Path) -> None:
    minutes = range(60)
    write(tmp_path / POOL_FILE, POOL_COLUMNS, pool_rows(minutes))
    write(tmp_path / GAS_FILE, GAS_COLUMNS, gas_rows(minutes))
    words = ("run", "--trace", str(tmp_path), "--golems", "1", "--no-marts")
    dear = bardo(*words, "--gas-token-price", "2000", home=tmp_path / "dear")
    assert "gas token at $2,000.00" in dear
    assert "No golem could enter the pool: " in dear
    assert "of an entry cost $38.88 to " in dear
    assert "No golem could enter" not in bardo(*words, home=tmp_path / "cheap")
    assert "is for a recorded market" in bardo("run", "--gas-token-price", "1", home=tmp_path / "none", expect=2)
    assert "0.65" in bardo(*words, "--gas-token-price", "-1", home=tmp_path / "none", expect=2)
