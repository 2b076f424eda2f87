"""Growth of a home: under storage pressure less is cached and less is read; derived tables stay equal row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.home_maintenance import is_pressed, tend
from bardo_pipeline.derivation.memory.derive_episodes import (
    derive_episodes,
    episode_index,
    refresh_index,
)
from bardo_pipeline.derivation.reports.home_health import health_of
from bardo_pipeline.errors import DamagedError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_specs import FACT_SCHEMA
from bardo_pipeline.storage.projections.projections import Projections
from tests.conftest import NOW, copy_home
from tests.support.knowledge.handmade_episodes import all_matches


def policy_of(*, home_bytes_max: int, partition_rows: int = 10_000) -> Policy:
    """A policy under which routine episodes expire after minutes, with this storage limit in bytes."""
    growth = {"home_bytes_max": home_bytes_max, "free_bytes_min": 0, "partition_rows": partition_rows}
    content = Policy().model_dump()
    content["decay"] |= {"routine_days": 0.05, "notable_days": 0.1}
    content["growth"] |= growth
    return Policy.model_validate(content)


@pytest.mark.full
@pytest.mark.row("MEM-5", "MEM-13")
def test_under_pressure_expired_episodes_leave_the_index_and_derived_tables_stay(
    brief_home: Path, tmp_path: Path
) -> None:
    copied_home = copy_home(brief_home, tmp_path / "home")
    roomy, tight = policy_of(home_bytes_max=10**12), policy_of(home_bytes_max=1)
    stores = DerivationContext.open(copied_home, policy=roomy)
    assert not is_pressed(stores.home, roomy)
    assert is_pressed(stores.home, tight)
    derive_episodes(stores, now=NOW)
    held = refresh_index(stores)
    tend(stores.home, stores.log, roomy, now=datetime.now(UTC))
    mark = episode_index(stores).watermark()
    assert mark is not None
    assert mark.rows == held, "with room to spare all of it stays"
    before, version = stores.projections.digest("episodes"), stores.log.version
    dry = tend(stores.home, stores.log, tight, now=datetime.now(UTC), dry_run=True)
    report = tend(stores.home, stores.log, tight, now=datetime.now(UTC))
    (step,) = [step for step in report.steps if step.action == "removed expired episodes"]
    assert step.rows in [item.rows for item in dry.steps if item.action == step.action]
    episodes = stores.projections.read("episodes")
    last = pc.max(stores.log.read_cycles(["observed_at"])["observed_at"])
    expired_ids = episodes.filter(pc.less(episodes["may_go_at"], last))["episode_id"].to_pylist()
    assert 0 < len(expired_ids) == step.rows < episodes.num_rows
    hits = all_matches(stores, "the golem held", limit=10_000)["episode_id"].to_pylist()
    assert set(hits) == set(episodes["episode_id"].to_pylist()) - set(expired_ids)
    assert (stores.projections.digest("episodes"), stores.log.version) == (before, version)
    index_health = health_of(stores, NOW).embedder.index
    assert index_health is not None
    assert (index_health.episodes, index_health.recall) == (episodes.num_rows - len(expired_ids), None)
    assert index_health.gone_before is not None
    repeated = tend(stores.home, stores.log, tight, now=datetime.now(UTC))
    assert not [step for step in repeated.steps if step.action == "removed expired episodes"]


def facts(golems: int, each: int) -> pa.Table:
    row = {
        "golem_id": "g", "entry_id": "e", "chain": "c", "protocol": "p", "pair": "w", "metric": "gas", "unit": "u",
        "p10": 0, "p25": 0, "median": 1, "p75": 2, "p90": 2, "day_count": 3, "reinforcement_count": 1,
        "confidence_ppm": 7,
        "last_reinforced_at": NOW, "text": "x",
    }  # fmt: skip
    rows = [row | {"golem_id": f"g-{g:03}", "entry_id": f"e-{e:03}"} for g in range(golems) for e in range(each)]
    return pa.Table.from_pylist(rows, schema=FACT_SCHEMA)


@pytest.mark.row("MEM-13")
@pytest.mark.parametrize("part_rows", [100, 10_000])
def test_a_large_bucket_is_partitioned_and_a_read_of_one_golem_scans_one_part(tmp_path: Path, part_rows: int) -> None:
    policy = policy_of(home_bytes_max=1, partition_rows=part_rows)
    table, rows = Projections(tmp_path / str(part_rows), 1, policy).replaceable("facts"), facts(40, 25)
    table.replace(rows, {0})
    (file,) = table.path.glob("*.parquet")
    parts = pq.ParquetFile(file).metadata.num_row_groups
    assert parts == (10 if part_rows == 100 else 1), "a bucket below partition_rows is one part"
    for golems in (["g-017"], ["g-000", "g-039"], ["nobody"], []):
        expected = rows.filter(pc.is_in(rows["golem_id"], value_set=pa.array(golems, pa.string())))
        assert table.read(only=golems).equals(expected)
        fragments = ds.dataset(file).get_fragments()
        golem_filter = ds.field("golem_id").isin(pa.array(golems, pa.string()))
        read = sum(len(list(fragment.split_by_row_group(golem_filter))) for fragment in fragments)
        assert read <= min(parts, 2 * len(golems))
    assert table.read().equals(rows)


@pytest.mark.row("P-2")
@pytest.mark.parametrize("bucket_count", [1, 4])
@pytest.mark.parametrize("opened_again", [False, True])
def test_an_upsert_equals_a_replacement_of_all_rows(tmp_path: Path, bucket_count: int, opened_again: bool) -> None:
    before = facts(12, 5)
    named = list(zip(before["golem_id"].to_pylist(), before["entry_id"].to_pylist(), strict=True))
    is_changed = [(g in ("g-003", "g-007") and e < "e-003") for g, e in named]
    changed = before.filter(pa.array(is_changed)).set_column(
        before.schema.get_field_index("median"),
        before.schema.field("median"),
        pa.array(range(sum(is_changed)), pa.int64()),
    )
    fresh = facts(13, 1).slice(12)
    unchanged = before.filter(pa.array([not changed_row for changed_row in is_changed]))
    amended, replaced = (Projections(tmp_path / name, bucket_count, Policy()) for name in ("amended", "whole"))
    first = amended.replaceable("facts").replace(before, amended.replaceable("facts").buckets({g for g, _ in named}))
    if opened_again:
        amended = Projections(tmp_path / "amended", bucket_count, Policy())
    by, rows = ("golem_id", "entry_id"), pa.concat_tables([fresh, changed])
    upserted = amended.replaceable("facts").upsert(rows, by=by, upto={"g-003": 2})
    after, table = pa.concat_tables([unchanged, rows]), replaced.replaceable("facts")
    expected = table.replace(after, table.buckets(set(after["golem_id"].to_pylist())))
    assert (
        (upserted.fingerprint, upserted.row_count)
        == (expected.fingerprint, expected.row_count)
        == (expected.fingerprint, 61)
    )
    assert (upserted.rows_written, upserted.version) == (rows.num_rows, (first.version or 0) + 1)
    for item in (amended, Projections(tmp_path / "amended", bucket_count, Policy())):
        assert item.replaceable("facts").digests() == table.digests()
        assert item.replaceable("facts").read().equals(table.read())
        assert item.replaceable("facts").read().equals(table.read())
        assert item.replaceable("facts").done("g-003") == 2


def test_a_table_with_a_deleted_row_is_not_upserted(tmp_path: Path) -> None:
    table = Projections(tmp_path / "home", 1, Policy()).replaceable("facts")
    table.replace(facts(3, 2), {0})
    (file,) = table.path.glob("*.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    reopened = Projections(tmp_path / "home", 1, Policy()).replaceable("facts")
    with pytest.raises(DamagedError, match=file.name):
        reopened.upsert(facts(1, 1), by=("golem_id", "entry_id"))
    assert reopened.digests() == table.digests()
