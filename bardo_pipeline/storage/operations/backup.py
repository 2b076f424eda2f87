"""Backup: a consistent copy of what cannot be derived, taken while writers run; and the way back.

A backup is a folder with `MANIFEST.json` and `objects/`, where each file lies under the SHA-256 of its bytes. Making it
again copies only what is new, and the manifest is replaced in one step at the end, so that an interrupted backup leaves
the one before whole. In it: the log, the journals as far as they are written, leases, spool, quarantine, bundles,
conversations. Not in it: seal keys (destroying one must reach every copy), nor anything that the log can make again.

Whoever commits waits only while versions are noted and what moves or grows gets a second name; maintenance, which takes
files away, waits to the end. Source: X-9.
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
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from bardo_pipeline.errors import ConfigError, CustodyError, SchemaVersionError
from bardo_pipeline.events.custody.hash_chain import Tip
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home, make_folder, replace_file, sync_folder
from bardo_pipeline.storage.journal.frames import written_bytes
from bardo_pipeline.storage.log.checksum_manifest import CHECKPOINT, COMMIT, Sum, hash_file, read_sums
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.verification.check_delta_files import Pin
from bardo_pipeline.storage.verification.verify import fleet_digest, pins_of, still

MANIFEST = "MANIFEST.json"
_OBJECTS = "objects"
_FORMAT = 1
_BLOCK_BYTES = 2**20


class Stored(NamedTuple):
    """A file of a home as a backup has it: where it lay, the SHA-256 of its bytes in hex, how many they are."""

    path: str
    hash: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """What a backup holds. digest: of the fleet, as `bardo verify` prints it. tips: by golem, without the journals."""

    table_id: str
    made_at: datetime
    digest: str
    tips: Mapping[str, Tip]
    files: tuple[Stored, ...]


@dataclass(frozen=True)
class BackedUp:
    """What a backup did. copied: files that were new; held: how many are in it now."""

    manifest: Manifest
    copied: int
    copied_bytes: int
    held: int


@dataclass(frozen=True)
class _Source:
    """A file to be copied: its bytes (so many from the beginning, or all), and its sum where one is known."""

    name: str
    path: Path
    length: int | None = None
    known: Sum | None = None


# making one


def back_up(home: Home, folder: Path, now: datetime) -> BackedUp:
    """Bring the backup in this folder up to the home; it is made where the folder is missing or empty.

    Raises ConfigError for a folder that is something else, CustodyError for a file of the log that is not what it was
    when it was committed, and where the backup holds records that the home lacks; the backup then stays as it was.
    """
    if folder.absolute().is_relative_to(home.root.absolute()):
        raise ConfigError(f"{folder} lies in the home itself: give a folder elsewhere, best on another disk")
    alone = home.lock("backup"), home.lock("maintenance", shared=True)
    with alone[0], alone[1], _staging(home) as staging, EventLog(home) as log:
        before = _begun(folder, log.table_id)
        with still(home):
            pins = pins_of(home)
            tips = {golem_id: log.tip(golem_id) for golem_id in log.heads()["golem_id"].to_pylist()}
            moving = list(_moving(home, pins, staging))
        _check_grown(before, tips)
        files, copied = _copy([*moving, *_standing(home, pins)], folder)
        version = next(pin.version for pin in pins if pin.path == home.cycles)
        manifest = Manifest(log.table_id, now, f"{version}:{fleet_digest(tips)}", tips, tuple(sorted(files)))
    replace_file(folder / MANIFEST, _packed(manifest))
    _prune(folder, manifest)
    return BackedUp(manifest, len(copied), sum(copied), len(files))


def _begun(folder: Path, table_id: str) -> Manifest | None:
    """The backup that is there. Raises ConfigError for a folder that is none, or one of another home."""
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


def _check_grown(before: Manifest | None, tips: Mapping[str, Tip]) -> None:
    """A log only grows; one that did not is not copied over what is left of it."""
    for golem_id, known in before.tips.items() if before is not None else ():
        found = tips.get(golem_id, Tip())
        if found.number < known.number or (found.number == known.number and found.hash != known.hash):
            raise CustodyError(
                f"golem {golem_id}: the backup of {before.made_at if before else ''} has it up to link {known.number}, "
                f"and the home, up to link {found.number}, does not: run `bardo verify`, and restore the backup"
            )


@contextmanager
def _staging(home: Home) -> Iterator[Path]:
    """A folder beside the log for second names; for whoever holds the lock of backups."""
    for left in home.root.glob(".backup-*"):
        shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(dir=home.root, prefix=".backup-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _moving(home: Home, pins: Iterable[Pin], staging: Path) -> Iterator[_Source]:
    """What grows, is written over or goes away: under another name, and as long as it is now.

    The spool before what is being taken from it, sessions before their archives: so what moves meanwhile is met once at
    least.
    """
    files = [home.root / "home.json"]
    for pin in pins:
        files.append(pin.path / "_delta_log" / "_last_checkpoint")
        if pin.sums_length:
            yield _Source(pin.sums.relative_to(home.root).as_posix(), pin.sums, pin.sums_length)
    files += sorted(home.journal.glob("*/*.seg")) + sorted(home.leases.glob("*.lease"))
    for folder, later in ((home.spool, ".taking"), (home.conversations, ".archive-")):
        found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files += [path for path in found if later not in path.as_posix()]
        files += [path for path in sorted(folder.rglob("*")) if path.is_file() and later in path.as_posix()]
    for number, path in enumerate(files):
        second = staging / str(number)
        try:
            os.link(path, second)
        except FileNotFoundError:
            continue
        length = written_bytes(second) if path.parent.parent == home.journal else second.stat().st_size
        yield _Source(path.relative_to(home.root).as_posix(), second, length)


def _standing(home: Home, pins: Iterable[Pin]) -> Iterator[_Source]:
    """What never changes: files of the tables up to their versions, bundles, and the bytes that quarantine keeps."""
    log = home.cycles.parent
    for pin in pins:
        known = read_sums(pin.sums, pin.sums_length).sums
        for path in _of_table(pin):
            yield _Source(
                path.relative_to(home.root).as_posix(), path, None, known.get(path.relative_to(log).as_posix())
            )
    beside = [path for folder in home.bundles.glob("[!.]*") for path in folder.iterdir()]
    for path in sorted([*beside, *(home.quarantine / "raw").glob("[!.]*")]):
        yield _Source(path.relative_to(home.root).as_posix(), path)


def _of_table(pin: Pin) -> list[Path]:
    """Commits and checkpoints up to a version, and the files that hold the rows of it."""
    log = pin.path / "_delta_log"
    matches = [found for name in os.listdir(log) if (found := COMMIT.fullmatch(name) or CHECKPOINT.fullmatch(name))]
    named = [log / found.group(0) for found in matches if int(found.group(1)) <= pin.version]
    try:
        actions = pa.table(DeltaTable(pin.path, version=pin.version).get_add_actions(flatten=True))
    except DeltaError as error:
        raise CustodyError(f"{pin.path} cannot be read ({error}): run `bardo verify`") from error
    return sorted([*named, *(pin.path / unquote(path) for path in actions.column("path").to_pylist())])


def _copy(sources: Iterable[_Source], folder: Path) -> tuple[list[Stored], list[int]]:
    """Bring every file's bytes to the backup; returns what it holds then, and the lengths of those that were new."""
    held: dict[str, Stored] = {}
    copied: list[int] = []
    for source in sources:
        known = source.known or (
            Sum(hash_file(source.path), source.path.stat().st_size) if source.length is None else None
        )
        if known is None or not _has(folder, known):
            known, is_new = _store(source, folder)
            if is_new:
                copied.append(known.size)
        held[source.name] = Stored(source.name, known.hash, known.size)
    for part in {file.hash[:2] for file in held.values()}:
        sync_folder(folder / _OBJECTS / part)
    sync_folder(folder / _OBJECTS)
    return list(held.values()), copied


def _has(folder: Path, known: Sum) -> bool:
    try:
        return _object(folder, known.hash).stat().st_size == known.size
    except FileNotFoundError:
        return False


def _store(source: _Source, folder: Path) -> tuple[Sum, bool]:
    """Copy a file's bytes durably; whether they were new. Raises CustodyError where they are not those on record."""
    handle, draft = tempfile.mkstemp(dir=folder / _OBJECTS, prefix=".draft-")
    try:
        with source.path.open("rb") as given, os.fdopen(handle, "wb") as out:
            found = _pour(given, out, source.length)
            out.flush()
            os.fsync(out.fileno())
        if source.known not in (None, found):
            raise CustodyError(f"{source.name} was altered since it was committed: run `bardo verify`")
        if _has(folder, found):
            return found, False
        target = _object(folder, found.hash)
        target.parent.mkdir(exist_ok=True)
        os.replace(draft, target)
        return found, True
    finally:
        Path(draft).unlink(missing_ok=True)


def _pour(given: BinaryIO, out: BinaryIO, length: int | None) -> Sum:
    """Copy so many bytes, or all; returns their sum."""
    hasher, size = hashlib.sha256(), 0
    while block := given.read(_BLOCK_BYTES if length is None else min(_BLOCK_BYTES, length - size)):
        hasher.update(block)
        out.write(block)
        size += len(block)
    return Sum(hasher.hexdigest(), size)


def _object(folder: Path, name: str) -> Path:
    return folder / _OBJECTS / name[:2] / name


def _prune(folder: Path, manifest: Manifest) -> None:
    """Take away what the backup before held and this one does not."""
    held = {file.hash for file in manifest.files}
    for path in (folder / _OBJECTS).rglob("*"):
        if path.is_file() and path.name not in held:
            path.unlink()


# the manifest


def _packed(manifest: Manifest) -> bytes:
    said = {
        "format": _FORMAT,
        "table_id": manifest.table_id,
        "made_at": manifest.made_at,
        "digest": manifest.digest,
        "tips": {golem_id: [tip.number, tip.hash.hex()] for golem_id, tip in manifest.tips.items()},
        "files": [file._asdict() for file in manifest.files],
    }
    content = orjson.dumps(said, option=orjson.OPT_INDENT_2)
    seal = hashlib.sha256(content).hexdigest()
    return orjson.dumps({**said, "sha256": seal}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup.

    Raises ConfigError where there is none, SchemaVersionError for one of a newer format, CustodyError for one that was
    altered.
    """
    path = folder / MANIFEST
    try:
        said = orjson.loads(path.read_bytes())
        if int(said["format"]) > _FORMAT:
            raise SchemaVersionError(f"{path} has format {said['format']}: upgrade bardo-pipeline")
        made_at = datetime.fromisoformat(said["made_at"])
        tips = {golem_id: Tip(number, bytes.fromhex(link)) for golem_id, (number, link) in said["tips"].items()}
        files = tuple(Stored(**file) for file in said["files"])
        manifest = Manifest(said["table_id"], made_at, said["digest"], tips, files)
        if orjson.loads(_packed(manifest)) != said:
            raise CustodyError(f"{path} was altered: take another copy of this backup")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{folder} holds no backup: `bardo backup {folder}` makes one") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CustodyError(f"{path} cannot be read ({error!r}): take another copy of this backup") from error
    return manifest


# the way back


def restore(folder: Path, root: Path, now: datetime) -> tuple[Home, Manifest]:
    """Make a home of a backup, in a folder that is missing or empty; it is there whole or not at all.

    What was in journals waits there, as a dead writer leaves it: the next writer or drain takes it to the log.
    Raises ConfigError for a target that holds something, CustodyError for a backup that is not what its manifest says.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} is not empty: give --home a folder that is, nothing is ever restored over a home")
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
        for made in folders:
            sync_folder(made)
        draft.chmod(0o755)
        if root.exists():
            root.rmdir()
        draft.rename(root)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Home.create(root, Policy(), now), manifest


def _checked(path: str) -> PurePosixPath:
    """The path, if it stays below the home."""
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or not found.parts:
        raise CustodyError(f"{MANIFEST} names {path!r}, which lies outside of a home: take another copy of this backup")
    return found


def _fetch(folder: Path, file: Stored, target: Path) -> None:
    path = _object(folder, file.hash)
    try:
        with path.open("rb") as given, target.open("wb") as out:
            found = _pour(given, out, None)
            out.flush()
            os.fsync(out.fileno())
    except FileNotFoundError:
        raise CustodyError(f"{path}, which holds {file.path}, is missing: take another copy of this backup") from None
    if found != Sum(file.hash, file.size):
        raise CustodyError(f"{path}, which holds {file.path}, was altered: take another copy of this backup")
