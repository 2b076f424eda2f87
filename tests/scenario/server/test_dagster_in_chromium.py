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
from tests.support.processes.browser import Browser, browser, needs_chromium
from tests.support.processes.dagster_daemon import ROOT, below, kill

pytestmark = [needs_chromium, pytest.mark.full, pytest.mark.row("P-3")]

PATIENCE = 240.0
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


def screenshot(session: Browser, folder: Path, name: str) -> None:
    picture = base64.b64decode(session.command("GET", "/screenshot"))
    (folder / f"{name}.png").write_bytes(picture)


def test_groups_and_a_launched_run_in_a_browser(small_home: Path, tmp_path: Path) -> None:
    root, log = copy_home(small_home, tmp_path / "home"), tmp_path / "ui.log"
    pictures = Path(os.environ.get("BARDO_SCREENSHOTS", tmp_path / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    specs = list(defs.resolve_all_asset_specs())
    groups = sorted({spec.group_name or "default" for spec in specs})
    with dagster_ui(root, log) as url, browser(tmp_path) as session:
        for group in groups:
            names = [spec.key.path[-1] for spec in specs if spec.group_name == group]
            opened(session, f"{url}{PLACE}/asset-groups/{group}/list", names, log)
            screenshot(session, pictures, f"group-{group}")

        opened(session, f"{url}{PLACE}/jobs/curator_job", ["Materialize all"], log)
        click(session, "Materialize all")
        instance_folder = dagster_environment(root)["DAGSTER_HOME"]
        with dg.DagsterInstance.from_config(instance_folder) as instance:
            deadline = time.monotonic() + PATIENCE
            while not instance.get_runs_count(
                dg.RunsFilter(job_name="curator_job", statuses=[dg.DagsterRunStatus.SUCCESS])
            ):
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(1.0)
            (run,) = instance.get_runs(dg.RunsFilter(job_name="curator_job"), limit=1)
        opened(session, f"{url}/runs/{run.run_id}", ["Success"], log)
        screenshot(session, pictures, "run")
