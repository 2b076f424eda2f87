"""The heads as they were when a log was closed, so that the next one to open it need not read every row.

It only saves time: a file that is torn, altered, or of another log or another history than this one, is passed over.
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
    """Write the heads as of a version of the table of cycles."""
    index = heads.to_index()
    facts = {"version": str(version), "commit": _commit(table, version), "rows": fingerprint(index, ["golem_id"])}
    draft = path.with_name(f".{path.stem}.{os.getpid()}.{id(heads)}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, index.schema.with_metadata(facts)) as out:
        out.write_table(index.replace_schema_metadata(facts))
    draft.replace(path)


def load_heads(path: Path, table: Path) -> tuple[Heads, int]:
    """The heads, and the version as of which they are; none and -1 where there is no file to believe."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            index = file.read_all()
        index.validate(full=True)
        facts = {key.decode(): value.decode() for key, value in (index.schema.metadata or {}).items()}
        version = int(facts["version"])
        if facts["commit"] == _commit(table, version) and facts["rows"] == fingerprint(index, ["golem_id"]):
            return Heads.from_index(index), version
    except (OSError, pa.ArrowException, KeyError, ValueError):
        pass  # whatever is wrong with it, the log says the same
    return Heads(), -1


def _commit(table: Path, version: int) -> str:
    """What tells a version from the same number in another history of the table."""
    return hashlib.sha256(commit_path(table, version).read_bytes()).hexdigest()
