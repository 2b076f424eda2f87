"""Cache of the stream heads, so that opening a log does not read every row.

A file that is torn, altered or of another log or history is ignored.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyarrow as pa

from bardo_pipeline.events.record.row_digest import fingerprint
from bardo_pipeline.storage.delta.durable_commits import commit_path
from bardo_pipeline.storage.log.stream_heads import Heads


def save_heads(path: Path, heads: Heads, table: Path, version: int) -> None:
    """Write the heads at a version of the table of cycles."""
    index = heads.to_index()
    facts = {"version": str(version), "commit": _commit(table, version), "rows": fingerprint(index, ["golem_id"])}
    draft = path.with_name(f".{path.stem}.{os.getpid()}.{id(heads)}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, index.schema.with_metadata(facts)) as out:
        out.write_table(index.replace_schema_metadata(facts))
    draft.replace(path)


def load_heads(path: Path, table: Path) -> tuple[Heads, int]:
    """Return the cached heads and their version; empty heads and -1 without a valid file."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            index = file.read_all()
        index.validate(full=True)
        facts = {key.decode(): value.decode() for key, value in (index.schema.metadata or {}).items()}
        version = int(facts["version"])
        if facts["commit"] == _commit(table, version) and facts["rows"] == fingerprint(index, ["golem_id"]):
            return Heads.from_index(index), version
    except (OSError, pa.ArrowException, KeyError, ValueError):
        pass  # the heads are then read from the log
    return Heads(), -1


def _commit(table: Path, version: int) -> str:
    """Hash the commit, which differs in another history of the table."""
    return hashlib.sha256(commit_path(table, version).read_bytes()).hexdigest()
