"""The recorded Polygon market of 14 to 17 August 2023; skipped without its files."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from bardo_pipeline.market.market import Market
from bardo_pipeline.storage.market_data.demeter_trace import TraceReport, read_trace

FOLDER = Path(__file__).resolve().parents[3].parent / "shared" / "data"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"the recorded market data is not there: no folder {FOLDER} beside the repository"
)


@pytest.fixture(scope="module")
def recorded() -> tuple[Market, TraceReport]:
    return read_trace(FOLDER)


def bar_at(market: Market, at: datetime) -> int:
    return int(np.searchsorted(market.at_us, int(at.timestamp()) * 1_000_000))


def test_four_days_of_minute_bars_are_read(recorded: tuple[Market, TraceReport]) -> None:
    market, report = recorded
    assert report.bars == market.bars == 5_759
    assert report.first_at == datetime(2023, 8, 14, 0, 1, tzinfo=UTC)
    assert report.last_at == datetime(2023, 8, 17, 23, 59, tzinfo=UTC)
    assert (report.gas_filled, report.liquidity_carried, report.minutes_missing) == (0, 0, 0)
    assert report.extremes_widened == 78
    assert len(report.files_read) == 5
    assert market.name == "polygon-0x45dda9cb7c25131df268515131f647d726f50608"


def test_the_crash_of_17_august_is_visible_in_price_gas_volume_and_liquidity(
    recorded: tuple[Market, TraceReport],
) -> None:
    market, _ = recorded
    before = bar_at(market, datetime(2023, 8, 17, 21, 40, tzinfo=UTC))
    after = slice(before, before + 15)
    assert market.price[before] == pytest.approx(1_704.68, abs=0.01)
    assert market.price[after].min() / market.price[before] < 0.94
    assert market.gas_gwei[after].max() > 100 * np.median(market.gas_gwei)
    assert market.volume_usd_micros[after].mean() > 10 * market.volume_usd_micros.mean()
    assert market.liquidity[after].min() < np.median(market.liquidity) / 3


def test_skipped_files_are_named_with_reasons(recorded: tuple[Market, TraceReport]) -> None:
    skipped = dict(recorded[1].files_skipped)
    assert sum("Aave" in why for why in skipped.values()) == 8
    assert any(name.endswith(".tick.csv") and "not minute bars" in why for name, why in skipped.items())
    assert {"README.md", "LICENSE.demeter-MIT.txt"} <= set(skipped)


def test_reading_twice_gives_the_same_market(recorded: tuple[Market, TraceReport]) -> None:
    assert read_trace(FOLDER)[0].content_hash == recorded[0].content_hash
