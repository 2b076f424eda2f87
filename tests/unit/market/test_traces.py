"""The reader of recorded traces: which files it joins, which gaps it fills, and how it reports errors."""

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import TraceError
from bardo_pipeline.market.market import ASSETS
from bardo_pipeline.storage.market_data.demeter_trace import (
    GAS_COLUMNS,
    POOL_COLUMNS,
    RATE_COLUMNS,
    TOKEN_PRICE_COLUMNS,
    TOKENS,
    read_trace,
)

POOL = "0x45dda9cb7c25131df268515131f647d726f50608"
OTHER_POOL = "0x0e44ceb592acfc5d3f09d996302eb4c499ff8c10"
POOL_FILE = f"polygon-{POOL}-2023-08-14.minute.csv"
GAS_FILE = "polygon-gas-2023-08-14.csv"


def pool_rows(minutes: range = range(5), day: int = 14) -> list[list[str]]:
    """One row a minute: 1 USDC in, 10^18 raw WETH in, tick 201149 + minute."""
    return [
        [f"2023-08-{day} 00:{m:02}:00", "-5", "7", *[str(201_149 + m)] * 4, "1000000", str(10**18), str(2 * 10**18)]
        for m in minutes
    ]


def gas_rows(minutes: range = range(5)) -> list[list[str]]:
    return [[f"2023-08-14 00:{m:02}:00", f"{40.5 + m}"] for m in minutes]


def write(path: Path, header: tuple[str, ...], rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(",".join(row) for row in [list(header), *rows]) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "uniswap" / POOL_FILE, POOL_COLUMNS, pool_rows())
    write(tmp_path / "gas" / GAS_FILE, GAS_COLUMNS, gas_rows())
    return tmp_path


def spoil(path: Path, line: int, column: int, cell: str) -> None:
    lines = path.read_text().splitlines()
    cells = lines[line - 1].split(",")
    cells[column] = cell
    lines[line - 1] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


def refusal(folder: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(folder)
    return caught.value


def test_read_trace_returns_a_market_and_a_report(folder: Path) -> None:
    market, report = read_trace(folder)
    assert (market.name, market.chain, market.pool) == (f"polygon-{POOL}", "polygon", POOL)
    assert (market.protocol, market.pair, market.fee_ppm) == ("uniswap_v3", "WETH/USDC", 500)
    assert market.native_usd_micros == 650_000
    np.testing.assert_allclose(market.price, 1.0001 ** -(201_149.0 + np.arange(5)) * 1e12)
    np.testing.assert_array_equal(market.gas_gwei, 40.5 + np.arange(5))
    np.testing.assert_allclose(market.volume_usd_micros, 1_000_000 + market.price * 1e6, atol=1)
    assert (market.liquidity == 2e18).all()
    assert report.files_read == (f"uniswap/{POOL_FILE}", f"gas/{GAS_FILE}")
    assert (report.bars, report.gas_filled, report.minutes_missing) == (5, 0, 0)
    assert report.first_at == datetime(2023, 8, 14, tzinfo=UTC)
    assert report.last_at == datetime(2023, 8, 14, 0, 4, tzinfo=UTC)


def test_the_highest_tick_is_the_lowest_price(folder: Path) -> None:
    spoil(folder / "uniswap" / POOL_FILE, 3, 6, "201160")
    spoil(folder / "uniswap" / POOL_FILE, 3, 5, "201140")
    market, _ = read_trace(folder)
    np.testing.assert_allclose(
        [market.price_low[1], market.price_high[1]], 1.0001 ** -np.array([201160.0, 201140]) * 1e12
    )


def test_extremes_are_widened_to_the_close_and_counted_in_the_report(folder: Path) -> None:
    """The recorded files hold such bars: a forward-filled close beside the tick of the swap."""
    spoil(folder / "uniswap" / POOL_FILE, 3, 3, "201170")
    market, report = read_trace(folder)
    assert report.extremes_widened == 1
    assert market.price_low[1] == market.price[1]


def test_the_gas_price_of_the_chain_token_is_a_parameter(folder: Path) -> None:
    assert read_trace(folder, native_usd_micros=7)[0].native_usd_micros == 7


@pytest.mark.parametrize("chain", ["ethereum", "base"])
def test_ether_as_gas_token_costs_what_the_pool_quotes(tmp_path: Path, chain: str) -> None:
    write(tmp_path / POOL_FILE.replace("polygon", chain), POOL_COLUMNS, pool_rows())
    write(tmp_path / GAS_FILE.replace("polygon", chain), GAS_COLUMNS, gas_rows())
    market, _ = read_trace(tmp_path)
    assert market.native_usd_micros == round(market.price[0] * 1e6)
    assert read_trace(tmp_path, native_usd_micros=7)[0].native_usd_micros == 7


@pytest.mark.parametrize(("chain", "year"), [("polygon", "2024"), ("gnosis", "2023")])
def test_a_gas_token_without_a_known_price_is_refused_with_the_option(tmp_path: Path, chain: str, year: str) -> None:
    rows = [[row[0].replace("2023", year), *row[1:]] for row in pool_rows()]
    write(tmp_path / POOL_FILE.replace("polygon", chain), POOL_COLUMNS, rows)
    write(tmp_path / GAS_FILE.replace("polygon", chain), GAS_COLUMNS, gas_rows())
    message = str(refusal(tmp_path))
    for part in (POOL_FILE.replace("polygon", chain), f"gas token of {chain}", f"{year}-08-14", "--gas-token-price"):
        assert part in message
    assert read_trace(tmp_path, native_usd_micros=7)[0].native_usd_micros == 7
    prices = re.search(rf"{chain}-native-<dates>.csv with (\S+) beside", message)
    assert prices
    write(tmp_path / f"{chain}-native-{year}.csv", prices[1].split(","), [[f"{year}-08-14 00:00:00", "0.41"]])
    assert read_trace(tmp_path)[0].native_usd_micros == 410_000


def test_a_file_states_the_price_of_the_gas_token(folder: Path) -> None:
    """The newest price at the first bar counts, before the recorded one of the month and after the option's."""
    rows = [["2023-08-13 23:00:00", "0.5"], ["2023-08-14 00:00:00", "0.7"], ["2023-08-14 00:02:00", "0.9"]]
    write(folder / "polygon-native-08.csv", TOKEN_PRICE_COLUMNS, rows)
    market, report = read_trace(folder)
    assert market.native_usd_micros == 700_000
    assert "polygon-native-08.csv" in report.files_read
    assert read_trace(folder, native_usd_micros=7)[0].native_usd_micros == 7
    write(folder / "polygon-native-08.csv", TOKEN_PRICE_COLUMNS, [["2023-08-14 00:00:00", "-1"]])
    assert "polygon-native-08.csv, line 2, column 'price_usd'" in str(refusal(folder))
    write(folder / "polygon-native-08.csv", TOKEN_PRICE_COLUMNS, [])
    assert "fetch it again" in str(refusal(folder))


def test_a_recorded_price_of_the_gas_token_holds_for_its_month_only(folder: Path) -> None:
    assert read_trace(folder)[0].native_usd_micros == 650_000
    rows = [[row[0].replace("-08-14", "-09-01"), *row[1:]] for row in pool_rows()]
    write(folder / "b" / POOL_FILE.replace("08-14", "09-01"), POOL_COLUMNS, rows)
    assert "from 2023-08-14 to 2023-09-01" in str(refusal(folder))


def test_a_missing_gas_minute_takes_the_last_known_price_or_else_the_first(folder: Path) -> None:
    write(folder / "gas" / GAS_FILE, GAS_COLUMNS, [gas_rows()[1], gas_rows()[3]])
    market, report = read_trace(folder)
    np.testing.assert_array_equal(market.gas_gwei, [41.5, 41.5, 41.5, 43.5, 43.5])
    assert report.gas_filled == 3


def test_zero_liquidity_takes_the_last_positive_value(folder: Path) -> None:
    for line in (4, 5):
        spoil(folder / "uniswap" / POOL_FILE, line, 9, "0")
    spoil(folder / "uniswap" / POOL_FILE, 3, 9, "5")
    market, report = read_trace(folder)
    np.testing.assert_array_equal(market.liquidity, [2e18, 5, 5, 5, 2e18])
    assert report.liquidity_carried == 2


def test_zero_liquidity_at_the_start_is_refused(folder: Path) -> None:
    spoil(folder / "uniswap" / POOL_FILE, 2, 9, "0")
    fault = refusal(folder)
    assert (fault.line, fault.column) == (2, "currentLiquidity")


def test_missing_minutes_stay_missing_and_are_counted(folder: Path) -> None:
    write(folder / "uniswap" / POOL_FILE, POOL_COLUMNS, pool_rows(range(0, 10, 3)))
    market, report = read_trace(folder)
    assert (market.bars, report.minutes_missing, report.gas_filled) == (4, 6, 2)


def test_days_are_joined_in_time_order_for_any_file_names(folder: Path) -> None:
    write(folder / "a" / POOL_FILE.replace("08-14", "08-15"), POOL_COLUMNS, pool_rows(day=15))
    market, report = read_trace(folder)
    assert market.bars == 10
    assert report.files_read[:2] == (f"uniswap/{POOL_FILE}", f"a/{POOL_FILE.replace('08-14', '08-15')}")


def test_amounts_beyond_64_bits_are_read(folder: Path) -> None:
    spoil(folder / "uniswap" / POOL_FILE, 3, 8, str(10**20))
    market, _ = read_trace(folder)
    assert market.volume_usd_micros[1] == pytest.approx(100 * market.price[1] * 1e6 + 1e6, rel=1e-12)


def test_windows_line_ends_a_byte_order_mark_and_utc_suffixes_are_read(folder: Path) -> None:
    path = folder / "uniswap" / POOL_FILE
    plain = read_trace(folder)[0].content_hash
    text = path.read_text().replace(":00,", ":00+00:00,").replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_trace(folder)[0].content_hash == plain


def test_skipped_files_are_named_with_the_reason(folder: Path) -> None:
    for name in (
        "README.md",
        "aave/polygon-aave_v3-0x2791bca1f2de4661ed88a30c99a7a9449aa84174-2023-08-14.minute.csv",
        f"ethereum-{POOL}-2024-01-05.tick.csv",
        "ethereum-gas-2023.csv",
        "prices.csv",
    ):
        write(folder / name, ("anything",), [])
    skipped = dict(read_trace(folder)[1].files_skipped)
    assert skipped["README.md"] == "not a CSV file"
    assert "Aave" in skipped["aave/polygon-aave_v3-0x2791bca1f2de4661ed88a30c99a7a9449aa84174-2023-08-14.minute.csv"]
    assert "not minute bars" in skipped[f"ethereum-{POOL}-2024-01-05.tick.csv"]
    assert "gas of ethereum" in skipped["ethereum-gas-2023.csv"]
    assert "neither" in skipped["prices.csv"]
    assert len(skipped) == 5


def rate_file(asset: str) -> str:
    return f"aave/polygon-aave_v3-{TOKENS['polygon'][ASSETS.index(asset)]}-2023-08-14.minute.csv"


@pytest.fixture
def lender(folder: Path) -> Path:
    """The folder with rates of both tokens, of USDC only every other minute."""
    for asset, minutes in (("USDC", range(0, 5, 2)), ("WETH", range(5))):
        rows = [
            [f"2023-08-14 00:{m:02}:00", "0.03", "0.07", f"0.0{m}", f"1.0{m}", f"1.1{m}{ASSETS.index(asset)}"]
            for m in minutes
        ]
        write(folder / rate_file(asset), RATE_COLUMNS, rows)
    return folder


def test_rates_are_read_only_on_request(lender: Path) -> None:
    market, report = read_trace(lender, rates=True)
    assert market.reserves is not None
    np.testing.assert_allclose(market.reserves.supply_index, [[1, 1, 1.02, 1.02, 1.04], [1, 1.01, 1.02, 1.03, 1.04]])
    np.testing.assert_allclose(market.reserves.borrow_index[:, -1], [1.14, 1.141])
    np.testing.assert_allclose(market.reserves.borrow_rate[1], [0, 0.01, 0.02, 0.03, 0.04])
    assert report.files_read[2:] == (rate_file("USDC"), rate_file("WETH"))
    assert report.files_skipped == ()
    plain, report = read_trace(lender)
    assert plain.reserves is None
    assert {why for _, why in report.files_skipped} == {"Aave rates, which are read only for golems that may borrow"}
    assert plain.content_hash != market.content_hash == read_trace(lender, rates=True)[0].content_hash


def test_requested_rates_that_are_missing_or_invalid_are_refused(lender: Path) -> None:
    spoil(lender / rate_file("WETH"), 3, 5, "0.9")
    with pytest.raises(TraceError, match="below 1") as caught:
        read_trace(lender, rates=True)
    assert (caught.value.line, caught.value.column) == (3, "variable_borrow_index")
    (lender / rate_file("USDC")).unlink()
    with pytest.raises(TraceError, match="no Aave rates of USDC on polygon"):
        read_trace(lender, rates=True)
    assert read_trace(lender)[0].bars == 5


def test_several_pools_are_refused_with_their_names_and_the_option(folder: Path) -> None:
    write(folder / POOL_FILE.replace(POOL, OTHER_POOL), POOL_COLUMNS, pool_rows())
    message = str(refusal(folder))
    for part in (POOL, OTHER_POOL, "--trace", "pool="):
        assert part in message
    market, report = read_trace(folder, pool=OTHER_POOL.upper().replace("0X", "0x"))
    assert (market.pool, market.fee_ppm) == (OTHER_POOL, 3_000)
    assert "another pool" in dict(report.files_skipped)[f"uniswap/{POOL_FILE}"]
    with pytest.raises(TraceError, match="holds no pool 0x12"):
        read_trace(folder, pool="0x12")


def test_an_incomplete_folder_is_refused_with_the_missing_file(tmp_path: Path, folder: Path) -> None:
    assert "is not a folder" in str(refusal(tmp_path / "nowhere"))
    (folder / "gas" / GAS_FILE).rename(folder / "x.csv")
    assert "put a polygon-gas-" in str(refusal(folder))
    (folder / "uniswap" / POOL_FILE).unlink()
    assert "holds no pool file; put" in str(refusal(folder))


@pytest.mark.parametrize(
    ("line", "column", "cell", "fact"),
    [
        (3, "closeTick", "abc", "'abc' is not a whole number"),
        (3, "closeTick", "201149.5", "not a whole number"),
        (3, "closeTick", "-201149", "USDC"),
        (4, "openTick", "887273", "outside"),
        (4, "lowestTick", "-887273", "outside"),
        (4, "lowestTick", "201999", "above highestTick"),
        (4, "highestTick", "", "empty"),
        (5, "inAmount0", "NaN", "'NaN' is not a finite number"),
        (5, "inAmount0", "-1", "negative"),
        (5, "inAmount1", "inf", "not a finite number"),
        (5, "inAmount1", "9" * 400, "not a finite number"),
        (5, "inAmount1", "9" * 40, "dollars in one minute"),
        (6, "inAmount1", " ", "empty"),
        (6, "netAmount0", "1_000", "not a finite number"),
        (6, "netAmount1", "0x10", "not a finite number"),
        (6, "currentLiquidity", "-5", "negative"),
        (2, "currentLiquidity", "", "empty"),
        (3, "timestamp", "2023-08-14 00:00:00", "is repeated"),
        (4, "timestamp", "2023-08-13 23:59:00", "before the line above"),
        (3, "timestamp", "2023-08-14 00:01:30", "not a UTC minute"),
        (3, "timestamp", "2023-08-14 00:01:00+02:00", "not a UTC minute"),
        (3, "timestamp", "2023-02-30 00:01:00", "not a UTC minute"),
        (3, "timestamp", "2023-08-14 25:01:00", "not a UTC minute"),
        (3, "timestamp", "1691971200", "not a UTC minute"),
        (3, "timestamp", "", "empty"),
    ],
)
def test_a_malformed_pool_cell_is_named(folder: Path, line: int, column: str, cell: str, fact: str) -> None:
    spoil(folder / "uniswap" / POOL_FILE, line, POOL_COLUMNS.index(column), cell)
    fault = refusal(folder)
    assert (fault.file, fault.line, fault.column) == (f"uniswap/{POOL_FILE}", line, column)
    assert fact in str(fault)


@pytest.mark.parametrize(
    ("line", "column", "cell", "fact"),
    [
        (2, "gas_price", "0", "not positive"),
        (3, "gas_price", "-3.5", "not positive"),
        (4, "gas_price", "nan", "not a finite number"),
        (5, "gas_price", "", "empty"),
        (6, "block_timestamp", "2023-08-14 00:03:00", "is repeated"),
        (6, "block_timestamp", "14/08/2023", "not a UTC minute"),
    ],
)
def test_a_malformed_gas_cell_is_named(folder: Path, line: int, column: str, cell: str, fact: str) -> None:
    spoil(folder / "gas" / GAS_FILE, line, GAS_COLUMNS.index(column), cell)
    fault = refusal(folder)
    assert (fault.file, fault.line, fault.column) == (f"gas/{GAS_FILE}", line, column)
    assert fact in str(fault)


def test_a_wrong_header_is_named_with_its_column(folder: Path) -> None:
    spoil(folder / "uniswap" / POOL_FILE, 1, 3, "close")
    fault = refusal(folder)
    assert (fault.file, fault.line, fault.column) == (f"uniswap/{POOL_FILE}", 1, "close")


@pytest.mark.parametrize("text", ["", "\n", "timestamp\n"])
def test_a_file_without_the_header_is_refused(folder: Path, text: str) -> None:
    (folder / "uniswap" / POOL_FILE).write_text(text)
    assert refusal(folder).line == 1


def test_a_file_with_only_a_header_is_refused(folder: Path) -> None:
    for file, columns in ((f"gas/{GAS_FILE}", GAS_COLUMNS), (f"uniswap/{POOL_FILE}", POOL_COLUMNS)):
        write(folder / file, columns, [])
        assert f"{file}, line 1: holds no row below its header" in str(refusal(folder))


@pytest.mark.parametrize(
    ("row", "column"), [("a,b", "netAmount1"), ("", "netAmount0"), ("1" + ",1" * 12, "currentLiquidity")]
)
def test_a_row_of_another_width_is_named_by_line(folder: Path, row: str, column: str) -> None:
    path = folder / "uniswap" / POOL_FILE
    lines = path.read_text().splitlines()
    lines[2] = row
    path.write_text("\n".join(lines))
    fault = refusal(folder)
    assert (fault.line, fault.column) == (3, column)
    assert "cells instead of 10" in str(fault)


def test_bytes_that_are_not_utf_8_are_named_by_line(folder: Path) -> None:
    path = folder / "gas" / GAS_FILE
    path.write_bytes(path.read_bytes().replace(b"42.5", b"4\xff.5"))
    fault = refusal(folder)
    assert (fault.file, fault.line) == (f"gas/{GAS_FILE}", 4)


def test_files_that_overlap_in_time_are_refused(folder: Path) -> None:
    write(folder / "copy" / POOL_FILE, POOL_COLUMNS, pool_rows())
    fault = refusal(folder)
    assert (fault.file, fault.line, fault.column) == (f"uniswap/{POOL_FILE}", 2, "timestamp")
    assert f"copy/{POOL_FILE}" in str(fault)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    line=st.integers(1, 6),
    column=st.integers(0, 9),
    cell=st.one_of(st.text(max_size=8), st.floats().map(str), st.integers().map(str), st.datetimes().map(str)),
)
def test_any_cell_is_read_or_refused_with_a_trace_error(folder: Path, line: int, column: int, cell: str) -> None:
    path = folder / "uniswap" / POOL_FILE
    write(path, POOL_COLUMNS, pool_rows())
    lines = [text.split(",") for text in path.read_text().splitlines()]
    lines[line - 1][column] = cell
    path.write_bytes("\n".join(",".join(cells) for cells in lines).encode("utf-8", "surrogatepass"))
    refused: TraceError | None = None
    try:
        market, report = read_trace(folder)
        assert market.bars == report.bars
    except TraceError as fault:
        refused = fault
    assert refused is None or refused.line is not None
