"""Dreams equal their row-at-a-time twin, inputs and over many nights; the weighted sample is fair."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams import hypothesis_staging as hyp
from bardo_pipeline.dreams import replay_selection
from bardo_pipeline.dreams.dream_cycle import KNOWN_COLUMNS, DreamInputs, _novelty_and_scars
from bardo_pipeline.dreams.hypothesis_table import to_table
from bardo_pipeline.dreams.lessons import lessons_of
from bardo_pipeline.mortality.random_streams import STREAM_REPLAY, seed_of, weighted_sample
from bardo_pipeline.policy import Policy
from tests.reference import dreams as twin
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import decided, decisions, pattern

POLICY = Policy()
EAGER = POLICY.model_copy(update={"dreams": POLICY.dreams.model_copy(update={"witnesses_min": 2, "interval_z": 0.5})})

pytestmark = pytest.mark.row("MEM-16", "MEM-23")


def test_only_a_known_inherited_bloodstain_warning_is_a_scar() -> None:
    stained = {"kind": "warning", "is_bloodstain": True, "provenance": "death_testament"}
    rows = [
        decided("received", 0, about=pattern("scar", gas_band="dear"), **stained),
        decided("received", 0, about=pattern("fades", gas_band="cheap"), **stained),
        decided("pruned", 2, about=pattern("fades", gas_band="cheap"), **(stained | {"status": "pruned"})),
        decided("received", 4, about=pattern("late"), **stained),
        decided("created", 1, about=pattern("own"), **(stained | {"provenance": "self"})),
        decided("received", 0, about=pattern("insight"), **(stained | {"kind": "insight"})),
        decided("received", 0, about=pattern("clean"), **(stained | {"is_bloodstain": False})),
    ]
    known = decisions(*rows).select(KNOWN_COLUMNS)
    inputs = DreamInputs(["g-1"], np.array([600]), np.zeros(1, np.int64), np.zeros((4, 1), np.int64), {})
    column = np.zeros(2, np.int64)
    due = replay_selection.Due(column, np.array([1, 3]), np.array([50, 150]), np.array([1, 2]), column)
    novelty, scars = _novelty_and_scars(known, inputs, due, POLICY)
    names = {row["entry_id"]: row["tool"] for row in rows}
    pairs = [(int(dream), names[entry]) for dream, entry in zip(scars["dream"], scars["entry"], strict=True)]
    assert sorted(pairs) == [(0, "fades"), (0, "scar"), (1, "scar")]
    assert novelty.shape == (2, 75)
    assert novelty[0].min() == 0.0, "a rule of the same situation leaves no novelty"
    cheap = scars["cell"][[tool == "fades" for _, tool in pairs].index(True)]
    assert novelty[:, cheap].tolist() == pytest.approx([0.0, 0.2]), "a pruned rule is new again"


@settings(max_examples=times(100), deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 3_000), st.floats(0, 1), st.integers(0, 12))
def test_salience_and_depotentiation_equal_the_twin(
    arousal: float, valence: float, age: int, novelty: float, times: int
) -> None:
    rows = [np.array([x]) for x in (arousal, valence, age, novelty)]
    assert replay_selection.salience(*rows, POLICY.dreams)[0] == pytest.approx(
        twin.salience(arousal, valence, age, novelty)
    )
    expected = arousal
    for _ in range(times):
        expected = twin.eased(expected)
    assert replay_selection.depotentiated(rows[0], np.array([times]), POLICY.dreams)[0] == pytest.approx(expected)


@st.composite
def nights(draw: st.DrawFn) -> tuple[list[dict[str, int]], int, int, bool]:
    """Draw one golem's cycles, the time and cycle of its last dream, and whether it was born with a bundle."""
    at, cycles = 0, []
    for cycle in range(1, draw(st.integers(0, 25)) + 1):
        at += draw(st.integers(1, 4)) * replay_selection.HOUR_US
        tags = draw(st.integers(0, 1)) * draw(st.integers(0, 1))
        cycles.append({"cycle": cycle, "at_us": at, "idle": draw(st.booleans()), "tags": tags})
    last = draw(st.integers(0, max(0, len(cycles) - 1)))
    return cycles, last, cycles[last - 1]["at_us"] if last else 0, draw(st.booleans())


@settings(max_examples=times(75), deadline=None)
@given(st.lists(nights(), min_size=1, max_size=3))
def test_due_dreams_equal_the_twin(lived: list[tuple[list[dict[str, int]], int, int, bool]]) -> None:
    rows = [(code, item) for code, (cycles, *_) in enumerate(lived) for item in cycles]
    column = {n: np.array([item[n] for _, item in rows], np.int64) for n in ("cycle", "at_us", "idle", "tags")}
    golem = np.array([code for code, _ in rows], np.int64)
    cycles = replay_selection.Cycles(
        golem, column["cycle"], column["cycle"] * 50, column["at_us"], column["idle"] == 1, column["tags"]
    )
    last_dreams = {code: replay_selection.LastDream(last, at, new) for code, (_, last, at, new) in enumerate(lived)}
    due = replay_selection.dreams_due(cycles, last_dreams, POLICY.dreams)
    triples = [(g, c, replay_selection.BEGAN_BY[w]) for g, c, w in zip(due.golem, due.cycle, due.began_by, strict=True)]
    wanted = [
        (code, cycle, why)
        for code, (cycles, last, at, new) in enumerate(lived)
        for cycle, why in twin.dreams_due(cycles, last_us=at, last_cycle=last, imported=new, policy=POLICY)
    ]
    assert triples == wanted


WHERE = (
    Structure("pattern", "polygon", "uniswap_v3", "WETH/USDC", "t", "rebalance", "volatile", "broken", "normal"),
    Structure("pattern", "polygon", "uniswap_v3", "WETH/USDC", "t", "rebalance", "unknown", "broken", "normal"),
)


@st.composite
def dreamers(draw: st.DrawFn) -> list[list[dict]]:
    """Draw each golem's dreams: time, and the results and failures before it, by key."""
    out = []
    for _ in range(draw(st.integers(1, 3))):
        at, tick, dreams = 0, 0, []
        for _ in range(draw(st.integers(1, 7))):
            hours, first = draw(st.integers(4, 80)), tick
            at, tick = at + hours * replay_selection.HOUR_US, tick + 50 * draw(st.integers(1, 9))
            mean = draw(st.sampled_from((-4_000, -900, 0, 700, 3_000)))
            kinds = st.tuples(st.integers(0, 1), st.integers(first + 1, tick), st.integers(-500, 500), st.booleans())
            drawn = draw(st.lists(kinds, max_size=9, unique_by=lambda k: (k[0], k[1] // 30)))
            dreams.append(
                {
                    "at_us": at, "tick": tick, "cycle": tick // 50,
                    "effects": sorted(
                        ({"key": k, "decided": t, "judged_us": at - 60_000_000, "effect": mean + e, "failed": f}
                         for k, t, e, f in drawn),
                        key=lambda item: (item["key"], item["decided"]),
                    ),
                }
            )  # fmt: skip
        out.append(dreams)
    return out


def recorded_hypotheses(lives: list[list[dict]], policy: Policy) -> pa.Table:
    """Return the recorded results of these golems' hypotheses."""
    state = hyp.Hypotheses([f"g-{i}" for i in range(len(lives))])
    keys = [state.code(where, 3) for where in WHERE]
    for wave in range(max(len(dreams) for dreams in lives)):
        here = [i for i, dreams in enumerate(lives) if wave < len(dreams)]
        rows = [lives[i][wave] for i in here]
        columns = [np.array([d[n] for d in rows], np.int64) for n in ("cycle", "tick", "at_us")]
        dreamers = hyp.Dreamers(np.array(here, np.int64), *columns)
        for failed, meet in ((False, hyp.judge), (True, hyp.stage)):
            pairs = [(i, e) for i, d in zip(here, rows, strict=True) for e in d["effects"] if e["failed"] or not failed]
            parts = [np.array([i for i, _ in pairs], np.int64), np.array([keys[e["key"]] for _, e in pairs], np.int64)]
            parts += [
                np.array([e[n] for _, e in pairs], np.int64) for n in ("effect", "decided", "decided", "judged_us")
            ]
            meet(state, dreamers, hyp.Evidence(*parts), policy)
    return to_table(state, policy, policy.hash)


@settings(max_examples=times(30), deadline=None)
@given(dreamers())
def test_results_of_hypotheses_equal_the_twin(lives: list[list[dict]]) -> None:
    policy = Policy()
    rows = recorded_hypotheses(lives, policy).to_pylist()
    results = sorted((r["golem_id"], r["cycle"], r["regime"], r["operation"], r["confidence_ppm"]) for r in rows)
    wanted = []
    for i, dreams in enumerate(lives):
        half = {"volatile": 14 * twin.DAY_US, "unknown": 7 * twin.DAY_US}
        sleeper = twin.Sleeper(policy, half)
        for d in dreams:
            lived = [e | {"key": WHERE[e["key"]].regime} for e in d["effects"]]
            result = sleeper.dream(d["at_us"], d["tick"], lived, [e for e in lived if e["failed"]])
            wanted += [(f"g-{i}", d["cycle"], key, operation, trust) for key, operation, trust in result]
    assert [x[:4] for x in results] == [x[:4] for x in sorted(wanted)]
    assert all(abs(a[4] - b[4]) <= 1 for a, b in zip(results, sorted(wanted), strict=True))


@settings(max_examples=times(20), deadline=None)
@given(dreamers())
def test_lessons_equal_the_twin(lives: list[list[dict]]) -> None:
    rows = recorded_hypotheses(lives, EAGER)
    keys = {
        (row["golem_id"], row["regime"], row["cause"]): tuple(row[name] for name in twin.LEARNED)
        for row in lessons_of(rows, (), EAGER).to_pylist()
    }
    assert keys == twin.lessons(rows.to_pylist())


# the draw


@settings(max_examples=times(30), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 12))
def test_a_weighted_sample_fills_its_places_and_ignores_other_dreams(seed: int, count: int, places: int) -> None:
    rng = np.random.default_rng(seed)
    dream, name = np.sort(rng.integers(0, 3, count)), np.arange(count).astype(np.uint64)
    seeds = np.array([11, 22, 33], np.uint64)[dream]
    weight = rng.random(count)
    drawn = weighted_sample(dream, seeds, name, weight, places, STREAM_REPLAY)
    for number in range(3):
        column = np.flatnonzero(dream == number)
        here = drawn[dream[drawn] == number]
        assert len(here) == min(places, len(column)) == len(set(here.tolist()))
        parts = (values[column] for values in (dream, seeds, name, weight))
        alone = column[weighted_sample(*parts, places, STREAM_REPLAY)]
        assert alone.tolist() == here.tolist()


def test_a_weighted_sample_is_proportional_to_the_weights() -> None:
    nights, weight = 3_000, np.array([0.02, 0.2, 0.4, 0.8])
    dream = np.repeat(np.arange(nights), 4)
    seeds = np.array([sleep_seed(n) for n in range(nights)], np.uint64)[dream]
    names = np.tile(np.arange(4), nights).astype(np.uint64)
    drawn = weighted_sample(dream, seeds, names, np.tile(weight, nights), 1, STREAM_REPLAY)
    share = np.bincount(drawn % 4, minlength=4) / nights
    assert share == pytest.approx(weight / weight.sum(), abs=0.03)
    assert share[0] > 0


def sleep_seed(number: int) -> int:
    return int(seed_of(f"g-0/{number}"))
