"""Dagster's processes are killed while a run works: what is due happens afterwards, once, without a hand."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.cli.fleet.fleet_commands import dagster_environment
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.unfinished_deaths import unfinished_deaths
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import home_without_verdicts
from tests.support.processes.dagster_daemon import below, daemon, kill, until
from tests.support.processes.postgres import postgres, use_postgres

pytestmark = [pytest.mark.row("P-3"), pytest.mark.full]


@pytest.mark.parametrize("storage", ["sqlite", "postgresql"])
@pytest.mark.parametrize("victim", ["daemon", "code server", "run"])
def test_deaths_are_completed_after_a_kill(small_home: Path, tmp_path: Path, victim: str, storage: str) -> None:
    root = home_without_verdicts(small_home, tmp_path / "home")
    with ExitStack() as stack:
        if storage == "postgresql":
            use_postgres(Home.open(root), stack.enter_context(postgres()))
        _kill_while_deaths_are_completed(root, tmp_path / "daemon.log", victim)


def _kill_while_deaths_are_completed(root: Path, log: Path, victim: str) -> None:
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
            until(works, "a run of the death job", log)
            children = below(process.pid)
            spoiled = {"daemon": [process.pid, *children], "code server": children[:1], "run": children[-1:]}[victim]
            for pid in spoiled:
                kill(pid)
            if victim == "daemon":
                process.wait()
            else:
                until(is_completed, "completed deaths", log)
        if victim == "daemon":
            with daemon(root, log):
                until(is_completed, "completed deaths", log)
    completed = DerivationContext.open(root).life("LegacyLeft")["golem_id"].to_pylist()
    assert sorted(completed) == sorted(dying), "each death is completed once"
    assert verify(Home.open(root)).clean
