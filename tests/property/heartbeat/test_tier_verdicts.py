"""The fleet's judgement of tiers beside a row-at-a-time fold of its records."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import GatePolicy, GatingPolicy, Policy
from bardo_pipeline.quality.reason_checks import contradictions, stated_in_rules
from tests.reference.learning import gating as twin
from tests.support.fleets.memory_fleets import FOUNDING, Lived, live, lively_market
from tests.support.fleets.tier_rows import past_ticks

LIVELY = Policy(
    gate=GatePolicy(mode="learned"),
    gating=GatingPolicy(
        boundary_priors=((3.0, 3.0), (2.0, 4.0), (1.0, 5.0)), boundary_memory=0.8, explore_share=0.05,
        event_error_min=0.4, event_loss_min=0.004, effect_min_ppm=100,
    ),
)  # fmt: skip


@cache
def learned() -> Lived:
    """Golems with the learned gate, whose boundaries let every kind of tick through."""
    return live(lively_market(1_100), lineages=range(4), founding=FOUNDING, policy=LIVELY)


@cache
def lives() -> dict[str, dict[int, dict[str, Any]]]:
    """The records of each golem by tick."""
    rows: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in learned().rows:
        rows[row["golem_id"]][row["tick"]] = row
    return rows


def recorded(row: dict[str, Any]) -> tuple[list[float], list[list[float]]]:
    """Return weights and boundaries that a record holds."""
    figures = row["gating"]
    boundaries = [figures[f"boundary_{name}"] for name in ("t2", "t1", "t0")]
    return [figures["weights"][name] for name in twin.EXPERTS], [[b["alpha"], b["beta"]] for b in boundaries]


@pytest.mark.row("HB-9", "HB-5", "HB-6")
def test_weights_and_boundaries_follow_from_the_verdicts_on_the_records() -> None:
    rules, counted = LIVELY.gating, Counter[tuple[str, str]]()
    for rows in lives().values():
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


@pytest.mark.row("HB-9")
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
