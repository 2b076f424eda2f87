"""The folders of derivations: their descriptions, and copies that share files by hard links.

Files of tables are immutable, so linking them copies a table without using space.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from bardo_pipeline.errors import DamagedError
from bardo_pipeline.storage.checksums import checked_json, json_with_checksum
from bardo_pipeline.storage.delta.durable_commits import remove_note
from bardo_pipeline.storage.home import Home, children, remove_tree, replace_file, sync_folder

_NAME = "derivation.json"
READERS, _DIVISION = "readers", "buckets.json"
"""Folder of the checkpoints and caches of a derivation, and the file in it that names the number of hash buckets."""

_PASSING = frozenset({".tmp", ".version"})
"""Suffixes of files that are not copied: a note of a version may be ahead of the commits that were copied before it."""

_ATTEMPTS = 3
REBUILD, DROPPED = ".rebuild", ".dropped"
"""Suffixes of folders that are not derivations: rebuilt for comparison, or being deleted."""


@dataclass(frozen=True)
class Description:
    """Inputs of a derivation other than the log. golems: the derived golems; None for all."""

    derivation_id: str
    policy: str
    policy_hash: str
    passes_edition: str
    embedder: str
    golems: tuple[str, ...] | None = None


def describe(folder: Path, content: Description) -> None:
    """Write the description atomically unless there is one."""
    if not (folder / _NAME).exists():
        replace_file(folder / _NAME, json_with_checksum(asdict(content), orjson.OPT_INDENT_2))


def description(folder: Path) -> Description | None:
    """Read the description of a derivation's folder; None if it is missing. Raises DamagedError if it is altered."""
    try:
        fields = checked_json(folder / _NAME)
        golems = fields.pop("golems")
        fields.pop("checksum", None)
        return Description(**fields, golems=None if golems is None else tuple(golems))
    except (FileNotFoundError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class HashBucket:
    """The golems whose hash bucket in the log is `number` modulo `count`; number in [0, count)."""

    number: int
    count: int


def bucket_count_of(folder: Path) -> int:
    """Return the number of hash buckets into which a derivation divides the golems; 1 without a division."""
    try:
        return int(checked_json(folder / READERS / _DIVISION)["buckets"])
    except (FileNotFoundError, DamagedError, KeyError, TypeError):
        return 1


def divide(folder: Path, count: int) -> None:
    """Divide the golems of a derivation into hash buckets; the caller excludes all other derivations of the folder.

    The checkpoints are deleted, because those of another division may lack what a retraction changed since.
    """
    shutil.rmtree(folder / READERS, ignore_errors=True)
    sync_folder(folder)
    if count > 1:
        (folder / READERS).mkdir()
        replace_file(folder / READERS / _DIVISION, json_with_checksum({"buckets": count}))


def derivation_folders(home: Home) -> list[Path]:
    """Return the folders of all derivations of a home by name."""
    paths = children(home.derivations)
    return [path for path in paths if path.is_dir() and path.suffix not in (REBUILD, DROPPED)]


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder atomically, with hard links if the file system supports them."""
    draft = target.with_name(f".{target.name}-linking")
    for attempt in range(_ATTEMPTS):
        try:
            _linked(source, draft)
            break
        except FileNotFoundError:  # maintenance deleted a file meanwhile
            if attempt + 1 == _ATTEMPTS:
                raise
    remove_note(target)
    if target.exists():
        old = target.with_name(f".{target.name}-linked")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    draft.rename(target)


def _linked(source: Path, draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for path in sorted(source.rglob("*")):  # folders sort before their content
        place = draft / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        elif path.suffix not in _PASSING:
            _link(path, place)


def _link(path: Path, place: Path) -> None:
    try:
        os.link(path, place)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, place)


def put_in_place(draft: Path, folder: Path) -> None:
    """Replace a derivation's folder by this one, and delete the old one."""
    dropped = folder.with_name(folder.name + DROPPED)
    shutil.rmtree(dropped, ignore_errors=True)
    folder.rename(dropped)
    draft.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(dropped)


def take_out(folder: Path) -> None:
    """Delete a derivation's folder; its name disappears atomically."""
    dropped = folder.with_name(folder.name + DROPPED)
    shutil.rmtree(dropped, ignore_errors=True)
    folder.rename(dropped)
    remove_tree(dropped)
