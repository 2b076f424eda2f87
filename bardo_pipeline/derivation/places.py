"""Places: how far a reader has come in a table, in a file of its own, with rows that it keeps beside.

A place only saves time: gone, or not to be read, its reader begins anew. So do rows that are kept by golem.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
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


_SPAN_BYTES_MAX = 4 * 2**20
"""A file of more is halved: to put one in another's place costs more than what is in so many bytes."""


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
    def stem(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def halves(self) -> tuple[_Span, _Span]:
        middle = (self.first + self.last) // 2
        return _Span(self.first, middle), _Span(middle + 1, self.last)


@dataclass(frozen=True)
class ByGolem:
    """Rows that some reader keeps of golems, by bucket: all in a file, which is halved when it grows.

    schema: the rows', `golem_id` among it.
    """

    stores: Stores
    name: str
    schema: pa.Schema

    def rows(self, golem_ids: Iterable[str]) -> pa.Table:
        """What is kept of these golems and of those that lie beside them; nothing of a file that cannot be read."""
        spans = self._spans()
        found = {self._span_of(bucket, spans) for bucket in self._buckets(golem_ids)}
        return pa.concat_tables([self.schema.empty_table(), *(self._read(span) for span in sorted(found))])

    def keep(self, rows: pa.Table, golem_ids: Iterable[str]) -> None:
        """Keep rows of these golems instead of what was kept of them; those of the dead are let go."""
        golem_ids, spans = set(golem_ids), self._spans()
        dead = self.stores.life("DeathDeclared")["golem_id"].to_pylist()
        gone = pa.array(sorted({*golem_ids, *dead}), pa.string())
        for span in sorted({self._span_of(bucket, spans) for bucket in self._buckets(golem_ids)}):
            others = self._read(span)
            others = others.filter(pc.invert(pc.is_in(others["golem_id"], value_set=gone)))
            self._write(span, pa.concat_tables([others, self._within(rows, span)]))

    def _write(self, span: _Span, rows: pa.Table) -> None:
        path = self._file(span)
        if rows.nbytes <= _SPAN_BYTES_MAX or span.first == span.last:
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(path, rows)
            return
        path.unlink(missing_ok=True)  # before its halves are there: no golem is kept twice
        for half in span.halves:
            self._write(half, self._within(rows, half))

    def _within(self, rows: pa.Table, span: _Span) -> pa.Table:
        owners = rows["golem_id"].to_pylist()
        inside = {golem_id for golem_id in set(owners) if span.first <= self._bucket(golem_id) <= span.last}
        return rows.filter(pa.array([owner in inside for owner in owners], pa.bool_()))

    def _read(self, span: _Span) -> pa.Table:
        try:
            with pa.memory_map(str(self._file(span))) as source, pa.ipc.open_file(source) as file:
                rows = file.read_all()
        except (FileNotFoundError, pa.ArrowInvalid):
            return self.schema.empty_table()
        return rows if rows.schema.equals(self.schema) else self.schema.empty_table()

    def _spans(self) -> set[_Span]:
        """The spans that have a file."""
        bounds = (path.stem.split("-") for path in self._folder.glob("[0-9]*.arrow"))
        return {_Span(int(of[0]), int(of[-1])) for of in bounds}

    def _span_of(self, bucket: int, spans: Collection[_Span]) -> _Span:
        """The span in whose file a bucket lies, or would: the widest that takes in no other's."""
        span = _Span(0, self.stores.home.bucket_count - 1)
        while any(span.first <= other.first and other.last <= span.last for other in spans if other != span):
            low, high = span.halves
            span = low if bucket <= low.last else high
        return span

    def _buckets(self, golem_ids: Iterable[str]) -> set[int]:
        return {self._bucket(golem_id) for golem_id in golem_ids}

    def _bucket(self, golem_id: str) -> int:
        return bucket_of(golem_id, self.stores.home.bucket_count)

    @property
    def _folder(self) -> Path:
        return self.stores.projections.root / "readers" / self.name

    def _file(self, span: _Span) -> Path:
        return self._folder / f"{span.stem}.arrow"


def _put(path: Path, rows: pa.Table) -> None:
    draft = path.with_name(f".{path.name}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
        out.write_table(rows)
    os.replace(draft, path)
