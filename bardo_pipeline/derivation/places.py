"""Places: how far a reader has come in a table, in a file of its own, with rows that it keeps beside.

A place only saves time: gone, or not to be read, its reader begins anew. So do rows that are kept by golem.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.storage.home import bucket_of

_NAME = "place.json"
_UNREADABLE = (orjson.JSONDecodeError, KeyError, TypeError, pa.ArrowInvalid)
"""What a file gives that a power cut left short: nothing here is synced, since all of it can be made again."""


class Kept(NamedTuple):
    """The version up to which a table was read, and the rows that were kept then."""

    version: int
    rows: pa.Table


def place_of(folder: Path) -> int | None:
    """The version up to which a table was read by the one who keeps this folder."""
    try:
        return int(orjson.loads((folder / _NAME).read_bytes())["version"])
    except (FileNotFoundError, *_UNREADABLE):
        return None


def kept_at(folder: Path, what: str) -> Kept | None:
    """What was kept there under this word."""
    try:
        place = orjson.loads((folder / _NAME).read_bytes())
        with pa.memory_map(str(folder / place[what])) as source, pa.ipc.open_file(source) as file:
            return Kept(int(place["version"]), file.read_all())
    except (FileNotFoundError, *_UNREADABLE):
        return None


def keep_place(folder: Path, version: int, **kept: pa.Table) -> None:
    """Keep the place: rows go into files first, then their names and the version into another, at once."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {what: f"{what}-{version}.arrow" for what in kept}
    for what, rows in kept.items():
        _put(folder / names[what], rows)
    draft = folder / f".{_NAME}"
    draft.write_bytes(orjson.dumps({"version": version, **names}))
    os.replace(draft, folder / _NAME)
    for what, name in names.items():
        for old in folder.glob(f"{what}-*.arrow"):
            if old.name != name:
                old.unlink()


@dataclass(frozen=True)
class ByGolem:
    """Rows that some reader keeps of golems, in a file a bucket. schema: theirs, `golem_id` among it."""

    stores: Stores
    name: str
    schema: pa.Schema

    def buckets(self, golem_ids: Iterable[str]) -> list[int]:
        """The buckets that these golems fall into."""
        return sorted({self._bucket(golem_id) for golem_id in golem_ids})

    def rows(self, bucket: int) -> pa.Table:
        """What is kept of a bucket; nothing where there is no file, or one that cannot be read."""
        try:
            with pa.memory_map(str(self._file(bucket))) as source, pa.ipc.open_file(source) as file:
                rows = file.read_all()
        except (FileNotFoundError, pa.ArrowInvalid):
            return self.schema.empty_table()
        return rows if rows.schema.equals(self.schema) else self.schema.empty_table()

    def keep(self, rows: pa.Table, golem_ids: Iterable[str]) -> None:
        """Keep rows of these golems instead of what was kept of them; those of the dead are let go."""
        golem_ids = set(golem_ids)
        dead = self.stores.life("DeathDeclared")["golem_id"].to_pylist()
        gone = pa.array(sorted({*golem_ids, *dead}), pa.string())
        where = [self._bucket(golem_id) for golem_id in rows["golem_id"].to_pylist()]
        for bucket in self.buckets(golem_ids):
            others = self.rows(bucket)
            others = others.filter(pc.invert(pc.is_in(others["golem_id"], value_set=gone)))
            mine = rows.filter(pa.array([one == bucket for one in where], pa.bool_()))
            path = self._file(bucket)
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(path, pa.concat_tables([others, mine]))

    def _bucket(self, golem_id: str) -> int:
        return bucket_of(golem_id, self.stores.home.bucket_count)

    def _file(self, bucket: int) -> Path:
        return self.stores.projections.root / "readers" / self.name / f"{bucket}.arrow"


def _put(path: Path, rows: pa.Table) -> None:
    draft = path.with_name(f".{path.name}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
        out.write_table(rows)
    os.replace(draft, path)
