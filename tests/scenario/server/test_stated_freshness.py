"""Each answer of the server states how fresh it is in a header; strangers learn no work of golems."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from bardo_pipeline.derivation.home_status import status_of
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.server.callers import Caller
from bardo_pipeline.server.warm_home import StatedFreshness, WarmHome
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW, copy_home
from tests.support.homes.served_homes import Served
from tests.support.homes.server_routes import GET_ROUTES, POST_ROUTES, path_for
from tests.support.homes.two_owners import CORAL, PEARL, Belongings
from tests.support.records.handmade_births import birth_of
from tests.support.records.log_queries import GOLEM, append, ticks


@pytest.fixture(scope="module")
def home(two_owners_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a home in which a third owner has a tick that is not derived, so that views differ from the whole."""
    copied = copy_home(two_owners_home, tmp_path_factory.mktemp("fresh") / "home")
    with EventLog(Home.open(copied)) as log:
        log.record([birth_of(GOLEM)], NOW)
        append(log, ticks(1))
    return copied


@pytest.mark.row("X-13")
def test_a_golem_that_fell_silent_without_a_record_does_not_lag(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    with EventLog(home) as log:
        log.record([birth_of(GOLEM)], NOW)
        append(log, ticks(1))
        log.record([birth_of("g-mute"), life_event("g-mute", NOW, Gap(tick_from=1, tick_to=1, why="silent"))], NOW)
    warm = WarmHome(home.root, threads=1)
    with warm.context(None) as context:
        assert [warm.freshness(context, golem).lag_ticks for golem in ("g-mute", GOLEM, None)] == [0, 1, 1]
        assert status_of(context, NOW)["log"]["ticks"] == 1
    warm.close()


FIELDS = ["as_of", "cycle", "tick", "log_version", "life_version", "lag_ticks"]


def stated(answer: httpx.Response) -> dict[str, Any]:
    """Return the freshness in the header of an answer, which must be there."""
    assert "bardo-freshness" in answer.headers, f"{answer.request.method} {answer.url}: {answer.status_code}"
    fresh: dict[str, Any] = json.loads(answer.headers["bardo-freshness"])
    assert list(fresh) == FIELDS, f"{answer.request.method} {answer.url}: {fresh}"
    return fresh


@contextmanager
def asking(server: Served, owner: str | None) -> Iterator[httpx.Client]:
    """Yield a client with the owner's token, when the state of the view is known: a busy machine reads it slowly."""
    with httpx.Client(base_url=server.url, headers=server.headers(owner), trust_env=False, timeout=60) as asks:
        deadline = time.monotonic() + 60
        while asks.get("/none").headers["bardo-freshness"] == "null":
            assert time.monotonic() < deadline, "the state was never read"
            time.sleep(0.05)
        yield asks


@pytest.mark.row("X-13")
def test_every_route_states_the_freshness_of_the_owners_view(
    server: Served, coral: Belongings, pearl: Belongings
) -> None:
    with asking(server, CORAL) as coral_asks, asking(server, PEARL) as pearl_asks, asking(server, None) as whole_asks:
        views = [asks.get("/v1/status").json()["freshness"] for asks in (coral_asks, pearl_asks, whole_asks)]
        lags = [view["lag_ticks"] for view in views]
        assert lags[2] == lags[0] + lags[1] + 1
        for asks, own, view in ((coral_asks, coral, views[0]), (pearl_asks, pearl, views[1])):
            for path in GET_ROUTES.values():
                answer = asks.get(path_for(path, own))
                is_json = answer.headers["content-type"] == "application/json"
                body = answer.json().get("freshness") if is_json else None
                assert stated(answer) == (view if body is None else body), path
                refused = asks.get(f"{path_for(path, own)}{'&' if '?' in path else '?'}unknown=1")
                assert stated(refused) == view or refused.is_success, path
            for path in POST_ROUTES:
                refused = asks.post(path.replace("{golem_id:golem}", own.golem))
                assert refused.is_client_error, path
                assert stated(refused) in (view, {**view, "cycle": None, "lag_ticks": None}), path
            assert stated(asks.get("/none")) == stated(asks.delete("/v1/golems")) == view
        for path in ("/healthz", "/openapi.json", "/docs/dbt/", "/docs/data/"):
            assert stated(whole_asks.get(path)) == views[2], path


@pytest.mark.row("X-13")
def test_the_protocol_states_the_freshness_of_the_owners_view(server: Served) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    with asking(server, CORAL) as asks:
        answer = asks.post("/mcp", json=message, headers=accept)
        assert (answer.is_success, stated(answer)) == (True, asks.get("/v1/status").json()["freshness"])


@pytest.mark.row("X-12", "X-13")
def test_an_answer_to_no_token_states_no_work_of_golems(server: Served, coral: Belongings) -> None:
    with asking(server, None) as asks:
        whole = asks.get("/v1/status").json()["freshness"]
    shown = {**whole, "cycle": None, "lag_ticks": None}
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as stranger:
        for path in GET_ROUTES.values():
            assert stated(stranger.get(path_for(path, coral))) == shown, path
        wrong = {"authorization": "Bearer wrong"}
        for path in ("/", "/healthz", "/v1/golems", "/none"):
            refused = stranger.get(path, headers=wrong)
            assert (refused.status_code, stated(refused)) == (401, shown)
        foreign = stranger.get("/v1/golems", headers={**server.headers(PEARL), "bardo-owner": CORAL})
        assert (foreign.status_code, stated(foreign)) == (403, shown)
        assert stranger.post("/", data={"token": server.tokens[CORAL]}).status_code == 303
        with asking(server, CORAL) as asks:
            assert stated(stranger.get("/docs/dbt/")) == asks.get("/v1/status").json()["freshness"]


@pytest.fixture
def warm(two_owners_home: Path, tmp_path: Path) -> Iterator[WarmHome]:
    home = WarmHome(copy_home(two_owners_home, tmp_path / "home"), threads=1)
    yield home
    home.close()


@pytest.mark.row("X-13")
def test_a_state_is_read_again_when_it_is_old(warm: WarmHome) -> None:
    async def versions_read(age_seconds: float, tick: int) -> int:
        freshness = StatedFreshness(warm, age_seconds=age_seconds)
        await freshness.read(None, warm.run(lambda: warm.warm_up(NOW)))
        first = await freshness.of(Caller(None))
        with EventLog(warm.home) as log:
            append(log, ticks(tick))
        await freshness.of(Caller(None))
        await warm.run(lambda: None)  # in the only thread, after a read that began
        second = await freshness.of(Caller(None))
        assert first is not None
        assert second is not None
        return int(second["log_version"] - first["log_version"])

    assert asyncio.run(versions_read(0.0, 1)) == 1
    assert asyncio.run(versions_read(60.0, 2)) == 0


@pytest.mark.row("X-13")
def test_a_busy_home_delays_no_refusal_and_its_last_state_is_stated(warm: WarmHome) -> None:
    async def states() -> list[dict[str, Any] | None]:
        freshness, free = StatedFreshness(warm, age_seconds=0.0), threading.Event()
        known = await freshness.read(None, warm.run(lambda: warm.warm_up(NOW)))
        busy = asyncio.create_task(warm.run(free.wait))
        await asyncio.sleep(0)
        shown = [await freshness.of(Caller(None)), await freshness.of(Caller(CORAL)), asdict(known)]
        free.set()
        await busy
        return shown

    whole, unread, known = asyncio.run(states())
    assert (whole, unread) == (known, None)


@pytest.mark.row("X-13")
def test_a_view_that_cannot_be_read_has_no_state(warm: WarmHome) -> None:
    freshness = StatedFreshness(warm)
    assert asyncio.run(freshness.of(Caller("nobody"))) is None
