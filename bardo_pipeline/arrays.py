"""Types of numpy arrays by element, and of Arrow columns, for annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int8Array: TypeAlias = npt.NDArray[np.int8]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
StringArray: TypeAlias = npt.NDArray[np.object_]
"""Strings as Python objects, as pyarrow's `to_numpy(zero_copy_only=False)` gives them."""
IntegerArray: TypeAlias = npt.NDArray[np.integer[Any]]
ObjectArray: TypeAlias = npt.NDArray[np.object_]
Column: TypeAlias = pa.Array | pa.ChunkedArray
