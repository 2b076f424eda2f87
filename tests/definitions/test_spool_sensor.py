"""The spool in Dagster: when its sensor requests a run, and the run's metadata for each file."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from assets.log import QUARANTINE
from assets.resources import LazyStores
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from sensors.home_sensors import files_dropped
from tests import fuzz
from tests.conftest import NOW
from tests.definitions.running import materializations, metadata_value, run

pytestmark = pytest.mark.row("EV-4")
LINES = [fuzz.dumps(record) for record in fuzz.good_records(20, tick=1, seed=1)]


def run_sensor(root: Path, instance: dg.DagsterInstance) -> dg.RunRequest | dg.SkipReason:
    return files_dropped(dg.build_sensor_context(instance=instance, resources={"home": LazyStores(root)}))


@pytest.fixture
def root(tmp_path: Path, at_home) -> Path:
    return at_home(Home.create(tmp_path / "home", Policy(), NOW).root)


def test_spool_files_request_one_run_that_ingests_all(root: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert run_sensor(root, instance).skip_message == "the spool is empty"
        (root / "spool" / "a.jsonl").write_bytes(b"\n".join(LINES[:10]))
        (root / "spool" / "b.jsonl").write_bytes(b"\n".join([*LINES[10:], LINES[0], b"{"]))
        (root / "spool" / ".c.jsonl").write_bytes(b"still being written")
        asked = run_sensor(root, instance)
        assert asked.tags["bardo/why"] == "a.jsonl, b.jsonl dropped"
        made = materializations(run("spool_job", instance))[QUARANTINE.to_user_string()]
        by_key = {
            name: metadata_value(made, name)
            for name in ("files", "records", "written", "repeated", "quarantined", "open")
        }
        assert by_key == {"files": 2, "records": 22, "written": 20, "repeated": 1, "quarantined": 1, "open": 1}
        assert metadata_value(made, "errors") == {"RecordError": 1}
        assert metadata_value(made, "mb_per_s") > 0
        assert run_sensor(root, instance).skip_message == "the spool is empty"
    with EventLog(Home.open(root)) as log:
        assert len(log.read_cycles(["tick"])) == 20


def test_an_active_run_blocks_another_request_until_its_pause_is_over(root: Path) -> None:
    (root / "spool" / "a.jsonl").write_bytes(LINES[0])
    with dg.DagsterInstance.ephemeral() as instance:
        under_way = instance.add_run(
            dg.DagsterRun(
                job_name="spool_job", run_id=dg._core.utils.make_new_run_id(), status=dg.DagsterRunStatus.STARTED
            )
        )
        assert "is active" in run_sensor(root, instance).skip_message
        instance.report_run_failed(under_way)
        assert "attempt 1 ended without it" in run_sensor(root, instance).skip_message


def test_an_equally_named_file_is_requested_at_once(root: Path) -> None:
    """A runtime may use one name for all its files, and no pause grows from it."""
    with dg.DagsterInstance.ephemeral() as instance:
        for line in LINES[:3]:
            (root / "spool" / "a.jsonl").write_bytes(line)
            asked = run_sensor(root, instance)
            assert isinstance(asked, dg.RunRequest)
            run("spool_job", instance, tags=asked.tags)


def test_the_spool_sensor_skips_a_missing_home(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert "there is no home" in run_sensor(tmp_path / "nowhere", instance).skip_message
