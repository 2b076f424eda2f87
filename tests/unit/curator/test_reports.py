"""Reports: a runtime in any domain tells situations, actions and rewards, and its golem learns rules about them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.passes.weigh import own_effect, report_interval
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.evidence import gather_evidence
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from bardo_pipeline.curator.state.reports import situations_of
from bardo_pipeline.curator.state.structures import Structure, Structures
from bardo_pipeline.errors import QueryError, RecordError
from bardo_pipeline.events.experience.reported_experience import Report, record_of, report
from bardo_pipeline.events.record import arrow_schema
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import NO_MARKET, DecisionCycleRecord
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.events.record_json import parse_record
from bardo_pipeline.grimoire.conditions import are_conditions, conditions_in, conditions_text, holds
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.reason_checks import contradictions

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy()
CURATOR = POLICY.curator
TOOLS = ("search", "calculator", "memory")
Chance = Callable[[dict[str, str], str], float]


def at(tick: int) -> datetime:
    return START + timedelta(minutes=tick)


def told(tick: int, *reports: Report, golem_id: str = "g-tools", **parts: Any) -> DecisionCycleRecord:
    return record_of(golem_id, tick, at(tick), reports, domain="tools", **parts)


def table(*records: DecisionCycleRecord) -> pa.Table:
    return arrow_schema.to_table(records, RECORD_SCHEMA)


def life(seed: int, reports: int, chance: Chance, golem_id: str = "g-tools") -> pa.Table:
    """Records of an agent that tries its tools at random and succeeds by chance."""
    draw = random.Random(seed)
    records = []
    for tick in range(1, reports + 1):
        situation = {"task": draw.choice(("lookup", "sum", "chat")), "budget": draw.choice(("tight", "wide"))}
        action = draw.choice(TOOLS)
        success = float(draw.random() < chance(situation, action))
        records.append(told(tick, report(situation, action, success), golem_id=golem_id))
    return table(*records)


def fitting_tools(situation: dict[str, str], action: str) -> float:
    """Chance of success: each task has its tool, and search costs too much on a tight budget."""
    right = {"lookup": "search", "sum": "calculator", "chat": "memory"}[situation["task"]] == action
    return (0.85 if right else 0.3) - 0.25 * (action == "search" and situation["budget"] == "tight")


def learned(records: pa.Table, *, cycles_at_once: int = 1_000) -> list[dict[str, Any]]:
    """Entries of a golem after its cycles."""
    state, playbooks = GrimoireState(), Playbooks()
    cycle = (records["tick"].to_numpy() - 1) // CURATOR.cycle_ticks + 1
    for first in range(1, int(cycle.max()) + 1, cycles_at_once):
        now = (cycle >= first) & (cycle < first + cycles_at_once)
        curate(state, playbooks, records.filter(pa.array(now)), cycle[now], policy=POLICY, policy_hash=POLICY.hash)
    rows: list[dict[str, Any]] = to_table(state, CURATOR, POLICY.decay).to_pylist()
    return rows


def rules(rows: list[dict[str, Any]]) -> dict[tuple[str | None, str], str]:
    return {(row["cause"], row["action_type"]): row["kind"] for row in rows if row["status"] == "active"}


def effects(*records: DecisionCycleRecord) -> dict[tuple[str | None, str], tuple[int, int]]:
    """Witnesses and their sum by (conditions, action)."""
    rows, structures = table(*records), Structures()
    cycle = (rows["tick"].to_numpy() - 1) // CURATOR.cycle_ticks + 1
    found = gather_evidence(rows, golem=np.zeros_like(cycle), cycle=cycle, structures=structures, policy=CURATOR)
    named = [structures.rows[code] for code in found.structure.tolist()]
    return {
        (about.cause, about.action_type or ""): (count, total)
        for about, count, total in zip(named, found.count.tolist(), found.total.tolist(), strict=True)
        if about.source == "report"
    }


@pytest.mark.row("MEM-4")
def test_an_agent_learns_which_of_its_actions_pays_in_which_situation() -> None:
    rows = learned(life(3, 1_500, fitting_tools))
    found = rules(rows)
    assert found["task=lookup", "search"] == "heuristic"
    assert found["task=sum", "calculator"] == "heuristic"
    assert found["task=chat", "memory"] == "heuristic"
    assert found["task=sum", "search"] == "warning"
    texts = {row["text"] for row in rows}
    assert "In tools, when task is sum, prefer calculator: calculator has done better than the other actions." in texts
    assert "In tools, when task is sum, avoid search: search has done worse than the other actions." in texts
    best = next(row for row in rows if (row["cause"], row["action_type"]) == ("task=sum", "calculator"))
    assert (best["decay_class"], best["category"], best["protocol"], best["pair"]) == (
        "regime_conditional", "strategic_patterns", "tools", NO_MARKET,
    )  # fmt: skip
    assert {row["source"] for row in rows} == {"report"}, "without a market there are no levels of a market"


def test_a_life_is_learned_alike_cycle_by_cycle_and_at_once() -> None:
    records = life(4, 500, fitting_tools)
    assert learned(records, cycles_at_once=1) == learned(records)


@pytest.mark.full
@pytest.mark.row("MEM-4")
def test_rewards_without_an_effect_teach_nothing() -> None:
    """The bound is 5 % of lives. Of 40 lives more than 5 would be believed with a chance below 2 %."""
    believed = [rules(learned(life(seed, 1_000, lambda *_: 0.5))) for seed in range(40)]
    assert sum(bool(found) for found in believed) <= 5


def test_few_lives_without_an_effect_teach_nothing() -> None:
    assert [rules(learned(life(seed, 400, lambda *_: 0.5))) for seed in range(4)] == [{}] * 4


def test_a_reward_counts_beside_the_other_actions_of_its_situation_and_window() -> None:
    found = effects(
        told(1, report({"task": "sum"}, "calculator", 0.9)),
        told(2, report({"task": "sum"}, "search", 0.1)),
        told(3, report({"task": "chat"}, "search", 0.5)),
    )
    assert found["task=sum", "calculator"] == (1, 800_000)
    assert found["task=sum", "search"] == (1, -800_000)
    assert ("task=chat", "search") not in found, "nothing to compare it with"
    assert found[None, "search"] == (1, -600_000)
    apart = effects(told(1, report({}, "a", 0.9)), told(CURATOR.witness_ticks + 1, report({}, "b", 0.1)))
    assert apart == {}, "the world may have changed between windows"


def test_an_alternative_with_a_known_reward_is_compared_and_an_unknown_one_is_not() -> None:
    known = effects(told(1, report({}, "act", 0.2, alternatives={"wait": 0.0, "flee": None})))
    assert known == {(None, "act"): (1, 200_000), (None, "wait"): (1, -200_000)}
    assert effects(told(1, report({}, "act", 0.2, alternatives=["wait"]))) == {}


def test_an_expected_reward_is_no_evidence() -> None:
    both = report({}, "act", 0.2, alternatives={"wait": 0.0}, verified=False)
    assert effects(told(1, both)) == {}


def test_conditions_make_situations_of_none_one_and_two() -> None:
    parts = [{"name": name, "value": "x"} for name in ("c", "b", "a")]
    assert situations_of(parts, 4) == ["", "a=x", "b=x", "c=x", "a=x&b=x", "a=x&c=x", "b=x&c=x"]
    assert situations_of(parts, 1) == ["", "a=x"]


def test_conditions_with_signs_of_the_syntax_stay_apart() -> None:
    pairs = (("a&b", "1=2"), ("c", "100%"))
    text = conditions_text(pairs)
    assert text == "a%26b=1%3D2&c=100%25"
    assert conditions_in(text) == pairs
    assert holds("task=sum", {"task": "sum", "budget": "tight"})
    assert not holds("budget=wide&task=sum", {"task": "sum", "budget": "tight"})
    assert holds(None, {})
    wrong = ("", "task", "task=", "task=sum=1", "task=sum&budget=wide")
    assert [are_conditions(t) for t in (None, text, *wrong)] == [True, True, *[False] * len(wrong)]
    with pytest.raises(QueryError, match="NAME=VALUE"):
        conditions_in("task")


def test_the_interval_of_a_report_fits_any_scale_and_needs_more_witnesses_than_noise() -> None:
    alarm = np.array([0.05])

    def bounds(values: list[int]) -> tuple[int, int]:
        x = np.array(values)
        low, high = report_interval(np.array([len(x)]), x.sum(keepdims=True), (x * x).sum(keepdims=True), alarm, POLICY)
        return int(low[0]), int(high[0])

    small = bounds([90, 110, 100, 95, 105, 100, 98, 102, 100, 100])
    large = bounds([1_000 * v for v in (90, 110, 100, 95, 105, 100, 98, 102, 100, 100)])
    assert 0 < small[0] < 100 < small[1]
    assert large == pytest.approx([1_000 * v for v in small], rel=0.01)
    assert bounds([100, 110, 90])[0] < 0, "three witnesses are luck"


def test_the_interval_of_a_rule_widens_with_the_rules_of_as_many_conditions() -> None:
    def low_of_first(singles: int, pairs: int) -> int:
        state = GrimoireState()
        conditions = [f"c={i}" for i in range(singles)] + [f"a={i}&b=x" for i in range(pairs)]
        about = Structure("report", NO_MARKET, "tools", NO_MARKET, action_type="act")
        codes = np.array([state.structures.code(about._replace(cause=text)) for text in conditions])
        state.ensure(np.full(len(codes), state.golem_code("g-tools")), codes)
        for name, value in (("own_count", 20), ("own_sum", 20 * 400), ("own_sumsq", 20 * 500**2)):
            state[name][:] = value
        _, low, _, _ = own_effect(state, np.arange(1), POLICY)
        return int(low[0])

    assert low_of_first(1, 0) > 0 > low_of_first(100, 0)
    assert low_of_first(1, 100) == low_of_first(1, 0), "pairs have their own share of the false alarms"


def test_a_built_record_is_whole_and_passes_each_door() -> None:
    record = told(7, report({"task": "sum", "retry": True, "step": 2}, "calculator", -0.25, alternatives=["search"]))
    assert record.observation.market == NO_MARKET
    assert record.experiences is not None
    (experience,) = record.experiences
    assert [(c.name, c.value) for c in experience.conditions] == [("retry", "true"), ("step", "2"), ("task", "sum")]
    assert (experience.decision_tick, experience.reward_ppm) == (7, -250_000)
    rows = table(record)
    assert examine(rows).faults == []
    assert contradictions(rows) == []
    parsed = parse_record(record.model_dump_json().encode())
    assert parsed.experiences[0].action == "calculator"


def test_given_parts_of_a_record_are_kept() -> None:
    record = told(1, report({}, "act", 1), regime="volatile", cycle_seen=3)
    assert (record.regime, record.cycle_seen, record.tier) == ("volatile", 3, "T0")


def test_a_report_names_the_entries_that_were_read_at_its_own_tick() -> None:
    shown = {"entry_id": "e-0", "kind": "warning", "score": 0.5} | dict.fromkeys(
        ("semantic", "recency", "importance", "affect"), 0.5
    )
    first, second = (report({}, "act", 1, entries_read=read) for read in (["e-2", "e-1"], ["e-1", "e-3"]))
    record = told(1, first, second, retrieved_entries=[shown])
    read = [(entry.entry_id, entry.kind, entry.score) for entry in record.retrieved_entries]
    assert read == [("e-0", "warning", 0.5), *((entry_id, "unstated", 0.0) for entry_id in ("e-2", "e-1", "e-3"))]
    assert told(7, report({}, "act", 1, decision_tick=7, entries_read=["e-1"])).retrieved_entries
    with pytest.raises(RecordError, match=r"tick 7: entries_read: .* tick 5: leave out decision_tick or entries_read"):
        told(7, report({}, "act", 1, decision_tick=5, entries_read=["e-1"]))


@pytest.mark.parametrize(
    ("situation", "reward", "parts", "fault"),
    [
        ({}, 57.0, {}, "divide rewards by the largest"),
        ({}, float("nan"), {}, "reward"),
        ({}, 0.5, {"alternatives": {"wait": -3}}, "divide rewards by the largest"),
        ({"ratio": 1.734}, 0.5, {}, r"^situation.ratio: 1.734 is .* give a band as a word"),
        ({"": "x"}, 0.5, {}, "situation"),
        ({}, 0.5, {"luck": 1}, "luck"),
    ],
)
def test_a_wrong_report_is_refused_with_its_cure(
    situation: dict[str, Any], reward: float, parts: dict[str, Any], fault: str
) -> None:
    with pytest.raises(RecordError, match=fault):
        report(situation, "act", reward, **parts)


def test_a_wrong_record_is_refused_by_golem_tick_and_part() -> None:
    with pytest.raises(RecordError, match=r"golem g-tools, tick 0: tick"):
        record_of("g-tools", 0, START)
    with pytest.raises(RecordError, match="UTC"):
        record_of("g-tools", 1, datetime(2026, 1, 1))  # noqa: DTZ001
