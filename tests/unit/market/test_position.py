"""A Uniswap v3 position: amounts, value, fees and cost of moving, compared with a reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.market.uniswap_v3 import (
    amounts,
    fees_micros,
    liquidity_for,
    share_in_range,
    slippage_ppm,
    sqrt_price,
    token1_share,
    worth,
)
from tests.reference.market import position as twin

pytestmark = pytest.mark.row("HB-1")
examples = settings(max_examples=150, deadline=None, derandomize=True)

HERE = 200_000
"""About 2,000 dollars an ether: 1.0001 ** -200,000 * 1e12."""

ranges = st.tuples(st.integers(HERE - 6_000, HERE + 6_000), st.integers(1, 12_000)).map(lambda r: (r[0], r[0] + r[1]))
ticks = st.integers(HERE - 9_000, HERE + 9_000)
liquidities = st.floats(1e6, 1e18)


def roots(*bounds: float) -> list[np.ndarray]:
    return [sqrt_price(np.array([float(b)])) for b in bounds]


@examples
@given(st.lists(st.tuples(ranges, liquidities), min_size=1, max_size=20), ticks)
def test_holdings_and_worth_equal_the_reference(held: list[tuple[tuple[int, int], float]], tick: int) -> None:
    lower, upper = np.array([r for r, _ in held]).T
    liquidity = np.array([q for _, q in held])
    root = float(sqrt_price(np.array(tick)))
    first, second = amounts(liquidity, sqrt_price(lower), sqrt_price(upper), root)
    value = worth(liquidity, sqrt_price(lower), sqrt_price(upper), root)
    for i, ((low, high), size) in enumerate(held):
        whole = twin.worth(size, low, high, tick)
        assert (first[i], second[i] / root**2) == pytest.approx(
            (twin.amounts(size, low, high, tick)[0], twin.amounts(size, low, high, tick)[1] / 1.0001**tick),
            rel=1e-6, abs=1e-6 * whole,
        )  # fmt: skip
        assert value[i] == pytest.approx(whole, rel=1e-6)


@examples
@given(ranges, ticks, st.floats(1.0, 1e12))
def test_liquidity_bought_for_a_value_is_worth_that_value(held: tuple[int, int], tick: int, value: float) -> None:
    lower, upper, root = roots(*held, tick)
    liquidity = liquidity_for(np.array([value]), lower, upper, root)
    assert worth(liquidity, lower, upper, root)[0] == pytest.approx(value)


def test_below_its_range_a_position_is_all_quote_and_above_it_all_base() -> None:
    lower, upper = roots(HERE, HERE + 1_000)
    for tick, share in ((HERE - 500, 0.0), (HERE, 0.0), (HERE + 1_000, 1.0), (HERE + 5_000, 1.0)):
        assert token1_share(lower, upper, sqrt_price(np.array([float(tick)])))[0] == pytest.approx(share)
    assert token1_share(lower, upper, sqrt_price(np.array([HERE + 500.0])))[0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8, 1.25, 4.0])
def test_impermanent_loss_over_all_prices_follows_the_formula(ratio: float) -> None:
    lower, upper = roots(-400_000, 800_000)
    before, after = roots(HERE, HERE - np.log(ratio) / np.log(1.0001))
    liquidity = np.array([1e15])
    first, second = amounts(liquidity, lower, upper, before)
    held = first + second / after**2
    lost = 1 - worth(liquidity, lower, upper, after) / held
    assert lost[0] == pytest.approx(twin.impermanent_loss_share(ratio), rel=1e-3)


@examples
@given(st.lists(ranges, min_size=1, max_size=20), ticks, st.integers(0, 3_000), st.floats(0.0, 1.0))
def test_the_share_of_a_walk_in_range_equals_the_reference(
    held: list[tuple[int, int]], low: int, width: int, place: float
) -> None:
    lower, upper = np.array(held).T
    tick = low + width * place
    computed = share_in_range(lower, upper, low, low + width, tick)
    assert computed.tolist() == pytest.approx([twin.share_in_range(*r, low, low + width, tick) for r in held])


def test_only_volume_within_the_range_pays_fees() -> None:
    lower, upper = np.array([100, 0, 300]), np.array([200, 50, 400])
    inside = share_in_range(lower, upper, 50.0, 250.0, 120.0)
    assert inside.tolist() == [0.5, 0.0, 0.0]
    paid = fees_micros(np.full(3, 1e15), 9e15, 1_000_000_000, 500, inside)
    assert paid == pytest.approx([25_000.0, 0.0, 0.0])


@examples
@given(liquidities, st.floats(1e12, 1e20), st.integers(0, 10**14), st.integers(1, 10_000), st.floats(0.0, 1.0))
def test_fees_equal_the_reference_and_never_exceed_those_of_the_pool(
    liquidity: float, pool: float, volume: int, fee: int, inside: float
) -> None:
    computed = fees_micros(np.array([liquidity]), pool, volume, fee, np.array([inside]))[0]
    assert computed == pytest.approx(twin.fees_micros(liquidity, pool, volume, fee, inside))
    assert computed <= volume * fee / 10**6


@examples
@given(st.floats(0.0, 1e11), st.floats(1e15, 1e20), ticks, st.floats(0.0, 0.05), st.floats(0.0, 0.999))
def test_slippage_equals_the_reference(swap: float, pool: float, tick: int, span: float, luck: float) -> None:
    root = float(sqrt_price(np.array(tick)))
    computed = slippage_ppm(np.array([swap]), pool, root, 500, span, np.array([luck]))[0]
    assert computed == pytest.approx(twin.slippage_ppm(swap, pool, tick, 500, 1 + span, luck), abs=1, rel=1e-6)


def test_slippage_grows_with_the_swap_the_random_draw_and_the_price_span() -> None:
    root = float(sqrt_price(np.array(HERE)))
    calm = slippage_ppm(np.array([1e7]), 1e18, root, 500, 0.0, np.array([0.5]))[0]
    assert calm >= 500
    assert slippage_ppm(np.array([1e11]), 1e18, root, 500, 0.0, np.array([0.5]))[0] > calm
    unlucky = slippage_ppm(np.array([1e7] * 2), 1e18, root, 500, 0.01, np.array([0.0, 0.9]))
    assert unlucky.tolist() == [calm, calm + 4_500]
