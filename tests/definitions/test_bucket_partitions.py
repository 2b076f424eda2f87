"""The assets by golem have a partition for each hash bucket: a run of one, runs of all, and the requests of sensors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.storage.delta.table_specs import TABLES
from tests.conftest import NOW, copy_home, home_without_verdicts
from tests.support.processes.forked_processes import CONTEXT

NAMES = {"0", "1"}


def digests(root: Path) -> dict[str, str]:
    stores = DerivationContext.open(root)
    derive_everything(stores, now=NOW)
    return {name: stores.projections.digest(name).fingerprint for name in TABLES}


def golems_with_decisions(root: Path) -> set[str]:
    return set(DerivationContext.open(root).projections.growing("curation").read(["golem_id"])["golem_id"].to_pylist())


def run_partitions(folder: str) -> None:
    """Run the dream job for each partition and for all, in a process whose code location has two partitions."""
    root = Path(folder)
    os.environ |= {"BARDO_BUCKETS": "2", "BARDO_HOME": folder}
    from assets.resources import ALL_BUCKETS
    from definitions import defs
    from jobs.run_requests import request_due, tags_of

    graph = defs.resolve_asset_graph()
    divided = {key.to_user_string() for key in graph.get_all_asset_keys() if graph.get(key).is_partitioned}
    assert divided == {
        *("curation", "cycles", "grimoire", "playbooks", "credits", "episodes", "facts", "links", "crossings"),
        *("hypotheses", "dreams", "lessons", "failures"),
    }
    assert {graph.get(dg.AssetKey(name)).backfill_policy for name in divided} == {dg.BackfillPolicy.single_run()}
    job, seen = defs.resolve_job_def("dream_job"), set[str]()
    with dg.DagsterInstance.ephemeral() as instance:

        def partitions_of(**options: object) -> set[str]:
            result = job.execute_in_process(instance=instance, **options)  # type: ignore[arg-type]
            assert result.success
            return {e.partition for e in result.get_asset_materialization_events() if e.asset_key.path[0] == "dreams"}

        with pytest.raises(ConfigError, match=r"BARDO_BUCKETS.* --tags '(.*)'") as refused:
            partitions_of()
        cure = json.loads(str(refused.value).split("'")[-2])
        for name in sorted(NAMES, reverse=True):
            assert partitions_of(partition_key=name) == {name}
            fresh = golems_with_decisions(root) - seen
            assert fresh, f"partition {name} derived no golem"
            seen |= fresh
        request = request_due(instance, "dream_job", ["due"], "a cycle closed", NOW)
        assert isinstance(request, dg.RunRequest)
        assert partitions_of(tags=dict(request.tags)) == partitions_of(tags=cure) == NAMES
        assert golems_with_decisions(root) == seen
    assert not ALL_BUCKETS.keys() & tags_of("spool_job", "a file").keys(), "this job has no partitions"


@pytest.mark.full
@pytest.mark.row("P-2", "P-6")
def test_runs_of_single_partitions_and_of_all_derive_the_tables_of_one_derivation(
    small_home: Path, tmp_path: Path
) -> None:
    bare = home_without_verdicts(small_home, tmp_path / "bare")
    wanted = digests(copy_home(bare, tmp_path / "whole"))
    process = CONTEXT.Process(target=run_partitions, args=(str(bare),))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert digests(bare) == wanted
