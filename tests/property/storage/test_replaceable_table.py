"""A replaceable table holds the last written rows of each bucket, for any division of buckets into files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.errors import DamagedError, StoreError
from bardo_pipeline.storage.delta import replaceable_table
from bardo_pipeline.storage.delta.durable_commits import CHECKPOINT_COMMITS, newest_checkpoint
from bardo_pipeline.storage.delta.parquet_io import write_parquet
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.delta.table_specs import TableSpec
from bardo_pipeline.storage.home import bucket_of
from bardo_pipeline.storage.locks import held
from tests.support.example_count import some

SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("entry_id", pa.string(), nullable=False),
        pa.field("mean", pa.int64(), nullable=False),
    ]
)
SPEC = TableSpec(SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",))
BUCKETS, GOLEMS = 4, [f"g-{n}" for n in range(12)]
fresh = itertools.count()
renewals = st.lists(
    st.tuples(
        st.sets(st.integers(0, BUCKETS - 1), min_size=1),
        st.lists(st.tuples(st.sampled_from(GOLEMS), st.integers(0, 3), st.integers(0, 2)), max_size=20),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def table_of(path: Path) -> ReplaceableTable:
    return ReplaceableTable("facts", path, SPEC, BUCKETS)


def rows_of(by_key: Mapping[tuple[str, str], int]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"golem_id": g, "entry_id": e, "mean": by_key[g, e]} for g, e in sorted(by_key)], schema=SCHEMA
    )


def within(by_key: Mapping[tuple[str, str], int], buckets: set[int]) -> dict[tuple[str, str], int]:
    return {key: mean for key, mean in by_key.items() if bucket_of(key[0], BUCKETS) in buckets}


@pytest.mark.row("P-2")
@some(12)
@given(renewals, st.sampled_from([1, 4, 100]))
def test_every_reader_sees_the_last_written_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[set[int], list[tuple[str, int, int]], bool]], most: int
) -> None:
    path = tmp_path_factory.mktemp("renewed") / str(next(fresh))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaceable_table, "GATHERED_ROWS", most)
        first, second = table_of(path), table_of(path)
        known: dict[tuple[str, str], int] = {}
        for number, (buckets, statement, by_first) in enumerate(steps):
            put = within({(g, f"e-{e}"): mean for g, e, mean in statement}, buckets)
            known = {key: mean for key, mean in known.items() if key not in within(known, buckets)} | put
            table = first if by_first else second
            rows = rows_of(put).take(pa.array(range(len(put))[:: -1 if number % 2 else 1], pa.int64()))
            written = table.replace(rows, buckets, upto={"g": number}, note={"n": {"at": str(number)}})
            assert (written.row_count, written.fingerprint) == (len(known), Digest.of(rows_of(known)).fingerprint)
            for reader in (first, second):
                assert reader.read().equals(rows_of(known))
                assert reader.read(buckets).equals(rows_of(put))
                by_key = {key: mean for key, mean in known.items() if key[0] == "g-1"}
                assert reader.read(only=["g-1"]).equals(rows_of(by_key))
                assert (reader.done("g"), reader.noted("n")) == (number, {"at": str(number)})
        delta = DeltaTable(path)
        keys = [("golem_id", "ascending"), ("entry_id", "ascending")]
        assert delta.to_pyarrow_table().sort_by(keys).cast(SCHEMA).equals(rows_of(known))
        assert delta.version() == len(steps)
        assert len(delta.file_uris()) <= BUCKETS
        assert table_of(path).digest() == first.digest()


@pytest.mark.row("P-2")
def test_small_buckets_share_a_file_and_equal_rows_are_not_rewritten(tmp_path: Path) -> None:
    table, every = table_of(tmp_path / "facts"), set(range(BUCKETS))
    known = {(g, "e-1"): 1 for g in GOLEMS}
    table.replace(rows_of(known), every)
    (file,) = DeltaTable(table.path).file_uris()
    table.replace(rows_of(known), every, upto={"g-1": 2})
    assert (DeltaTable(table.path).file_uris(), table.done("g-1")) == ([file], 2), "equal rows were rewritten"
    table.replace(rows_of({}), every)
    assert DeltaTable(table.path).file_uris() == []


@pytest.mark.row("P-2")
def test_a_reader_refuses_a_file_that_was_altered_since_its_commit(tmp_path: Path) -> None:
    table = table_of(tmp_path / "facts")
    table.replace(rows_of({("g-1", "e"): 1}), set(range(BUCKETS)))
    (file,) = table.path.glob("*.parquet")
    write_parquet(tmp_path / "other.parquet", rows_of({("g-1", "e"): 2}), SCHEMA, stats=SPEC.stats).rename(file)
    for reader in (table, table_of(table.path)):
        with pytest.raises(DamagedError, match=file.name):
            reader.read()


@pytest.mark.row("P-2")
@pytest.mark.parametrize("amending", [True, False])
def test_a_write_refuses_a_file_that_was_altered_since_its_commit(tmp_path: Path, amending: bool) -> None:
    known = {(g, "e"): 1 for g in GOLEMS}
    table_of(tmp_path / "facts").replace(rows_of(known), set(range(BUCKETS)))
    (file,) = (tmp_path / "facts").glob("*.parquet")
    other = write_parquet(tmp_path / "other.parquet", rows_of({**known, ("g-1", "e"): 99}), SCHEMA, stats=SPEC.stats)
    other.rename(file)
    again, place = table_of(tmp_path / "facts"), bucket_of("g-1", BUCKETS)
    beside = next(g for g in GOLEMS if bucket_of(g, BUCKETS) != place)
    amend = partial(again.upsert, rows_of({("g-1", "e"): 2}), by=("golem_id", "entry_id"))
    renew = partial(again.replace, rows_of({(beside, "e"): 2}), {bucket_of(beside, BUCKETS)})
    with pytest.raises(DamagedError, match=file.name):
        (amend if amending else renew)()
    anew = rows_of({**known, ("g-1", "e"): 3})
    again.replace(anew, set(range(BUCKETS)))
    assert (again.read().equals(anew), again.digest()) == (True, Digest.of(anew))


@some(100)
@given(
    st.dictionaries(st.tuples(st.sampled_from(GOLEMS[:3]), st.integers(0, 3)), st.integers(0, 2), max_size=9),
    st.dictionaries(st.tuples(st.sampled_from(GOLEMS[:3]), st.integers(0, 3)), st.integers(0, 2), max_size=9),
    st.randoms(use_true_random=False),
)
def test_upserted_rows_replace_those_of_the_same_key_and_keep_the_others(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[tuple[str, int], int],
    put: dict[tuple[str, int], int],
    random: Any,
) -> None:
    table = table_of(tmp_path_factory.mktemp("upsert") / str(next(fresh)))
    known, changes = ({(g, f"e-{e}"): mean for (g, e), mean in rows.items()} for rows in (before, put))
    table.replace(rows_of(known), set(range(BUCKETS)))
    order = list(range(len(changes)))
    random.shuffle(order)
    table.upsert(rows_of(changes).take(pa.array(order, pa.int64())), by=("golem_id", "entry_id"))
    after = rows_of({**known, **changes})
    assert (table.read().equals(after), table.digest()) == (True, Digest.of(after))


@pytest.mark.row("P-2")
def test_an_upsert_by_a_partial_key_replaces_all_matching_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path / "facts")
    table.replace(rows_of({("g-1", "a"): 1, ("g-1", "b"): 2, ("g-2", "a"): 3}), set(range(BUCKETS)))
    table.upsert(rows_of({("g-1", "c"): 4}), by=("golem_id",))
    assert table.read().equals(rows_of({("g-1", "c"): 4, ("g-2", "a"): 3}))
    table.upsert(rows_of({("g-1", "d"): 5, ("g-1", "e"): 6}), by=("golem_id",))
    assert table.read().equals(rows_of({("g-1", "d"): 5, ("g-1", "e"): 6, ("g-2", "a"): 3}))


@pytest.mark.row("P-2")
def test_a_table_writes_a_checkpoint_every_few_commits(tmp_path: Path) -> None:
    table = table_of(tmp_path / "facts")
    for number in range(1, 2 * CHECKPOINT_COMMITS + 3):
        table.replace(rows_of({("g-1", "e"): number}), set(range(BUCKETS)))
        assert number - (newest_checkpoint(table.path, number) or 0) <= CHECKPOINT_COMMITS
    assert table_of(table.path).read().equals(rows_of({("g-1", "e"): number}))


@pytest.mark.row("P-2")
def test_a_checkpoint_that_another_process_writes_is_not_waited_for(tmp_path: Path) -> None:
    table = table_of(tmp_path / "facts")
    with held(table.path / "_delta_log"):
        for number in range(1, CHECKPOINT_COMMITS + 3):
            table.replace(rows_of({("g-1", "e"): number}), set(range(BUCKETS)))
        assert newest_checkpoint(table.path, table.version) is None
    table.replace(rows_of({("g-1", "e"): 0}), set(range(BUCKETS)))
    assert newest_checkpoint(table.path, table.version) == CHECKPOINT_COMMITS + 2


def write_before(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object], step: str = "write_parquet") -> None:
    """Let another process write during the next replace, after it has read the state and before this step of it."""
    honest = getattr(replaceable_table, step)

    def late(*args: object, **more: object) -> object:
        monkeypatch.setattr(replaceable_table, step, honest)
        write()
        return honest(*args, **more)

    monkeypatch.setattr(replaceable_table, step, late)


@pytest.mark.row("P-2")
def test_a_replace_that_conflicts_with_a_concurrent_replace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = table_of(tmp_path / "facts"), table_of(tmp_path / "facts")
    write_before(monkeypatch, lambda: second.replace(rows_of({("g-2", "e"): 2}), set(range(BUCKETS))))
    with pytest.raises(StoreError, match="version 1 was taken meanwhile"):
        first.replace(rows_of({("g-1", "e"): 1}), set(range(BUCKETS)))
    assert first.read().equals(rows_of({("g-2", "e"): 2}))
    assert len(list(first.path.glob("*.parquet"))) == 1, "the refused file is left"


@pytest.mark.row("P-2")
@pytest.mark.parametrize("upserts", [True, False])
@pytest.mark.parametrize("step", ["sorted_by", "write_parquet"])
def test_a_replace_keeps_a_concurrent_replace_of_other_buckets_in_the_same_file(
    upserts: bool, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = table_of(tmp_path / "facts"), table_of(tmp_path / "facts")
    known = {(g, "e"): 1 for g in GOLEMS}
    first.replace(rows_of(known), set(range(BUCKETS)), note={"seen": {"a": "1", "b": "1"}})
    own = {bucket_of("g-1", BUCKETS)}
    other = next(g for g in GOLEMS if bucket_of(g, BUCKETS) not in own)
    second_rows = {key: 7 if key[0] == other else mean for key, mean in known.items()}
    theirs = {bucket_of(other, BUCKETS)}
    rows, note = rows_of(within(second_rows, theirs)), {"seen": {"b": "2"}}
    write_before(monkeypatch, lambda: second.replace(rows, theirs, upto={other: 3}, note=note), step)
    wanted = second_rows | {("g-1", "e"): 9}
    if upserts:
        first.upsert(rows_of({("g-1", "e"): 9}), by=("golem_id", "entry_id"), upto={"g-1": 4})
    else:
        first.replace(rows_of(within(wanted, own)), own, upto={"g-1": 4}, note={"seen": {"a": "3"}})
    for reader in (first, second, table_of(first.path)):
        assert (reader.read().equals(rows_of(wanted)), reader.digest()) == (True, Digest.of(rows_of(wanted)))
        assert (reader.done(other), reader.done("g-1")) == (3, 4)
        assert reader.noted("seen") == {"a": "1" if upserts else "3", "b": "2"}


@pytest.mark.row("P-2")
def test_a_table_partitioned_by_bucket_is_readable_and_merged_on_replace(tmp_path: Path) -> None:
    path, every = tmp_path / "facts", set(range(BUCKETS))
    known = {(g, "e-1"): 1 for g in GOLEMS}
    rows = rows_of(known)
    codes = pa.array([bucket_of(g, BUCKETS) for g in rows["golem_id"].to_pylist()], pa.int32())
    digests = {str(b): Digest.of(rows_of(within(known, {b}))).listed for b in sorted(every)}
    write_deltalake(
        path,
        pa.table([*rows.columns, codes], pa.schema([*SCHEMA, pa.field("bucket", pa.int32(), nullable=False)])),
        partition_by=["bucket"],
        commit_properties=CommitProperties(custom_metadata={"digests": orjson.dumps(digests).decode(), "note": "{}"}),
    )
    table = table_of(path)
    assert (table.read().equals(rows), table.digest()) == (True, Digest.of(rows))
    some_bucket = {bucket_of("g-1", BUCKETS)}
    assert table.read(some_bucket).equals(rows_of(within(known, some_bucket)))
    table.replace(rows_of({("g-1", "e-9"): 9}), some_bucket)
    left = {key: mean for key, mean in known.items() if key not in within(known, some_bucket)} | {("g-1", "e-9"): 9}
    for reader in (table, table_of(path)):
        assert reader.read().equals(rows_of(left))
    seen = DeltaTable(path)
    assert (seen.metadata().partition_columns, len(seen.file_uris())) == ([], 1)
    assert seen.to_pyarrow_table().cast(SCHEMA).equals(rows_of(left))
