"""Derivations on disk: what each folder says of itself, which there are, and files that two of them share.

Tables are made of files that are never changed, only added and taken away. So a table is shared by linking its files:
it costs no bytes, and from there on each side goes its own way.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from bardo_pipeline.storage.home import Home

_NAME = "derivation.json"
_PASSING = frozenset({".tmp"})
_ATTEMPTS = 3
REBUILD, DROPPED = ".rebuild", ".dropped"
"""How folders are called that are none: derived again to be compared, and on their way out."""


@dataclass(frozen=True)
class Description:
    """What decides a derivation's content beside the log. golems: only these were derived, None for all."""

    derivation_id: str
    policy: str
    policy_hash: str
    passes_edition: str
    embedder: str
    golems: tuple[str, ...] | None = None


def describe(folder: Path, said: Description) -> None:
    """Leave it beside the tables, at once; what is there stays."""
    if (folder / _NAME).exists():
        return
    draft = folder / f".{_NAME}"
    draft.write_bytes(orjson.dumps(asdict(said), option=orjson.OPT_INDENT_2))
    os.replace(draft, folder / _NAME)


def description(folder: Path) -> Description | None:
    """What a derivation's folder says of itself; None for one that says nothing that can be read."""
    try:
        told = orjson.loads((folder / _NAME).read_bytes())
        golems = told.pop("golems")
        return Description(**told, golems=None if golems is None else tuple(golems))
    except (FileNotFoundError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def derivation_folders(home: Home) -> list[Path]:
    """The folders of all derivations of a home, by name."""
    found = sorted(home.derivations.iterdir()) if home.derivations.exists() else []
    return [path for path in found if path.is_dir() and path.suffix not in (REBUILD, DROPPED)]


def link_tree(source: Path, target: Path) -> None:
    """Put the same files under another folder, whole or not at all: linked where the disk can, else copied."""
    draft = target.with_name(f".{target.name}-linking")
    for attempt in range(_ATTEMPTS):
        try:
            _linked(source, draft)
            break
        except FileNotFoundError:  # maintenance trimmed it meanwhile
            if attempt + 1 == _ATTEMPTS:
                raise
    if target.exists():
        old = target.with_name(f".{target.name}-linked")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    draft.rename(target)


def _linked(source: Path, draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for path in sorted(source.rglob("*")):  # folders before what is in them
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


def take_out(folder: Path) -> None:
    """Take a derivation's folder away: under its name it is there whole or not at all."""
    gone = folder.with_name(folder.name + DROPPED)
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)
