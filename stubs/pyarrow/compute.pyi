"""Compute functions. The container of the first argument (array, chunked array, expression) is that of the result."""

from collections.abc import Sequence
from typing import Any, Protocol, overload

from pyarrow import Array, ChunkedArray, RecordBatch, Scalar, StructArray, Table
from pyarrow.dataset import Expression as Expression
from pyarrow.dataset import field as field
from pyarrow.dataset import scalar as scalar

class _Elementwise(Protocol):
    @overload
    def __call__(self, x: ChunkedArray, /, *others: Any, **options: Any) -> ChunkedArray: ...
    @overload
    def __call__(self, x: Array, /, *others: Any, **options: Any) -> Any: ...
    @overload
    def __call__(self, x: Expression, /, *others: Any, **options: Any) -> Expression: ...
    @overload
    def __call__(self, x: Any, /, *others: Any, **options: Any) -> Any: ...

class _Aggregate(Protocol):
    def __call__(self, x: Array | ChunkedArray, /, **options: Any) -> Scalar: ...

abs: _Elementwise
add: _Elementwise
and_: _Elementwise
and_not: _Elementwise
binary_length: _Elementwise
cast: _Elementwise
divide: _Elementwise
equal: _Elementwise
fill_null: _Elementwise
greater: _Elementwise
greater_equal: _Elementwise
index_in: _Elementwise
invert: _Elementwise
is_finite: _Elementwise
is_in: _Elementwise
is_null: _Elementwise
is_valid: _Elementwise
less: _Elementwise
less_equal: _Elementwise
list_value_length: _Elementwise
match_substring: _Elementwise
match_substring_regex: _Elementwise
max_element_wise: _Elementwise
min_element_wise: _Elementwise
multiply: _Elementwise
not_equal: _Elementwise
or_: _Elementwise
replace_substring: _Elementwise
replace_substring_regex: _Elementwise
split_pattern: _Elementwise
split_pattern_regex: _Elementwise
starts_with: _Elementwise
strftime: _Elementwise
strptime: _Elementwise
subtract: _Elementwise
utf8_length: _Elementwise
utf8_lower: _Elementwise
utf8_slice_codeunits: _Elementwise
utf8_trim_whitespace: _Elementwise
xor: _Elementwise

all: _Aggregate
any: _Aggregate
count: _Aggregate
max: _Aggregate
min: _Aggregate
min_max: _Aggregate
sum: _Aggregate

def binary_join_element_wise(*strings: Any, null_handling: str = "emit_null", null_replacement: str = "") -> Any: ...
def case_when(cond: Any, /, *cases: Any) -> Any: ...
def coalesce(*values: Any) -> Any: ...
def filter(input: Any, selection_filter: Any) -> Any: ...
def if_else(cond: Any, left: Any, right: Any) -> Any: ...
def replace_with_mask(values: Any, mask: Any, replacements: Any) -> Any: ...
def list_flatten(lists: Any, recursive: bool = False) -> Any: ...
def list_parent_indices(lists: Any) -> Any: ...
def make_struct(
    *args: Any, field_names: Sequence[str] | None = None, field_nullability: Sequence[bool] | None = None
) -> Any: ...
def rank(input: Array | ChunkedArray, **options: Any) -> Array: ...
def sort_indices(
    input: Array | ChunkedArray | RecordBatch | Table, sort_keys: Sequence[tuple[str, str]] = (), **options: Any
) -> Array: ...
def struct_field(values: Any, /, indices: Any) -> Any: ...
def take(data: Any, indices: Any) -> Any: ...
def unique(array: Array | ChunkedArray) -> Array: ...
def value_counts(array: Array | ChunkedArray) -> StructArray: ...
