"""Read records from received Arrow IPC files and streams, batch by batch, in the current schema.

Arrow validates all offsets and lengths of a batch before its content is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
from flatbuffers import encode, packer
from flatbuffers.table import Table
from pyarrow import ipc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import upcast
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.storage.intake.nullable_schema import conformed, loosened, tightened

BATCH_BYTES_MAX = 2**28
"""Bytes of a record batch after decompression. A file of 64 KB can hold a batch of 490 MB."""

_MAGIC, _STREAM_IN_FILE = b"ARROW1", 8  # a file holds a stream behind its magic bytes, then a footer
_LOOSE = loosened(RECORD_SCHEMA)
_BYTES_AS_TEXT = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


@dataclass(frozen=True)
class Batch:
    """A record batch of a file. Values are not yet checked against their ranges (`row_errors`).

    Parameters
    ----------
    records : RECORD_SCHEMA, readable rows
    rows : index in the batch of each record
    unreadable : rows with text that is not UTF-8
    source : the batch as read
    """

    records: pa.Table
    rows: Int64Array
    unreadable: tuple[int, ...]
    source: pa.Table


def read_batches(source: pa.NativeFile) -> Iterator[Batch]:
    """Yield the record batches of an IPC file or stream.

    Raises RecordError for an invalid file or batch, SchemaVersionError for unknown columns.
    """
    for batch in _raw_batches(source):
        try:
            records = _as_records(batch)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise RecordError(f"holds a batch that cannot be read: {error}") from error
        yield records


def _raw_batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file or stream, up to the first one that unpacks to more than BATCH_BYTES_MAX."""
    try:
        start, expected, count = 0, None, 0
        if source.read(len(_MAGIC)) == _MAGIC:
            start, expected = _STREAM_IN_FILE, ipc.open_file(source).num_record_batches
        source.seek(start)
        readable, fault = _readable_batches(source)
        source.seek(start)
        for count, batch in enumerate(islice(ipc.open_stream(source), readable), 1):  # noqa: B007 - the last number
            yield batch
        if fault is not None:
            raise RecordError(fault)
        if expected not in (None, count):
            raise RecordError(f"holds {count} batches, and its footer names {expected}: write the file again")
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"cannot be read as an Arrow IPC file or stream to its end: {error}") from error


def _readable_batches(source: pa.NativeFile) -> tuple[int | None, str | None]:
    """Return the number of batches before one that is too large or malformed, and its fault; None without one."""
    count = 0
    with suppress(pa.ArrowException, OSError):  # reading the batches meets the same error behind the readable ones
        for message in ipc.MessageReader.open_stream(source):
            try:
                size = _unpacked_bytes(message) if message.type in ("dictionary", "record batch") else 0
            except (struct.error, IndexError, TypeError, ValueError):
                return count, "holds a batch with malformed metadata: write the file again"
            if size > BATCH_BYTES_MAX:
                return count, f"holds a batch of {size:,} bytes: write batches of at most {BATCH_BYTES_MAX:,}"
            count += message.type == "record batch"
    return None, None


def _unpacked_bytes(message: ipc.Message) -> int:
    """Return the bytes of a message's buffers after decompression, as they state it (Arrow's Message.fbs)."""
    metadata, body = message.metadata.to_pybytes(), memoryview(message.body)
    root = Table(metadata, encode.Get(packer.uoffset, metadata, 0))
    batch = Table(metadata, root.Indirect(root.Pos + root.Offset(8)))
    if message.type == "dictionary":
        batch = Table(metadata, batch.Indirect(batch.Pos + batch.Offset(6)))
    if not batch.Offset(10):  # without compression
        return len(body)
    buffers = batch.Offset(8)
    pairs = np.frombuffer(metadata, "<i8", 2 * batch.VectorLen(buffers), batch.Vector(buffers)).reshape(-1, 2).tolist()
    return sum(max(int.from_bytes(body[at : at + 8], "little", signed=True), size) for at, size in pairs)


def _as_records(batch: pa.RecordBatch) -> Batch:
    all_rows, source = np.arange(batch.num_rows), pa.Table.from_batches([batch])
    try:
        batch.validate(full=True)
        valid = all_rows
    except pa.ArrowInvalid:
        valid = _utf8_rows(batch)
        batch = batch.take(pa.array(valid))
    whole = pa.Table.from_batches([batch])
    names = set(whole.column_names)
    known = pa.schema([column for column in RECORD_SCHEMA if column.name in names])
    unknown = sorted(names - set(RECORD_SCHEMA.names))
    if unknown or len(names) < len(whole.column_names):
        raise SchemaVersionError(f"has columns that no version up to this one knows, or twice: {', '.join(unknown)}")
    loose = [conformed(whole.column(c.name).combine_chunks(), _LOOSE.field(c.name).type, c.name) for c in known]
    shaped = tightened(pa.table(loose, schema=pa.schema([_LOOSE.field(c.name) for c in known])), known)
    unreadable = tuple(np.setdiff1d(all_rows, valid).tolist())
    return Batch(upcast(shaped, RECORD_SCHEMA), valid, unreadable, source)


def _utf8_rows(batch: pa.RecordBatch) -> Int64Array:
    """Return the rows whose text is UTF-8. Raises RecordError for any other fault of the batch."""
    try:
        batch.validate()  # with a wrong length, reading a child would crash the process
        octets = pa.Table.from_arrays([_as_octets(column) for column in batch.columns], names=batch.schema.names)
        octets.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordError(f"holds a batch with broken offsets or lengths: {error}") from error
    valid: list[Int64Array] = [np.zeros(0, np.int64)]
    todo = [np.arange(batch.num_rows)]
    while todo:
        rows = todo.pop()
        try:
            batch.take(pa.array(rows)).validate(full=True)
            valid.append(rows)
        except pa.ArrowInvalid:
            if len(rows) > 1:
                todo.extend(np.array_split(rows, 2))
    return np.sort(np.concatenate(valid))


def _as_octets(array: pa.Array) -> pa.Array:
    """Return the array with text as bytes, so that all but its encoding can be validated."""
    kind = array.type
    if kind in _BYTES_AS_TEXT:
        return array.view(_BYTES_AS_TEXT[kind])
    if pa.types.is_struct(kind):
        children = [_as_octets(array.field(i)) for i in range(kind.num_fields)]
        fields = [pa.field(child.name, made.type) for child, made in zip(kind, children, strict=True)]
        return pa.StructArray.from_buffers(pa.struct(fields), len(array), array.buffers()[:1], children=children)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _as_octets(array.values)
        made = pa.large_list(values.type) if pa.types.is_large_list(kind) else pa.list_(values.type)
        return pa.ListArray.from_buffers(made, len(array), array.buffers()[:2], children=[values])
    return array


def rows_as_stream(records: pa.Table) -> bytes:
    """Serialise rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, records.schema) as out:
        out.write_table(records)
    return sink.getvalue().to_pybytes()
