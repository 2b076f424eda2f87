"""The market type: what it refuses, how it slices, what its hash covers."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.errors import ConfigError, TraceError
from bardo_pipeline.market.market import ARRAY_DTYPES, TICK_MAX, Market, price_of_tick, tick_of_price
from bardo_pipeline.market.synthetic import flat_market, synthetic_market

START = datetime(2023, 8, 14, tzinfo=UTC)


@pytest.fixture
def market() -> Market:
    return synthetic_market(seed=7, bars=50, start=START)


def altered(market: Market, column: str, bar: int, value: float) -> dict[str, Any]:
    values = getattr(market, column).copy()
    values[bar] = value
    return {column: values}


def test_price_of_a_tick_follows_the_formula() -> None:
    ticks = np.array([-TICK_MAX, -1, 0, 1, 201_149, 202_577, TICK_MAX], dtype=np.int32)
    expected = [1.0001 ** -int(tick) * 1e12 for tick in ticks]
    np.testing.assert_allclose(price_of_tick(ticks), expected, rtol=1e-9)


def test_a_tick_survives_a_round_trip_through_its_price() -> None:
    ticks = np.arange(190_000, 210_000, dtype=np.int32)
    np.testing.assert_array_equal(tick_of_price(price_of_tick(ticks)), ticks)


def test_a_higher_tick_is_a_lower_price() -> None:
    assert (np.diff(price_of_tick(np.arange(-500, 500, dtype=np.int32))) < 0).all()


@pytest.mark.parametrize(
    ("column", "value", "fact"),
    [
        ("price", np.nan, "not a finite positive number"),
        ("price_low", 0.0, "not a finite positive number"),
        ("price_low", 1e9, "above the close"),
        ("price_high", 1.0, "below the close"),
        ("price_high", np.inf, "not a finite positive number"),
        ("liquidity", 0.0, "not a finite positive number"),
        ("gas_gwei", -1.0, "not a finite positive number"),
        ("volume_usd_micros", -1, "negative"),
        ("tick", TICK_MAX + 1, "outside"),
        ("at_us", 0, "does not come after"),
        ("at_us", 1, "not on the minute"),
    ],
)
def test_a_bar_out_of_range_is_refused_with_column_and_bar(
    market: Market, column: str, value: float, fact: str
) -> None:
    with pytest.raises(TraceError, match=fact) as caught:
        replace(market, **altered(market, column, 3, value))
    assert caught.value.column == column
    assert "bar 3" in str(caught.value)
    assert market.name in str(caught.value)


@pytest.mark.parametrize("column", sorted(set(ARRAY_DTYPES) - {"at_us"}))
def test_columns_of_another_length_type_or_shape_are_refused(market: Market, column: str) -> None:
    values = getattr(market, column)
    for wrong in (values[:-1], values.astype(np.float32), values.reshape(-1, 1), list(values)):
        columns: dict[str, Any] = {column: wrong}
        with pytest.raises(TraceError) as caught:
            replace(market, **columns)
        assert caught.value.column == column


@pytest.mark.parametrize(
    ("parameter", "value"), [("fee_ppm", 0), ("fee_ppm", 1_000_000), ("native_usd_micros", 0), ("name", "")]
)
def test_parameters_out_of_range_are_refused_by_name(market: Market, parameter: str, value: Any) -> None:
    with pytest.raises(TraceError) as caught:
        replace(market, **{parameter: value})
    assert caught.value.column == parameter


def test_a_market_without_bars_is_refused(market: Market) -> None:
    with pytest.raises(TraceError, match="at least one bar"):
        replace(market, **{column: getattr(market, column)[:0] for column in ARRAY_DTYPES})


def test_a_slice_contains_exactly_its_bars(market: Market) -> None:
    part = market.slice(10, 20)
    assert part.bars == 10
    assert part.truths == market.truths
    for column in ARRAY_DTYPES:
        np.testing.assert_array_equal(getattr(part, column), getattr(market, column)[10:20])


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (6, 5), (0, 51)])
def test_a_slice_beyond_the_bars_is_refused(market: Market, start: int, stop: int) -> None:
    with pytest.raises(TraceError, match="not within"):
        market.slice(start, stop)


def test_market_arrays_are_read_only_and_the_given_arrays_stay_writable() -> None:
    column = np.full(4, 30.0)
    market = replace(flat_market(bars=4, start=START), gas_gwei=column)
    with pytest.raises(ValueError, match="read-only"):
        market.gas_gwei[0] = 1.0
    assert column.flags.writeable


def test_the_hash_covers_every_array_and_parameter_but_not_the_truths(market: Market) -> None:
    copied: dict[str, Any] = {column: getattr(market, column).copy() for column in ARRAY_DTYPES}
    assert replace(market, **copied).content_hash == market.content_hash
    others = [
        replace(market, name="other"),
        replace(market, native_usd_micros=1),
        replace(market, fee_ppm=3_000),
        replace(market, pool="0x1"),
        replace(market, at_us=market.at_us + 60_000_000),
        replace(market, **altered(market, "price_low", 3, float(market.price_low[3]) * 0.999)),
        replace(market, **altered(market, "gas_gwei", 3, 12.0)),
        replace(market, **altered(market, "volume_usd_micros", 3, 12)),
        replace(market, **altered(market, "tick", 3, 12)),
        replace(market, **altered(market, "liquidity", 3, 12.0)),
        market.slice(0, 49),
    ]
    assert len({market.content_hash, *(other.content_hash for other in others)}) == len(others) + 1
    assert replace(market, truths=()).content_hash == market.content_hash
    assert len(market.content_hash) == 64


def test_a_flat_market_has_constant_columns() -> None:
    market = flat_market(bars=100, start=START)
    assert len(set(market.price)) == len(set(market.gas_gwei)) == len(set(market.volume_usd_micros)) == 1
    assert market.price[0] == pytest.approx(1_800, rel=1e-4)
    assert market.truths == ()


@pytest.mark.parametrize(
    ("bars", "start"),
    [(0, START), (5, START.replace(tzinfo=None)), (5, START.replace(second=1)), (5, START.replace(microsecond=1))],
)
def test_a_market_without_bars_or_with_a_start_off_the_minute_is_refused(bars: int, start: datetime) -> None:
    with pytest.raises(ConfigError):
        flat_market(bars=bars, start=start)
    with pytest.raises(ConfigError):
        synthetic_market(seed=1, bars=bars, start=start)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed -1"):
        synthetic_market(seed=-1, bars=5, start=START)
