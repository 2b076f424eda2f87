"""Dagster's processes are killed while a run works: what is due happens afterwards, once, without a hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.cli.fleet.fleet_commands import dagster_environment
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.unfinished_deaths import unfinished_deaths
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import home_without_verdicts

pytestmark = [pytest.mark.row("P-3"), pytest.mark.full]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 600
"""Seconds for a busy machine; a quiet one needs about 60 for each wait."""


@contextmanager
def daemon(root: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run Dagster's daemon with its code server; both and all runs are killed at the end."""
    command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", "workspace.yaml"]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dagster_environment(root), stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        for pid in [process.pid, *below(process.pid)]:
            kill(pid)
        process.wait()


def below(pid: int) -> list[int]:
    """Return the processes below a process, children before grandchildren."""
    parents = {int(stat.split()[0]): int(stat.rpartition(")")[2].split()[1]) for stat in _stats()}
    found, level = [], [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        found += level
    return found


def _stats() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.2)


@pytest.mark.parametrize("victim", ["daemon", "code server", "run"])
def test_deaths_are_completed_after_a_kill(small_home: Path, tmp_path: Path, victim: str) -> None:
    root = home_without_verdicts(small_home, tmp_path / "home")
    log = tmp_path / "daemon.log"
    dying = [death.golem_id for death in unfinished_deaths(DerivationContext.open(root))]
    assert len(dying) > 3
    environment = dagster_environment(root)
    with dg.DagsterInstance.from_config(environment["DAGSTER_HOME"]) as instance:

        def works() -> bool:
            started = dg.RunsFilter(job_name="death_job", statuses=[dg.DagsterRunStatus.STARTED])
            return instance.get_runs_count(started) > 0

        def is_completed() -> bool:
            return not unfinished_deaths(DerivationContext.open(root))

        with daemon(root, log) as process:
            until(works, "a run of the death job")
            children = below(process.pid)
            spoiled = {"daemon": [process.pid, *children], "code server": children[:1], "run": children[-1:]}[victim]
            for pid in spoiled:
                kill(pid)
            if victim == "daemon":
                process.wait()
            else:
                until(is_completed, f"completed deaths: {log.read_text()[-4000:]}")
        if victim == "daemon":
            with daemon(root, log):
                until(is_completed, f"completed deaths: {log.read_text()[-4000:]}")
    completed = DerivationContext.open(root).life("LegacyLeft")["golem_id"].to_pylist()
    assert sorted(completed) == sorted(dying), "each death is completed once"
    assert verify(Home.open(root)).clean
