"""The gate: six sources of surprise, the threshold, the tiers and their reasons."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bardo_pipeline.events.record.model import TIERS
from bardo_pipeline.heartbeat.gate import (
    BIRTH,
    FORCES,
    PHASE_TRANSITION,
    SOURCES,
    STEER,
    UNFORCED,
    Attention,
    adaptive_threshold,
    gate,
    gating_reasons,
    prediction_error,
    prediction_error_fallback,
    transition_imminent,
)
from bardo_pipeline.policy import GatePolicy, Policy

POLICY = Policy()
NAN = float("nan")


def array_of(value: float) -> NDArray[np.float64]:
    return np.array([value])


def error(
    expected: float = NAN,
    price: float = 1_800.0,
    changed: bool = False,
    health: float = NAN,
    threat: float = NAN,
    interventions: int = 0,
    anomalies: int = 0,
) -> tuple[float, dict[str, float]]:
    total, sources = prediction_error(
        array_of(expected),
        array_of(price),
        np.array([changed]),
        array_of(health),
        array_of(threat),
        np.array([interventions]),
        np.array([anomalies]),
        POLICY,
    )
    assert sources.shape == (6, 1)
    return float(total[0]), dict(zip(SOURCES, sources[:, 0].tolist(), strict=True))


@pytest.mark.row("HB-2")
def test_unknown_and_quiet_sources_give_no_surprise() -> None:
    total, sources = error()
    assert total == 0.0
    assert [name for name, value in sources.items() if np.isnan(value)] == ["price", "health", "threat"]
    assert sources["regime"] == sources["interventions"] == sources["anomalies"] == 0.0


@pytest.mark.row("HB-2")
@pytest.mark.parametrize(
    ("happened", "source", "weighted"),
    [
        ({"expected": 1_500.0, "price": 1_800.0}, "price", 0.3 * 0.2),
        ({"expected": 2_000.0, "price": 1_800.0}, "price", 0.3 * 0.1),
        ({"expected": 100.0, "price": 1_800.0}, "price", 0.3),
        ({"expected": 0.0}, "price", NAN),
        ({"changed": True}, "regime", 0.4),
        ({"health": 0.1}, "health", 0.0),
        ({"health": 0.11}, "health", 0.2 * 0.11),
        ({"health": -0.3}, "health", 0.2 * 0.3),
        ({"health": 4.0}, "health", 0.2 * 0.5),
        ({"threat": 0.6}, "threat", 0.15 * 0.6),
        ({"threat": 1.0}, "threat", 0.15),
        ({"interventions": 1}, "interventions", 0.1),
        ({"interventions": 3}, "interventions", 0.3),
        ({"interventions": 9}, "interventions", 0.3),
        ({"anomalies": 3}, "anomalies", 0.15),
        ({"anomalies": 5}, "anomalies", 0.25),
        ({"anomalies": 12}, "anomalies", 0.25),
    ],
)
def test_each_source_contributes_its_weight(happened: dict[str, float], source: str, weighted: float) -> None:
    total, sources = error(**happened)  # type: ignore[arg-type]
    assert sources[source] == pytest.approx(weighted, nan_ok=True)
    assert total == pytest.approx(0.0 if np.isnan(weighted) else weighted)


@pytest.mark.row("HB-2")
def test_the_surprise_is_the_sum_of_its_sources() -> None:
    total, sources = error(expected=2_000.0, health=0.4, threat=0.5, interventions=2, anomalies=3)
    assert total == pytest.approx(0.03 + 0.08 + 0.075 + 0.2 + 0.15)
    assert total == pytest.approx(sum(sources.values()))


@pytest.mark.row("HB-2")
def test_the_sum_is_capped_at_one() -> None:
    total, sources = error(expected=1.0, changed=True, health=1.0, threat=1.0, interventions=3, anomalies=5)
    assert sum(sources.values()) == pytest.approx(0.3 + 0.4 + 0.1 + 0.15 + 0.3 + 0.25)
    assert total == 1.0


@pytest.mark.row("HB-2")
@pytest.mark.parametrize(
    ("changed", "health", "threat", "anomalies", "largest"),
    [
        (False, NAN, NAN, 0, 0.0),
        (True, NAN, NAN, 0, 0.4),
        (True, NAN, NAN, 2, 0.4),
        (True, NAN, NAN, 3, 0.6),
        (False, NAN, NAN, 9, 1.0),
        (True, 0.05, NAN, 0, 0.4),
        (False, -0.25, NAN, 0, 0.5),
        (False, 0.9, 0.2, 1, 1.0),
        (True, 0.1, 0.7, 1, 0.7),
    ],
)
def test_without_an_oracle_the_largest_signal_counts(
    changed: bool, health: float, threat: float, anomalies: int, largest: float
) -> None:
    total, sources = prediction_error_fallback(
        np.array([changed]), array_of(health), array_of(threat), np.array([anomalies]), POLICY
    )
    assert total[0] == pytest.approx(largest)
    assert np.nanmax(sources[:, 0]) == total[0]
    assert np.isnan(sources[SOURCES.index("price"), 0])


@pytest.mark.row("HB-3")
def test_the_adaptive_threshold_matches_the_example_of_the_canon() -> None:
    assert adaptive_threshold(array_of(0.6), array_of(0.4), array_of(0.5), POLICY)[0] == pytest.approx(
        0.3036, abs=1e-12
    )


@pytest.mark.row("HB-3")
def test_calm_never_lowers_the_threshold() -> None:
    thresholds = adaptive_threshold(np.full(4, 0.6), np.array([-1.0, -0.4, 0.0, 0.4]), np.full(4, 0.5), POLICY)
    assert thresholds[0] == thresholds[1] == thresholds[2] > thresholds[3]


@pytest.mark.row("HB-3")
@pytest.mark.parametrize(("base", "expected"), [(0.01, 0.05), (0.3, 0.45), (0.7, 0.8)])
def test_the_threshold_stays_between_its_bounds(base: float, expected: float) -> None:
    policy = Policy(gate=GatePolicy(base_threshold=base))
    assert adaptive_threshold(array_of(1.0), array_of(0.0), array_of(1.0), policy)[0] == pytest.approx(expected)


@pytest.mark.row("HB-4")
def test_tiers_begin_at_theta_and_at_twice_theta() -> None:
    theta = 0.3
    errors = np.array([0.0, np.nextafter(theta, 0), theta, np.nextafter(2 * theta, 0), 2 * theta, 1.0])
    none = np.zeros(6, dtype=bool)
    tier, forced = gate(errors, np.full(6, theta), none, none, none, POLICY)
    assert [TIERS[code] for code in tier] == ["T0", "T0", "T1", "T1", "T2", "T2"]
    assert (forced == UNFORCED).all()


@pytest.mark.row("HB-4")
@pytest.mark.parametrize(
    ("steer", "transition", "birth", "named"),
    [
        (True, False, False, STEER),
        (False, True, False, PHASE_TRANSITION),
        (False, False, True, BIRTH),
        (True, True, True, STEER),
        (False, True, True, PHASE_TRANSITION),
    ],
)
@pytest.mark.parametrize("surprise", [0.0, 0.35, 0.9])
def test_a_forced_tick_is_deliberated_at_t2_for_any_surprise(
    steer: bool, transition: bool, birth: bool, named: int, surprise: float
) -> None:
    tier, forced = gate(
        array_of(surprise), array_of(0.3), np.array([steer]), np.array([transition]), np.array([birth]), POLICY
    )
    assert TIERS[tier[0]] == "T2"
    assert FORCES[forced[0]] == FORCES[named]


@pytest.mark.row("HB-4")
def test_the_terminal_phase_is_imminent_within_a_margin_above_its_bound_only() -> None:
    composite = np.array([0.0, 0.05, np.nextafter(0.1, 0), 0.1, 0.105, 0.11, 0.111, 0.3, 0.305, 0.5, 0.7, 0.705, 1.0])
    assert np.flatnonzero(transition_imminent(composite, POLICY)).tolist() == [3, 4, 5]


@pytest.mark.row("HB-4")
def test_a_gating_reason_contains_tier_force_and_surprise() -> None:
    surprise = np.array([0.1, 0.41, 0.71, 0.1, 0.5, 0.8, 0.45])
    tier = np.array([0, 1, 2, 2, 2, 2, 3], dtype=np.int8)
    forced = np.array([UNFORCED, UNFORCED, UNFORCED, STEER, PHASE_TRANSITION, BIRTH, UNFORCED], dtype=np.int8)
    figures = (np.full(7, value) for value in (41.3, 35.2, 0.3855, 0.21))
    judgement = Attention(np.arange(7) == 6, *figures)
    assert gating_reasons(surprise, np.full(7, 0.3036), tier, forced, POLICY, judgement).to_pylist() == [
        "T0: surprise 0.1000 is below the threshold 0.3036",
        "T1: surprise 0.4100 reaches the threshold 0.3036",
        "T2: surprise 0.7100 reaches 2 times the threshold 0.3036",
        "T2: the owner steers; surprise 0.1000 is below the threshold 0.3036",
        "T2: the terminal phase is near; surprise 0.5000 reaches the threshold 0.3036",
        "T2: first tick of a life; surprise 0.8000 reaches the threshold 0.3036",
        "suppress: surprise 0.4500 reaches the threshold 0.3036; attention passes over it: 35.20 of 41.30 thoughts "
        "here led to no action, draw 0.2100 is below the chance 0.3855",
    ]


def test_gating_reasons_of_no_ticks_are_empty() -> None:
    empty = np.zeros(0)
    codes = np.zeros(0, dtype=np.int8)
    assert gating_reasons(empty, empty, codes, codes, POLICY).to_pylist() == []
