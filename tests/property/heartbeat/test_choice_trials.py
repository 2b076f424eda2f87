"""Trials of choices: what shadow positions of a fleet state, compared with a row-at-a-time reference (HB-24)."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.policy import Policy
from tests.reference.market.choice_trials import effect_ppm
from tests.support.fleets.memory_fleets import Lived, live, lively_market
from tests.support.fleets.shared_fleets import SHORT

POLICY = Policy()
STANDARD = POLICY.playbook.range_half_width_ticks
HOUR_US = 3_600_000_000


@cache
def tried() -> tuple[Lived, Tape]:
    """Six golems over 26 hours, of which some die and leave heirs that are born between windows."""
    market = lively_market(1_560)
    return live(market, lineages=range(6), founding=SHORT, generations=9), tape_of(market, POLICY)


def trials(lived: Lived) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(row, trial) for row in lived.rows for trial in row["trials"] or ()]


@pytest.mark.full
@pytest.mark.row("HB-24")
def test_each_trial_states_what_its_alternative_would_have_earned() -> None:
    lived, tape = tried()
    at = {int(us): t for t, us in enumerate(tape.at_us.tolist())}
    records = {(row["golem_id"], row["tick"]): row for row in lived.rows}
    seen: Counter[tuple[str, str]] = Counter()
    for row, trial in trials(lived):
        decided = records[row["golem_id"], trial["decision_tick"]]
        start, stop = (at[round(r["observed_at"].timestamp() * 1e6)] for r in (decided, row))
        traits = lived.births[row["golem_id"]].traits
        if trial["alternative"] in ("enter", "recenter") and decided["playbook_version"] > 1:
            continue  # the playbook may prefer another half-width
        expected = effect_ppm(trial, decided, tape, start, stop, POLICY, traits.range_half_width_ticks)
        assert abs(trial["effect_ppm"] - expected) <= 1.0, trial
        assert trial["regime"] == decided["regime"]
        assert trial["anomaly_score"] == decided["observation"]["anomaly_score"]
        seen[trial["horizon"], trial["alternative"]] += 1
    ladder = {f"range_{width}" for width in POLICY.playbook.width_ladder_ticks if width != STANDARD}
    assert {name for h, name in seen if h == "30_ticks"} == {*ladder, "enter", "leave"}
    assert {name for h, name in seen if h == "4_hours"} == {*ladder, "enter", "leave", "recenter"}


@pytest.mark.row("HB-24")
def test_re_centring_is_tried_over_hours_from_the_score_at_which_a_golem_would_act() -> None:
    """The market drifts out of the first ranges; the reference states each effect from the tape, tick by tick."""
    market = lively_market(520)
    lived, tape = live(market, lineages=range(12)), tape_of(market, POLICY)
    records = {(row["golem_id"], row["tick"]): row for row in lived.rows}
    at = {int(us): t for t, us in enumerate(tape.at_us.tolist())}
    tested = 0
    for row, trial in trials(lived):
        decided = records[row["golem_id"], trial["decision_tick"]]
        held = any(p["liquidity"] > 0 for p in decided["observation"]["positions"])
        tried = held and trial["anomaly_score"] >= POLICY.playbook.trial_score_min and trial["horizon"] != "30_ticks"
        assert trial["choice"] != "recentring" or tried
        if trial["choice"] != "recentring" or decided["playbook_version"] > 1:
            continue
        start, stop = (at[round(r["observed_at"].timestamp() * 1e6)] for r in (decided, row))
        width = lived.births[row["golem_id"]].traits.range_half_width_ticks
        assert (trial["alternative"], trial["beside"]) == ("recenter", "stay")
        assert abs(trial["effect_ppm"] - effect_ppm(trial, decided, tape, start, stop, POLICY, width)) <= 1.0
        tested += 1
    assert tested >= 3


@pytest.mark.row("HB-24")
def test_windows_of_a_horizon_do_not_overlap_and_golems_that_live_through_one_are_judged() -> None:
    market = lively_market(300)
    lived, tape = live(market, lineages=range(3)), tape_of(market, POLICY)
    windows: defaultdict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for row, trial in trials(lived):
        windows[row["golem_id"], trial["horizon"]].add((trial["decision_tick"], row["tick"]))
    for golem_id in lived.births:
        ticks = lived.of(golem_id)["tick"].to_pylist()
        ends = [tick for tick in ticks if (tick - 1) % 30 == 0 and tick > 1]  # the first tick has no position to judge
        short = windows[golem_id, "30_ticks"]
        assert short == {(end - 30, end) for end in ends}
        at_us = tape.at_us[: len(ticks)]
        hours = np.flatnonzero(np.diff(at_us // (4 * HOUR_US))) + 2
        assert [stop for _, stop in sorted(windows[golem_id, "4_hours"])] == hours[1:].tolist()


@pytest.mark.row("HB-24")
def test_a_golem_is_judged_whether_it_deliberated_or_not_and_states_what_it_chose() -> None:
    lived = live(lively_market(300), lineages=range(3))
    records = {(row["golem_id"], row["tick"]): row for row in lived.rows}
    tiers, taken = set(), set()
    for row, trial in trials(lived):
        decided = records[row["golem_id"], trial["decision_tick"]]
        tiers.add(decided["tier"])
        taken.add(trial["taken"])
        widths = [(p["tick_upper"] - p["tick_lower"]) // 2 for p in decided["observation"]["positions"]]
        assert trial["taken"] == (f"range_{widths[0]}" if widths else "out")
        assert trial["alternative"] != "leave" or widths
        seen = decided["observation"]
        situation = decided["regime"], seen["anomaly_score"], pytest.approx(seen["gas_hour_ratio"])
        assert (trial["regime"], trial["anomaly_score"], trial["gas_ratio"]) == situation
    assert {"T0", "T2"} <= tiers
    assert "out" in taken
    assert len(taken) > 1
