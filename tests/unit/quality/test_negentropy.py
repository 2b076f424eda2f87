"""Negentropy: order rises with rules that hold, not with the number of entries."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.quality.calibration import OUTCOME_SCHEMA
from bardo_pipeline.quality.negentropy import ORDER_SCHEMA, order_of_golems, order_of_groups, trend
from tests.reference.inheritance.negentropy import order_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import (
    DAY,
    DIED,
    POLICY,
    baseline,
    decided,
    decisions,
    pattern,
    shuffled,
)

HOUR = timedelta(hours=1)
BORN = DIED - 30 * DAY
"""The close of cycle 0."""

LASTING = {"decay_class": "structural", "kind": "heuristic"}
A, B, C = (pattern("t", regime=regime) for regime in ("volatile", "calm", "unknown"))


def rule(about: Any, sign: int, cycle: int = 0, operation: str = "created", **fields: Any) -> dict[str, Any]:
    return decided(operation, cycle, about=about, sign=sign, **(LASTING | {"confidence_ppm": 800_000} | fields))


def outcome(about: Any, hours: int, effect: int, golem_id: str = "g-1") -> dict[str, Any]:
    return {"golem_id": golem_id, "structure": about.key, "at": BORN + hours * HOUR, "effect_ppm": effect}


def outcome_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=OUTCOME_SCHEMA)


LIFE = [outcome(A if i % 2 else B, i + 1, 500 if i % 2 else -500) for i in range(40)]
"""Acting wins in A and loses in B in turn, so a count of wins alone predicts nothing."""

LESSONS = [rule(A, 1), rule(B, -1)]


def order(rules: list[dict[str, Any]], life: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the order (at most 1) and the other columns of the single golem."""
    table = order_of_golems(decisions(*rules), outcome_table(LIFE if life is None else life), POLICY)
    assert table.schema.equals(ORDER_SCHEMA)
    (row,) = table.to_pylist()
    gain = row["count_ubits"] - row["known_ubits"]
    return row | {"order": gain / row["count_ubits"], "per_rule": gain / max(row["rule_count"], 1)}


@pytest.mark.row("INH-15")
def test_order_is_zero_without_rules_and_rises_with_lessons() -> None:
    assert order([])["order"] == 0.0
    result = order(LESSONS)
    assert result["order"] > 0.65
    assert (result["judged_count"], result["spoken_count"], result["rule_count"]) == (40, 40, 2)
    assert order(LESSONS[:1])["order"] < result["order"]


@pytest.mark.row("INH-15")
def test_duplicate_rules_do_not_raise_order_and_lower_order_per_rule() -> None:
    plain = order(LESSONS)
    wider = [rule(pattern("t", regime=r, gas_band=g), s) for r, s in (("volatile", 1), ("calm", -1))
             for g in ("any", "not_dear", "not_cheap")]  # fmt: skip
    many = order([*LESSONS, *wider])
    assert many["known_ubits"] == plain["known_ubits"]
    assert many["rule_count"] == 8
    assert many["per_rule"] == plain["per_rule"] / 4


@pytest.mark.row("INH-15")
def test_rules_for_unseen_situations_lower_only_the_order_per_rule() -> None:
    plain, facts = order(LESSONS), [decided("created", 0, about=baseline("gas_price"))]
    piled = order([*LESSONS, *facts, *(rule(pattern(f"u{i}"), 1) for i in range(20))])
    assert piled["order"] == plain["order"]
    assert piled["per_rule"] < plain["per_rule"] / 10


@pytest.mark.row("INH-15")
@pytest.mark.parametrize("sign", [1, -1])
def test_an_unfounded_rule_for_a_seen_situation_lowers_order(sign: int) -> None:
    coin = [outcome(C, 50 + i, 500 if i % 2 else -500) for i in range(40)]
    assert order([*LESSONS, rule(C, sign)], LIFE + coin)["order"] < order(LESSONS, LIFE + coin)["order"] - 0.1


@pytest.mark.row("INH-15")
def test_reinforcement_raises_order_and_decay_lowers_it() -> None:
    weak = [rule(A, 1, confidence_ppm=400_000), rule(B, -1, confidence_ppm=400_000)]
    again = [*weak, rule(A, 1, 1, "reinforced", confidence_ppm=900_000)]
    assert order(again)["order"] > order(weak)["order"]
    fading = [row | {"decay_class": "ephemeral"} for row in weak]
    assert order(fading)["order"] < order(weak)["order"]
    wrong = [*weak, rule(A, -1, 1, "reinforced", confidence_ppm=900_000)]
    assert order(wrong)["order"] < order(weak)["order"], "confidence in a wrong rule lowers order"


@pytest.mark.row("INH-15")
def test_a_rule_counts_only_after_its_creation_and_until_it_is_pruned() -> None:
    at_close = [outcome(A, 24, 500)]
    assert order([rule(A, 1, cycle=1)], at_close)["spoken_count"] == 0, "the rule was created from this verdict"
    assert order([rule(A, 1)], at_close)["spoken_count"] == 1
    assert order([rule(A, 1), rule(A, 1, 1, "pruned", status="pruned")], at_close)["spoken_count"] == 1
    later = [outcome(A, 25, 500)]
    assert order([rule(A, 1), rule(A, 1, 1, "pruned", status="pruned")], later)["spoken_count"] == 0


@pytest.mark.row("INH-15")
def test_inherited_order_is_counted_separately() -> None:
    result = order([rule(A, 1, generation=1, origin_golem_id="g-0"), rule(B, -1)])
    assert 0 < result["inherited_ubits"] < result["count_ubits"] - result["known_ubits"]


@pytest.mark.row("INH-15")
def test_a_learning_lineage_gains_order_and_an_accumulating_lineage_does_not() -> None:
    golems = [(f"g-{g}{i}", g) for g in range(3) for i in range(4)]
    life = [item | {"golem_id": name} for name, _ in golems for item in LIFE]

    def orders(rules_of: Any) -> pa.Table:
        rows = [r | {"golem_id": name} for name, generation in golems for r in rules_of(generation)]
        return order_of_golems(decisions(*rows), outcome_table(life), POLICY)

    generations = [generation for _, generation in golems]
    learning = orders(lambda g: [rule(A, 1, confidence_ppm=300_000 * (g + 1)), *([rule(B, -1)] if g else [])])
    assert trend(learning, generations).verdict == "gaining"
    assert trend(learning, [-g for g in generations]).verdict == "losing"
    piling = orders(lambda g: [rule(A, 1), *(rule(pattern(f"u{i}"), 1) for i in range(10 * g))])
    assert trend(piling, generations).verdict == "undecided"
    assert trend(piling.slice(0, 2), generations[:2]).slope is None
    named = pa.table({"golem_id": [n for n, _ in golems], "name": ["line"] * 12, "generation": generations})
    grouped = order_of_groups(learning, named).to_pylist()
    assert [(r["group"], r["generation"], r["golem_count"]) for r in grouped] == [("line", g, 4) for g in range(3)]
    assert grouped[0]["order_ppm"] < grouped[1]["order_ppm"] < grouped[2]["order_ppm"]
    piled = order_of_groups(piling, named).to_pylist()
    assert piled[0]["order_ppm"] == piled[2]["order_ppm"]
    assert piled[0]["per_rule_ubits"] > 10 * piled[2]["per_rule_ubits"]


ABOUT = [pattern("t", regime=r, gas_band=g) for r in ("volatile", "calm") for g in ("normal", "cheap", "any")]


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rules, life = [], []
    for golem in ("g-1", "g-2"):
        for _ in range(draw(st.integers(0, 6))):
            cycle = draw(st.integers(0, 2))
            rules.append(rule(
                draw(st.sampled_from(ABOUT)), draw(st.sampled_from([1, 1, -1, 0])), cycle, golem_id=golem,
                status=draw(st.sampled_from(["active", "active", "active", "pruned", "candidate"])),
                confidence_ppm=draw(st.sampled_from([0, 300_000, 600_000, 1_000_000])),
                generation=draw(st.integers(0, 1)), origin_golem_id=draw(st.sampled_from([golem, "g-0"])),
                decay_class=draw(st.sampled_from(["structural", "ephemeral"])),
            ))  # fmt: skip
        for _ in range(draw(st.integers(0, 8))):
            about = draw(st.sampled_from([a for a in ABOUT if a.gas_band != "any"]))
            effect = draw(st.sampled_from([-700, 0, 300, 900]))
            life.append(outcome(about, draw(st.sampled_from([1, 12, 24, 25, 60])), effect, golem))
    return rules, life


@pytest.mark.row("INH-15")
@settings(deadline=None, max_examples=times(40))
@given(lives(), st.integers(0, 2**32))
def test_order_equals_the_reference_for_any_order_of_rows(
    life: tuple[list[dict[str, Any]], list[dict[str, Any]]], seed: int
) -> None:
    table = decisions(*life[0])
    rows = order_of_golems(shuffled(table, seed), shuffled(outcome_table(life[1]), seed), POLICY).to_pylist()
    event(f"spoke: {any(row['spoken_count'] for row in rows)}")
    assert {row.pop("golem_id"): row for row in rows} == order_by_row(table.to_pylist(), life[1], POLICY)
