"""Column buffers read from memory agree with Arrow."""

import pyarrow as pa
import pytest

from bardo_pipeline.events.record.arrow_columns import present, slots
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA

SOME = [7, None, 0, 3, None, None, 1, 127, 2, None, 5, 6, None, 9, 8, None, 4, 11, None]


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 9, 18, 19])
@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.timestamp("us", "UTC")], ids=str
)
def test_slots_and_validity_of_a_slice_equal_arrow(kind: pa.DataType, offset: int) -> None:
    array = pa.array(SOME, pa.int64()).cast(kind).slice(offset)
    there = present(array)
    assert there.tolist() == array.is_valid().to_pylist()
    assert slots(array)[there].tolist() == [value for value in SOME[offset:] if value is not None]


@pytest.mark.parametrize("values", [[], [None, None, None], [1, 2, 3]], ids=str)
def test_validity_without_a_bitmap_equals_arrow(values: list[int | None]) -> None:
    array = pa.array(values, pa.int64())
    assert present(array).tolist() == array.is_valid().to_pylist()


def test_a_column_without_a_numeric_buffer_is_refused() -> None:
    with pytest.raises(AssertionError, match="has no numeric buffer"):
        slots(pa.array([True, None]))


def test_moments_of_a_record_are_columns_because_the_json_reader_reads_no_nested_ones() -> None:
    def nested(kind: pa.DataType) -> bool:
        children = [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
        return any(pa.types.is_timestamp(child) or nested(child) for child in children)

    assert [column.name for column in RECORD_SCHEMA if nested(column.type)] == []
