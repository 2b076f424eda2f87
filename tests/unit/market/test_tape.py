"""The tape: what a tick states of the bars since the tick before."""

from __future__ import annotations

import numpy as np
import pytest

from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import START
from bardo_pipeline.market.tick_series import tape_of
from bardo_pipeline.policy import Policy


@pytest.mark.parametrize("bars", [598, 599, 600])
def test_a_tick_spans_the_bars_since_the_tick_before_and_states_the_levels_of_the_last_one(bars: int) -> None:
    market = synthetic_market(seed=2, bars=bars, start=START)
    tape, first = tape_of(market, Policy()), 0
    for place, bar in enumerate(tape.bar.tolist()):
        span = slice(first, bar + 1)
        assert tape.price_low[place] == market.price_low[span].min()
        assert tape.price_high[place] == market.price_high[span].max()
        assert tape.volume_micros[place] == market.volume_usd_micros[span].sum()
        levels = tape.price[place], tape.gas_gwei[place], tape.liquidity[place]
        assert levels == (market.price[bar], market.gas_gwei[bar], market.liquidity[bar])
        first = bar + 1
    assert set(np.diff(tape.bar).tolist()) == {1, 2}
    inside = (tape.pool_tick_low <= tape.pool_tick) & (tape.pool_tick <= tape.pool_tick_high)
    assert inside.all()
