"""`bardo live` and `bardo steer` as processes: signals, a kill, steers by command and over HTTP, screen and page."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.live_files import read_views
from tests.support.homes.served_homes import served
from tests.support.processes.bardo_command import bardo, on_terminal
from tests.support.processes.live_processes import WAIT_SECONDS, awaited, living, rows_of

OWNER, OTHER = "owner-1", "owner-2"
MARKET = ("--bars", "3000", "--latency", "1,1,1,1,2", "--golems", "2", "--owner", OWNER, "--owner", OTHER)


@pytest.mark.row("HB-11", "X-12")
def test_a_live_run_is_steered_killed_resumed_and_stopped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with living(home, *MARKET, "--speed", "300") as process:
        awaited(lambda: (home / "home.json").exists() and len(read_views(Home.open(home))) == 2)
        golems = {golem["owner_id"]: golem["golem_id"] for golem in read_views(Home.open(home))}
        refused = bardo("steer", golems[OTHER], "hold", "--owner", OWNER, home=home, expect=2)
        assert "no golem of this name" in refused
        bardo("steer", golems[OWNER], "hold until noon", "--owner", OWNER, home=home)
        with served(home, OWNER, OTHER) as server:
            live = f"{server.url}/v1/golems/{golems[OTHER]}/steers"
            sent = {"intent": "look again", "severity": "low"}
            foreign = httpx.post(live, json=sent, headers=server.headers(OWNER), trust_env=False)
            assert foreign.status_code == 404
            answer = httpx.post(live, json=sent, headers=server.headers(OTHER), trust_env=False)
            assert answer.status_code == 201, answer.text
            seen = httpx.get(f"{server.url}/v1/live", headers=server.headers(OTHER), trust_env=False).json()
            assert [golem["golem_id"] for golem in seen["golems"]] == [golems[OTHER]]
            page = httpx.get(f"{server.url}/live", headers=server.headers(OTHER), trust_env=False)
            assert page.headers["refresh"] == "1"
            assert golems[OTHER] in page.text
            assert golems[OWNER] not in page.text
        awaited(lambda: not list((home / "live" / "steers").glob("*.json")))
        seen_tick = max(golem["tick"] for golem in read_views(Home.open(home)))
        process.kill()
        process.join()
    with living(home, *MARKET, "--speed", "300") as process:
        awaited(lambda: any(not golem["is_replay"] for golem in read_views(Home.open(home))))
        os.kill(process.pid, signal.SIGTERM)
        process.join(WAIT_SECONDS)
        assert process.exitcode == 0
    rows = rows_of(home)
    for golem_id in golems.values():
        ticks = [row["tick"] for row in rows if row["golem_id"] == golem_id]
        assert ticks == list(range(1, len(ticks) + 1))
        assert len(ticks) > seen_tick  # every acknowledged tick is there, and the life went on
    steers = {steer["intent"]: (row, steer) for row in rows for steer in row["active_interventions"]}
    assert set(steers) == {"hold until noon", "look again"}
    high, _ = steers["hold until noon"]
    assert high["golem_id"] == golems[OWNER]
    assert high["forced_by"] == "steer" or high["clocks"]["steers"][0]["effect"] == "cancels"
    assert high["pipeline"]["steer_state"] == high["clocks"]["steers"][0]["state"]
    events = bardo("watch", "--no-follow", "--category", "cognition", "--format", "json", home=home)
    received = [line for line in events.splitlines() if "heartbeat:steer_received" in line]
    assert len(received) == 2
    assert "clean" in bardo("verify", home=home)
    assert read_views(Home.open(home)) == []


def test_a_steer_needs_a_live_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert "120 records" in bardo("live", "--bars", "120", "--speed", "0", home=home)
    golem = rows_of(home)[0]["golem_id"]
    assert "start one by `bardo live`" in bardo("steer", golem, "hold", home=home, expect=2)
    assert "give the seconds of reading" in bardo("live", "--latency", "1,2", home=home, expect=2)


def test_the_screen_shows_state_mood_position_and_decisions(tmp_path: Path) -> None:
    home = tmp_path / "home"
    printed = on_terminal(["live", "--bars", "120", "--speed", "0"], home, columns=200)
    for words in ("Last decisions", "thriving", "uniswap_v3", "of the day", "anomaly"):
        assert words in printed, words
