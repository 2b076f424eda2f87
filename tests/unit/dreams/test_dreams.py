"""Dreams in numbers: weights of the specification, REM, the life of a hypothesis, and when a golem dreams."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams import hypothesis_staging as hyp
from bardo_pipeline.dreams import replay_selection
from bardo_pipeline.dreams.hypothesis_staging import Dreamers, Evidence, Hypotheses
from bardo_pipeline.dreams.hypothesis_table import load_hypotheses, to_table
from bardo_pipeline.policy import Policy
from tests.support.records.handmade_records import record as tick_record
from tests.support.records.handmade_records import table

POLICY = Policy()
RULES = POLICY.dreams
DAY_US, HOUR_US = 24 * replay_selection.HOUR_US, replay_selection.HOUR_US

pytestmark = pytest.mark.row("MEM-16")


def column(*values: float) -> np.ndarray:
    return np.array(values)


# NREM and REM


def test_salience_has_the_weights_of_the_specification() -> None:
    felt = replay_selection.salience(
        column(1, 0, 0, 0), column(0, -1, 0, 0), column(1e9, 1e9, 0, 1e9), column(0, 0, 0, 1), RULES
    )
    assert felt == pytest.approx([0.4, 0.3, 0.2, 0.1])
    hundred = replay_selection.salience(column(0.0), column(0.0), column(100), column(0.0), RULES)
    assert hundred == pytest.approx(0.2 * np.exp(-1))
    assert replay_selection.salience(column(-1.0), column(0.0), column(1e9), column(0.0), RULES) == pytest.approx(0), (
        "calm"
    )


def test_inherited_scars_rise_with_mortality_pressure() -> None:
    pressure = np.linspace(0, 1, 6)
    felt = replay_selection.scar_salience(np.full(6, 40), np.full(6, 0.5), pressure, RULES)
    assert (np.diff(felt) > 0).all()
    assert felt[0] == 0
    assert felt[-1] == pytest.approx(0.7 + 0.2 * np.exp(-0.4) + 0.05)


def test_rem_lowers_arousal_by_0_12_down_to_0_1() -> None:
    arousal = column(0.9, 0.34, 0.2, 0.10, 0.05, -0.4)
    assert replay_selection.depotentiated(arousal, np.ones(6), RULES) == pytest.approx(
        [0.78, 0.22, 0.10, 0.10, 0.05, -0.4]
    )
    assert replay_selection.depotentiated(arousal, np.full(6, 9), RULES) == pytest.approx(
        [0.10, 0.10, 0.10, 0.10, 0.05, -0.4]
    )
    assert replay_selection.depotentiated(arousal, np.zeros(6), RULES) == pytest.approx(arousal)


# when


def nights(idle: list[int], *, hours: float = 1.0, tags: tuple[int, ...] = (), imported: bool = False) -> list[tuple]:
    """Cycles an hour apart (1 to 12), idle in these; (cycle, trigger) of each dream."""
    cycle = np.arange(1, 13)
    made = replay_selection.Cycles(
        np.zeros(12, np.int64), cycle, cycle * 50, (cycle * hours * HOUR_US).astype(np.int64),
        np.isin(cycle, idle), np.isin(cycle, tags).astype(np.int64),
    )  # fmt: skip
    due = replay_selection.dreams_due(made, {0: replay_selection.LastDream(0, 0, imported)}, RULES)
    return [(int(c), replay_selection.BEGAN_BY[w]) for c, w in zip(due.cycle, due.began_by, strict=True)]


@pytest.mark.row("MEM-23")
def test_a_golem_dreams_every_four_hours_while_idle() -> None:
    assert nights(list(range(1, 13))) == [(4, "schedule"), (8, "schedule"), (12, "schedule")]
    assert nights([1, 2, 3, 7, 9, 11, 12]) == [(7, "schedule"), (11, "schedule")], (
        "busy in cycle 4, so it dreams in cycle 7"
    )
    assert nights([]) == []


@pytest.mark.row("MEM-23")
def test_a_dream_tag_queues_an_early_dream() -> None:
    assert nights(list(range(1, 13)), tags=(2,)) == [(2, "tag"), (6, "schedule"), (10, "schedule")]
    assert nights([3, 4, 8], tags=(2,)) == [(3, "tag"), (8, "schedule")], "in the next idle cycle"
    assert nights([5, 6, 9], tags=(5, 6)) == [(5, "schedule"), (6, "tag")], (
        "cycle 9 is less than four hours later and has no tag"
    )


@pytest.mark.row("MEM-23")
def test_an_import_queues_a_dream() -> None:
    assert nights(list(range(1, 13)), imported=True) == [(1, "import"), (5, "schedule"), (9, "schedule")]
    assert nights([2, 3], imported=True) == [(2, "import")]


@pytest.mark.row("MEM-23")
def test_a_golem_that_deliberates_or_dies_at_the_end_of_a_cycle_is_not_idle() -> None:
    life = {"economic": 1.0, "epistemic": 1.0, "stochastic": 1.0, "composite": 1.0}

    def idle(last: int = 50, composite: float = 1.0, **fields: object) -> bool:
        rows = [tick_record("g-0", t) | {"vitality": life | {"composite": composite}} for t in range(1, last + 1)]
        at = fields.pop("at", 45)
        assert isinstance(at, int)
        rows[at - 1] |= fields
        rows[6]["dream_tag"] = "why?"
        columns = table(rows).append_column("vitality", [[r["vitality"] for r in rows]])
        result = replay_selection.cycles_of(columns, np.zeros(last, np.int64), np.ones(last, np.int64), POLICY)
        assert result.tags.tolist() == [1]
        return bool(result.idle[0])

    assert idle()
    assert not idle(tier="T1")
    assert not idle(tier="T2")
    assert idle(tier="suppress")
    assert idle(tier="T2", at=40), "idle again after ten ticks"
    assert not idle(last=49), "a golem that died in the cycle does not dream"
    assert not idle(composite=0.0), "a golem that died at its end does not dream"


# hypotheses

WHERE = Structure("pattern", "polygon", "uniswap_v3", "WETH/USDC", "t", "rebalance", "volatile", "broken", "normal")


class Night:
    """One golem, one kind of decision, one change: the results of its dreams."""

    def __init__(self) -> None:
        self.state, self.day, self.tick = Hypotheses(["g-0"]), 0.0, 0
        self.key = self.state.code(WHERE, 3)

    def dream(self, days: float, *, lived: tuple[int, ...] = (), failed: tuple[int, ...] = ()) -> list[str]:
        """Dream after this many days, with these effects and failures since, and return the changes."""
        self.day, begun, self.tick = self.day + days, self.tick, self.tick + 1_000
        rows = [np.array([x], np.int64) for x in (0, self.tick // 50, self.tick, round(self.day * DAY_US))]
        dreamers, before = Dreamers(*rows), len(self.state.log)
        for effects, meet in ((lived, hyp.judge), (failed, hyp.stage)):
            n, at = len(effects), begun + 1 + 40 * np.arange(len(effects))
            judged = np.full(n, round(self.day * DAY_US) - 1)
            zeros = np.zeros(n, np.int64)
            meet(
                self.state,
                dreamers,
                Evidence(zeros, zeros + self.key, np.array(effects, np.int64), at, at + 30, judged),
                POLICY,
            )
        return [hyp.OPERATIONS[int(part["operation"][0])] for part in self.state.log[before:]]

    def row(self) -> dict:
        return to_table(self.state, POLICY, "p").to_pylist()[-1]


def staged() -> Night:
    night = Night()
    assert night.dream(1, failed=(1_500, 1_700, 1_600)) == ["staged"]
    return night


def test_a_counterfactual_is_staged_below_the_confidence_of_a_confirmation() -> None:
    for effects, least in (((1_500, 1_700, 1_600), 250_000), ((900, -300, 1_200), 200_000), ((60_000,) * 9, 290_000)):
        night = Night()
        assert night.dream(1, failed=effects) == ["staged"]
        row = night.row()
        assert least <= row["confidence_ppm"] < 300_000, effects
        assert row["provenance"] == "dream_counterfactual"
        assert (row["sign"], row["change"], row["regime"]) == (1, "range_wider", "volatile")
        assert row["low_ppm"] < row["mean_ppm"] < row["high_ppm"]


def test_a_hypothesis_is_staged_from_three_witnesses_on() -> None:
    night = Night()
    assert night.dream(1, failed=(1_500, 1_700)) == ["imagined"]
    assert night.dream(1, failed=(1_600,)) == ["staged"]
    assert night.row()["begun_cycle"] == 20
    assert Night().dream(1, failed=(9_000, -9_000, 40)) == ["imagined"], "contrary witnesses stage no hypothesis"


def test_witnesses_older_than_two_weeks_are_dropped() -> None:
    night = Night()
    night.dream(1, failed=(1_500, 1_700))
    assert night.dream(14.5, failed=(1_600,)) == ["imagined"]
    assert night.row()["count"] == 1


def test_only_live_outcomes_within_seven_days_confirm_a_hypothesis() -> None:
    night = staged()
    assert night.dream(6.9, lived=(1_400, 1_500, 1_600)) == ["confirmed"]
    assert night.row()["confidence_ppm"] == 300_000
    assert night.row()["state"] == "confirmed"
    late = staged()
    assert late.dream(7.1, lived=(1_400, 1_500, 1_600)) == []
    assert late.dream(6.8, lived=(1_400,)) == []
    assert late.dream(0.2) == ["expired"], "a staged hypothesis expires after fourteen days"
    assert late.state["golem"].size == 0


def test_outcomes_from_before_the_dream_do_not_confirm_a_hypothesis() -> None:
    night = staged()
    zeros, at = np.zeros(3, np.int64), np.array([940, 970, 1_000])
    dreamers = Dreamers(*(np.array([x], np.int64) for x in (0, 21, 1_050, round(1.2 * DAY_US))))
    judged = np.full(3, round(1.1 * DAY_US))
    evidence = Evidence(zeros, zeros + night.key, np.array([1_500] * 3), at, at + 30, judged)
    result = len(night.state.log)
    hyp.judge(night.state, dreamers, evidence, POLICY)
    assert len(night.state.log) == result
    hyp.judge(night.state, dreamers, replace(evidence, decided=at + 61), POLICY)
    assert hyp.OPERATIONS[int(night.state.log[-1]["operation"][0])] == "confirmed"


def test_opposite_live_outcomes_refute_a_hypothesis_that_can_be_staged_again() -> None:
    night = staged()
    assert night.dream(2, lived=(-1_400, -1_500, -1_600)) == ["refuted"]
    assert night.dream(1, failed=(1_500, 1_700, 1_600)) == ["staged"]
    rows = to_table(night.state, POLICY, "p").to_pylist()
    assert rows[0]["hypothesis_id"] == rows[1]["hypothesis_id"] != rows[2]["hypothesis_id"]


def test_repeated_dreams_do_not_raise_the_confidence_of_a_staged_hypothesis() -> None:
    night = staged()
    assert night.dream(1, lived=(1_500,), failed=(1_500,) * 5) == ["gathered"]
    assert night.row()["count"] == 3
    assert night.row()["confidence_before_ppm"] == night.row()["confidence_ppm"] < 300_000


def test_a_confirmed_hypothesis_decays_at_half_the_rate_of_its_class() -> None:
    night = staged()
    night.dream(1, lived=(1_400, 1_500, 1_600))
    assert night.row()["decay_class"] == "regime_conditional"
    assert night.row()["half_life_days"] == 2 * POLICY.decay.regime_conditional_days == 28
    assert night.dream(28, lived=(1_500,)) == ["reinforced"]
    assert night.row()["confidence_before_ppm"] == 150_000
    assert night.row()["confidence_ppm"] == 250_000
    assert night.dream(14, lived=()) == []
    assert night.dream(28) == ["faded"], "250,000 halves one and a half times, to less than a tenth"


def test_a_hypothesis_is_pushed_to_the_clade_once_at_half_confidence() -> None:
    night = staged()
    night.dream(1, lived=(1_400, 1_500, 1_600))
    lines = [night.dream(0.1, lived=(1_500,)) for _ in range(4)]
    assert lines == [["reinforced"], ["reinforced"], ["reinforced", "pushed"], ["reinforced"]]
    assert night.row()["confidence_ppm"] > 500_000
    rows = to_table(night.state, POLICY, "p").to_pylist()
    assert [r["operation"] for r in rows if r["confidence_ppm"] >= 500_000] == ["reinforced", "pushed", "reinforced"]
    assert [r["operation"] for r in rows if r["pushed"]] == ["pushed", "reinforced"]


def test_a_contradicted_hypothesis_loses_confidence_and_fades() -> None:
    night = staged()
    night.dream(1, lived=(1_400, 1_500, 1_600))
    assert night.dream(1, lived=(-9_000,) * 5) == ["contradicted"]
    assert night.row()["confidence_ppm"] == pytest.approx(300_000 * 2 ** (-1 / 28) - 150_000, abs=1)
    assert night.dream(1, lived=(-9_000,)) == ["contradicted", "faded"]


def test_decisions_of_one_market_window_are_one_witness() -> None:
    at = np.array([1, 10, 29, 30, 59, 75, 1, 2])
    key = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    zeros = np.zeros(8, np.int64)
    kept = hyp.independent(Evidence(zeros, key, np.arange(8), at, at + 30, zeros), 30)
    assert kept.effect.tolist() == [0, 3, 5, 6]


def test_dropped_witnesses_are_not_loaded_again() -> None:
    night = Night()
    night.dream(1, failed=(1_500, 1_700))
    night.dream(14.5, failed=(1_600,))
    result = to_table(night.state, POLICY, "p")
    assert len(set(result["hypothesis_id"].to_pylist())) == 2
    again = load_hypotheses(result, ["g-0"])
    assert {name: values.tolist() for name, values in again.columns.items()} == {
        name: values.tolist() for name, values in night.state.columns.items()
    }
    assert again["count"].tolist() == [1]


def test_a_stored_and_loaded_hypothesis_continues_like_the_original() -> None:
    night = staged()
    night.dream(1, lived=(1_500,))
    again = Night()
    again.state = load_hypotheses(to_table(night.state, POLICY, "p"), ["g-0"])
    again.day, again.tick = night.day, night.tick
    for item in (night, again):
        assert item.dream(2, lived=(1_400, 1_600)) == ["confirmed"]
    drop = ("seq", "cause_ticks")
    assert {k: v for k, v in night.row().items() if k not in drop} == {
        k: v for k, v in again.row().items() if k not in drop
    }
