"""The log on disk: append-only tables, lost or stale indexes, reads across compactions, and the home folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from bardo_pipeline.errors import ForkError, NoHomeError, RegressionError, SchemaVersionError, StoreError
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.durable_commits import Added
from bardo_pipeline.storage.home import Home, bucket_of, home_root
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.stream_heads import TickRange
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import (
    GOLEM,
    LATER,
    NOW,
    accepted,
    append,
    content,
    died,
    head,
    same,
    ticks,
    vectors,
)

# on disk: append-only


@pytest.mark.row("P-1")
@pytest.mark.parametrize("name", ["cycles", "life", "vectors"])
def test_delta_refuses_to_change_or_remove_a_row(disk: EventLog, home: Home, name: str) -> None:
    append(disk, ticks(1))
    disk.record([accepted(4, 4)], NOW)
    disk.record_vectors(vectors(["a"]))
    table = DeltaTable(getattr(home, name))
    rows = table.to_pyarrow_table().slice(0, 1)
    version = table.version()
    first = rows.column_names[1]
    attempts: list[Callable[[], object]] = [
        table.delete,
        lambda: table.delete(f"{first} is not null"),
        lambda: table.update(updates={first: "'x'"}),
        lambda: write_deltalake(table, rows, mode="overwrite"),
        lambda: write_deltalake(table, rows, mode="overwrite", predicate=f"{first} is not null"),
        lambda: (
            table.merge(rows, f"t.{first} = s.{first}", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .execute()
        ),
    ]
    for attempt in attempts:
        with pytest.raises(CommitFailedError, match="append-only"):
            attempt()
    assert DeltaTable(getattr(home, name)).version() == version


@pytest.mark.row("P-1")
def test_no_code_of_the_log_deletes_a_row() -> None:
    rooms = Path(__file__).parents[3] / "bardo_pipeline" / "storage"
    for name in (
        "append_only_table.py",
        "durable_commits.py",
        "parquet_io.py",
        "event_log.py",
        "stream_heads.py",
        "home.py",
        "protocol.py",
    ):
        source = next(rooms.rglob(name)).read_text()
        calls = re.findall(
            r"\.(?:vacuum|restore|delete|merge|repair)\(|handle\.update\(|overwrite|RemoveAction", source
        )
        assert calls == [], name


@pytest.mark.row("P-1")
def test_the_table_is_an_ordinary_delta_table(disk: EventLog, home: Home) -> None:
    batch = records(50, golems=5, dense=True)
    append(disk, batch)
    table = DeltaTable(home.cycles)
    assert table.metadata().configuration["delta.appendOnly"] == "true"
    assert table.transaction_version("runtime") is not None
    assert same(table.to_pyarrow_table().select(RECORD_SCHEMA.names), batch)
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert [(a["num_records"], a["min.tick"], a["max.tick"]) for a in actions] == [(50, 1, 10)]
    assert (actions[0]["min.golem_id"], actions[0]["max.golem_id"]) == ("golem-0000", "golem-0004")


# on disk: memory equals the recorded rows


def test_heads_are_the_same_without_their_index(disk: EventLog, home: Home) -> None:
    append(disk, pa.concat_tables([ticks(1, 4, golems=3), ticks(9)]))
    disk.record([accepted(5, 6)], NOW)
    heads, gaps = disk.heads(), disk.gaps()
    disk.close()
    index = home.index / "heads.arrow"
    assert index.exists()
    for spoil in (lambda: None, lambda: index.write_bytes(b"no arrow"), index.unlink):
        spoil()
        log = EventLog(home, Policy())
        assert log.heads().equals(heads)
        assert log.gaps() == gaps


def test_a_stale_index_is_updated(disk: EventLog, home: Home) -> None:
    append(disk, ticks(1, 4))
    disk.close()
    append(disk, pa.concat_tables([ticks(5), ticks(8)]))
    log = EventLog(home, Policy())
    assert log.heads().equals(disk.heads())
    assert log.gaps() == (TickRange(GOLEM, 6, 7),)


def test_an_index_of_another_log_is_ignored(disk: EventLog, home: Home, tmp_path: Path) -> None:
    append(disk, ticks(1, 4))
    disk.close()
    other = Home.create(tmp_path / "other", Policy(), NOW)
    with EventLog(other, Policy()) as log:
        append(log, ticks(1))
    (home.index / "heads.arrow").replace(other.index / "heads.arrow")
    assert head(EventLog(other, Policy())) == (1, 1, 0)


def test_a_handle_sees_the_writes_of_another(disk: EventLog, home: Home) -> None:
    other = EventLog(home, Policy())
    append(disk, ticks(1, 3))
    assert head(other) == (3, 3, 0)
    assert append(other, ticks(2, 4), writer="other").written == 1
    with pytest.raises(ForkError, match="tick 4"):
        append(disk, ticks(4, seed=1))
    disk.record([accepted(5, 5)], NOW)
    with pytest.raises(RegressionError, match="tick 5"):
        append(other, ticks(5), writer="other")
    assert other.record([accepted(5, 5)], LATER) == 0
    disk.record([died(6)], NOW)
    with pytest.raises(RegressionError, match="tick 7 comes after its death at tick 6"):
        append(other, ticks(7), writer="other")
    append(other, ticks(6), writer="other")
    assert disk.record([died(5)], NOW) == 0, "a golem dies once: the first death on record counts"
    with pytest.raises(RegressionError, match="tick 7"):
        append(EventLog(home, Policy()), ticks(7))
    disk.record_vectors(vectors(["a"]))
    assert other.record_vectors(vectors(["a"])) == 0


def test_a_refresh_reads_only_new_commits(disk: EventLog, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    other = EventLog(home, Policy())
    for tick in range(1, 9):
        append(disk, ticks(tick))
    other.heads()
    append(disk, ticks(9))
    loaded: list[int] = []
    load = AppendOnlyTable.load
    monkeypatch.setattr(
        AppendOnlyTable,
        "load",
        lambda self, files, *rest: loaded.extend([f.rows for f in files]) or load(self, files, *rest),
    )
    assert head(other) == (9, 9, 0)
    other.heads()
    assert loaded == [1]


def test_a_stale_reader_of_a_trimmed_log_gets_only_new_rows(disk: EventLog, home: Home) -> None:
    for tick in range(1, 25):
        append(disk, ticks(tick))
    reader = EventLog(home, Policy())
    (home.cycles / "_delta_log" / f"{3:020}.json").unlink()
    assert sorted(reader.read_cycles(["tick"], since_version=2)["tick"].to_pylist()) == list(range(3, 25))
    assert len(reader.read_cycles(["tick"], since_version=20)) == 4


def test_a_compaction_adds_no_rows_to_an_incremental_read(disk: EventLog, home: Home) -> None:
    for tick in range(1, 4):
        append(disk, ticks(tick))
    version = disk.version
    DeltaTable(home.cycles).optimize.compact()
    assert disk.version > version
    assert disk.read_cycles(since_version=version).num_rows == 0
    assert same(content(disk), ticks(1, 3))
    assert append(disk, ticks(2, 4)).written == 1
    assert head(disk) == (4, 4, 0)
    assert same(content(EventLog(home, Policy())), ticks(1, 4))


def test_an_old_version_is_read_unchanged(disk: EventLog, home: Home) -> None:
    for tick in range(1, 6):
        append(disk, ticks(tick))
    DeltaTable(home.cycles).optimize.compact()  # one file now holds the rows of versions before and after 3
    assert sorted(disk.read_cycles(["tick"], until_version=3)["tick"].to_pylist()) == [1, 2, 3]
    assert sorted(disk.read_cycles(["tick"], 1, until_version=3)["tick"].to_pylist()) == [2, 3]
    assert sorted(disk.read_cycles(["tick"], until_version=disk.version)["tick"].to_pylist()) == [1, 2, 3, 4, 5]
    assert disk.read_cycles(until_version=0).num_rows == 0


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    AppendOnlyTable(tmp_path / "table", pa.schema([("a", pa.int64())]), ["a"])
    demanding = pa.schema([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    for other in (demanding, pa.schema([("a", pa.string())]), pa.schema([("b", pa.int64())])):
        with pytest.raises(SchemaVersionError, match="other columns"):
            AppendOnlyTable(tmp_path / "table", other, ["a"])


def test_a_nullable_column_is_added_by_the_first_append(tmp_path: Path) -> None:
    old_schema, new_schema = (
        pa.schema([("a", pa.int64())]),
        pa.schema([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
    )
    AppendOnlyTable(tmp_path / "table", old_schema, ["a"]).append(
        pa.table({"a": [1]}, schema=old_schema), transactions={"w": 1}
    )
    table = AppendOnlyTable(tmp_path / "table", new_schema, ["a"])
    assert table.read().to_pylist() == [{"a": 1, "b": None}]
    table.append(pa.table({"a": [2], "b": [{"c": "x"}]}, schema=new_schema), transactions={"w": 2})
    rows = AppendOnlyTable(tmp_path / "table", new_schema, ["a"]).read().sort_by("a").to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": {"c": "x"}}]


@pytest.mark.row("EV-2")
def test_a_transaction_is_committed_once_by_racing_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("a", pa.int64())])
    first, two = (AppendOnlyTable(tmp_path / "table", schema, ["a"]) for _ in range(2))
    rows = pa.table({"a": [1, 2]}, schema=schema)
    assert first.append(rows, transactions={"w": 0}) == 1
    assert two.append(rows, transactions={"w": 0}) is None
    write = AppendOnlyTable.write

    def overtaken(number: int) -> Callable[[AppendOnlyTable, pa.Table], Added]:
        def late(table: AppendOnlyTable, given: pa.Table) -> Added:  # other handle commits after this one has looked
            monkeypatch.setattr(AppendOnlyTable, "write", write)
            assert first.append(given, transactions={"w": number}) == number + 1
            return write(table, given)

        return late

    monkeypatch.setattr(AppendOnlyTable, "write", overtaken(1))
    assert two.append(rows, transactions={"w": 1}) is None
    monkeypatch.setattr(AppendOnlyTable, "write", overtaken(2))
    assert two.append(rows, transactions={"v": 7}) == 4, "rows of another transaction are appended"
    assert first.read().num_rows == 8
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 4, "the file of the lost commit is removed"


def test_a_half_repeated_commit_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64())])
    table = AppendOnlyTable(tmp_path / "table", schema, ["a"])
    rows = pa.table({"a": [1]}, schema=schema)
    table.append(rows, transactions={"w": 1})
    with pytest.raises(StoreError, match="only w are committed"):
        table.append(rows, transactions={"w": 1, "v": 1})
    assert table.read().num_rows == 1
    assert table.transaction_version("w") == 1
    assert table.transaction_version("v") is None


# the home


def test_opening_a_folder_without_a_home_names_the_commands_that_create_it(tmp_path: Path) -> None:
    with pytest.raises(NoHomeError, match="make one by `bardo init`"):
        Home.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_home_is_created_once(tmp_path: Path) -> None:
    created = Home.create(tmp_path / "a" / "home", Policy(), NOW)
    policy = Policy.model_validate({"log": {"bucket_count": 4}})
    for reopened in (Home.create(created.root, policy, LATER), Home.open(created.root)):
        assert (reopened.bucket_count, reopened.created_at) == (16, NOW)
    assert [p.name for p in created.root.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (b"{", StoreError),
        (b"[]", StoreError),
        (b'{"bucket_count": 16}', StoreError),
        (b'{"bucket_count": 16, "schema_version": 99, "created_at": "2026-01-01T00:00:00+00:00"}', SchemaVersionError),
    ],
)
def test_an_unreadable_home_is_not_opened(tmp_path: Path, mark: bytes, error: type[Exception]) -> None:
    (tmp_path / "home.json").write_bytes(mark)
    with pytest.raises(error):
        Home.open(tmp_path)


def test_the_bucket_of_a_golem_id_is_fixed() -> None:
    assert [bucket_of(f"golem-{i}", 16) for i in range(4)] == [7, 1, 4, 13]


def test_the_environment_names_the_home() -> None:
    assert home_root({"BARDO_HOME": "/data/bardo"}) == Path("/data/bardo")
    assert home_root({}) == Path.cwd() / ".bardo"


@pytest.mark.row("EV-4")
def test_two_handles_of_an_old_table_add_its_new_columns_once(tmp_path: Path) -> None:
    old, new = pa.schema([pa.field("a", pa.int64())]), pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    AppendOnlyTable(tmp_path / "table", old, ["a"]).append(pa.table({"a": [1]}, schema=old), transactions={"w": 1})
    first, second = (AppendOnlyTable(tmp_path / "table", new, ["a"]) for _ in range(2))
    for number, handle in enumerate((first, second), 2):
        handle.append(pa.table({"a": [number], "b": [number]}, schema=new), transactions={"w": number})
    rows = AppendOnlyTable(tmp_path / "table", new, ["a"]).read(["a", "b"]).sort_by("a")
    assert rows.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 2}, {"a": 3, "b": 3}]
