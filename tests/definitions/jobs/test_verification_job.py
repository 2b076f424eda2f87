"""The verification job: its metadata for a sound log, and its failure for any other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify
from jobs.schedules import every_night
from tests.definitions.running import data_version, decision_of, materializations, run
from tests.support.homes import tampered_homes


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tampered_homes.make(tmp_path_factory.mktemp("verification") / "home").root


@pytest.fixture
def root(kept: Path, tmp_path: Path, at_home: Callable[[Path], Path]) -> Path:
    shutil.copytree(kept, tmp_path / "home")
    return at_home(tmp_path / "home")


@pytest.mark.row("P-3", "X-9")
def test_the_verification_job_reports_digest_and_record_count(root: Path) -> None:
    result = run("verification_job", dg.DagsterInstance.ephemeral())
    (made,) = materializations(result).values()
    by_key = {name: value.value for name, value in made.metadata.items()}
    assert by_key["digest"] == data_version(made) == verify(Home.open(root)).digest
    assert (by_key["records"], by_key["breaks"], by_key["files"]) == (33, "none", [])


@pytest.mark.row("P-3", "X-9")
def test_the_verification_job_fails_and_names_broken_files(root: Path) -> None:
    path = tampered_homes.data_files(Home.open(root))[0]
    path.write_bytes(path.read_bytes()[:-1] + b"2")
    result = run("verification_job", dg.DagsterInstance.ephemeral(), raise_on_error=False)
    assert not result.success
    (failure,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    answer = failure.step_failure_data.user_failure_data
    assert path.name in answer.description
    assert answer.metadata["files"].value == [path.relative_to(root).as_posix()]


@pytest.mark.row("P-3")
def test_the_nightly_schedule_requests_a_run_if_a_home_exists(root: Path, tmp_path: Path) -> None:
    def evaluated(folder: Path) -> dg.RunRequest | dg.SkipReason:
        return decision_of(every_night, folder)

    assert isinstance(evaluated(root), dg.RunRequest)
    assert isinstance(evaluated(tmp_path / "none"), dg.SkipReason)
