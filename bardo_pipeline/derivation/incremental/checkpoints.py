"""Places: how far a reader has come in a table, in a file of its own, with rows that it keeps beside.

A place only saves time: gone, or not to be read, its reader begins anew. So do rows that are kept by golem.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.home import bucket_of

_NAME = "place.json"
_UNREADABLE = (orjson.JSONDecodeError, KeyError, TypeError, pa.ArrowInvalid)
"""What a file gives that a power cut left short: nothing here is synced, since all of it can be made again."""


_SPAN_BYTES_MAX = 4 * 2**20
"""A file of more is halved: whoever keeps rows of one golem writes no more than that, and of all golems few files."""


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


class _Span(NamedTuple):
    """The buckets that lie in a file, from first to last."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.first}.arrow" if self.first == self.last else f"{self.first}-{self.last}.arrow"

    @property
    def halves(self) -> tuple[_Span, _Span]:
        middle = (self.first + self.last) // 2
        return _Span(self.first, middle), _Span(middle + 1, self.last)


@dataclass(frozen=True)
class ByGolem:
    """Rows that some reader keeps of golems, by bucket: all in a file, which is halved when it grows.

    schema: the rows', `golem_id` among it. Files are halved, never joined.
    """

    context: DerivationContext
    name: str
    schema: pa.Schema

    def rows(self, golem_ids: Iterable[str]) -> pa.Table:
        """What is kept of these golems and of those that lie beside them; nothing of a file that cannot be read."""
        due = self._spans_of(map(self._bucket, golem_ids))
        return pa.concat_tables([self.schema.empty_table(), *map(self._read, due)])

    def keep(self, rows: pa.Table, golem_ids: Iterable[str]) -> None:
        """Keep rows of these golems instead of what was kept of them; those of the dead are let go."""
        golem_ids = set(golem_ids)
        dead = self.context.life("DeathDeclared")["golem_id"].to_pylist()
        gone, buckets = pa.array(sorted({*golem_ids, *dead}), pa.string()), self._buckets(rows)
        for span in self._spans_of(map(self._bucket, golem_ids)):
            others = self._read(span)
            others = others.filter(pc.invert(pc.is_in(others["golem_id"], value_set=gone)))
            self._write(span, pa.concat_tables([others, _within(rows, buckets, span)]))

    def _write(self, span: _Span, rows: pa.Table) -> None:
        path = self._folder / span.name
        if rows.nbytes <= _SPAN_BYTES_MAX or span.first == span.last:
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(path, rows)
            return
        path.unlink(missing_ok=True)  # before its halves are there: no golem is kept twice
        buckets = self._buckets(rows)
        for half in span.halves:
            self._write(half, _within(rows, buckets, half))

    def _read(self, span: _Span) -> pa.Table:
        try:
            with pa.memory_map(str(self._folder / span.name)) as source, pa.ipc.open_file(source) as file:
                rows = file.read_all()
        except (FileNotFoundError, pa.ArrowInvalid):
            return self.schema.empty_table()
        return rows if rows.schema.equals(self.schema) else self.schema.empty_table()

    def _spans_of(self, buckets: Iterable[int]) -> list[_Span]:
        """The spans in whose files these buckets lie, or would: the widest that take in no other file's."""
        held = self._held()
        firsts = [span.first for span in held]
        found = set()
        for bucket in set(buckets):
            span = _Span(0, self.context.home.bucket_count - 1)
            while span.first < span.last:
                inside = held[bisect_left(firsts, span.first) : bisect_right(firsts, span.last)]
                if inside in ([], [span]):
                    break
                low, high = span.halves
                span = low if bucket <= low.last else high
            found.add(span)
        return sorted(found)

    def _held(self) -> list[_Span]:
        """The spans that have a file, in their order, but for one whose halves have: a power cut brought it back."""
        named = (re.fullmatch(r"(\d+)(?:-(\d+))?\.arrow", path.name) for path in self._folder.glob("*.arrow"))
        spans = [_Span(int(found[1]), int(found[2] or found[1])) for found in named if found]
        spans.sort(key=lambda one: (one.first, -one.last))
        return [one for at, one in enumerate(spans) if all(other.last > one.last for other in spans[at + 1 : at + 2])]

    def _buckets(self, rows: pa.Table) -> np.ndarray:
        """The bucket of each row. int64 [rows]"""
        owners = rows["golem_id"].to_pylist()
        bucket = {golem_id: self._bucket(golem_id) for golem_id in set(owners)}
        return np.array([bucket[owner] for owner in owners], np.int64)

    def _bucket(self, golem_id: str) -> int:
        return bucket_of(golem_id, self.context.home.bucket_count)

    @property
    def _folder(self) -> Path:
        return self.context.projections.root / "readers" / self.name


def _within(rows: pa.Table, buckets: np.ndarray, span: _Span) -> pa.Table:
    return rows.filter(pa.array((span.first <= buckets) & (buckets <= span.last)))


def _put(path: Path, rows: pa.Table) -> None:
    draft = path.with_name(f".{path.name}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
        out.write_table(rows)
    os.replace(draft, path)
