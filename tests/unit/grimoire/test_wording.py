"""The text of an entry: equal rules have equal texts, other rules have other texts, and only known facts are stated."""

from itertools import product

import pytest

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, BASELINE_METRICS, DECAY_CLASSES, GAS_BANDS
from bardo_pipeline.grimoire.entry_text import ACTION_WORDS, banded, baseline_text, pattern_text, size_word

pytestmark = pytest.mark.row("MEM-7")

STORM = {
    "action_type": "rebalance", "protocol": "uniswap_v3", "pair": "WETH/USDC", "regime": "volatile",
    "anomaly_band": "strained", "gas_band": "normal",
}  # fmt: skip


def test_the_text_of_a_rule_contains_situation_action_and_outcome() -> None:
    scene = "In a volatile market, with a WETH/USDC position on uniswap_v3 at the edge of its range and gas normal"
    assert pattern_text(kind="insight", sign=1, mean_ppm=400, **STORM) == (
        f"{scene}, re-centring has clearly beaten holding."
    )
    assert pattern_text(kind="heuristic", sign=1, mean_ppm=900, **STORM) == (
        f"{scene}, prefer re-centring: re-centring has strongly beaten holding."
    )
    assert pattern_text(kind="warning", sign=-1, mean_ppm=-100, **STORM) == (
        f"{scene}, do not act: re-centring has slightly lost to holding."
    )
    assert pattern_text(kind="insight", sign=0, mean_ppm=0, **STORM) == (
        f"{scene}, it is open whether re-centring beats holding."
    )


def test_different_structures_have_different_texts() -> None:
    scenes = list(product(ACTION_WORDS, REGIMES, ANOMALY_BANDS, GAS_BANDS, (-1, 0, 1)))
    texts = {
        pattern_text(
            kind="insight", action_type=act, protocol="uniswap_v3", pair="WETH/USDC", regime=regime,
            anomaly_band=anomaly, gas_band=gas, sign=sign, mean_ppm=300,
        )
        for act, regime, anomaly, gas, sign in scenes
    }  # fmt: skip
    assert len(texts) == len(scenes)


def test_effects_of_one_band_have_equal_texts() -> None:
    assert [size_word(n) for n in (0, 149, -149, 150, -599, 600, -90_000)] == [
        "slightly", "slightly", "slightly", "clearly", "clearly", "strongly", "strongly",
    ]  # fmt: skip
    within = {pattern_text(kind="insight", sign=1, mean_ppm=mean, **STORM) for mean in (150, 371, 599)}
    assert len(within) == 1
    assert pattern_text(kind="insight", sign=1, mean_ppm=600, **STORM) not in within


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"), (float("nan"), "0"), (float("inf"), "0"), (31.4159, "31"), (0.00123, "0.0012"), (1.26, "1.3"),
        (4_567_890.0, "4,600,000"), (99.6, "100"), (-2_345.0, "-2,300"), (7.0, "7.0"),
    ],
)  # fmt: skip
def test_a_level_is_rounded_to_two_digits(value: float, words: str) -> None:
    assert banded(value) == words


def test_each_metric_has_its_unit_in_the_text() -> None:
    place = {"protocol": "uniswap_v3", "pair": "WETH/USDC"}
    by_key = {
        metric: baseline_text(**place, metric=metric, mean=mean, low=mean * 4 // 5, high=mean * 6 // 5)
        for metric, mean in zip(BASELINE_METRICS, (32_400, 51_000, 620, 9_100), strict=True)
    }
    assert by_key == {
        "gas_price": "While trading WETH/USDC on uniswap_v3, gas usually costs about 32 gwei "
        "(at half of the ticks 26 to 39).",
        "pool_volume": "WETH/USDC on uniswap_v3 usually trades about 51,000 dollars a tick "
        "(at half of the ticks 41,000 to 61,000).",
        "slippage": "Actions on WETH/USDC on uniswap_v3 usually slip about 620 ppm (half of them 500 to 740).",
        "gas_cost": "Actions on WETH/USDC on uniswap_v3 usually cost about 0.0091 dollars of gas "
        "(half of them 0.0073 to 0.011).",
    }


def test_an_unknown_level_is_described_as_open() -> None:
    place = {"protocol": "uniswap_v3", "pair": "WETH/USDC", "mean": 0, "low": 0, "high": 0, "known": False}
    assert [baseline_text(**place, metric=metric) for metric in BASELINE_METRICS] == [
        "It is open what gas costs while trading WETH/USDC on uniswap_v3.",
        "It is open how much WETH/USDC on uniswap_v3 trades.",
        "It is open how much actions on WETH/USDC on uniswap_v3 slip.",
        "It is open what actions on WETH/USDC on uniswap_v3 cost in gas.",
    ]


def test_an_action_without_a_description_is_written_as_its_name() -> None:
    odd = STORM | {"action_type": "hedge", "regime": "weird", "anomaly_band": "odd"}
    assert "hedge has clearly beaten holding" in pattern_text(kind="insight", sign=1, mean_ppm=200, **odd)


def test_a_structure_has_a_key_a_category_and_a_decay_class() -> None:
    about = Structure(
        "pattern",
        "polygon",
        "uniswap_v3",
        "WETH/USDC",
        "uniswap_v3_rebalance",
        "rebalance",
        "volatile",
        "strained",
        "normal",
    )
    assert about.key == "pattern|polygon|uniswap_v3|WETH/USDC|uniswap_v3_rebalance|rebalance|volatile|strained|normal|-"
    assert (about.category, about.domain) == ("rebalance_timing", "dex_lp")
    assert DECAY_CLASSES[about.decay_class] == "regime_conditional"
    assert DECAY_CLASSES[about._replace(regime="unknown").decay_class] == "tactical"
    level = Structure("baseline", "polygon", "uniswap_v3", "WETH/USDC", metric="gas_price")
    assert (level.category, level.domain) == ("gas_timing", "gas")
    assert DECAY_CLASSES[level.decay_class] == "fact"
