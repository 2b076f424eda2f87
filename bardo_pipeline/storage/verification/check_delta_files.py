"""Verify commits, checkpoints and data files of the log's tables, read without the Delta library.

A break is recorded and the check continues, so that one flipped bit does not hide another.
Source: X-9; facts ("appendOnly ... the property can be switched off").
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bardo_pipeline.storage.delta.checksum_manifest import CHECKPOINT, COMMIT, Sum, hash_file, read_sums
from bardo_pipeline.storage.delta.durable_commits import checkpoint_matches, checksum_path
from bardo_pipeline.storage.verification.report import Findings

_ACTIONS = frozenset({"commitInfo", "protocol", "metaData", "add", "remove", "txn", "domainMetadata"})
_IN_CHECKPOINTS = [
    *("add.path", "add.size", "add.stats", "remove.path"),
    *("txn.appId", "txn.version", "metaData.configuration"),
]
_UNLISTED_COMMITS = 8
"""Commits that may lack a checksum: processes killed one after the other between commit and checksum line."""


class Pin(NamedTuple):
    """State of a table at one moment: folder, newest version, checksum manifest and its length."""

    path: Path
    version: int
    sums: Path
    sums_length: int


@dataclass(frozen=True)
class Described:
    """A data file of a table as its commit describes it.

    Parameters
    ----------
    place : path below the home
    version : commit that added its rows; None if unknown
    """

    path: Path
    place: str
    size: int
    rows: int
    stats: Mapping[str, Any]
    version: int | None = field(default=None, compare=False)


@dataclass
class _Walk:
    """State of a table during the replay of its commits. whole: whether all commits so far were readable."""

    pin: Pin
    root: Path
    findings: Findings
    sums: dict[str, Sum]
    active: dict[str, Described] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    whole: bool = True

    def name(self, path: Path) -> str:
        """Return the path below log/."""
        return path.relative_to(self.root).as_posix()

    def commit(self, version: int) -> Path:
        return self.pin.path / "_delta_log" / f"{version:020}.json"

    def checkpoint(self, version: int) -> Path:
        return self.pin.path / "_delta_log" / f"{version:020}.checkpoint.parquet"

    def broken(self, kind: str, fact: str, path: Path) -> None:
        self.findings.broken(kind, fact, file=f"log/{self.name(path)}")


def newest_version(table: Path) -> int | None:
    """Return the newest commit in a table's folder; None without a table."""
    try:
        versions = [int(m.group(1)) for entry in os.listdir(table / "_delta_log") if (m := COMMIT.fullmatch(entry))]
    except FileNotFoundError:
        return None
    return max(versions, default=None)


def walk_table(pin: Pin, root: Path, findings: Findings) -> list[Described]:
    """Check commits, checkpoints and checksums of a table; return its existing data files by path.

    Parameters
    ----------
    root : folder of the log
    """
    listed = read_sums(pin.sums, pin.sums_length)
    walk = _Walk(pin, root, findings, listed.sums)
    for fault in listed.faults:
        walk.broken("sums", fault, pin.sums)
    names = os.listdir(pin.path / "_delta_log")
    commits = sorted(int(m.group(1)) for n in names if (m := COMMIT.fullmatch(n)) and int(m.group(1)) <= pin.version)
    checkpoints = sorted(int(m.group(1)) for n in names if (m := CHECKPOINT.fullmatch(n)))
    checkpoints = [version for version in checkpoints if version <= pin.version]
    _replay(walk, commits, checkpoints)
    _check_pointer(walk)
    for version in checkpoints:
        if not checkpoint_matches(pin.path, version):
            walk.broken("checkpoint", "it is not the checksum of its checkpoint", checksum_path(pin.path, version))
    _check_sums(walk, commits)
    return _present(walk)


# commits


def _replay(walk: _Walk, commits: list[int], checkpoints: list[int]) -> None:
    """Replay the commits in order, from the first one or after the oldest checkpoint."""
    existing, first = set(commits), 0
    if 0 not in existing and checkpoints:
        first = checkpoints[0] + 1
        walk.whole = _begin_at(walk, checkpoints[0])
    compared = set(checkpoints[-1:]) | {v for v in checkpoints if walk.name(walk.checkpoint(v)) not in walk.sums}
    for version in range(first, walk.pin.version + 1):
        if version in existing:
            walk.whole &= _read_commit(walk, version)
        else:
            walk.broken("commit", f"version {version} is missing", walk.commit(version))
            walk.whole = False
        if version in checkpoints and not walk.whole:
            walk.whole = _begin_at(walk, version)
        elif version in compared:
            _compare(walk, version)
    walk.findings.facts["commits"] += len(commits)


def _read_commit(walk: _Walk, version: int) -> bool:
    path = walk.commit(version)
    try:
        actions = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        kinds = [next(iter(action)) for action in actions]
        if not kinds or any(len(action) != 1 for action in actions) or not set(kinds) <= _ACTIONS:
            raise ValueError("other actions than Delta knows")
        for kind, action in zip(kinds, actions, strict=True):
            _apply(walk, kind, action[kind], version)
    except (ValueError, StopIteration, TypeError, KeyError, AttributeError):
        walk.broken("commit", "it cannot be read as a commit", path)
        return False
    if version == 0 and "metaData" not in kinds:
        walk.broken("commit", "the first commit describes no table", path)
    return True


def _apply(walk: _Walk, kind: str, content: Mapping[str, Any], version: int) -> None:
    path = walk.commit(version)
    if kind == "add":
        described = _described(walk, content, version if content["dataChange"] else None)
        if described.place in walk.active:
            walk.broken("commit", f"it adds {content['path']} a second time", path)
        walk.active[described.place] = described
    elif kind == "remove":
        place = f"log/{walk.name(walk.pin.path / unquote(content['path']))}"
        if content["dataChange"]:
            walk.broken("removed", f"it takes rows away: {content['path']}", path)
        elif walk.active.pop(place, None) is None and walk.whole:
            walk.broken("commit", f"it removes {content['path']}, which is not there", path)
        walk.removed.add(place)
    elif kind == "metaData" and content["configuration"].get("delta.appendOnly") != "true":
        walk.broken("append-only", "from here on rows could be changed: delta.appendOnly is not true", path)
    elif kind == "txn":
        app, number = content["appId"], int(content["version"])
        if walk.transactions.get(app, -1) >= number:
            walk.broken("transaction", f"writer {app}: {number} does not follow {walk.transactions[app]}", path)
        walk.transactions[app] = number


def _described(walk: _Walk, add: Mapping[str, Any], version: int | None) -> Described:
    path, stats = walk.pin.path / unquote(add["path"]), orjson.loads(add["stats"])
    return Described(path, f"log/{walk.name(path)}", int(add["size"]), int(stats["numRecords"]), stats, version)


# checkpoints


class _Checkpoint(NamedTuple):
    files: dict[str, Described]
    removed: set[str]
    transactions: dict[str, int]
    actions: int


def _read_checkpoint(walk: _Walk, version: int) -> _Checkpoint | None:
    path = walk.checkpoint(version)
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read(_IN_CHECKPOINTS)
        adds, removes, txns, metas = (
            rows.column(name).drop_null().to_pylist() for name in ("add", "remove", "txn", "metaData")
        )
        described = [_described(walk, add, None) for add in adds]
        removed = {f"log/{walk.name(walk.pin.path / unquote(remove['path']))}" for remove in removes}
        transactions = {txn["appId"]: int(txn["version"]) for txn in txns}
        if [dict(meta["configuration"]).get("delta.appendOnly") for meta in metas] != ["true"]:
            walk.broken("append-only", "from here on rows could be changed: delta.appendOnly is not true", path)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        walk.broken("checkpoint", "it cannot be read as a checkpoint", path)
        return None
    return _Checkpoint({file.place: file for file in described}, removed, transactions, rows.num_rows)


def _begin_at(walk: _Walk, version: int) -> bool:
    """Continue from a checkpoint if commits before it are missing or broken; return whether it was readable."""
    checkpoint = _read_checkpoint(walk, version)
    if checkpoint is not None:
        # Only the commits name the version that added a file, so files known from commits are kept.
        walk.active = {place: walk.active.get(place, file) for place, file in checkpoint.files.items()}
        walk.transactions = dict(checkpoint.transactions)
        walk.removed |= checkpoint.removed
    return checkpoint is not None


def _compare(walk: _Walk, version: int) -> None:
    """Check that a checkpoint equals the replay of the commits up to it."""
    checkpoint = _read_checkpoint(walk, version)
    if checkpoint is not None and (checkpoint.files, checkpoint.transactions) != (walk.active, walk.transactions):
        different = sorted(set(checkpoint.files) ^ set(walk.active))
        example = f", of {different[0]}" if different else ""
        walk.broken("checkpoint", f"it says something else than the commits{example}", walk.checkpoint(version))


def _check_pointer(walk: _Walk) -> None:
    """Check the pointer to the newest checkpoint. Delta's library does not sync it, so it may be empty."""
    path = walk.pin.path / "_delta_log" / "_last_checkpoint"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    if not content.strip(b"\0"):
        return
    try:
        pointer = orjson.loads(content)
        version, compact = int(pointer["version"]), content.removesuffix(b"\n") == orjson.dumps(pointer)
    except (ValueError, KeyError, TypeError):
        walk.broken("checkpoint", "it cannot be read", path)
        return
    checkpoint = _read_checkpoint(walk, version) if walk.checkpoint(version).exists() else None
    if checkpoint is None:
        walk.broken("checkpoint", f"it points to version {version}, of which there is no checkpoint", path)
        return
    size = walk.checkpoint(version).stat().st_size
    actual = {"version": version, "size": checkpoint.actions, "sizeInBytes": size}
    actual["numOfAddFiles"] = len(checkpoint.files)
    if not compact or any(actual.get(key) != value for key, value in pointer.items()):
        walk.broken("checkpoint", f"it says {pointer}, and the checkpoint has {actual}", path)


# files


def _check_sums(walk: _Walk, commits: list[int]) -> None:
    """Compare every file in the manifest with its checksum, and count the commits without one."""
    facts, prefix = walk.findings.facts, f"{walk.name(walk.pin.path)}/"
    oldest = min(commits, default=0)
    for name, expected in walk.sums.items():
        path = walk.root / name
        if not name.startswith(prefix):
            walk.broken("sums", f"it lists {name}", walk.pin.sums)
            continue
        try:
            actual = Sum(hash_file(path), path.stat().st_size)
        except FileNotFoundError:
            _check_missing(walk, path, oldest)
            continue
        facts["files with a sum"] += 1
        facts["bytes"] += actual.size
        if actual != expected:
            walk.broken("sum", f"it was altered: its SHA-256 is {actual.hash}, it was {expected.hash}", path)
    without = [version for version in commits if walk.name(walk.commit(version)) not in walk.sums]
    facts["commits without a sum"] += len(without)
    if len(without) > _UNLISTED_COMMITS:
        fact = f"it lacks {len(without)} commits, the first version {without[0]}: alterations of them cannot be seen"
        walk.broken("sums", fact, walk.pin.sums)


def _check_missing(walk: _Walk, path: Path, oldest: int) -> None:
    """Check a missing file of the manifest. Maintenance removes files that no reader needs; others are breaks."""
    place = f"log/{walk.name(path)}"
    if match := COMMIT.fullmatch(path.name):
        if int(match.group(1)) > walk.pin.version:
            walk.broken("commit", f"version {int(match.group(1))} is missing", path)
    elif not CHECKPOINT.fullmatch(path.name) and not oldest and place not in walk.removed | walk.active.keys():
        walk.broken("file", "it is missing, and no commit names it", path)


def _present(walk: _Walk) -> list[Described]:
    present = []
    for _, described in sorted(walk.active.items()):
        try:
            size = described.path.stat().st_size
        except FileNotFoundError:
            walk.broken("file", f"it is missing, with {described.rows} rows", described.path)
            continue
        if size != described.size:
            walk.broken("file", f"it has {size} bytes, its commit says {described.size}", described.path)
        present.append(described)
    data = (path for path in walk.pin.path.rglob("*.parquet*") if path.parent.name != "_delta_log")
    names = {walk.name(path) for path in data} - walk.sums.keys()
    walk.findings.facts["files of no commit"] += len({f"log/{n}" for n in names} - walk.active.keys() - walk.removed)
    return present


def check_count(described: Described, rows: int, findings: Findings) -> None:
    """Check the row count of a file against its commit."""
    if rows != described.rows:
        fact = f"it holds {rows} rows, its commit says {described.rows}"
        findings.broken("rows", fact, file=described.place)


def check_bounds(described: Described, table: pa.Table, findings: Findings) -> None:
    """Check the rows of a file against the min/max statistics of its commit."""
    lowest, highest = (described.stats.get(key, {}) for key in ("minValues", "maxValues"))
    for name in sorted({*lowest, *highest} & set(table.column_names)):
        least, most = pc.min_max(table.column(name)).as_py().values()
        low, high = (_as(least, bounds.get(name)) for bounds in (lowest, highest))
        if least is not None and ((low is not None and least < low) or (high is not None and most > high)):
            fact = f"column {name} leaves the bounds that its commit gives, {low} to {high}"
            findings.broken("stats", fact, file=described.place)


def _as(example: Any, bound: Any) -> Any:
    """Convert a bound from a commit to the type of the values."""
    return datetime.fromisoformat(bound) if isinstance(example, datetime) and bound is not None else bound
