"""Every reason of a record against the record's own numbers, over fleets that meet every rule."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.reason_checks import FIRST_VERSION, contradictions
from tests.support.fleets.memory_fleets import FOUNDING, Lived, live, lively_market
from tests.support.fleets.shared_fleets import SHORT, cage, credit, crowd, heirs
from tests.support.records.stated_reasons import stated_in_rules

Change = Callable[[dict[str, Any]], None]


@cache
def poor() -> Lived:
    """Golems whose gas partition runs dry before their inference partition."""
    market = lively_market(400)
    dear = replace(market, gas_gwei=market.gas_gwei * 4)
    policy = cage(gas_share_max=1.0).model_copy(update={"credit": credit(hourly_multiple=1e6, gas_share=0.1).credit})
    return live(dear, lineages=range(4), founding=replace(FOUNDING, credit_share=0.02), policy=policy)


@cache
def caged() -> Lived:
    """Golems in a cage of narrow limits."""
    policy = cage(slippage_max=0.00055, gas_share_max=0.0003)
    return live(lively_market(400), lineages=range(4), founding=SHORT, policy=policy)


FLEETS = [crowd, heirs, poor, caged]


@pytest.mark.row("HB-4", "HB-15")
@pytest.mark.parametrize("lived", FLEETS)
def test_no_record_contradicts_its_reasons(lived: Callable[[], Lived]) -> None:
    records = lived().records
    assert stated_in_rules(records) == len(records), "every gating reason is a sentence that the check understands"
    assert contradictions(records) == []


@pytest.mark.row("HB-4", "HB-15")
def test_the_fleets_meet_every_rule_of_gate_playbook_and_gas() -> None:
    statements: Counter[str] = Counter()
    for lived in FLEETS:
        for row in lived().rows:
            statements[row["tier"] if row["forced_by"] is None else row["forced_by"]] += 1
            statements.update(re.sub(r"[\d.]+", "#", a["block_reason"]) for a in row["actions"] if a["block_reason"])
            if row["deliberation"]:
                statements[re.sub(r"[\d.]+", "#", row["deliberation"]["reasoning_summary"].partition(";")[0])] += 1
    assert {"T0", "T1", "T2", "suppress", "steer", "birth"} <= statements.keys()
    assert {
        "gas gate: gas of # micro-dollars is above the partition's available # micro-dollars",
        "gas gate: gas of # micro-dollars is above the multiple of the average hourly cost, # micro-dollars",
        "policy cage: gas of # micro-dollars is above the position's limit of # micro-dollars",
        "inclusion: slippage of # ppm is above the limit of # ppm",
        "simulation: slippage of # ppm is above the limit of # ppm",
    } <= statements.keys()
    assert {
        "anomaly # is below the playbook's #", "anomaly # reaches the playbook's #", "drawdown # reaches the halt at #",
        "no position in the first tick of a life",
    } <= statements.keys()  # fmt: skip


@pytest.mark.row("HB-15")
@pytest.mark.parametrize("lived", FLEETS)
def test_the_gas_gate_defers_by_its_two_rules_and_nothing_overrides_it(lived: Callable[[], Lived]) -> None:
    policy, sent = Policy(), 0
    for row in lived().rows:
        left, dear = row["credit_partitions"]["gas_available_micros"], row["credit_partitions"]["gas_hourly_micros"]
        multiple = 1e6 if lived is poor else policy.credit.hourly_multiple
        for action in row["actions"]:
            if (gas := action["gas_cost_micros"]) > 0:
                assert gas <= left, "a transaction is paid from the gas partition alone"
                assert gas <= np.rint(multiple * dear)
                left, sent = left - gas, sent + 1
    assert sent > 3


@pytest.mark.row("HB-30")
@pytest.mark.parametrize("lived", FLEETS)
def test_partitions_pay_their_own_bills_and_their_sum_is_the_credits(lived: Callable[[], Lived]) -> None:
    after: dict[str, int] = {}
    for row in lived().rows:
        parts, golem_id = row["credit_partitions"], row["golem_id"]
        total = parts["gas_available_micros"] + parts["inference_available_micros"]
        birth = lived().births[golem_id].credits_micros
        assert total == after.get(golem_id, birth)
        assert parts["gas_allotted_micros"] + parts["inference_allotted_micros"] == birth
        shares = [parts[f"{n}_available_micros"] / parts[f"{n}_allotted_micros"] for n in ("inference", "gas")]
        (probe,) = (p for p in row["probe_results"] if p["probe"] == "credit_balance")
        assert probe["value"] == pytest.approx(min(shares))
        lowest = min(shares)
        assert probe["severity"] == ("high" if lowest < 0.1 else "low" if lowest < 0.2 else "none")
        after[golem_id] = row["credits_micros"]


@pytest.mark.row("HB-4")
@pytest.mark.parametrize("lived", [crowd, heirs])
def test_attention_acts_after_a_hundred_ticks_of_the_fixed_gate(lived: Callable[[], Lived]) -> None:
    policy = Policy()
    weighed = [row for row in lived().rows if row["attention"] is not None]
    assert any(row["tier"] == "suppress" for row in weighed)
    assert any(row["tier"] == "T1" for row in weighed), "not every judged tick is suppressed"
    assert min(row["tick"] for row in weighed) > policy.gate.attention_after_ticks == 100
    for row in weighed:
        figures = row["attention"]
        prior = policy.gate.attention_prior_weight
        assert figures["chance"] == pytest.approx(figures["vain_thoughts"] / (figures["thoughts"] + prior))
        assert row["observation"]["positions"]
        assert not row["active_interventions"]


def altered(kind: str) -> dict[str, Any]:
    """A record of a tick of this kind."""
    rows = (row for lived in FLEETS for row in lived().rows)
    meets: dict[str, Callable[[dict[str, Any]], bool]] = {
        "suppress": lambda r: r["tier"] == "suppress",
        "T0": lambda r: r["tier"] == "T0",
        "T1": lambda r: r["tier"] == "T1" and r["attention"] is not None,
        "hold": lambda r: (
            bool(r["deliberation"]) and " is below the playbook" in r["deliberation"]["reasoning_summary"]
        ),
        "fallen": lambda r: bool(r["deliberation"]) and "drawdown" in r["deliberation"]["reasoning_summary"],
        "dry": lambda r: any("available" in (a["block_reason"] or "") for a in r["actions"]),
        "dear": lambda r: any("hourly" in (a["block_reason"] or "") for a in r["actions"]),
        "slipped": lambda r: any(a["status"] == "reverted" for a in r["actions"]),
        "acted": lambda r: any(a["status"] == "executed" for a in r["actions"]),
    }
    return copy.deepcopy(next(row for row in rows if meets[kind](row)))


def said(row: dict[str, Any], old: str, new: str) -> None:
    """Change a word of the gating reason."""
    assert old in row["gating_reason"]
    row["gating_reason"] = row["gating_reason"].replace(old, new)


SLIPPED = "inclusion: slippage of 5 ppm is above the limit of 9 ppm"
ALTERATIONS: list[tuple[str, Change]] = [
    ("suppress", lambda r: r.update(tier="T0")),
    ("suppress", lambda r: r.update(attention=None)),
    ("suppress", lambda r: r["attention"].update(draw=0.999)),
    ("suppress", lambda r: r["attention"].update(thoughts=999.0)),
    ("suppress", lambda r: r.update(gating_reason=r["gating_reason"].partition(";")[0])),
    ("suppress", lambda r: said(r, "reaches", "is below")),
    ("T0", lambda r: r.update(prediction_error=0.9)),
    ("T0", lambda r: r.update(deliberation_threshold=0.0)),
    ("T0", lambda r: r.update(forced_by="steer")),
    ("T1", lambda r: r["attention"].update(draw=0.0, chance=0.5)),
    ("T1", lambda r: said(r, "T1", "T2")),
    ("hold", lambda r: r["observation"].update(anomaly_score=0.99)),
    ("hold", lambda r: r["observation"].update(positions=[])),
    ("hold", lambda r: r["deliberation"].update(decision="rebalance")),
    ("hold", lambda r: r["deliberation"].update(reasoning_summary="luck; decision: hold")),
    ("fallen", lambda r: [p.update(value=0.01) for p in r["probe_results"] if p["probe"] == "circuit_breaker"]),
    ("dry", lambda r: r["credit_partitions"].update(gas_available_micros=10**9)),
    ("dear", lambda r: r["credit_partitions"].update(gas_hourly_micros=10**9)),
    ("dear", lambda r: [a.update(status="blocked") for a in r["actions"]]),
    ("dear", lambda r: [a.update(gas_cost_micros=7) for a in r["actions"]]),
    ("slipped", lambda r: r["actions"][0].update(block_reason=SLIPPED)),
    ("acted", lambda r: [a.update(block_reason="its loan is being liquidated") for a in r["actions"]]),
]  # fmt: skip


@pytest.mark.row("HB-4", "HB-15")
@pytest.mark.parametrize(("kind", "alter"), ALTERATIONS, ids=range(len(ALTERATIONS)))
def test_an_altered_record_contradicts_itself(kind: str, alter: Change) -> None:
    row = altered(kind)
    assert contradictions(pa.Table.from_pylist([row], RECORD_SCHEMA)) == []
    alter(row)
    (first, *_) = contradictions(pa.Table.from_pylist([row], RECORD_SCHEMA))
    assert (first["golem_id"], first["tick"]) == (row["golem_id"], row["tick"])
    older = row | {"schema_version": FIRST_VERSION - 1}
    assert contradictions(pa.Table.from_pylist([older], RECORD_SCHEMA)) == [], "older records keep their meaning"
