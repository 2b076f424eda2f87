"""A message about a recorded market names the file or option with which a fleet lives in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.market.market import ASSETS
from bardo_pipeline.storage.market_data.demeter_trace import (
    GAS_COLUMNS,
    POOL_COLUMNS,
    RATE_COLUMNS,
    TOKEN_PRICE_COLUMNS,
    TOKENS,
)
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import value_in
from tests.unit.market.test_traces import GAS_FILE, OTHER_POOL, POOL, POOL_FILE, gas_rows, pool_rows, write

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]

MINUTES = range(60)
RUN = ("run", "--golems", "1", "--no-marts", "--trace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recorded market of an hour."""
    write(tmp_path / "market" / POOL_FILE, POOL_COLUMNS, pool_rows(MINUTES))
    write(tmp_path / "market" / GAS_FILE, GAS_COLUMNS, gas_rows(MINUTES))
    return tmp_path / "market"


def test_missing_files_of_a_recorded_market_are_put_where_the_messages_say(folder: Path, new_home: Path) -> None:
    empty = folder.parent / "empty"
    assert "name one with demeter-fetch minute files" in bardo(*RUN, str(empty), home=new_home, expect=2)
    empty.mkdir()
    ending = value_in(bardo(*RUN, str(empty), home=new_home, expect=2), r"put <chain>-<0xpool>-<date>(\S+) files")
    write(empty / f"polygon-{POOL}-2023-08-14{ending}", POOL_COLUMNS, pool_rows(MINUTES))
    refused = bardo(*RUN, str(empty), home=new_home, expect=2)
    name = value_in(refused, r"put a (\S+) with \S+ beside the pool files").replace("<dates>", "2023-08-14")
    columns = value_in(refused, r"put a \S+ with (\S+) beside")
    write(empty / name, tuple(columns.split(",")), gas_rows(MINUTES))
    bardo(*RUN, str(empty), home=new_home)


def test_one_of_several_pools_is_named_by_the_option(folder: Path, new_home: Path) -> None:
    write(folder / POOL_FILE.replace(POOL, OTHER_POOL), POOL_COLUMNS, pool_rows(MINUTES))
    refused = bardo(*RUN, str(folder), home=new_home, expect=2)
    option, pool = (value_in(refused, cure) for cure in (r"name the pool with (--pool)", r"holds 2 pools \((\S+),"))
    bardo(*RUN, str(folder), option, pool, home=new_home)
    known = value_in(bardo(*RUN, str(folder), option, "0x12", home=new_home, expect=2), r"it holds (\S+),")
    assert known == pool


def test_an_unknown_price_of_the_gas_token_is_given_by_the_option(folder: Path, new_home: Path) -> None:
    for file, columns, rows in (
        (POOL_FILE, POOL_COLUMNS, pool_rows(MINUTES)),
        (GAS_FILE, GAS_COLUMNS, gas_rows(MINUTES)),
    ):
        (folder / file).unlink()
        write(folder / file.replace("polygon", "gnosis"), columns, rows)
    option = value_in(bardo(*RUN, str(folder), home=new_home, expect=2), r"give (--gas-token-price) DOLLARS")
    example = value_in(bardo(*RUN, str(folder), option, "0", home=new_home, expect=2), r"for example ([\d.]+)")
    bardo(*RUN, str(folder), option, example, home=new_home)


def test_missing_rates_are_put_where_the_message_says(folder: Path, new_home: Path) -> None:
    words = (*RUN, str(folder), "--loan-to-value", "0.5")
    for asset in ASSETS:
        refused = bardo(*words, home=new_home, expect=2)
        assert f"has no Aave rates of {asset}" in " ".join(refused.split())
        assert "or run without loans" in " ".join(refused.split())
        name = value_in(refused, r"put (\S+) there").replace("<date>", "2023-08-14")
        rows = [[row[0], *("1.5" for _ in RATE_COLUMNS[1:])] for row in pool_rows(MINUTES)]
        write(folder / name, RATE_COLUMNS, rows)
    bardo(*words, home=new_home)


def test_loans_need_a_recorded_market_by_the_named_option(folder: Path, new_home: Path) -> None:
    refused = bardo("run", "--golems", "1", "--no-marts", "--loan-to-value", "0.5", home=new_home, expect=2)
    option = value_in(refused, r"give (--trace) FOLDER")
    assert "Aave rates" in bardo(
        "run", "--golems", "1", option, str(folder), "--loan-to-value", "0.5", home=new_home, expect=2
    )
    bardo("run", "--golems", "1", "--no-marts", option, str(folder), home=new_home)


def test_a_file_without_rows_is_fetched_again(folder: Path, new_home: Path) -> None:
    borrowed = [[row[0], *("1.5" for _ in RATE_COLUMNS[1:])] for row in pool_rows(MINUTES)]
    files = [
        (folder / POOL_FILE, POOL_COLUMNS, pool_rows(MINUTES)),
        (folder / "polygon-native-08.csv", TOKEN_PRICE_COLUMNS, [["2023-08-14 00:00:00", "0.6"]]),
        *((folder / f"polygon-aave_v3-{t}-2023-08-14.minute.csv", RATE_COLUMNS, borrowed) for t in TOKENS["polygon"]),
    ]
    for path, columns, rows in files:
        write(path, columns, rows)
    words = (*RUN, str(folder), "--loan-to-value", "0.5")
    for path, columns, rows in files:
        write(path, columns, [])
        refused = " ".join(bardo(*words, home=new_home, expect=2).split())
        assert f"{path.name}, line 1: " in refused
        assert "below its header; fetch it again" in refused
        write(path, columns, rows)
    bardo(*words, home=new_home)
