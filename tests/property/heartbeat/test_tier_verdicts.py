"""The fleet's judgement of tiers beside a row-at-a-time fold of its records."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.gating.boundaries import sampled
from bardo_pipeline.heartbeat.gating.expert_signals import note_contradictions
from bardo_pipeline.heartbeat.gating.learned_gate import inherit_gate
from bardo_pipeline.heartbeat.recall_table import nothing_known
from bardo_pipeline.heartbeat.records.build_records import records_of
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers, Chunk
from bardo_pipeline.heartbeat.step import Interventions, step
from bardo_pipeline.inheritance.bundle_inspection import faults_of
from bardo_pipeline.inheritance.learning_state import PLACES, Attention, gate_faults, gate_of
from bardo_pipeline.inheritance.learning_state import learned as learning_states
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.mortality.random_streams import seed_of
from bardo_pipeline.quality.reason_checks import contradictions
from tests.reference.learning import gating as twin
from tests.support.fleets.gated_fleets import GATED as LIVELY
from tests.support.fleets.gated_fleets import learned, lives
from tests.support.fleets.memory_fleets import live, lively_market, rule
from tests.support.fleets.routed_fleets import lives as routed_lives
from tests.support.fleets.tier_rows import past_ticks
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import grimoire
from tests.support.records.stated_reasons import stated_in_rules
from tests.unit.curator.test_choice_rules import advice


def recorded(row: dict[str, Any]) -> tuple[list[float], list[list[float]]]:
    """Return weights and boundaries that a record holds."""
    figures = row["gating"]
    boundaries = [figures[f"boundary_{name}"] for name in ("t2", "t1", "t0")]
    return [figures["weights"][name] for name in twin.EXPERTS], [[b["alpha"], b["beta"]] for b in boundaries]


@cache
def staying_out() -> dict[str, dict[int, dict[str, Any]]]:
    """The records, by tick, of golems whose playbook stays out, so that it settles many of their ticks."""
    inherited = grimoire(advice("enter", effect_ppm=-900))
    lived = live(lively_market(600), lineages=range(2), policy=LIVELY, inherited=inherited)
    assert any("stays out" in row["gating_reason"] for row in lived.rows)
    return {g: {row["tick"]: row for row in lived.rows if row["golem_id"] == g} for g in lived.births}


@pytest.mark.row("HB-5", "HB-6", "HB-7", "HB-9")
def test_weights_and_boundaries_follow_from_the_verdicts_on_the_records() -> None:
    rules, counted = LIVELY.gating, Counter[tuple[str, str]]()
    for rows in (*lives().values(), *routed_lives().values(), *staying_out().values()):
        past = past_ticks(rows)
        boundaries, hedge = recorded(rows[1])[1], twin.Hedge(rules.discount, rules.eta, [1.0] * len(twin.EXPERTS))
        for now in range(rules.delta_ticks, max(rows), rules.delta_ticks):
            judged = twin.verdicts(past, now, rules)
            twin.learn(judged, hedge, boundaries, rules)
            counted.update((row.tier + "*" * row.explored, verdict) for row, verdict in judged)
            after = recorded(rows[now + 1])
            np.testing.assert_allclose(after[0], hedge.share(), rtol=1e-9)
            np.testing.assert_allclose(after[1], boundaries, rtol=1e-12)
    assert {
        ("T0", "right"), ("T0", "missed"), ("suppress", "right"), ("suppress", "missed"), ("T1", "right"),
        ("T1", "needless"), ("T2", "right"), ("T2", "needless"), ("T0*", "missed"), ("T0*", "right"),
    } <= counted.keys(), counted  # fmt: skip


@pytest.mark.row("HB-7")
def test_the_learned_gate_decides_every_unforced_tick_after_a_hundred_of_the_fixed_one() -> None:
    assert LIVELY.gate.attention_after_ticks == 100
    for rows in lives().values():
        decided = [tick for tick, row in rows.items() if row["gating"]["boundary_t1"]["threshold"] is not None]
        assert decided == [tick for tick, row in rows.items() if tick > 100 and row["forced_by"] is None]
        assert {row["tier"] for row in rows.values() if row["forced_by"]} == {"T2"}


@pytest.mark.row("HB-7")
def test_state_changes_only_at_deltas() -> None:
    for rows in lives().values():
        for tick, following in pairwise(sorted(rows)):
            if tick % LIVELY.gating.delta_ticks:
                assert recorded(rows[tick]) == recorded(rows[following])


@pytest.mark.row("HB-7", "HB-4")
def test_every_reason_of_the_learned_gate_agrees_with_its_figures() -> None:
    records = learned().records
    assert stated_in_rules(records) == len(records)
    assert contradictions(records) == []


@pytest.mark.row("HB-7", "HB-9")
def test_the_golems_of_a_market_explore_the_discarded_ticks_that_its_luck_names() -> None:
    tape = tape_of(lively_market(1_100), LIVELY)
    named = set(tape.at_us[tape.exploration_luck < LIVELY.gating.explore_share].tolist())
    assert 0.5 < len(named) / tape.ticks / LIVELY.gating.explore_share < 2.0
    shared = Counter[int]()
    for row in learned().rows:
        at_us, figures = int(row["observed_at"].timestamp()) * 1_000_000, row["gating"]
        limit = figures["boundary_t1"]["threshold"]
        discarded = limit is not None and figures["composite"] <= limit
        settled = "stays out" in row["gating_reason"]
        assert figures["explored"] is (discarded and at_us in named and not settled)
        shared[at_us] += figures["explored"]
    assert max(shared.values()) > 1


@pytest.mark.row("HB-7", "HB-6")
def test_the_thresholds_of_a_record_follow_from_its_boundaries_the_golems_seed_and_its_mood() -> None:
    for golem_id, rows in lives().items():
        ticks = np.array([tick for tick, row in rows.items() if row["gating"]["boundary_t1"]["threshold"] is not None])
        seeds = np.full(len(ticks), seed_of(golem_id))
        shapes = np.array([recorded(rows[tick])[1] for tick in ticks]).transpose(2, 1, 0)
        drawn = sampled(seeds, ticks[None], shapes)[0].T
        for tick, draws in zip(ticks.tolist(), drawn.tolist(), strict=True):
            mood = rows[tick]["pad_before"]
            expected = twin.thresholds(draws, mood["arousal"], mood["dominance"], LIVELY.gating)
            found = [rows[tick]["gating"][f"boundary_{name}"]["threshold"] for name in ("t2", "t1", "t0")]
            np.testing.assert_allclose(found, expected, rtol=1e-6)


Change = Callable[[dict[str, Any]], None]


def figure(*path: str, value: Any) -> Change:
    """Return a change of one figure of a record."""

    def change(row: dict[str, Any]) -> None:
        for name in path[:-1]:
            row = row[name]
        row[path[-1]] = value

    return change


@pytest.mark.row("HB-7", "HB-4")
@pytest.mark.parametrize(
    ("tier", "change"),
    [
        ("T0", figure("gating", "composite", value=0.999)),
        ("T0", figure("gating", "boundary_t0", "threshold", value=0.999)),
        ("T1", figure("gating", "boundary_t1", "threshold", value=0.999)),
        ("T1", figure("gating", "explored", value=True)),
        ("T1", figure("gating", value=None)),
        ("T1", figure("tier", value="T0")),
        ("suppress", figure("gating", "boundary_t0", "threshold", value=0.001)),
        ("suppress", figure("tier", value="T0")),
        ("T2", figure("gating", "boundary_t2", "threshold", value=0.999)),
        ("T2", figure("forced_by", value="steer")),
        ("explored", figure("gating", "explored", value=False)),
        ("explored", figure("tier", value="suppress")),
    ],
)
def test_a_changed_figure_contradicts_the_reason(tier: str, change: Change) -> None:
    row = next(
        row for row in learned().rows
        if "composite" in row["gating_reason"]
        and (row["gating"]["explored"] if tier == "explored" else row["tier"] == tier and not row["gating"]["explored"])
    )  # fmt: skip
    changed = copy.deepcopy(row)
    change(changed)
    assert contradictions(pa.Table.from_pylist([row], RECORD_SCHEMA)) == []
    assert contradictions(pa.Table.from_pylist([changed], RECORD_SCHEMA)) != []


def gate_left() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the gate of one golem's learning state, and its last record."""
    golem_id, rows = next(iter(lives().items()))
    records = learned().records.filter(pa.compute.equal(learned().records["golem_id"], golem_id))
    none = Attention(thoughts=[0] * PLACES, vain=[0] * PLACES)
    state = learning_states(records, {golem_id: 0.9}, {golem_id: none}, LIVELY)[golem_id]
    return orjson.loads(orjson.dumps(state)), rows[max(rows)]


@pytest.mark.row("HB-7", "HB-10")
def test_an_heir_starts_with_the_gate_of_its_predecessors_last_record_and_uses_it_at_once() -> None:
    state, last = gate_left()
    founder = learned().births[last["golem_id"]]
    fleet, tape = Fleet(["g-orphan", "g-heir"], [founder] * 2, LIVELY), tape_of(lively_market(60), LIVELY)
    inherit_gate(fleet, 0, gate_of({}), LIVELY)
    inherit_gate(fleet, 1, gate_of(state), LIVELY)
    out, recall = Buffers(2, 40), nothing_known(2, EntryNames())
    for t in range(40):
        step(fleet, tape, t, recall=recall, policy=LIVELY, out=out, at=t)
    rows = records_of(Chunk(out, tape, 0, fleet.golem_ids, recall, None, LIVELY)).to_pylist()
    first = {row["golem_id"]: row for row in rows if row["tick"] == 2}
    weights, boundaries = recorded(first["g-heir"])
    np.testing.assert_allclose(weights, recorded(last)[0], rtol=1e-5)
    np.testing.assert_allclose(boundaries, recorded(last)[1], atol=1e-3)
    np.testing.assert_array_equal(recorded(first["g-orphan"])[1], LIVELY.gating.boundary_priors)
    decided = {
        g: [r["gating"]["boundary_t1"]["threshold"] is not None for r in rows if r["golem_id"] == g] for g in first
    }
    assert decided == {"g-orphan": [False] * 40, "g-heir": [False, *[True] * 39]}, "the first tick of a life is forced"
    assert len(orjson.dumps(state["gate"])) < 400


@pytest.mark.row("HB-7", "HB-4")
def test_the_fixed_gate_decides_up_to_the_deliberation_that_answers_a_follow_up() -> None:
    state, last = gate_left()
    fleet, tape = Fleet(["g-heir"], [learned().births[last["golem_id"]]], LIVELY), tape_of(lively_market(60), LIVELY)
    inherit_gate(fleet, 0, gate_of(state), LIVELY)
    out, recall, pending = Buffers(1, 40), nothing_known(1, EntryNames()), []
    for t in range(40):
        asked = Interventions(np.zeros(1, bool), np.array([int(t == 8)]))
        pending.append(bool(fleet.follow_ups[0]) or t == 8)
        step(fleet, tape, t, recall=recall, policy=LIVELY, out=out, at=t, interventions=asked)
    rows = records_of(Chunk(out, tape, 0, fleet.golem_ids, recall, None, LIVELY)).to_pylist()
    assert sum(pending) > 1
    assert not all(pending[8:])
    fixed = [row["gating"]["boundary_t1"]["threshold"] is None for row in rows]
    assert fixed == [True, *pending[1:]], "the first tick of a life is forced"


@pytest.mark.row("HB-7", "HB-10")
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("log_weights", [0] * 4), ("log_weights", [1, 0, 0, 0, 0]), ("log_weights", [-1] * 5),
        ("log_weights", [0.0] * 5), ("log_weights", [True, 0, 0, 0, 0]), ("log_weights", None),
        ("log_weights", [0, 0, 0, 0, -(10**10)]), ("boundaries", [[1_000, 1_000]] * 2), ("boundaries", [[1_000]] * 3),
        ("boundaries", [[999, 1_000]] * 3), ("boundaries", [[float("nan"), 1_000]] * 3), ("boundaries", 3),
        ("boundaries", [[10**10, 1_000]] * 3),
    ],
)  # fmt: skip
def test_a_gate_outside_its_ranges_is_a_fault_of_its_bundle_and_is_not_used(part: str, value: object) -> None:
    state, _ = gate_left()
    assert gate_faults(state) == []
    assert not [f for f in faults_of(bundle_of(learning=state).files, LIVELY.inheritance) if "gate" in f]
    spoilt = {**state, "gate": {**state["gate"], part: value}}
    if "nan" not in repr(value):  # no JSON holds it
        assert [f for f in faults_of(bundle_of(learning=spoilt).files, LIVELY.inheritance) if part in f]
    (fault,) = gate_faults(spoilt)
    assert part in fault
    assert gate_of(spoilt) is None


def squashed(size: float, half: float) -> float:
    return size / (size + half)


@pytest.mark.row("HB-7", "HB-5")
def test_the_signals_of_a_record_follow_from_its_predictions_and_probes_and_from_the_market() -> None:
    rules, z, seen = LIVELY.gating, LIVELY.prediction.interval_z, 0
    tape = tape_of(lively_market(1_100), LIVELY)
    topology = dict(zip(tape.at_us.tolist(), tape.topology.tolist(), strict=True))
    for rows in lives().values():
        for tick, row in rows.items():
            signals, predictions = row["gating"]["signals"], {p["quantity"]: p for p in row["predictions"]}
            severities = [probe["severity"] for probe in row["probe_results"]]
            assert signals["risk"] == max({"none": 0.0, "low": 0.5, "high": 1.0}.get(s, 0.0) for s in severities)
            distance = topology[int(row["observed_at"].timestamp()) * 1_000_000]
            expected = None if np.isnan(distance) else squashed(distance, rules.topology_half)
            assert signals["topology"] == (expected if expected is None else pytest.approx(expected))
            if "price" not in predictions:
                assert signals["oracle"] is signals["surprise"] is None
                continue
            price = predictions["price"]
            residual = abs(price["actual"] - price["expected"]) / ((price["high"] - price["low"]) / 2.0)
            assert signals["oracle"] == pytest.approx(squashed(residual, rules.oracle_half), rel=1e-6)
            after = {p["quantity"]: p for p in rows[tick + 1]["predictions"]} if tick + 1 in rows else {}
            if predictions.keys() == after.keys() == {"price", "gas", "health"}:
                divergence = max(
                    nats(predictions[name], after[name], z, absolute=name == "health") for name in predictions
                )
                assert signals["surprise"] == pytest.approx(squashed(divergence, rules.surprise_half_nats), rel=1e-6)
                seen += 1
    assert seen > 1_000


def nats(before: dict[str, Any], after: dict[str, Any], z: float, *, absolute: bool) -> float:
    """Return the KL divergence of a forecast from the one before it, both centred at what was known."""
    scale = 1.0 if absolute else abs(before["expected"])
    first = (before["high"] - before["low"]) / 2.0 / z / scale
    second = (after["high"] - after["low"]) / 2.0 / z / (1.0 if absolute else abs(after["expected"]))
    moved = (before["actual"] - before["expected"]) / scale / first
    return float(0.5 * ((second / first) ** 2 + moved**2 - 1.0 - np.log((second / first) ** 2)))


@pytest.mark.row("HB-7", "HB-5")
def test_the_contradiction_is_the_share_of_opposed_pairs_of_the_last_retrieval() -> None:
    founder = next(iter(learned().births.values()))
    fleet, recall = Fleet(["g-0", "g-1", "g-2"], [founder] * 3, LIVELY), SimpleNamespace(sign=np.array([1, 1, -1, 0]))
    memory = SimpleNamespace(golem=np.array([0, 2]), recalled=np.array([[0, -1], [1, -1], [2, -1], [3, -1], [-1, -1]]))
    note_contradictions(fleet, memory, recall)  # type: ignore[arg-type]
    np.testing.assert_array_equal(fleet.contradiction, [2 / 6, np.nan, np.nan])
    memory.recalled[:, 0] = -1
    note_contradictions(fleet, memory, recall)  # type: ignore[arg-type]
    note_contradictions(fleet, None, recall)  # type: ignore[arg-type]
    assert fleet.contradiction[0] == 2 / 6, "a deliberation that retrieves nothing keeps the share"


@pytest.mark.row("HB-7", "HB-5")
def test_the_contradiction_of_a_record_is_that_of_the_entries_its_golem_last_retrieved() -> None:
    market, places = lively_market(60), [(r, band) for r in REGIMES for band in ANOMALY_BANDS[:3]]
    entries = [rule(market, *place, "normal", sign=-1 if i % 4 else 1) for i, place in enumerate(places)]
    lived, last, seen = live(market, policy=LIVELY, inherited=grimoire(*entries)), None, set[float | None]()
    sign = {entry["entry_id"]: entry["sign"] for entry in entries}
    for row in lived.rows[: LIVELY.curator.cycle_ticks]:  # the entries of a later cycle are not in `sign`
        assert row["gating"]["signals"]["contradiction"] == (None if last is None else pytest.approx(last))
        seen.add(last)
        if signs := [sign[entry["entry_id"]] for entry in row["retrieved_entries"]]:
            pairs = [one != other for one, other in combinations(signs, 2)]
            last = sum(pairs) / max(len(pairs), 1)
    assert len(seen) > 2
