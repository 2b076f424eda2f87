"""Snapshots of a clade's backup as bytes: packed, divided into parts of one message each, and read again. Pure.

A snapshot holds what a home recorded about its golems since the snapshot before it: rows of the log, life events and
bundles. Snapshots of a home form a chain, because each names the hash of the one before. So a lost, repeated or altered
snapshot shows. Source: KAT-10; INH S6.5; ADR 0112.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

import orjson
import pyarrow as pa

from bardo_pipeline.errors import BackupError
from bardo_pipeline.events.custody.clade_secret import PLAINTEXT_BYTES_MAX
from bardo_pipeline.events.record.arrow_columns import upcast
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, LIFE_LOG_SCHEMA

FORMAT = 1
"""Format of parts and snapshots; a newer one is refused."""

_HEADER_BYTES = 1_024
_PART_BYTES = PLAINTEXT_BYTES_MAX - _HEADER_BYTES


class Place(NamedTuple):
    """The place of a snapshot in the backup of a home.

    Parameters
    ----------
    home_id : id of the table of cycles of the home
    number : from 1
    previous : hash of the snapshot before, empty for the first one
    made_at : UTC
    """

    home_id: str
    number: int
    previous: str
    made_at: datetime


class Part(NamedTuple):
    """One of `total` parts of a snapshot. hash: SHA-256 of the whole snapshot, in hex. number: from 1."""

    place: Place
    hash: str
    number: int
    total: int
    content: bytes


@dataclass(frozen=True)
class Snapshot:
    """The records, life events and bundles of a home since the snapshot before.

    Parameters
    ----------
    records : CYCLES_SCHEMA, whole commits of the home's log
    events : LIFE_LOG_SCHEMA
    bundles : hash -> archive, of the bundles that these events name first
    """

    place: Place
    records: pa.Table
    events: pa.Table
    bundles: Mapping[str, bytes]

    def packed(self) -> bytes:
        """Return the snapshot as bytes."""
        content = {"records": table_bytes(self.records), "events": table_bytes(self.events)}
        bundles = {f"bundle {k}": v for k, v in self.bundles.items()}
        return pack({"place": orjson.dumps(self.place._asdict()), **content, **bundles})

    @classmethod
    def unpacked(cls, content: bytes) -> Self:
        """Read a packed snapshot. Raises BackupError."""
        try:
            files = unpack(content)
            records, events = (bytes_table(files.pop(name)) for name in ("records", "events"))
            place = _place(orjson.loads(files.pop("place")))
        except (zlib.error, pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise BackupError(f"a snapshot cannot be read ({error!r})") from None
        bundles = {name.removeprefix("bundle "): content for name, content in files.items()}
        return cls(place, upcast(records, CYCLES_SCHEMA), upcast(events, LIFE_LOG_SCHEMA), bundles)


def divided(place: Place, packed: bytes) -> Iterator[bytes]:
    """Yield the plaintexts of the messages of a packed snapshot, each at most PLAINTEXT_BYTES_MAX long."""
    count, whole = max(1, -(-len(packed) // _PART_BYTES)), hashlib.sha256(packed).hexdigest()
    for number in range(1, count + 1):
        header = {"format": FORMAT, "hash": whole, "part": number, "parts": count, **place._asdict()}
        yield orjson.dumps(header) + b"\n" + packed[(number - 1) * _PART_BYTES : number * _PART_BYTES]


def part_of(plaintext: bytes) -> Part:
    """Read the plaintext of a message. Raises BackupError unless it is a part of a snapshot."""
    head, _, content = plaintext.partition(b"\n")
    try:
        header = orjson.loads(head)
        if header["format"] > FORMAT:
            raise BackupError(f"the message has format {header['format']}: upgrade bardo-pipeline")
        return Part(_place(header), header["hash"], int(header["part"]), int(header["parts"]), content)
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"the message is no part of a backup ({error!r})") from None


def assembled(parts: Sequence[Part]) -> Snapshot:
    """Return the snapshot of all its parts. Raises BackupError if they are not what their headers say."""
    packed = b"".join(part.content for part in sorted(parts, key=lambda part: part.number))
    place, expected = parts[0].place, parts[0].hash
    if hashlib.sha256(packed).hexdigest() != expected:
        raise BackupError(f"snapshot {place.number} of home {place.home_id[:8]} has not the hash {expected[:12]}")
    snapshot = Snapshot.unpacked(packed)
    if snapshot.place != place:
        raise BackupError(f"snapshot {place.number} of home {place.home_id[:8]} has another place in the backup")
    return snapshot


def pack(files: Mapping[str, bytes]) -> bytes:
    """Pack named contents into compressed bytes."""
    table = {"name": pa.array(files, pa.string()), "content": pa.array(files.values(), pa.large_binary())}
    return zlib.compress(table_bytes(pa.table(table)))


def unpack(content: bytes) -> dict[str, bytes]:
    """Return the named contents of packed bytes. Raises zlib.error or ArrowException for other bytes."""
    table = bytes_table(zlib.decompress(content))
    return dict(zip(table["name"].to_pylist(), table["content"].to_pylist(), strict=True))


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def bytes_table(content: bytes) -> pa.Table:
    """Read an Arrow stream and validate it."""
    with pa.ipc.open_stream(content) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def _place(fields: Mapping[str, object]) -> Place:
    home_id, number, previous = (fields[name] for name in ("home_id", "number", "previous"))
    if not (isinstance(home_id, str) and isinstance(number, int) and isinstance(previous, str)):
        raise ValueError("its place has fields of other types")
    return Place(home_id, number, previous, datetime.fromisoformat(str(fields["made_at"])))
