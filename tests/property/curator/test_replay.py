"""Replay draws by gain and need, with quotas for new and old episodes, and no episode waits forever."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.episodes import EPISODE_SCHEMA
from bardo_pipeline.curator.model_prompt import REPLAY_COLUMNS, REPLAY_SCHEMA, replayed
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.policy import CuratorPolicy, Policy, RetrievalPolicy
from tests.reference.learning.replay import replayed_by_row

POLICY = Policy().curator
SCHEMA = pa.schema([EPISODE_SCHEMA.field(n) for n in REPLAY_COLUMNS])
examples = settings(max_examples=80, deadline=None, derandomize=True)
unit, mood = st.floats(0, 1), st.floats(-1, 1)


def episode(tick: int, **fields: Any) -> dict[str, Any]:
    """Return a verified episode with ordinary values; a cycle has fifty ticks."""
    plain = {
        "golem_id": "g-1", "tick": tick, "cycle": (tick - 1) // 50 + 1, "regime": "volatile", "protocol": "uniswap_v3",
        "pair": "WETH/USDC", "curiosity": 0.5, "importance": 0.5, "pleasure": 0.0, "arousal": 0.0, "dominance": 0.0,
        "verified": True, "text": f"at {tick}",
    }  # fmt: skip
    return plain | fields


def table_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


drawn_episodes = st.lists(
    st.builds(
        episode, st.integers(1, 400), regime=st.sampled_from(REGIMES), curiosity=st.floats(0, 1.5), importance=unit,
        pleasure=mood, arousal=mood, dominance=mood, verified=st.booleans(), pair=st.sampled_from(["a/b", "c/d"]),
    ),
    max_size=60, unique_by=lambda e: e["tick"],
)  # fmt: skip


@pytest.mark.row("MEM-3")
@examples
@given(drawn_episodes, st.integers(1, 8), st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.7, 1.0]), st.randoms())
def test_replay_equals_its_twin_in_any_row_order(
    rows: list[dict[str, Any]], cycle: int, places: int, share: float, chance: Any
) -> None:
    policy = CuratorPolicy(replay_episodes=places, replay_new_share=share)
    expected = replayed_by_row(rows, cycle, policy)
    chance.shuffle(rows)
    assert replayed(table_of(*rows), cycle, policy).to_pylist() == expected


@pytest.mark.row("MEM-3")
def test_70_percent_of_replayed_episodes_are_new_unless_there_are_too_few() -> None:
    old, new = [episode(t) for t in range(1, 51)], [episode(t) for t in range(51, 101)]
    assert sum(r["is_new"] for r in replayed(table_of(*old, *new), 2, POLICY).to_pylist()) == 14
    assert sum(r["is_new"] for r in replayed(table_of(*old, *new[:3]), 2, POLICY).to_pylist()) == 3
    assert replayed(table_of(*old, *new[:3]), 2, POLICY).num_rows == POLICY.replay_episodes
    assert replayed(table_of(*old[:2], *new), 2, POLICY).num_rows == POLICY.replay_episodes
    assert replayed(table_of(*old[:2], *new[:1]), 2, POLICY).num_rows == 3


@pytest.mark.row("MEM-3")
def test_surprising_and_similar_episodes_are_replayed_more_often() -> None:
    now = [episode(50 * 1_000 + 1, regime="volatile")]
    kinds = {
        "surprise": episode(1, importance=1.0, curiosity=0.1),
        "elsewhere": episode(2, importance=1.0, curiosity=0.1, regime="range_bound", arousal=-1.0, pleasure=-1.0),
        "dull": episode(3),
    }
    others = [episode(t, importance=0.8, curiosity=0.3) for t in range(4, 40)]
    policy = CuratorPolicy(replay_episodes=10)
    rounds = 1_500
    seen = dict.fromkeys(kinds, 0)
    for golem in range(rounds):
        rows = [row | {"golem_id": f"g-{golem}"} for row in (*kinds.values(), *others, *now)]
        ticks = {r["tick"] for r in replayed(table_of(*rows), 1_001, policy).to_pylist()}
        for name, row in kinds.items():
            seen[name] += row["tick"] in ticks
    assert seen["surprise"] > 1.5 * seen["elsewhere"] > 3 * seen["dull"] > 0, seen


@pytest.mark.row("MEM-3")
def test_replay_takes_verified_past_episodes_by_descending_gain() -> None:
    rows = [
        episode(1, importance=0.6), episode(2, verified=False), episode(3, importance=0.9), episode(60, importance=1.0),
    ]  # fmt: skip
    table = replayed(table_of(*rows), 1, POLICY).to_pylist()
    assert [r["tick"] for r in table] == [3, 1]
    assert [r["gain_ppm"] for r in table] == [400_000, 100_000]
    assert replayed(table_of(), 1, POLICY).equals(REPLAY_SCHEMA.empty_table())


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"anomaly_edges": (0.5, 0.7, 0.8)}, "anomaly_edges"),
        ({"anomaly_edges": (0.5, 0.8, 0.7, 0.9)}, "anomaly_edges .* do not ascend"),
        ({"anomaly_edges": (0.5, 0.7, 0.8, float("nan"))}, "anomaly_edges"),
        ({"gas_edges": (2.0, 2.0)}, "gas_edges .* do not ascend"),
        ({"need_mood": 0.4}, "do not sum to 1"),
        ({"level_sigma": float("inf")}, "level_sigma"),
    ],
)
def test_an_inconsistent_curator_policy_is_refused(row: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        CuratorPolicy(**row)


@pytest.mark.parametrize("row", [{"semantic": 0.5}, {"affect": 0.0}, {"like_gas": 0.3}])
def test_retrieval_factors_that_do_not_sum_to_1_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="do not sum to 1"):
        RetrievalPolicy(**row)


def test_a_zero_minimum_utility_of_replay_is_refused() -> None:
    with pytest.raises(ValueError, match="replay_utility_min"):
        CuratorPolicy(replay_utility_min=0.0)
    assert np.isfinite(POLICY.replay_utility_min)
