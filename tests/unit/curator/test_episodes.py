"""Episodes: which records become episodes, their importance, and when they expire."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, EPISODE_SCHEMA, IMPORTANCE_TIERS, TEXT_FIELDS, episodes_of
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.grimoire.confidence import retention
from bardo_pipeline.policy import Policy
from tests.support.records.handmade_records import START, action, outcome, record

POLICY = Policy()
WORTH = 50_000_000
PLAIN: dict[str, Any] = {"regime": "range_bound", "prediction_error": 0.1, "primary_emotion": "anticipation"}
MOST = datetime.max.replace(tzinfo=UTC)


def episodes(*rows: dict[str, Any], policy: Policy = POLICY) -> pa.Table:
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in EPISODE_COLUMNS])
    records = pa.Table.from_pylist([PLAIN | row for row in rows], schema=schema)
    return episodes_of(records, records["tick"].to_numpy() // 50 + 1, policy)


def moved(tick: int, pnl_micros: int, **fields: Any) -> dict[str, Any]:
    """An action that moved the golem's worth."""
    balance = {"net_asset_value_micros": WORTH}
    done = {"actions": [action()], "outcome": outcome(pnl_impact_micros=pnl_micros)}
    return record("g-1", tick, tier="T1", observation=balance, **(done | fields))


def single_episode(pnl_micros: int, **fields: Any) -> dict[str, Any]:
    (row,) = episodes(moved(1, pnl_micros, **fields)).to_pylist()
    return row


# reasons (canon 13)


@pytest.mark.row("MEM-1")
@pytest.mark.parametrize(
    "reason",
    [{"actions": [action()]}, {"odd": True}, {"turned": True}, {"tier": "T1"}, {"tier": "T2"}],
    ids=["action", "anomaly", "regime change", "T1", "T2"],
)
def test_each_reason_suffices_for_an_episode(reason: dict[str, Any]) -> None:
    derived = episodes(record("g-1", 1), record("g-1", 2, **reason), record("g-2", 60))
    assert derived["episode_id"].to_pylist() == ["g-1:2"]
    assert (derived["golem_id"][0].as_py(), derived["tick"][0].as_py(), derived["cycle"][0].as_py()) == ("g-1", 2, 1)


@pytest.mark.row("MEM-1")
def test_a_quiet_tick_is_no_episode() -> None:
    derived = episodes(record("g-1", 1), record("g-1", 2, observation={"gas_hour_ratio": 9.0}), record("g-1", 3))
    assert derived.num_rows == 0
    assert derived.column_names == [name for name in EPISODE_SCHEMA.names if name not in TEXT_FIELDS]


@pytest.mark.row("MEM-1")
def test_an_episode_contains_the_values_of_its_record() -> None:
    row = single_episode(-40_000, prediction_error=0.37, pad_after={"pleasure": 0.1, "arousal": -0.2, "dominance": 0.3})
    assert (row["chain"], row["protocol"], row["pair"]) == ("polygon", "uniswap_v3", "WETH/USDC")
    assert (row["value_micros"], row["gas_cost_micros"], row["pnl_impact_micros"]) == (48_000_000, 9_000, -40_000)
    assert (row["action_type"], row["action_status"], row["tier"]) == ("rebalance", "executed", "T1")
    assert (row["pleasure"], row["arousal"], row["dominance"]) == (0.1, -0.2, 0.3)
    assert row["curiosity"] == 0.37
    assert row["at"] == START + timedelta(minutes=1)
    assert row["verified"]
    assert not single_episode(-40_000, outcome=outcome(verified=False))["verified"]


# importance (canon 14)


@pytest.mark.row("MEM-1")
@pytest.mark.parametrize(
    ("pnl_micros", "importance", "tier"),
    [
        (0, 0.0, "routine"),
        (499_999, 0.499999, "routine"),
        (500_000, 0.5, "notable"),
        (-500_000, 0.5, "notable"),
        (699_999, 0.699999, "notable"),
        (700_000, 0.7, "critical"),
        (-899_999, 0.899999, "critical"),
        (900_000, 0.9, "emergency"),
        (1_000_000, 1.0, "emergency"),
        (-30_000_000, 1.0, "emergency"),
    ],
)
def test_importance_is_the_profit_or_loss_over_two_percent_of_the_balance(
    pnl_micros: int, importance: float, tier: str
) -> None:
    row = single_episode(pnl_micros)
    assert row["importance"] == pytest.approx(importance, abs=1e-12)
    assert row["importance_tier"] == tier


@pytest.mark.row("MEM-1")
def test_an_episode_without_an_action_has_no_importance() -> None:
    assert single_episode(0, actions=[], outcome=None)["importance"] == 0.0


# expiry (canon 14, TOOLS)


@pytest.mark.row("MEM-5")
@pytest.mark.parametrize(
    ("pnl_micros", "tier", "days"),
    [
        (100_000, "routine", 21.0),
        (500_000, "notable", 89.9),
        (700_000, "critical", 269.6),
        (900_000, "emergency", 539.2),
    ],
)
def test_an_episode_expires_at_5_percent_retention(pnl_micros: int, tier: str, days: float) -> None:
    row = single_episode(pnl_micros)
    strength = getattr(POLICY.decay, f"{tier}_days")
    age = (row["may_go_at"] - row["at"]) / timedelta(days=1)
    assert row["importance_tier"] == tier
    assert round(age, 1) == days
    tick = 1 / 86_400_000_000
    before, then, after = retention(np.array([age - 2 * tick, age, age + 2 * tick]), strength)
    assert before > POLICY.decay.episode_retention_min > after
    assert then == pytest.approx(0.05, abs=1e-12)


@pytest.mark.row("MEM-5")
def test_episodes_of_different_tiers_have_their_own_expiry() -> None:
    derived = episodes(*(moved(t, pnl) for t, pnl in enumerate((900_000, 0, 700_000, 500_000, 0), start=1)))
    expected = {tier: getattr(POLICY.decay, f"{tier}_days") for tier in IMPORTANCE_TIERS}
    for row in derived.to_pylist():
        wait = timedelta(days=expected[row["importance_tier"]] * np.log(20))
        assert abs(row["may_go_at"] - row["at"] - wait) <= timedelta(microseconds=2)


@pytest.mark.row("MEM-5")
@pytest.mark.parametrize("decay", [{"episode_retention_min": 0.0}, {"routine_days": 1e300}])
def test_an_episode_without_decay_never_expires(decay: dict[str, float]) -> None:
    (row,) = episodes(moved(1, 0), policy=Policy.model_validate({"decay": decay})).to_pylist()
    assert row["may_go_at"] == MOST


@pytest.mark.row("MEM-5")
def test_an_episode_with_a_retention_minimum_of_1_expires_at_once() -> None:
    policy = Policy.model_validate({"decay": {"episode_retention_min": 1.0}})
    (row,) = episodes(moved(1, 0), policy=policy).to_pylist()
    assert row["may_go_at"] == row["at"]


@pytest.mark.row("MEM-5")
def test_an_expiry_beyond_the_calendar_is_limited_to_its_end() -> None:
    late = MOST - timedelta(days=1)
    assert single_episode(900_000, observed_at=late)["may_go_at"] == MOST
