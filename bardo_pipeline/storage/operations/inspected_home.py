"""A home that can only be read, and a backup, opened for inspection without writing a byte to them.

Reading a home needs a place for locks and caches. If the home cannot be written, a temporary home has that place, and
links to every file of the real one. It is removed when the process ends. Commands that change a home do not use it.
Source: X-11, X-9.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from bardo_pipeline.storage.home import MANIFEST, Home, all_below, children

_OWN = ("locks", "leases", "journal", "index", "log", "derivations")
"""Folders of the temporary home itself: their files are links, so that locks, caches and drafts do not reach the real
home."""


def inspected_home(root: Path) -> Path:
    """Return the home's folder if this user can write it, else a temporary home that reads from it or from a backup.

    Raises CustodyError for an altered manifest of a backup.
    """
    if (root / MANIFEST).exists():
        return _home_of_backup(root)
    home = Home.open(root)
    written = [path for path in (root, home.locks, home.index, home.cycles, home.life) if path.exists()]
    if all(os.access(path, os.W_OK, effective_ids=True) for path in written):
        return root
    draft = _temporary()
    for path in children(root):
        if path.name in _OWN and path.is_dir():
            _link_files(path, draft / path.name)
        else:
            (draft / path.name).symlink_to(path)
    return draft


def _home_of_backup(folder: Path) -> Path:
    from bardo_pipeline.storage.operations.backup import object_path, read_manifest  # with all of verification

    draft = _temporary()
    for file in read_manifest(folder).files:
        path = draft / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(object_path(folder, file.hash), path)
    for name in ("bundles", "derivations", "index", "journal", "leases", "spool"):
        (draft / name).mkdir(exist_ok=True)
    return draft


def _link_files(folder: Path, target: Path) -> None:
    target.mkdir()
    for path in all_below(folder):  # folders sort before their content
        if path.is_dir() and not path.is_symlink():
            (target / path.relative_to(folder)).mkdir(exist_ok=True)
        else:
            _put(path, target / path.relative_to(folder))


def _put(path: Path, place: Path) -> None:
    """Link a file, or copy a checksum manifest, to which the log appends."""
    shutil.copyfile(path, place) if place.parent.name == "sums" else place.symlink_to(path)


def _temporary() -> Path:
    draft = Path(tempfile.mkdtemp(prefix="bardo-inspected-"))
    atexit.register(shutil.rmtree, draft, ignore_errors=True)
    return draft
