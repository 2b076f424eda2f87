"""Commits and checkpoints of a Delta table, as files that are whole and on the disk before they bear their names.

Delta's library syncs nothing, so its own commit may be found torn after a power cut, and a torn commit or checkpoint
makes the table unreadable. A commit is one file a version, and whoever gives it its name first has that version.
Source: facts ("Delta", "No fsync"); the Delta protocol ("Delta Log Entries", "Checkpoints", "Last Checkpoint File").
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from bardo_pipeline.storage.delta.parquet_io import bounds_of
from bardo_pipeline.storage.home import make_folder, sync_file, sync_folder

CHECKPOINT_COMMITS = 20
"""Commits between two checkpoints: each one since the last makes every look at the table 0.05 ms slower (measured)."""

_OF_ITSELF = frozenset(
    {
        *("timestamp", "operation", "operationParameters", "operationMetrics", "engineInfo", "clientVersion"),
        *("readVersion", "isolationLevel", "isBlindAppend", "userId", "userName", "txnId", "inCommitTimestamp"),
    }
)
_HINT = "_last_checkpoint"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(frozen=True)
class Added:
    """A Parquet file that is no part of the table yet: its name in the folder, bytes, moment and statistics (JSON)."""

    path: str
    size: int
    modified_ms: int
    stats: str


def described(table: Path, name: str, rows: pa.Table, stats_columns: Sequence[str]) -> Added:
    """A file in a table's folder that holds these rows, as a commit names it."""
    made = (table / name).stat()
    stats = {"numRecords": rows.num_rows, **bounds_of(rows, stats_columns)}
    return Added(name, made.st_size, made.st_mtime_ns // 1_000_000, orjson.dumps(stats).decode())


@dataclass(frozen=True)
class StoredFile:
    """A file of the table: its path in the folder, as commits name it, its rows, bytes and moment."""

    path: str
    rows: int
    size: int
    modified_ms: int


def make_table(
    path: Path, schema: pa.Schema, configuration: Mapping[str, str], *, partition_by: Sequence[str] = (), durable: bool
) -> None:
    """Make an empty table in this folder; nothing happens where there is one.

    What is said of it elsewhere, as that it has no row or which hash its first commit has, is of this very one: if a
    power cut took it, another would come in its place.
    """
    make_folder(path)
    log = path / "_delta_log"
    log.mkdir(exist_ok=True)
    made_ms = log.stat().st_mtime_ns // 1_000_000
    put_commit(path, 0, _creating(Schema.from_arrow(schema), configuration, partition_by, made_ms), durable=durable)
    if durable:
        sync_folder(log)
        sync_folder(path)


def _creating(
    schema: Schema, configuration: Mapping[str, str], partition_by: Sequence[str], made_ms: int
) -> Iterator[dict[str, object]]:
    """The actions of a table's first commit."""
    yield {
        "commitInfo": {
            "timestamp": made_ms,
            "operation": "CREATE TABLE",
            "operationParameters": {"mode": "ErrorIfExists", "partitionBy": orjson.dumps(list(partition_by)).decode()},
            "engineInfo": "bardo-pipeline",
        }
    }
    yield {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    yield {"metaData": _metadata(str(uuid4()), schema, configuration, partition_by, made_ms)}


def commit_path(path: Path, version: int) -> Path:
    """Where the commit of a version lies."""
    return Path(_commit_name(path, version))


def has_commit(path: Path, version: int) -> bool:
    """Whether the commit of a version lies there: asked at every look at a table, so no path is made of it."""
    return os.path.exists(_commit_name(path, version))


def _commit_name(path: Path, version: int) -> str:
    return f"{path}/_delta_log/{version:020}.json"


def put_commit(path: Path, version: int, actions: Iterable[Mapping[str, object]], *, durable: bool) -> bool:
    """Make these actions the table's commit of that version. Returns False when another commit has the number.

    Its name is on the disk when the caller has synced the folder `_delta_log`.
    """
    log = path / "_delta_log"
    draft = log / f"_commit_{uuid4()}.json.tmp"  # a name that every reader of Delta passes over
    try:
        with draft.open("wb") as out:
            out.write(b"".join(orjson.dumps(action) + b"\n" for action in actions))
            if durable:
                out.flush()
                os.fsync(out.fileno())
        try:
            os.link(draft, commit_path(path, version))
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def appending(
    added: Sequence[Added],
    transactions: Mapping[str, int],
    facts: Mapping[str, str],
    widened: Mapping[str, object] | None = None,
) -> Iterator[dict[str, object]]:
    """The actions of a commit that brings files with new rows.

    facts: text that it carries. widened: the table's metadata (`metadata_with`), where it gets columns that it lacked.
    """
    yield {
        "commitInfo": {
            "timestamp": max(add.modified_ms for add in added),
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": "[]"},
            "engineInfo": "bardo-pipeline",
            **facts,
        }
    }
    if widened is not None:
        yield {"metaData": widened}
    for app, number in transactions.items():
        yield {"txn": {"appId": app, "version": number}}
    for add in added:
        yield _add(add, news=True)


def metadata_with(handle: DeltaTable, more: Sequence[pa.Field]) -> dict[str, object]:
    """A table's metadata with more columns, as the Delta protocol spells it."""
    return _metadata_as(handle, Schema([*handle.schema().fields, *Schema.from_arrow(pa.schema(more)).fields]))


def metadata_of(handle: DeltaTable, schema: pa.Schema) -> dict[str, object]:
    """A table's metadata with these columns alone, in no partitions."""
    return _metadata_as(handle, Schema.from_arrow(schema))


def _metadata_as(handle: DeltaTable, schema: Schema) -> dict[str, object]:
    known = handle.metadata()
    told = _metadata(str(known.id), schema, known.configuration, (), known.created_time)
    return told | {"name": known.name, "description": known.description}


def _metadata(
    table_id: str, schema: Schema, configuration: Mapping[str, str], partition_by: Sequence[str], made_ms: int
) -> dict[str, object]:
    return {
        "id": table_id,
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.to_json(),
        "partitionColumns": list(partition_by),
        "createdTime": made_ms,
        "configuration": dict(configuration),
    }


def renewing(
    path: Path,
    gone: Sequence[str],
    added: Sequence[Added],
    transactions: Mapping[str, int],
    facts: Mapping[str, str],
    metadata: Mapping[str, object] | None = None,
) -> Iterator[dict[str, object]]:
    """The actions of a commit that puts files with newer rows in the place of others. path: the table's folder.

    gone: the others, as commits name them. facts: text that it carries. metadata: the table's, where it changes.
    """
    os.utime(path / "_delta_log")  # the disk's own clock says when, as it does of files
    moment = (path / "_delta_log").stat().st_mtime_ns // 1_000_000
    yield {
        "commitInfo": {
            "timestamp": moment,
            "operation": "WRITE",
            "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"},
            "engineInfo": "bardo-pipeline",
            **facts,
        }
    }
    if metadata is not None:
        yield {"metaData": metadata}
    for app, number in transactions.items():
        yield {"txn": {"appId": app, "version": number}}
    for name in gone:
        yield {"remove": {"path": name, "deletionTimestamp": moment, "dataChange": True}}
    for add in added:
        yield _add(add, news=True)


def replacing(
    path: Path, version: int, removed: Sequence[StoredFile], added: Sequence[Added], at: datetime
) -> Iterator[dict[str, object]]:
    """The actions of a commit that puts files in the place of others with the same rows.

    What the commit before carries beside its rows stays in force, since the newest commit is asked for it.
    """
    moment = int(at.timestamp() * 1_000)
    yield {
        "commitInfo": {
            "timestamp": moment,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]"},
            "engineInfo": "bardo-pipeline",
            **facts_of(commit_path(path, version - 1)),
        }
    }
    for file in removed:
        yield {
            "remove": {
                "path": file.path,
                "deletionTimestamp": moment,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": file.size,
            }
        }
    for add in added:
        yield _add(add, news=False)


def _add(add: Added, *, news: bool) -> dict[str, object]:
    return {
        "add": {
            "path": add.path,
            "partitionValues": {},
            "size": add.size,
            "modificationTime": add.modified_ms,
            "dataChange": news,
            "stats": add.stats,
        }
    }


def facts_of(commit: Path) -> dict[str, object]:
    """What a commit says of itself beyond how it was made."""
    for line in commit.read_bytes().splitlines():
        if info := orjson.loads(line).get("commitInfo"):
            return {key: value for key, value in info.items() if key not in _OF_ITSELF}
    return {}


def put_checkpoint(path: Path, version: int, *, durable: bool) -> None:
    """Gather all commits up to a version in one file, so that readers need not read them one by one.

    Its name is on the disk with the next commit; only then may `point_to` it.
    """
    log = path / "_delta_log"
    name = f"{version:020}.checkpoint.parquet"
    with tempfile.TemporaryDirectory(dir=path, prefix=".checkpoint-") as beside:
        draft = Path(beside) / "_delta_log"
        draft.mkdir()
        before = newest_checkpoint(path, version)
        if before is not None:
            os.link(log / f"{before:020}.checkpoint.parquet", draft / f"{before:020}.checkpoint.parquet")
        for number in range(0 if before is None else before + 1, version + 1):
            os.link(commit_path(path, number), draft / f"{number:020}.json")
        DeltaTable(beside, version=version).create_checkpoint()
        if durable:
            sync_file(draft / name)
        os.replace(draft / name, log / name)


def newest_checkpoint(path: Path, until: int) -> int | None:
    """The version of the newest checkpoint up to a version."""
    found = (_CHECKPOINT.fullmatch(name) for name in os.listdir(path / "_delta_log"))
    return max((version for match in found if match and (version := int(match.group(1))) <= until), default=None)


def point_to(path: Path, version: int) -> None:
    """Tell readers where to begin: at this checkpoint, whose name is on the disk. Lost, it costs only time."""
    log = path / "_delta_log"
    actions = pq.read_metadata(log / f"{version:020}.checkpoint.parquet").num_rows
    draft = log / f"{_HINT}.{uuid4()}.tmp"
    draft.write_bytes(orjson.dumps({"version": version, "size": actions}))
    sync_file(draft)
    os.replace(draft, log / _HINT)
