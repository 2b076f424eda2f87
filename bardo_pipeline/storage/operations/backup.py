"""Backup of a home's primary data while writers run, and restore.

A backup is a folder with `MANIFEST.json` and `objects/`, which holds each file under the SHA-256 of its bytes. A
repeated backup copies only new files and replaces the manifest atomically at the end, so an interrupted backup leaves
the previous one intact. It contains the log, the written part of the journals, leases, spool, quarantine, bundles and
conversations. It omits seal keys, because destroying a key must reach every copy, and all data derived from the log.

Commits wait only while the backup pins table versions and hard-links files that move or grow. Maintenance, which
deletes files, waits until the backup ends. Source: X-9.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote

import orjson

from bardo_pipeline.errors import ConfigError, CustodyError, SchemaVersionError
from bardo_pipeline.events.custody.hash_chain import Tip
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.checksum_manifest import CHECKPOINT, COMMIT, Sum, hash_file, read_sums
from bardo_pipeline.storage.delta.durable_commits import checksum_path, opened, stored_files
from bardo_pipeline.storage.home import (
    MANIFEST,
    Home,
    children,
    files_below,
    make_folder,
    remove_tree,
    replace_file,
    sync_folder,
)
from bardo_pipeline.storage.journal.frames import written_bytes
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.verification.check_delta_files import Pin
from bardo_pipeline.storage.verification.verify import commits_paused, fleet_digest, pins_of

_OBJECTS = "objects"
_FORMAT = 1
_BLOCK_BYTES = 2**20


class Stored(NamedTuple):
    """A file in a backup: its path in the home, the SHA-256 of its bytes in hex, its size in bytes."""

    path: str
    hash: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The content of a backup. digest: the fleet's, as printed by `bardo verify`. tips: by golem, without journals."""

    table_id: str
    made_at: datetime
    digest: str
    tips: Mapping[str, Tip]
    files: tuple[Stored, ...]


@dataclass(frozen=True)
class BackedUp:
    """The result of a backup. copied: number of new files; held: number of all files."""

    manifest: Manifest
    copied: int
    copied_bytes: int
    held: int


@dataclass(frozen=True)
class _Source:
    """A file to copy: its first `length` bytes, or all, and its recorded checksum if there is one."""

    name: str
    path: Path
    length: int | None = None
    recorded_sum: Sum | None = None


# making one


def back_up(home: Home, folder: Path, now: datetime) -> BackedUp:
    """Create the backup in this folder, or bring it up to the home.

    Raises ConfigError if the folder holds something else, CustodyError if a file of the log was altered after its
    commit or the backup has records that the home lacks. After an error the backup is unchanged.
    """
    if folder.absolute().is_relative_to(home.root.absolute()):
        raise ConfigError(f"{folder} is inside the home itself: give a folder elsewhere, best on another disk")
    alone = home.lock("backup"), home.lock("maintenance", shared=True)
    with alone[0], alone[1], _staging(home) as staging, EventLog(home) as log:
        before = _existing_manifest(folder, log.table_id)
        with commits_paused(home):
            pins = pins_of(home)
            tips = {golem_id: log.tip(golem_id) for golem_id in log.heads()["golem_id"].to_pylist()}
            moving = list(_link_mutable_files(home, pins, staging))
        _check_chains_extended(before, tips)
        files, copied = _copy([*moving, *_immutable_files(home, pins)], folder)
        version = next(pin.version for pin in pins if pin.path == home.cycles)
        manifest = Manifest(log.table_id, now, f"{version}:{fleet_digest(tips)}", tips, tuple(sorted(files)))
    replace_file(folder / MANIFEST, _packed(manifest))
    _prune(folder, manifest)
    return BackedUp(manifest, len(copied), sum(copied), len(files))


def _existing_manifest(folder: Path, table_id: str) -> Manifest | None:
    """Read the manifest of the existing backup. Raises ConfigError if the folder holds anything else."""
    names = set(os.listdir(folder)) if folder.is_dir() else set()
    make_folder(folder)
    (folder / _OBJECTS).mkdir(exist_ok=True, mode=0o700)
    if MANIFEST not in names:
        if names - {_OBJECTS}:
            raise ConfigError(f"{folder} holds something else than a backup: give an empty folder")
        return None
    before = read_manifest(folder)
    if before.table_id != table_id:
        raise ConfigError(f"{folder} holds the backup of another home: give another folder")
    return before


def _check_chains_extended(before: Manifest | None, tips: Mapping[str, Tip]) -> None:
    """Check that each golem's chain extends the one in the backup, so that a damaged log never replaces a good copy."""
    for golem_id, old in before.tips.items() if before is not None else ():
        new = tips.get(golem_id, Tip())
        if new.number < old.number or (new.number == old.number and new.hash != old.hash):
            raise CustodyError(
                f"golem {golem_id}: the backup of {before.made_at if before else ''} has it up to link {old.number}, "
                f"and the home, up to link {new.number}, does not: run `bardo verify`, and restore the backup"
            )


@contextmanager
def _staging(home: Home) -> Iterator[Path]:
    """Yield a temporary folder in the home for hard links. The caller holds the lock `backup`."""
    for leftover in home.root.glob(".backup-*"):
        remove_tree(leftover)
    with tempfile.TemporaryDirectory(dir=home.root, prefix=".backup-") as folder:
        yield Path(folder)


def _link_mutable_files(home: Home, pins: Iterable[Pin], staging: Path) -> Iterator[_Source]:
    """Hard-link the files that grow, change or disappear, and note their present lengths.

    The spool precedes `.taking`, and sessions precede their archives, so that a file moved meanwhile is copied at least
    once.
    """
    files = [home.root / "home.json"]
    for pin in pins:
        files.append(pin.path / "_delta_log" / "_last_checkpoint")
        if pin.sums_length:
            yield _Source(pin.sums.relative_to(home.root).as_posix(), pin.sums, pin.sums_length)
    files += [path for folder in children(home.journal) for path in children(folder) if path.suffix == ".seg"]
    files += [path for path in children(home.leases) if path.suffix == ".lease"]
    for folder, later in ((home.spool, ".taking"), (home.conversations, ".archive-")):
        files += [path for path, _ in files_below(folder) if later not in path.as_posix()]
        files += [path for path, _ in files_below(folder) if later in path.as_posix()]
    for number, path in enumerate(files):
        linked = staging / str(number)
        try:
            os.link(path, linked)
        except FileNotFoundError:
            continue
        length = written_bytes(linked) if path.parent.parent == home.journal else linked.stat().st_size
        yield _Source(path.relative_to(home.root).as_posix(), linked, length)


def _immutable_files(home: Home, pins: Iterable[Pin]) -> Iterator[_Source]:
    """Yield the immutable files: table files up to the pinned versions, bundles, and quarantined bytes."""
    log = home.cycles.parent
    for pin in pins:
        sums = read_sums(pin.sums, pin.sums_length).sums
        for path in _table_files(pin):
            yield _Source(
                path.relative_to(home.root).as_posix(), path, None, sums.get(path.relative_to(log).as_posix())
            )
    bundle_files = [path for folder in home.bundles.glob("[!.]*") for path, _ in files_below(folder)]
    for path in sorted([*bundle_files, *(home.quarantine / "raw").glob("[!.]*")]):
        yield _Source(path.relative_to(home.root).as_posix(), path)


def _table_files(pin: Pin) -> list[Path]:
    """Return the table's commits and checkpoints up to the pinned version, and the data files of that version."""
    log = pin.path / "_delta_log"
    matches = [match for name in os.listdir(log) if (match := COMMIT.fullmatch(name) or CHECKPOINT.fullmatch(name))]
    log_files = [log / match.group(0) for match in matches if int(match.group(1)) <= pin.version]
    sums = [checksum_path(pin.path, int(match.group(1))) for match in matches if match.re is CHECKPOINT]
    log_files += [path for path in sums if path.exists()]
    data_files = stored_files(opened(pin.path, pin.version))
    return sorted([*log_files, *(pin.path / unquote(file.path) for file in data_files)])


def _copy(sources: Iterable[_Source], folder: Path) -> tuple[list[Stored], list[int]]:
    """Copy every file that the backup lacks. Returns all stored files and the sizes of the new ones."""
    stored: dict[str, Stored] = {}
    copied: list[int] = []
    for source in sources:
        file_sum = source.recorded_sum or (
            Sum(hash_file(source.path), source.path.stat().st_size) if source.length is None else None
        )
        if file_sum is None or not _has(folder, file_sum):
            file_sum, is_new = _store(source, folder)
            if is_new:
                copied.append(file_sum.size)
        stored[source.name] = Stored(source.name, file_sum.hash, file_sum.size)
    for part in {file.hash[:2] for file in stored.values()}:
        sync_folder(folder / _OBJECTS / part)
    sync_folder(folder / _OBJECTS)
    return list(stored.values()), copied


def _has(folder: Path, file_sum: Sum) -> bool:
    try:
        return object_path(folder, file_sum.hash).stat().st_size == file_sum.size
    except FileNotFoundError:
        return False


def _store(source: _Source, folder: Path) -> tuple[Sum, bool]:
    """Copy a file durably. Returns its checksum and whether it was new.

    Raises CustodyError if the checksum differs from the recorded one.
    """
    handle, draft = tempfile.mkstemp(dir=folder / _OBJECTS, prefix=".draft-")
    try:
        with source.path.open("rb") as original, os.fdopen(handle, "wb") as out:
            file_sum = _copy_bytes(original, out, source.length)
            out.flush()
            os.fsync(out.fileno())
        if source.recorded_sum not in (None, file_sum):
            raise CustodyError(f"{source.name} was altered since it was committed: run `bardo verify`")
        if _has(folder, file_sum):
            return file_sum, False
        target = object_path(folder, file_sum.hash)
        target.parent.mkdir(exist_ok=True)
        os.replace(draft, target)
        return file_sum, True
    finally:
        Path(draft).unlink(missing_ok=True)


def _copy_bytes(original: BinaryIO, out: BinaryIO, length: int | None) -> Sum:
    hasher, size = hashlib.sha256(), 0
    while block := original.read(_BLOCK_BYTES if length is None else min(_BLOCK_BYTES, length - size)):
        hasher.update(block)
        out.write(block)
        size += len(block)
    return Sum(hasher.hexdigest(), size)


def object_path(folder: Path, name: str) -> Path:
    """Return the file of a backup that holds the bytes with this SHA-256."""
    return folder / _OBJECTS / name[:2] / name


def _prune(folder: Path, manifest: Manifest) -> None:
    """Delete the objects that the manifest does not name."""
    hashes = {file.hash for file in manifest.files}
    for path, _ in files_below(folder / _OBJECTS):
        if path.name not in hashes:
            path.unlink(missing_ok=True)


# the manifest


def _packed(manifest: Manifest) -> bytes:
    fields = {
        "format": _FORMAT,
        "table_id": manifest.table_id,
        "made_at": manifest.made_at,
        "digest": manifest.digest,
        "tips": {golem_id: [tip.number, tip.hash.hex()] for golem_id, tip in manifest.tips.items()},
        "files": [file._asdict() for file in manifest.files],
    }
    content = orjson.dumps(fields, option=orjson.OPT_INDENT_2)
    seal = hashlib.sha256(content).hexdigest()
    return orjson.dumps({**fields, "sha256": seal}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises ConfigError for a folder without one, SchemaVersionError for a newer format, CustodyError if it was altered.
    """
    path = folder / MANIFEST
    try:
        fields = orjson.loads(path.read_bytes())
        if int(fields["format"]) > _FORMAT:
            raise SchemaVersionError(f"{path} has format {fields['format']}: upgrade bardo-pipeline")
        made_at = datetime.fromisoformat(fields["made_at"])
        tips = {golem_id: Tip(number, bytes.fromhex(link)) for golem_id, (number, link) in fields["tips"].items()}
        files = tuple(Stored(**file) for file in fields["files"])
        manifest = Manifest(fields["table_id"], made_at, fields["digest"], tips, files)
        if orjson.loads(_packed(manifest)) != fields:
            raise CustodyError(f"{path} was altered: take another copy of this backup")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder} holds no backup: `bardo backup {folder}` makes one") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CustodyError(f"{path} cannot be read ({error!r}): take another copy of this backup") from error
    return manifest


# the way back


def restore(folder: Path, root: Path, now: datetime) -> tuple[Home, Manifest]:
    """Restore a home from a backup into a missing or empty folder, atomically.

    Restored journals are in the state that a dead writer leaves: the next writer or drain moves them to the log.
    Raises ConfigError if the target is not empty, CustodyError if the backup differs from its manifest.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} is not empty: give --home an empty folder, a restore never overwrites a home")
    manifest = read_manifest(folder)
    make_folder(root.absolute().parent)
    draft = Path(tempfile.mkdtemp(dir=root.absolute().parent, prefix=f".{root.name}."))
    try:
        folders = {draft}
        for file in manifest.files:
            target = draft / _checked(file.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            folders |= {parent for parent in target.parents if parent.is_relative_to(draft)}
            _fetch(folder, file, target)
        if (draft / "conversations").exists():
            (draft / "conversations").chmod(0o700)
        for new_folder in folders:
            sync_folder(new_folder)
        draft.chmod(0o755)
        if root.exists():
            root.rmdir()
        draft.rename(root)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Home.create(root, Policy(), now), manifest


def _checked(path: str) -> PurePosixPath:
    """Return the path if it stays below the home. Raises CustodyError otherwise."""
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise CustodyError(f"{MANIFEST} names {path!r}, which is outside of a home: take another copy of this backup")
    return relative


def _fetch(folder: Path, file: Stored, target: Path) -> None:
    path = object_path(folder, file.hash)
    try:
        with path.open("rb") as original, target.open("wb") as out:
            file_sum = _copy_bytes(original, out, None)
            out.flush()
            os.fsync(out.fileno())
    except FileNotFoundError:
        raise CustodyError(f"{path}, which holds {file.path}, is missing: take another copy of this backup") from None
    if file_sum != Sum(file.hash, file.size):
        raise CustodyError(f"{path}, which holds {file.path}, was altered: take another copy of this backup")
