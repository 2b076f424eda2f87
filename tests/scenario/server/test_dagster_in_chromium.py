"""`bardo ui` in a real Chromium: every asset group, and a run launched by clicks."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.cli.fleet.fleet_commands import dagster_environment
from definitions import defs
from tests.conftest import copy_home
from tests.support.homes.large_home import large_home
from tests.support.homes.served_homes import served
from tests.support.processes.browser import Browser, browser, needs_chromium
from tests.support.processes.dagster_daemon import ROOT, below, kill

pytestmark = [needs_chromium, pytest.mark.full, pytest.mark.row("P-3")]

PATIENCE, CLICK_SECONDS = 240.0, 30.0
PLACE = "/locations/bardo"


@contextmanager
def dagster_ui(root: Path, log: Path) -> Iterator[str]:
    """Run `bardo ui` on a free port and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("bardo")), "ui", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "BARDO_HOME": str(root)},
                                   stdout=out, stderr=out, start_new_session=True)  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        for pid in [process.pid, *below(process.pid)]:
            kill(pid)
        process.wait()


def opened(session: Browser, url: str, words: Sequence[str], log: Path) -> None:
    """Open a page and wait for one of these texts; the server may still start."""
    deadline = time.monotonic() + PATIENCE
    shown, reload_at = "", 0.0
    while not any(text in shown for text in words):
        now = time.monotonic()
        assert now < deadline, f"{url} does not show {words}, but {shown[:500]}; {log.read_text()[-3000:]}"
        if now >= reload_at:  # nothing may have listened at the last attempt
            reload_at = now + 20.0
            with suppress(AssertionError):
                session.open(url)
        time.sleep(1.0)
        shown = session.text()


def click(session: Browser, words: str) -> None:
    """Click the first button or link with this text."""
    path = f"//*[self::button or self::a or @role='button'][contains(normalize-space(.), '{words}')]"
    found = session.command("POST", "/element", using="xpath", value=path)
    session.command("POST", f"/element/{next(iter(found.values()))}/click")


def launched(session: Browser, root: Path, page: str, pictures: Path, log: Path) -> dg.DagsterRun:
    """Launch the job of a page by clicks, and return its run after its success."""
    opened(session, page, ["Materialize all"], log)
    deadline, clicked_at = time.monotonic() + PATIENCE, float("-inf")
    with dg.DagsterInstance.from_config(dagster_environment(root)["DAGSTER_HOME"]) as instance:
        while not (runs := clicked_runs(instance, page.rpartition("/")[2])) or not runs[0].is_success:
            assert time.monotonic() < deadline, f"{runs}; {session.text()[:1000]}; {log.read_text()[-3000:]}"
            if "Are you sure?" in session.text():  # an asset that the job reads was not materialized yet
                click(session, "Confirm")
                screenshot(session, pictures, "confirmed")
            elif not runs and time.monotonic() >= clicked_at + CLICK_SECONDS:  # the page may not have been ready
                click(session, "Materialize all")
                clicked_at = time.monotonic()
            time.sleep(1.0)
    return runs[0]


def clicked_runs(instance: dg.DagsterInstance, job: str) -> list[dg.DagsterRun]:
    """Return the runs of a job that no schedule and no sensor launched, the newest first."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job))
    return [run for run in runs if not {"dagster/schedule_name", "dagster/sensor_name"} & run.tags.keys()]


def follow(session: Browser, address: str, token: str, words: str) -> None:
    """Click the link to a page of the server, which opens in a new window; sign in there and wait for these words."""
    until_true(session, f"return [...document.links].some(link => link.href.startsWith('{address}'))")
    script = f"[...document.links].find(link => link.href.startsWith('{address}')).click()"
    before = set(session.command("GET", "/window/handles"))
    session.run(script)
    opened_windows: set[str] = set()
    deadline = time.monotonic() + PATIENCE
    while not opened_windows:
        assert time.monotonic() < deadline, f"the link to {address} opens no window"
        opened_windows = set(session.command("GET", "/window/handles")) - before
    session.command("POST", "/window", handle=opened_windows.pop())
    if "Give a token" in session.text():
        session.run(f"document.querySelector('input[name=token]').value = '{token}'; document.forms[0].submit()")
    session.wait_for(words)


def until_true(session: Browser, script: str) -> None:
    """Wait until a script returns true."""
    deadline = time.monotonic() + PATIENCE
    while not session.run(script):
        assert time.monotonic() < deadline, f"{script} stays false on {session.text()[:500]}"
        time.sleep(0.5)


def screenshot(session: Browser, folder: Path, name: str) -> None:
    picture = base64.b64decode(session.command("GET", "/screenshot"))
    (folder / f"{name}.png").write_bytes(picture)


def test_groups_and_a_launched_run_in_a_browser(small_home: Path, tmp_path: Path) -> None:
    root, log = copy_home(small_home, tmp_path / "home"), tmp_path / "ui.log"
    pictures = Path(os.environ.get("BARDO_SCREENSHOTS", tmp_path / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    specs = list(defs.resolve_all_asset_specs())
    groups = sorted({spec.group_name or "default" for spec in specs})
    with served(root) as server, dagster_ui(root, log) as url, browser(tmp_path) as session:
        for group in groups:
            names = [spec.key.path[-1] for spec in specs if spec.group_name == group]
            opened(session, f"{url}{PLACE}/asset-groups/{group}/list", names, log)
            screenshot(session, pictures, f"group-{group}")

        run = launched(session, root, f"{url}{PLACE}/jobs/curator_job", pictures, log)
        assert "Detected run worker status" not in log.read_text(), "a run that works is not taken for a lost one"
        opened(session, f"{url}/runs/{run.run_id}", ["Success"], log)
        screenshot(session, pictures, "run")

        page = f"{url}/assets/fct_tier_costs?view=overview"
        opened(session, page, ["dbt_docs"], log)
        plot = "return [...document.images].some(i => i.src.startsWith('data:image/svg') && i.naturalWidth > 0)"
        click(session, "Show Markdown")
        until_true(session, plot)
        screenshot(session, pictures, "plot")
        follow(session, f"{server.url}/docs/dbt/", server.tokens[None], "dbt")
        launched(session, root, f"{url}{PLACE}/jobs/death_job", pictures, log)
        opened(session, f"{url}/assets/verdicts?view=overview", ["data_docs"], log)
        follow(session, f"{server.url}/docs/data/", server.tokens[None], "Data Docs")
        screenshot(session, pictures, "data-docs")


def test_asset_pages_of_ten_thousand_golems_load_after_a_curator_run(tmp_path: Path) -> None:
    root, log = large_home(tmp_path / "home").root, tmp_path / "ui.log"
    groups = {spec.group_name for spec in defs.resolve_all_asset_specs()}
    with dagster_ui(root, log) as url, browser(tmp_path) as session:
        launched(session, root, f"{url}{PLACE}/jobs/curator_job", tmp_path, log)
        for group in groups:
            opened(session, f"{url}{PLACE}/asset-groups/{group}/list", ["Materialize"], log)
        opened(session, f"{url}/assets/grimoire?view=overview", ["Latest materialization"], log)
