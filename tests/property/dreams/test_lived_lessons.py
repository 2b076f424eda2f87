"""Lessons of living golems: the hypotheses are those of the derived table, and ticks decide by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from bardo_pipeline.dreams.counterfactual_simulation import CHANGES, HIGHER, LOWER, WIDER
from bardo_pipeline.dreams.hypothesis_staging import COLUMNS, CONFIRMED, STATES, SUMS
from bardo_pipeline.dreams.hypothesis_table import live_hypotheses
from bardo_pipeline.dreams.lessons import revision_of
from bardo_pipeline.dreams.lived_lessons import LivedLessons
from bardo_pipeline.events.life.events import Traits
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import GAS_BANDS
from bardo_pipeline.grimoire.entry_columns import micros
from bardo_pipeline.quality.reason_checks import contradictions
from tests.property.dreams.test_dream_laws import HASTY, day
from tests.support.fleets.memory_fleets import live, lively_market
from tests.support.homes.dreaming_homes import RICH, births_of, home_of

pytestmark = pytest.mark.row("KAT-7", "MEM-16")


def newborn() -> LivedLessons:
    lived = LivedLessons(HASTY)
    for event in births_of(day()):
        born_us = round(event.observed_at.timestamp()) * 10**6
        width = event.born.traits.range_half_width_ticks
        lived.begin(event.golem_id, width, born_us, has_bundle=event.born.bundle_hash is not None)
    return lived


def held(lived: LivedLessons) -> list[tuple[Any, ...]]:
    state = lived.hypotheses
    rows = zip(*(state[n].tolist() for n in ("golem", "key", "state", "sign", "confidence_ppm", *SUMS)), strict=True)
    return sorted(
        (state.golems[golem], state.structures[key].key, CHANGES[state.changes[key]], STATES[code], *rest)
        for golem, key, code, *rest in rows
    )


def by_cycles(count: int) -> LivedLessons:
    """Close the cycles of both golems in portions of so many."""
    lived, records = newborn(), day().records
    portion = (records["tick"].to_numpy() - 1) // (HASTY.curator.cycle_ticks * count)
    for number in range(int(portion.max()) + 1):
        lived.close(records.filter(pa.array(portion == number)))
    return lived


def whole_cycles() -> dict[str, int]:
    last = day().records.group_by("golem_id").aggregate([("tick", "max")]).to_pylist()
    return {row["golem_id"]: row["tick_max"] // HASTY.curator.cycle_ticks for row in last}


@pytest.mark.full
def test_hypotheses_of_living_golems_are_those_of_the_table_in_any_portions(tmp_path: Path) -> None:
    lived = by_cycles(1)
    home = home_of(day(), tmp_path / "home", HASTY)
    derive_curation(home)
    derive_dreams(home)
    rows = live_hypotheses(home.projections.read("hypotheses"))
    names = ["golem_id", "structure", "change", "state", "sign", "confidence_ppm", *SUMS]
    assert held(lived) == sorted(tuple(row.values()) for row in rows.select(names).to_pylist())
    assert held(by_cycles(7)) == held(lived)
    lessons = home.projections.read("lessons")
    lessons = lessons.filter(pc.equal(lessons["status"], "active"))
    about = pc.is_in(lessons["cause"], value_set=pa.array(["threshold_higher", "threshold_lower"]))
    table = {row["entry_id"]: row for row in lessons.filter(about).to_pylist()}
    priors = {row["prior_id"]: row for row in lived.priors().to_pylist()}
    assert priors.keys() == table.keys()
    for entry_id, prior in priors.items():
        entry = table[entry_id]
        for name in ("golem_id", "action_type", "regime", "anomaly_band", "gas_band", "confidence_ppm"):
            assert prior[name] == entry[name]
        assert prior["sign"] == entry["sign"] * (-1 if entry["cause"] == "threshold_higher" else 1)
    parts = lived._market
    assert sum(len(part.tick) for part in parts) < 4_000, "records that no dream needs are dropped"
    assert micros(lived.priors(), "confirmed_at").min(initial=0) >= 0


def test_a_confirmed_hypothesis_states_the_revision_that_it_stages() -> None:
    row = {"regime": "volatile", "anomaly_band": "broken", "gas_band": "dear", "state": "confirmed", "sign": 1}
    edges = {change: revision_of(row | {"change": change}, 300_000) for change in CHANGES}
    assert edges.pop("threshold_higher") == (
        "rebalanceThreshold moves 30 % of the way up to the upper edge of the band (volatile, broken, gas dear)"
    )
    assert edges.pop("threshold_lower") == (
        "rebalanceThreshold moves 30 % of the way down to the lower edge of the band (volatile, broken, gas dear)"
    )
    assert set(edges.values()) == {None}
    assert revision_of(row | {"change": "threshold_lower", "state": "staged"}, 300_000) is None


@pytest.mark.full
def test_golems_derived_apart_join_the_others_and_forgotten_ones_leave() -> None:
    records = day().records
    records = records.filter(pc.less_equal(records["tick"], 1_500))
    first, second = sorted(day().births)
    together, apart, other = newborn(), newborn(), newborn()
    together.close(records)
    apart.forget([first])
    other.forget([second])
    for lived, golem_id in ((apart, second), (other, first)):
        lived.close(records.filter(pc.equal(records["golem_id"], golem_id)))
    other.absorb(apart)
    assert held(other) == held(together) != []
    later = day().records.filter(pc.greater(day().records["tick"], 1_500))
    for lived in (other, together):
        lived.close(later)
    assert held(other) == held(together)
    assert other.priors().equals(together.priors())
    together.forget([first])
    assert {golem_id for golem_id, *_ in held(together)} <= {second}
    assert set(together.priors()["golem_id"].to_pylist()) <= {second}
    assert (together.hypotheses["golem"] == together._codes[second]).all()
    assert np.isin(np.concatenate([part.golem for part in together._market]), [together._codes[second]]).all()


@pytest.mark.row("KAT-7")
def test_a_lesson_to_wait_speaks_against_acting() -> None:
    lived = LivedLessons(HASTY)
    lived.begin("g-1", 160, 0, has_bundle=False)
    about = Structure("pattern", "polygon", "uniswap_v3", "WETH/USDC", "t", "rebalance", "volatile", "broken", "normal")
    state = lived.hypotheses
    cases = [(change, sign) for change in (HIGHER, LOWER, WIDER) for sign in (1, -1)]
    for place, (change, sign) in enumerate(cases):
        key = state.code(about._replace(regime=REGIMES[place % 5], gas_band=GAS_BANDS[place // 5]), change)
        row = dict.fromkeys(COLUMNS, 0) | {"key": key, "state": CONFIRMED, "sign": sign, "confidence_ppm": 300_000}
        state.add({name: np.array([value]) for name, value in row.items()})
    lived.forget(["nobody"])
    signs = {(row["regime"], row["gas_band"]): row["sign"] for row in lived.priors().to_pylist()}
    expected = zip(cases, (-1, 1, 1, -1), strict=False)
    assert signs == {
        (REGIMES[place % 5], GAS_BANDS[place // 5]): meaning for place, (_, meaning) in enumerate(expected)
    }


@pytest.mark.full
@pytest.mark.row("KAT-7", "HB-4")
def test_a_tick_decides_by_a_lesson_of_the_golems_own_dreams_and_its_reason_says_so() -> None:
    playbook = HASTY.playbook.model_copy(update={"width_ladder_ticks": (160,), "range_half_width_ticks": 160})
    curator = HASTY.curator.model_copy(update={"anomaly_edges": (0.01, 0.02, 0.5, 0.99)})
    dreams = HASTY.dreams.model_copy(update={"admitted_confidence": 0.95})
    policy = HASTY.model_copy(update={"playbook": playbook, "curator": curator, "dreams": dreams})
    traits = Traits(rebalance_threshold=0.95, range_half_width_ticks=160, forecast_memory=0.95)
    lived = live(lively_market(1_000), founding=RICH, policy=policy, traits=traits)
    deliberated = [row for row in lived.rows if row["deliberation"] is not None]
    taught = [row for row in deliberated if "lessons of dreams" in row["deliberation"]["reasoning_summary"]]
    assert taught, "a lesson lowers the threshold of 0.95"
    for row in taught:
        lessons = [prior for prior in row["retrieval"]["priors"] if prior["kind"] == "lesson" and prior["sign"] == 1]
        assert lessons
        assert row["retrieval"]["prior_weight"] > 0.0
        assert row["observation"]["anomaly_score"] < 0.95
        assert "rebalance" in [action["action_type"] for action in row["actions"]]
    assert contradictions(lived.records) == []
