"""Verify the tables: commits, checkpoints and files of the log as they lie on disk, read without Delta.

Whatever is broken is named and passed by, so that one flipped bit does not hide another.
Source: issue "Chain of custody" ("Delta invariants"); facts ("appendOnly ... the property can be switched off").
"""

from __future__ import annotations

import os
import re
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

from bardo_pipeline.storage.findings import Findings
from bardo_pipeline.storage.sums import Sum, hash_file, read_sums

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_ACTIONS = frozenset({"commitInfo", "protocol", "metaData", "add", "remove", "txn", "domainMetadata"})
_IN_CHECKPOINTS = [
    *("add.path", "add.size", "add.stats", "remove.path"),
    *("txn.appId", "txn.version", "metaData.configuration"),
]
_UNLISTED_COMMITS = 8
"""Commits that may lack a sum: processes killed between commit and line, one after the other, nobody else writing."""


class Pin(NamedTuple):
    """A table as it was at one moment: its folder, its newest version, the length of its list of sums."""

    path: Path
    version: int
    sums: Path
    sums_length: int


@dataclass(frozen=True)
class Added:
    """A file that holds rows of the table: its path, its name below log/, and what its commit says of it."""

    path: Path
    name: str
    size: int
    stats: Mapping[str, Any]


@dataclass
class _Walk:
    """One table while it is walked."""

    pin: Pin
    root: Path
    findings: Findings
    sums: dict[str, Sum]
    active: dict[str, Added] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    whole: bool = True  # whether every commit so far could be read

    @property
    def log(self) -> Path:
        return self.pin.path / "_delta_log"

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def newest_version(table: Path) -> int | None:
    """The newest commit in a table's folder; None where there is no table."""
    try:
        found = [int(m.group(1)) for entry in os.listdir(table / "_delta_log") if (m := _COMMIT.fullmatch(entry))]
    except FileNotFoundError:
        return None
    return max(found, default=None)


def walk_table(pin: Pin, root: Path, findings: Findings) -> list[Added]:
    """Check a table's commits, checkpoints and sums. root: the log's folder.

    Returns the files that hold its rows and are there, by path.
    """
    listed = read_sums(pin.sums, pin.sums_length)
    for fault in listed.faults:
        findings.broken("sums", fault, file=f"log/{pin.sums.relative_to(root).as_posix()}")
    walk = _Walk(pin, root, findings, listed.sums)
    names = os.listdir(walk.log)
    commits = sorted(int(m.group(1)) for n in names if (m := _COMMIT.fullmatch(n)) and int(m.group(1)) <= pin.version)
    checkpoints = sorted(int(m.group(1)) for n in names if (m := _CHECKPOINT.fullmatch(n)))
    checkpoints = [version for version in checkpoints if version <= pin.version]
    _replay(walk, commits, checkpoints)
    _last_checkpoint(walk, checkpoints)
    _listed_files(walk, commits, checkpoints)
    return _present(walk)


def _replay(walk: _Walk, commits: list[int], checkpoints: list[int]) -> None:
    """Go through the commits in order, from the first or from the oldest checkpoint."""
    there, begun = set(commits), 0
    if 0 not in there:
        if not checkpoints:
            walk.findings.broken("commit", "version 0 is missing", file=_at(walk, 0))
        else:
            begun = checkpoints[0] + 1
            _from_checkpoint(walk, checkpoints[0])
    if begun == 0:
        walk.whole = 0 in there
    compared = {checkpoints[-1]} if checkpoints else set()
    compared |= {v for v in checkpoints if walk.name(_checkpoint(walk, v)) not in walk.sums}
    for version in range(begun, walk.pin.version + 1):
        if version not in there:
            if version:
                walk.findings.broken("commit", f"version {version} is missing", file=_at(walk, version))
            walk.whole = False
        else:
            walk.whole &= _commit(walk, version)
        if version in checkpoints and not walk.whole:
            walk.whole = _from_checkpoint(walk, version)
        elif version in compared:
            _compare(walk, version)
    walk.findings.facts["commits"] += len(commits)


def _at(walk: _Walk, version: int) -> str:
    return f"log/{walk.name(walk.log / f'{version:020}.json')}"


def _checkpoint(walk: _Walk, version: int) -> Path:
    return walk.log / f"{version:020}.checkpoint.parquet"


def _commit(walk: _Walk, version: int) -> bool:
    """Take one commit in; whether it could be read."""
    place = _at(walk, version)
    content = (walk.log / f"{version:020}.json").read_bytes()
    try:
        actions = [orjson.loads(line) for line in content.splitlines()]
        kinds = [next(iter(action)) for action in actions]
        assert all(len(action) == 1 for action in actions)
        assert set(kinds) <= _ACTIONS
        for kind, action in zip(kinds, actions, strict=True):
            _act(walk, kind, action[kind], place)
        assert kinds
    except (orjson.JSONDecodeError, StopIteration, AssertionError, TypeError, KeyError, ValueError, AttributeError):
        walk.findings.broken("commit", "it cannot be read as a commit", file=place)
        return False
    if version == 0 and "metaData" not in kinds:
        walk.findings.broken("commit", "the first commit describes no table", file=place)
    return True


def _act(walk: _Walk, kind: str, what: Mapping[str, Any], place: str) -> None:
    broken = walk.findings.broken
    if kind == "add":
        added = _added(walk, what)
        if added.name in walk.active:
            broken("commit", f"it adds {what['path']} a second time", file=place)
        walk.active[added.name] = added
    elif kind == "remove":
        name = walk.name(walk.pin.path / unquote(what["path"]))
        if what["dataChange"]:
            broken("removed", f"it removes rows: {what['path']}", file=place)
        elif walk.active.pop(name, None) is None and walk.whole:
            broken("commit", f"it removes {what['path']}, which is not there", file=place)
        walk.removed.add(name)
    elif kind == "metaData" and what["configuration"].get("delta.appendOnly") != "true":
        broken("append-only", "from here on the table could be changed: delta.appendOnly is not true", file=place)
    elif kind == "txn":
        app, number = what["appId"], int(what["version"])
        if walk.transactions.get(app, -1) >= number:
            broken("transaction", f"writer {app}: {number} does not follow {walk.transactions[app]}", file=place)
        walk.transactions[app] = number


def _added(walk: _Walk, what: Mapping[str, Any]) -> Added:
    path = walk.pin.path / unquote(what["path"])
    stats = orjson.loads(what["stats"])
    return Added(path, walk.name(path), int(what["size"]), {**stats, "numRecords": int(stats["numRecords"])})


def _read_checkpoint(walk: _Walk, version: int) -> tuple[dict[str, Added], set[str], dict[str, int], int] | None:
    """Files, removed files, transactions and number of actions of a checkpoint; None if it cannot be read."""
    path = _checkpoint(walk, version)
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read(_IN_CHECKPOINTS)
        adds, removes, txns, metas = (rows.column(name).drop_null().to_pylist() for name in rows.column_names)
        files = {added.name: added for added in (_added(walk, add) for add in adds)}
        removed = {walk.name(walk.pin.path / unquote(remove["path"])) for remove in removes}
        if any(dict(meta["configuration"]).get("delta.appendOnly") != "true" for meta in metas) or len(metas) != 1:
            walk.findings.broken("append-only", "delta.appendOnly is not true in it", file=f"log/{walk.name(path)}")
        return files, removed, {txn["appId"]: int(txn["version"]) for txn in txns}, rows.num_rows
    except (pa.ArrowException, OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError, UnicodeDecodeError):
        walk.findings.broken("checkpoint", "it cannot be read as a checkpoint", file=f"log/{walk.name(path)}")
        return None


def _from_checkpoint(walk: _Walk, version: int) -> bool:
    """Go on from what a checkpoint says, where the commits before it are gone or broken; whether it could be read."""
    found = _read_checkpoint(walk, version)
    if found is None:
        return False
    walk.active, removed, walk.transactions, _ = found
    walk.removed |= removed
    return True


def _compare(walk: _Walk, version: int) -> None:
    """A checkpoint must say what the commits up to it say."""
    found = _read_checkpoint(walk, version)
    if found is None:
        return
    files, _, transactions, _ = found
    if files != walk.active or transactions != walk.transactions:
        different = sorted(set(files) ^ set(walk.active))
        what = f": {different[0]}" if different else ""
        place = f"log/{walk.name(_checkpoint(walk, version))}"
        walk.findings.broken("checkpoint", f"it says something else than the commits{what}", file=place)


def _last_checkpoint(walk: _Walk, checkpoints: list[int]) -> None:
    """The pointer to the newest checkpoint: the one file of a table that is written over."""
    path = walk.log / "_last_checkpoint"
    place = f"log/{walk.name(path)}"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    try:
        said = orjson.loads(content)
        version = int(said["version"])
        compact = content.removesuffix(b"\n") == orjson.dumps(said)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        walk.findings.broken("checkpoint", "it cannot be read", file=place)
        return
    if version > walk.pin.version:
        return  # written since the versions were pinned
    found = _read_checkpoint(walk, version) if version in checkpoints else None
    size = _checkpoint(walk, version).stat().st_size if version in checkpoints else -1
    truth = {
        "version": version,
        "size": found[3] if found else -1,
        "sizeInBytes": size,
        "numOfAddFiles": len(found[0]) if found else -1,
    }
    if not compact or any(truth.get(key, value) != value or key not in truth for key, value in said.items()):
        walk.findings.broken("checkpoint", f"it says {said}, and the checkpoint says {truth}", file=place)


def _listed_files(walk: _Walk, commits: list[int], checkpoints: list[int]) -> None:
    """Compare every file that has a sum with it, and count those that have none."""
    oldest = min([*commits, walk.pin.version])
    prefix = walk.name(walk.pin.path)
    for name, known in walk.sums.items():
        path = walk.root / name
        if not name.startswith(f"{prefix}/"):
            walk.findings.broken("sums", f"it lists {name}", file=f"log/{walk.name(walk.pin.sums)}")
        try:
            found = Sum(hash_file(path), path.stat().st_size)
        except FileNotFoundError:
            _missing(walk, name, oldest)
            continue
        walk.findings.facts["files with a sum"] += 1
        walk.findings.facts["bytes"] += found.size
        if found != known:
            fact = f"it was altered: its SHA-256 is {found.hash}, it was {known.hash}"
            walk.findings.broken("sum", fact, file=f"log/{name}")
    without = [v for v in commits if walk.name(walk.log / f"{v:020}.json") not in walk.sums]
    walk.findings.facts["commits without a sum"] += len(without)
    if len(without) > _UNLISTED_COMMITS:
        walk.findings.broken(
            "sums",
            f"it lacks {len(without)} commits from version {without[0]} on: whether they were altered cannot be told",
            file=f"log/{walk.name(walk.pin.sums)}",
        )


def _missing(walk: _Walk, name: str, oldest: int) -> None:
    """A file with a sum is gone: maintenance takes what no reader needs; all else is a break."""
    short = name.rsplit("/", 1)[-1]
    if found := _COMMIT.fullmatch(short):
        if int(found.group(1)) > walk.pin.version:
            walk.findings.broken("commit", f"version {int(found.group(1))} is missing", file=f"log/{name}")
    elif not _CHECKPOINT.fullmatch(short) and oldest == 0 and name not in walk.removed and name not in walk.active:
        walk.findings.broken("file", "it is missing, and no commit names it any more", file=f"log/{name}")


def _present(walk: _Walk) -> list[Added]:
    """The files that hold rows, without those that are missing or of another length."""
    found = []
    for name, added in sorted(walk.active.items()):
        try:
            size = added.path.stat().st_size
        except FileNotFoundError:
            walk.findings.broken("file", f"it is missing, with {added.stats['numRecords']} rows", file=f"log/{name}")
            continue
        if size != added.size:
            walk.findings.broken("file", f"it has {size} bytes, its commit says {added.size}", file=f"log/{name}")
        found.append(added)
    known = {*walk.active, *walk.removed, *walk.sums}
    there = {walk.name(walk.pin.path / name) for name in os.listdir(walk.pin.path) if ".parquet" in name}
    walk.findings.facts["files of no commit"] += len(there - known)
    return found


def check_file(added: Added, rows: int, table: pa.Table | None, findings: Findings) -> None:
    """Compare what a commit says of a file with the rows that are in it; table: columns whose bounds it may give."""
    place, stats = f"log/{added.name}", added.stats
    if rows != stats["numRecords"]:
        findings.broken("rows", f"it holds {rows} rows, its commit says {stats['numRecords']}", file=place)
    for name in () if table is None else table.column_names:
        if name not in stats.get("nullCount", {}):
            continue
        column = table.column(name)
        least, most = pc.min_max(column).as_py().values()
        low, high = (_as(least, stats.get(key, {}).get(name)) for key in ("minValues", "maxValues"))
        outside = least is not None and ((low is not None and least < low) or (high is not None and most > high))
        if outside or column.null_count != stats["nullCount"][name]:
            findings.broken("stats", f"column {name} leaves the bounds that its commit gives", file=place)


def _as(example: Any, said: Any) -> Any:
    """A bound as a commit writes it, in the type of the values."""
    return datetime.fromisoformat(said) if isinstance(example, datetime) and said is not None else said
