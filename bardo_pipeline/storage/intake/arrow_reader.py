"""Read records from received Arrow IPC files and streams, batch by batch, in the current schema.

Arrow validates all offsets and lengths of a batch before its content is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import RecordError, SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import upcast
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.storage.intake.nullable_schema import conformed, loosened, tightened

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
    try:
        if source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(source)
            yield from (file.get_batch(at) for at in range(file.num_record_batches))
        else:
            source.seek(0)
            yield from pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"cannot be read as an Arrow IPC file or stream to its end: {error}") from error


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
    with pa.ipc.new_stream(sink, records.schema) as out:
        out.write_table(records)
    return sink.getvalue().to_pybytes()
