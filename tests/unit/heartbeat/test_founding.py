"""Founding: the initial state of a golem, and budgets too small for a birth."""

import re
from dataclasses import replace

import pytest

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import MortalityPolicy, Policy


def birth(founding: Founding, policy: Policy | None = None) -> Born:
    _, life = born(
        lineage_id="founding/0", generation=0, owner_id="owner-1", founding=founding, market="by hand",
        market_hash="0", derivation_id="by hand", policy=policy or Policy(),
    )  # fmt: skip
    return life


@pytest.mark.row("INH-1")
@pytest.mark.parametrize("share", [0.025, 0.03, 0.3, 1.0])
@pytest.mark.parametrize("reserve", [MortalityPolicy(), MortalityPolicy(reserve_share=0.9)])
def test_a_budget_below_the_death_reserve_is_refused_with_the_minimum(share: float, reserve: MortalityPolicy) -> None:
    poor, policy = Founding(budget_micros=250_000, credit_share=share), Policy(mortality=reserve)
    with pytest.raises(ConfigError, match=r"give --budget \d+\.\d\d or more") as refused:
        birth(poor, policy)
    named = re.search(r"--budget (\d+\.\d\d)", str(refused.value))
    assert named is not None
    least = round(float(named[1]) * 1e6)
    assert birth(replace(poor, budget_micros=least), policy).credits_micros > 0
    with pytest.raises(ConfigError):
        birth(replace(poor, budget_micros=least - 10_000), policy)


@pytest.mark.row("INH-1")
def test_no_budget_is_enough_for_a_golem_without_credits() -> None:
    with pytest.raises(ConfigError, match="no budget is enough"):
        birth(Founding(credit_share=0.0))


@pytest.mark.row("INH-1")
def test_credits_reserve_and_capital_are_the_whole_budget() -> None:
    life = birth(Founding())
    assert life.credits_micros + life.reserve_micros + life.capital_micros == Founding().budget_micros
