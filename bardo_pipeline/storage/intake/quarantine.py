"""Quarantine: refused input with its reason and its original bytes, until a ruling (retried or dropped).

Two append-only Delta tables: `items`, one row per refused item, and `rulings`, one row per ruling. Source: EV-4.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import QueryError, StoreError
from bardo_pipeline.events.custody.hash_chain import Signature
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.home import Home, make_folder, replace_file, sync_folder
from bardo_pipeline.storage.log.protocol import utc

Source = Literal["spool", "journal"]
Ruling = Literal["retried", "dropped"]

_LOCK = "quarantine"
_SIGNATURES_BYTES_MAX = 2**24
_READ_BYTES = 2**20
_LOADED_BYTES = 64 * 2**20
_SHOWN = 8
"""Length of shown ids, and the shortest prefix that `find` accepts."""


ITEMS_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "item_id", "source", "file"),
        required("line", pa.int64()),
        pa.field("golem_id", pa.string()),
        pa.field("tick", pa.int64()),
        *all_required(pa.string(), "error", "reason"),
        pa.field("raw", pa.binary()),
        required("raw_hash", pa.string()),
        required("raw_bytes", pa.int64()),
        pa.field("key_id", pa.string()),
        pa.field("signature", pa.binary()),
        required("taken_at", MOMENT),
    ]
)
"""One row per refused item: source, the golem and tick that it names, error, reason and bytes.

line: from 1; 0 for a whole file. raw: null for long bytes, which are in the file raw/<raw_hash>. raw_hash: SHA-256 of
the bytes (hex). key_id, signature: the detached signature of the item.
"""

_PLAIN = ("source", "file", "line", "golem_id", "tick", "error", "reason")
"""Fields of an item that are columns of its row."""

RULINGS_SCHEMA = pa.schema(
    [*all_required(pa.string(), "item_id", "ruling"), required("at", MOMENT), required("why", pa.string())]
)
"""One row per ruling: the item was admitted by a retry (retried) or discarded by an operator (dropped)."""


@dataclass(frozen=True)
class Kept:
    """Bytes stored in a file under raw/: SHA-256 (hex) and length."""

    hash: str
    length: int


@dataclass(frozen=True)
class QuarantineItem:
    """A refused item. line: 0 for a whole file. error: class name of the error."""

    source: Source
    file: str
    line: int
    golem_id: str | None
    tick: int | None
    error: str
    reason: str
    raw: bytes | Kept
    signature: Signature | None = None

    @cached_property
    def kept(self) -> Kept:
        """SHA-256 and length of the bytes."""
        return self.raw if isinstance(self.raw, Kept) else Kept(hashlib.sha256(self.raw).hexdigest(), len(self.raw))

    @property
    def item_id(self) -> str:
        """SHA-256 (hex) over file, line and bytes, so a line of a file is one item whatever its error."""
        place = b"\0".join((self.source.encode(), self.file.encode(), str(self.line).encode()))
        return hashlib.sha256(place + b"\0" + self.kept.hash.encode()).hexdigest()


class Quarantine:
    """The quarantine of one home."""

    def __init__(self, home: Home, policy: Policy | None = None) -> None:
        self._home = home
        self._inline_bytes_max = (policy or Policy()).writer.record_bytes_max
        self._raw = home.quarantine / "raw"
        with home.lock(_LOCK):
            self._items = self._table("items", ITEMS_SCHEMA, "taken_at", policy)
            self._rulings = self._table("rulings", RULINGS_SCHEMA, "item_id", policy)
        self._known: set[str] = set()
        self._known_version = -1

    def _table(self, name: str, schema: pa.Schema, stats_column: str, policy: Policy | None) -> AppendOnlyTable:
        path = self._home.quarantine / name
        return AppendOnlyTable(path, schema, [stats_column], policy=policy, sums=Sums(self._home, path))

    def put(self, items: Sequence[QuarantineItem], taken_at: datetime) -> int:
        """Add new items in one commit; return their number. A ruling on an existing item stays."""
        utc(taken_at, "taken_at")
        by_id = {item.item_id: item for item in items}
        with self._home.lock(_LOCK):
            self._refresh()
            fresh = {item_id: item for item_id, item in by_id.items() if item_id not in self._known}
            if fresh:
                version = self._items.append(self._rows(fresh.items(), taken_at), transactions={})
                self._known.update(fresh)
                if version == self._known_version + 1:
                    self._known_version = version
        return len(fresh)

    def _refresh(self) -> None:
        version, files = self._items.tail(self._known_version)
        if files:
            self._known.update(self._items.load(files, ["item_id"]).column("item_id").to_pylist())
        self._known_version = version

    def _rows(self, items: Iterable[tuple[str, QuarantineItem]], taken_at: datetime) -> pa.Table:
        rows = [
            {
                **{name: getattr(item, name) for name in _PLAIN},
                "item_id": item_id,
                "raw": self._inline(item.raw),
                "raw_hash": item.kept.hash,
                "raw_bytes": item.kept.length,
                "key_id": item.signature.key_id if item.signature else None,
                "signature": item.signature.value if item.signature else None,
                "taken_at": taken_at,
            }
            for item_id, item in items
        ]
        return pa.Table.from_pylist(rows, schema=ITEMS_SCHEMA)

    def _inline(self, raw: bytes | Kept) -> bytes | None:
        if isinstance(raw, bytes) and len(raw) > self._inline_bytes_max:
            self.keep([raw])
        return raw if isinstance(raw, bytes) and len(raw) <= self._inline_bytes_max else None

    def keep(self, chunks: Iterable[bytes]) -> Kept:
        """Write bytes that are too long for a row to a file, durably, chunk by chunk."""
        make_folder(self._raw)
        hasher, length = hashlib.sha256(), 0
        handle, draft = tempfile.mkstemp(dir=self._raw, prefix=".")
        with os.fdopen(handle, "wb") as out:
            for chunk in chunks:
                hasher.update(chunk)
                length += out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, self._raw / hasher.hexdigest())
        sync_folder(self._raw)
        return Kept(hasher.hexdigest(), length)

    def keep_file(self, path: Path, signatures: Path) -> Kept:
        """Store the content of a file with `keep`, and its file of signatures if it exists."""
        with path.open("rb") as file:
            kept = self.keep(iter(lambda: file.read(_READ_BYTES), b""))
        if signatures.exists() and signatures.stat().st_size <= _SIGNATURES_BYTES_MAX:  # else no retry could use them
            replace_file(self.signatures_of(kept), signatures.read_bytes())
        return kept

    def signatures_of(self, kept: Kept) -> Path:
        """Return the path of the signatures of a stored file."""
        return self._raw / f"{kept.hash}.sig"

    def open(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the items without a ruling (ITEMS_SCHEMA, or item_id and these columns) by time, file, line."""
        names = None if columns is None else list(dict.fromkeys(["item_id", "taken_at", "file", "line", *columns]))
        items = self._items.read(names)
        ruled = self._rulings.read(["item_id"]).column("item_id").combine_chunks()
        unruled = items.filter(pc.invert(pc.is_in(items.column("item_id"), value_set=ruled)))
        ordered = unruled.sort_by([("taken_at", "ascending"), ("file", "ascending"), ("line", "ascending")])
        return ordered if columns is None else ordered.select(list(dict.fromkeys(["item_id", *columns])))

    def ruling_of(self, item_id: str) -> tuple[str, datetime, str] | None:
        """Return ruling, time and reason of an item; None without a ruling."""
        rows = self._rulings.read(filter=pc.field("item_id") == item_id).to_pylist()
        return (rows[0]["ruling"], rows[0]["at"], rows[0]["why"]) if rows else None

    def find(self, item_id: str) -> str:
        """Return the full id of the item with this prefix. Raises QueryError for none or several."""
        ids = self._items.read(["item_id"]).column("item_id")
        matches = pc.unique(ids.filter(pc.starts_with(ids, item_id))).to_pylist()
        if len(item_id) < _SHOWN or len(matches) != 1:
            raise QueryError(
                f"{len(matches)} items in quarantine have an id that begins with {item_id!r}: give at least {_SHOWN} "
                "characters of an id, as `bardo quarantine list` shows them"
            )
        return str(matches[0])

    def show(self, item_id: str) -> QuarantineItem:
        """Return the item with this full id. Raises QueryError without one."""
        (item,) = self.items([item_id])
        return item

    def items(self, item_ids: Sequence[str]) -> Iterator[QuarantineItem]:
        """Yield the items with these full ids in order, read in parts. Raises QueryError for an unknown id."""
        sizes = self._items.read(["item_id", "raw_bytes"])
        size_of = dict(zip(sizes.column("item_id").to_pylist(), sizes.column("raw_bytes").to_pylist(), strict=True))
        for item_id in item_ids:
            if item_id not in size_of:
                raise QueryError(f"there is no item {item_id} in quarantine: `bardo quarantine list` shows all")
        start = size = 0
        for at, item_id in enumerate(item_ids):
            size += size_of[item_id]
            if size > _LOADED_BYTES or at + 1 == len(item_ids):
                part = item_ids[start : at + 1]
                rows = self._items.read(filter=pc.field("item_id").isin(part)).to_pylist()
                by_id = {row["item_id"]: _item_of(row) for row in rows}
                yield from (by_id[item_id] for item_id in part)
                start, size = at + 1, 0

    def raw_of(self, item: QuarantineItem) -> bytes:
        """Return the original bytes of an item. Raises StoreError if their file is missing or altered."""
        if isinstance(item.raw, bytes):
            return item.raw
        path = self._raw / item.raw.hash
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raise StoreError(f"{path} is missing: restore it from a copy of the home") from None
        if hashlib.sha256(raw).hexdigest() != item.raw.hash:
            raise StoreError(f"the content of {path} does not match its name: restore it from a copy of the home")
        return raw

    def rule(self, item_ids: Sequence[str], ruling: Ruling, *, at: datetime, why: str) -> int:
        """Record a ruling on items (full ids); return the number without an earlier ruling."""
        utc(at, "the time of a ruling")
        with self._home.lock(_LOCK):
            ruled = set(self._rulings.read(["item_id"]).column("item_id").to_pylist())
            fresh = [item_id for item_id in dict.fromkeys(item_ids) if item_id not in ruled]
            if fresh:
                rows = [{"item_id": item_id, "ruling": ruling, "at": at, "why": why} for item_id in fresh]
                self._rulings.append(pa.Table.from_pylist(rows, schema=RULINGS_SCHEMA), transactions={})
        return len(fresh)


def _item_of(row: dict) -> QuarantineItem:
    """Return the item of a row (ITEMS_SCHEMA)."""
    raw = row["raw"] if row["raw"] is not None else Kept(row["raw_hash"], row["raw_bytes"])
    signature = None if row["signature"] is None else Signature(row["key_id"], row["signature"])
    return QuarantineItem(**{name: row[name] for name in _PLAIN}, raw=raw, signature=signature)
