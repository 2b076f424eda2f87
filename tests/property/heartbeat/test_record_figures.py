"""Figures of a record beside its other figures, and beside the record of the tick that they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.fleets.loan_markets import CENTRE, indebted, lending
from tests.support.fleets.memory_fleets import Lived
from tests.support.fleets.shared_fleets import crowd, heirs

FLEETS = [crowd, heirs]


@pytest.mark.row("HB-24")
@pytest.mark.parametrize("lived", FLEETS)
def test_a_prediction_lies_in_the_middle_of_its_interval_and_holds_inside_of_it(lived: Callable[[], Lived]) -> None:
    held: Counter[bool] = Counter()
    for row in lived().rows:
        for made in row["predictions"]:
            assert made["high"] - made["expected"] == pytest.approx(made["expected"] - made["low"], rel=1e-6)
            if abs(made["actual"] - made["expected"]) != pytest.approx(made["high"] - made["expected"], rel=1e-9):
                assert made["held"] == (made["low"] <= made["actual"] <= made["high"])
                held[made["held"]] += 1
    assert min(held.values()) > 100


@pytest.mark.row("HB-24")
@pytest.mark.parametrize("lived", FLEETS)
def test_a_judged_decision_states_the_situation_of_its_tick(lived: Callable[[], Lived]) -> None:
    records = {(row["golem_id"], row["tick"]): row for row in lived().rows}
    count = 0
    for row in lived().rows:
        for judged in row["resolutions"]:
            decided = records[row["golem_id"], judged["decision_tick"]]
            seen = decided["observation"]
            assert judged["regime"] == decided["regime"]
            assert judged["anomaly_score"] == seen["anomaly_score"]
            assert judged["gas_ratio"] == pytest.approx(seen["gas_hour_ratio"])
            assert judged["value_micros"] == pytest.approx(sum(p["value_micros"] for p in seen["positions"]), abs=1)
            count += 1
    assert count > 20


@pytest.mark.row("MEM-1")
@pytest.mark.parametrize("lived", FLEETS)
def test_a_record_with_an_anomaly_a_new_regime_or_a_deliberation_is_an_episode(lived: Callable[[], Lived]) -> None:
    causes: Counter[tuple[bool, bool, bool]] = Counter()
    for row in lived().rows:
        turned = (row["prediction_error_sources"]["regime"] or 0.0) > 0.0
        cause = bool(row["anomalies"]), turned, row["deliberation"] is not None
        causes[cause] += 1
        assert row["episodes_written"] == ([f"{row['golem_id']}:{row['tick']}"] if any(cause) else [])
    assert {(True, False, False), (False, True, False), (False, False, False)} <= set(causes)


@pytest.mark.row("HB-1")
@pytest.mark.parametrize("lived", FLEETS)
def test_an_outcome_is_gas_and_slippage_and_only_an_executed_act_slips(lived: Callable[[], Lived]) -> None:
    statuses: Counter[str] = Counter()
    for row in lived().rows:
        for action in row["actions"]:
            statuses[action["status"]] += 1
            assert (action["slippage_ppm"] is not None) is (action["status"] == "executed")
        if row["outcome"]:
            (sent,) = row["actions"]
            lost = -row["outcome"]["pnl_impact_micros"] - sent["gas_cost_micros"]
            slipped = sent["value_micros"] * (sent["slippage_ppm"] or 0) * 1e-6
            assert 0 <= lost <= slipped + 1, "at most the whole value is swapped"
            assert (lost > 0) is (sent["status"] == "executed")
            assert row["outcome"]["cause_variable"] is None
    assert statuses["executed"] > 10


@pytest.mark.row("HB-27", "MEM-22")
def test_only_a_liquidation_names_its_cause() -> None:
    causes: set[tuple[bool, str | None]] = set()
    for row in indebted(lending([CENTRE] * 12 + [CENTRE + 5_000] * 20), 0.7).rows:
        if row["outcome"]:
            taken = "liquidated" in [action["action_type"] for action in row["actions"]]
            causes.add((taken, row["outcome"]["cause_variable"]))
    assert causes == {(True, "price_move"), (False, None)}


@pytest.mark.row("HB-24")
@pytest.mark.parametrize("lived", FLEETS)
def test_a_position_never_beats_its_tokens_before_fees(lived: Callable[[], Lived]) -> None:
    losses = [p["impermanent_loss_micros"] for row in lived().rows for p in row["observation"]["positions"]]
    assert min(losses) >= -1
    assert max(losses) > 10_000
