"""The comparison of arms: ticks until all golems know, paired differences, the cost of a liar, the bounds."""

from __future__ import annotations

import math

import pytest

from bardo_pipeline.market.synthetic_spec import START, swinging_spec
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.clade_evaluation import (
    ALONE,
    CLADE,
    FORGER,
    LETHE,
    LIAR,
    TRUTH,
    ArmLife,
    CladeTrial,
    Lies,
    graded_clades,
    liars_place,
)
from bardo_pipeline.runtime.memory_evaluation import lasting
from bardo_pipeline.runtime.truth_measurement import Other, choice_acts, judged_on

TRIALS = [CladeTrial(4 * number, 4, 1_000, 50) for number in range(8)]
"""Markets in which the first golem is the liar."""


def life(trial: CladeTrial, last: int, worth: float = 0.9, *, lies: Lies | None = None) -> ArmLife:
    """Return an arm whose golems know the truth 10 ticks after their birth, and the last honest one after `last`."""
    known, ends = [number * trial.apart + 10 for number in range(trial.golems)], [worth] * trial.golems
    honest = [number for number in range(trial.golems) if lies is None or number != liars_place(trial)]
    known[honest[-1]] = honest[-1] * trial.apart + last
    if lies is not None:
        known[liars_place(trial)], ends[liars_place(trial)] = -1, math.nan
    return ArmLife(900, tuple(known), 0, tuple(ends), lies)


def lives(
    alone: int, clade: int, lethe: int, liar: int, worth: float = 0.9, forger: int | None = None
) -> dict[str, list[ArmLife]]:
    lies, forged = Lies(100, 200, 300, 1, 9), {"posted": 500, "barred": 20, "admitted": 0}
    known = {ALONE: alone, CLADE: clade, LETHE: lethe}
    arms = {
        arm: [life(trial, ticks, worth if arm == LETHE else 0.9) for trial in TRIALS] for arm, ticks in known.items()
    }
    last = lethe if forger is None else forger
    arms[FORGER] = [life(trial, last)._replace(forged=forged, false_priors=4, alarmed=0.25) for trial in TRIALS]
    return arms | {LIAR: [life(trial, liar, lies=lies) for trial in TRIALS]}


@pytest.mark.parametrize(
    ("times", "worth", "forger", "missed"),
    [
        ((600, 300, 300, 300), 0.9, 300, set()),
        ((600, 320, 300, 300), 0.9, 300, {"time of the clade"}),
        ((600, 600, 600, 600), 0.9, 600, {"time of the clade", "gain of time", "cost of a liar", "cost of a forger"}),
        ((600, 200, 260, 200), 0.9, 260, {"time with Lethe"}),
        ((600, 200, 200, 200), 0.85, 200, {"worth with Lethe"}),
        ((600, 200, 200, 200), 0.9, 250, {"cost of a forger"}),
    ],
)
def test_bounds_are_missed_by_name(
    times: tuple[int, int, int, int], worth: float, forger: int, missed: set[str]
) -> None:
    report = graded_clades(TRIALS, lives(*times, worth, forger), Policy())
    assert {bound.name for bound in report.bounds if not bound.kept} == missed
    assert report.kept is not bool(missed)
    assert report.arms[ALONE]["all_know"][0] == times[0]
    assert report.gains["clade over alone, ticks until all know"][0] == times[0] - times[1]


def test_the_cost_of_a_liar_is_its_share_of_the_gain_of_the_golems_that_live_in_all_arms() -> None:
    known = {ALONE: 600, CLADE: 200, LETHE: 200}
    arms = {arm: [life(trial, ticks) for trial in TRIALS] for arm, ticks in known.items()}
    arms[LIAR] = [life(trial, 240, lies=Lies(100, 200, None, 1, 9)) for trial in TRIALS]
    arms[FORGER] = lives(600, 200, 200, 240, forger=240)[FORGER]
    report = graded_clades(TRIALS, arms, Policy())
    assert report.liars_cost == report.forgers_cost == pytest.approx((0.1, 0.1, 0.1))
    assert (report.liar["posts posted"], report.liar["posts admitted"]) == ((500.0,) * 3, (0.0,) * 3)
    figures = report.arms[FORGER]
    assert (figures["false_priors"][0], figures["alarmed"][0], report.arms[LIAR]["alarmed"][0]) == (4, 0.25, 0)
    assert report.liar["ticks until contradicted"] == (100.0, 100.0, 100.0)
    assert report.liar["ticks until throttled"] is None
    assert report.arms[LIAR]["worth"][0] == pytest.approx(0.9)


def test_a_golem_that_never_knew_counts_with_the_end_of_the_market() -> None:
    arms = lives(600, 200, 200, 200)
    arms[ALONE] = [own._replace(known_at=(*own.known_at[:3], own.ticks)) for own in arms[ALONE]]
    report = graded_clades(TRIALS, arms, Policy())
    assert report.arms[ALONE]["all_know"][0] == 900 - 3 * 50
    assert report.arms[ALONE]["share_known"][0] == 0.75
    assert report.known_by_age(ALONE) == [(0.0, 0.0), (10.0, 0.75)]


def test_the_planted_truth_holds_in_its_market() -> None:
    policy = Policy()
    policy = policy.model_copy(update={"worth": policy.worth.model_copy(update={"yardstick_golems": 1})})
    judged = judged_on(Other(300, swinging_spec(), 2_500, START, 0), lasting(2_500), policy)[1]
    _, act, sign = TRUTH
    effects = judged.effect_ppm[judged.act == choice_acts(policy).index(act)]
    assert sign * effects.mean() > 0.5 * effects.std()
