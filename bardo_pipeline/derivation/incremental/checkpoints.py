"""Checkpoint files: the table version up to which a consumer has read, and rows that it saved for its next run.

Each consumer has a folder `readers/<consumer>` in its derivation. The files are not synced: without a readable
checkpoint a consumer starts again from the first version, which only costs time. Each file has a checksum, so that an
altered one counts as unreadable.
"""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import DamagedError
from bardo_pipeline.storage.checksums import checked_json, json_with_checksum
from bardo_pipeline.storage.projections.derivation_folders import READERS

_NAME = "place.json"
_UNREADABLE = (FileNotFoundError, DamagedError, KeyError, TypeError)
"""Errors of a file that is missing, altered or truncated."""

_PREFIX_BYTES = 64  # Arrow's alignment


class SavedRows(NamedTuple):
    """The version of a checkpoint, and rows saved with it."""

    version: int
    rows: pa.Table


class Checkpoint:
    """The checkpoint of one consumer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def version(self) -> int | None:
        """The version up to which the consumer has read; None without a readable checkpoint."""
        try:
            return int(checked_json(self._folder / _NAME)["version"])
        except _UNREADABLE:
            return None

    def load(self, name: str) -> SavedRows | None:
        """Return the rows saved under a name, with their version; None if either cannot be read."""
        try:
            saved = checked_json(self._folder / _NAME)
            return SavedRows(int(saved["version"]), read_arrow(self._folder / saved[name]))
        except _UNREADABLE:
            return None

    def save(self, version: int, **rows_by_name: pa.Table) -> None:
        """Save the version and rows atomically: the rows' files first, then the JSON file that names them."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file_names = {name: f"{name}-{version}.arrow" for name in rows_by_name}
        for name, rows in rows_by_name.items():
            write_arrow(self._folder / file_names[name], rows)
        draft = self._folder / f".{_NAME}"
        draft.write_bytes(json_with_checksum({"version": version, **file_names}))
        os.replace(draft, self._folder / _NAME)
        for name, file_name in file_names.items():
            for path in self._folder.glob(f"{name}-*.arrow"):
                if path.name != file_name:
                    path.unlink()

    def remove(self) -> None:
        """Remove the checkpoint and its rows."""
        shutil.rmtree(self._folder, ignore_errors=True)


def checkpoint_of(context: DerivationContext, consumer: str) -> Checkpoint:
    """Return the checkpoint of a consumer in the context's derivation, or in its hash bucket."""
    return Checkpoint(consumer_folder(context, f"{consumer}{context.part}"))


def read_version(context: DerivationContext, consumer: str) -> int | None:
    """Return the version up to which a consumer has read for all golems; None without a readable checkpoint."""
    versions = [checkpoint_of(part, consumer).version for part in context.by_bucket()]
    return None if None in versions else min(version for version in versions if version is not None)


def consumer_folder(context: DerivationContext, consumer: str) -> Path:
    """Return the folder of a consumer's checkpoint and caches."""
    return context.projections.root / READERS / consumer


def read_arrow(path: Path) -> pa.Table:
    """Read a file of `write_arrow`. Raises FileNotFoundError, or DamagedError for an altered or truncated file."""
    with pa.memory_map(str(path)) as source:
        whole = source.read_buffer()
    content = whole.slice(min(_PREFIX_BYTES, len(whole)))
    if whole.slice(0, len(whole) - len(content)).to_pybytes() != _prefix(content):
        raise DamagedError(path, "its checksum does not match")
    with pa.ipc.open_file(pa.BufferReader(content)) as file:
        return file.read_all()


def write_arrow(path: Path, rows: pa.Table) -> None:
    """Write rows as an Arrow file behind its checksum, atomically and without a sync."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as out:
        out.write_table(rows)
    content = sink.getvalue()
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        file.write(_prefix(content))
        file.write(content)
    os.replace(draft, path)


def _prefix(content: pa.Buffer) -> bytes:
    return f"crc32:{zlib.crc32(content):08x}".encode().ljust(_PREFIX_BYTES)
