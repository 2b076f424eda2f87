"""The twelve probes: each at both severities, absent sources and their sentences."""

from typing import Any

import numpy as np
import pytest

from bardo_pipeline.events.record.model import PROBES
from bardo_pipeline.heartbeat.probes import ABSENT, HIGH, LOW, NONE, Probes, detail_arrow, evaluate
from bardo_pipeline.policy import Policy, ProbePolicy

POLICY = Policy()


def quiet(golems: int = 1) -> dict[str, Any]:
    """Return inputs with every source present and every probe quiet."""
    zero, first = np.zeros(golems), np.ones(golems)
    return {
        "price_change": zero,
        "liquidity_change": zero,
        "health_factor": 2.0 * first,
        "gas_hour_ratio": first,
        "credit_share": first,
        "rsi": 50.0 * first,
        "macd": zero,
        "nav_drawdown": zero,
        "kill_switch": np.zeros(golems, dtype=bool),
        "threat": zero,
        "deviation_sigma": zero,
        "drift": zero,
        "causal": zero,
    }


def seen(name: str, **sources: float) -> tuple[int, float, float]:
    """Severity, value and threshold of one probe; the other eleven must stay quiet."""
    probes = evaluate(**quiet() | {source: np.array([value]) for source, value in sources.items()}, policy=POLICY)
    row = PROBES.index(name)
    assert (np.delete(probes.severity, row, axis=0) == NONE).all()
    return int(probes.severity[row, 0]), float(probes.value[row, 0]), float(probes.threshold[row, 0])


@pytest.mark.row("HB-13")
def test_quiet_sources_raise_no_probe() -> None:
    probes = evaluate(**quiet(3), policy=POLICY)
    assert probes.severity.shape == probes.value.shape == probes.threshold.shape == (12, 3)
    assert (probes.severity == NONE).all()
    assert (probes.anomaly_count == 0).all()


TABLE = [
    # probe, at the low limit, low, at the high limit, high, low limit, high limit: HB S9
    ("price_delta", "price_change", 0.005, 0.0051, 0.02, 0.0201, 0.005, 0.02),
    ("price_delta", "price_change", -0.005, -0.0051, -0.02, -0.0201, 0.005, 0.02),
    ("tvl_change", "liquidity_change", 0.01, 0.0101, 0.05, 0.0501, 0.01, 0.05),
    ("tvl_change", "liquidity_change", -0.01, -0.0101, -0.05, -0.0501, 0.01, 0.05),
    ("position_health", "health_factor", 1.5, 1.49, 1.2, 1.19, 1.5, 1.2),
    ("gas_price", "gas_hour_ratio", 2.0, 2.01, 5.0, 5.01, 2.0, 5.0),
    ("credit_balance", "credit_share", 0.20, 0.19, 0.10, 0.09, 0.20, 0.10),
    ("circuit_breaker", "nav_drawdown", 0.05, 0.051, 0.10, 0.101, 0.05, 0.10),
    ("pheromone_threat", "threat", 0.0, 0.01, 0.7, 0.71, 0.0, 0.7),
    ("homeostatic_deviation", "deviation_sigma", 1.0, 1.01, 2.0, 2.01, 1.0, 2.0),
    ("world_model_drift", "drift", 0.10, 0.11, 0.25, 0.26, 0.10, 0.25),
]


@pytest.mark.row("HB-13")
@pytest.mark.parametrize(("probe", "source", "at_low", "low", "at_high", "high", "limit_low", "limit_high"), TABLE)
def test_a_probe_is_raised_only_beyond_its_limit(
    probe: str, source: str, at_low: float, low: float, at_high: float, high: float, limit_low: float, limit_high: float
) -> None:
    assert seen(probe, **{source: at_low}) == (NONE, abs(at_low), limit_low)
    assert seen(probe, **{source: low}) == (LOW, abs(low), limit_low)
    assert seen(probe, **{source: at_high}) == (LOW, abs(at_high), limit_low)
    assert seen(probe, **{source: high}) == (HIGH, abs(high), limit_high)


@pytest.mark.row("HB-13")
@pytest.mark.parametrize(("rsi", "macd"), [(75.0, 0.0005), (25.0, -0.0005), (75.0, -0.0005)])
def test_momentum_off_balance_is_low(rsi: float, macd: float) -> None:
    assert seen("rsi_macd", rsi=rsi, macd=macd) == (LOW, 25.0, 20.0)


@pytest.mark.row("HB-13")
@pytest.mark.parametrize("rsi", [85.0, 15.0])
def test_momentum_overbought_or_oversold_is_high(rsi: float) -> None:
    assert seen("rsi_macd", rsi=rsi, macd=0.001) == (HIGH, 35.0, 30.0)


@pytest.mark.row("HB-13")
def test_momentum_needs_rsi_and_macd() -> None:
    assert seen("rsi_macd", rsi=100.0, macd=0.0) == (NONE, 0.0, 20.0)
    assert seen("rsi_macd", rsi=50.0, macd=0.01) == (NONE, 0.0, 20.0)
    assert seen("rsi_macd", rsi=100.0, macd=np.nan)[0] == ABSENT
    assert seen("rsi_macd", rsi=np.nan, macd=0.01)[0] == ABSENT


@pytest.mark.row("HB-13")
def test_the_kill_switch_is_always_high() -> None:
    assert seen("kill_switch", kill_switch=True) == (HIGH, 1.0, 0.0)


@pytest.mark.row("HB-13")
def test_a_new_link_is_low_and_an_invalidated_link_high() -> None:
    assert seen("causal_graph", causal=1.0) == (LOW, 1.0, 0.0)
    assert seen("causal_graph", causal=2.0) == (HIGH, 2.0, 1.0)


@pytest.mark.row("HB-13")
@pytest.mark.parametrize(
    ("probe", "source"),
    [
        ("price_delta", "price_change"),
        ("tvl_change", "liquidity_change"),
        ("position_health", "health_factor"),
        ("gas_price", "gas_hour_ratio"),
        ("credit_balance", "credit_share"),
        ("circuit_breaker", "nav_drawdown"),
        ("pheromone_threat", "threat"),
        ("homeostatic_deviation", "deviation_sigma"),
        ("world_model_drift", "drift"),
        ("causal_graph", "causal"),
    ],
)
def test_a_probe_without_a_source_is_absent(probe: str, source: str) -> None:
    severity, value, threshold = seen(probe, **{source: np.nan})
    assert severity == ABSENT
    assert np.isnan([value, threshold]).all()


@pytest.mark.row("HB-13")
def test_probe_limits_come_from_the_policy() -> None:
    policy = Policy(probes=ProbePolicy(price_delta_low=0.1, price_delta_high=0.2))
    moved = quiet() | {"price_change": np.array([0.15])}
    assert evaluate(**moved, policy=policy).severity[0, 0] == LOW
    assert evaluate(**moved, policy=POLICY).severity[0, 0] == HIGH


@pytest.mark.row("HB-13")
def test_anomalies_are_the_probes_at_high() -> None:
    inputs = quiet(3) | {
        "price_change": np.array([0.03, 0.01, 0.0]),
        "drift": np.array([0.3, 0.3, np.nan]),
        "kill_switch": np.array([True, False, False]),
    }
    probes = evaluate(**inputs, policy=POLICY)
    assert probes.anomaly_count.tolist() == [3, 1, 0]
    assert (probes.anomalies == (probes.severity == HIGH)).all()


# Sentences.

SENTENCES = {
    "price_delta": (0.0231, 0.02, "price moved 2.31 % (limit 2.00 %)"),
    "tvl_change": (0.0512, 0.05, "liquidity changed by 5.12 % (limit 5.00 %)"),
    "position_health": (1.1, 1.2, "health factor fell to 1.10 (limit 1.20)"),
    "gas_price": (5.773, 5.0, "gas costs 5.77 times its hourly mean (limit 5.00)"),
    "credit_balance": (0.071, 0.1, "credits are down to 7.10 % (limit 10.00 %)"),
    "rsi_macd": (34.8, 30.0, "momentum is 34.80 RSI points off balance (limit 30.00)"),
    "circuit_breaker": (0.15, 0.1, "net asset value is 15.00 % below its high-water mark (limit 10.00 %)"),
    "kill_switch": (1.0, 0.0, "the kill switch is thrown"),
    "pheromone_threat": (0.75, 0.7, "a threat of intensity 0.75 was sensed (limit 0.70)"),
    "homeostatic_deviation": (2.5, 2.0, "a vital variable is 2.50 sigma off its mean (limit 2.00)"),
    "world_model_drift": (0.285, 0.25, "the world model erred by 28.50 % (limit 25.00 %)"),
    "causal_graph": (2.0, 1.0, "a causal link was invalidated"),
}


def details(names: list[str], severity: list[int], value: list[float], threshold: list[float]) -> list[str | None]:
    code = np.array([PROBES.index(name) for name in names], dtype=np.int8)
    words: list[str | None] = detail_arrow(
        code, np.array(severity, np.int8), np.array(value), np.array(threshold)
    ).to_pylist()
    return words


@pytest.mark.row("HB-13")
def test_each_probe_has_its_sentence_in_any_order() -> None:
    names = [*reversed(PROBES), *PROBES]
    value, threshold, sentence = (list(column) for column in zip(*(SENTENCES[name] for name in names), strict=True))
    assert details(names, [HIGH] * 24, value, threshold) == sentence


@pytest.mark.row("HB-13")
def test_quiet_and_absent_probes_have_no_sentence() -> None:
    words = details(
        ["price_delta"] * 4, [NONE, LOW, ABSENT, HIGH], [0.0, 0.01, np.nan, 0.5], [0.005, 0.005, np.nan, 0.02]
    )
    assert words == [None, "price moved 1.00 % (limit 0.50 %)", None, "price moved 50.00 % (limit 2.00 %)"]


def test_a_candidate_link_has_its_own_sentence() -> None:
    assert details(["causal_graph"], [LOW], [1.0], [0.0]) == ["a new causal link is a candidate"]


def test_no_results_give_no_sentences() -> None:
    assert details([], [], [], []) == []
    assert details(["drift_of_nothing"][:0], [], [], []) == []


def test_sentences_follow_the_probes_of_a_fleet() -> None:
    probes: Probes = evaluate(**quiet(2) | {"price_change": np.array([0.03, 0.0])}, policy=POLICY)
    words = detail_arrow(
        np.repeat(np.arange(12), 2), probes.severity.ravel(), probes.value.ravel(), probes.threshold.ravel()
    )
    assert words.to_pylist() == ["price moved 3.00 % (limit 2.00 %)"] + [None] * 23


@pytest.mark.row("HB-13")
def test_the_worst_severity_of_a_golem_is_the_highest_of_its_probes() -> None:
    chance = np.random.default_rng(3)
    value = chance.choice([np.nan, 0.0, 0.03, 0.5, 2.0, 30.0], size=(len(PROBES), 500))
    value[PROBES.index("position_health")] = 5.0  # this probe is worse if smaller
    probes = Probes(value, Policy().probes)
    np.testing.assert_array_equal(probes.worst, probes.severity.max(axis=0))
    quiet = value.copy()
    quiet[:] = np.where(np.arange(len(PROBES))[:, None] == PROBES.index("price_delta"), 0.0, np.nan)
    assert not Probes(quiet, Policy().probes).worst.any()
