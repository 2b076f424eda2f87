"""Bundles on disk: content-addressed folders; each read verifies the hash."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from bardo_pipeline.errors import BundleError
from bardo_pipeline.inheritance.bundle_files import FILE_BYTES_MAX, Bundle, read_bundle
from bardo_pipeline.inheritance.bundle_inspection import is_hash
from bardo_pipeline.storage.home import Home


def write_bundle(folder: Path, bundle: Bundle) -> Path:
    """Write a bundle to the folder named by its hash, atomically; an existing one is kept."""
    target = folder / bundle.bundle_hash
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=".draft-"))
    try:
        for name, content in bundle.files.items():
            (draft / name).write_bytes(content)
        os.replace(draft, target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not target.exists():
            raise
    return target


def read_bundle_folder(folder: Path) -> Bundle:
    """Read a bundle from its folder. Raises BundleError if a file is missing, altered or foreign."""
    return read_bundle(bundle_files(folder))


def bundle_files(folder: Path) -> dict[str, bytes]:
    """Return name -> content of a bundle folder's files, not inspected yet.

    Raises BundleError unless it is a folder of plain files within the size limit.
    """
    if not folder.is_dir():
        raise BundleError(f"there is no bundle in {folder}: name a folder under bundles/")
    files = {}
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise BundleError(f"{path.name}: no plain file, and a bundle holds nothing else")
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BundleError(f"{path.name}: larger than {FILE_BYTES_MAX:,} bytes, which no bundle needs")
        files[path.name] = path.read_bytes()
    return files


def load_bundle(home: Home, bundle_hash: str) -> Bundle:
    """Load a published bundle. Raises BundleError if it is missing or does not match its hash."""
    if not is_hash(bundle_hash):
        raise BundleError(f"{bundle_hash!r} is no bundle's hash: 64 hex digits, as `bardo bundle show` lists them")
    bundle = read_bundle_folder(home.bundles / bundle_hash)
    if bundle.bundle_hash != bundle_hash:
        raise BundleError(f"bundle {bundle_hash} holds another bundle ({bundle.bundle_hash}): restore it from a copy")
    return bundle
