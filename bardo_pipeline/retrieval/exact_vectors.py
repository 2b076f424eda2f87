"""Vectors of whole numbers, whose products have the same sum in any order. Pure.

A sum of float32 depends on its order, and a matrix product chooses the order by the shapes of its matrices. The whole
numbers here are so small that no sum of products is rounded: a question that is answered alone and one that is answered
with others have equal cosines, on any processor. Source: ADR 0093.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import Float32Array, Float64Array

STEPS = 100_000
"""Steps of a cosine from 0 to 1."""

SHARED_FROM = 16_384
"""Number of texts from which a second thread shares the work; for fewer it costs as much time as it saves."""

_BLOCK = 96  # texts
_LENGTH_MAX = 4_096  # float32 is exact for whole numbers up to 2 ** 24, the product of two vectors of this length


def scale_of(dimension: int) -> int:
    """Return the length to which a unit vector is scaled, so that its rounded numbers are not longer than 4,096."""
    return _LENGTH_MAX - 1 - isqrt(dimension)


def exact(vectors: NDArray[np.floating]) -> Float32Array:
    """Return unit vectors in steps of 1 / scale_of(dimension), as whole numbers."""
    scaled: Float32Array = np.asarray(vectors, np.float32) * np.float32(scale_of(vectors.shape[-1]))
    return np.rint(scaled, out=scaled)


def products(texts: Float32Array, questions: Float32Array) -> Float32Array:
    """Return the product of each question with each text [questions, texts]. Both have exact rows.

    Blocks of a few texts take two thirds of the time of one large product, because no text is copied first.
    """
    count, by_text = len(texts) // _BLOCK, np.empty((len(texts), len(questions)), np.float32)
    whole, columns = count * _BLOCK, np.ascontiguousarray(questions.T)
    blocks = texts[:whole].reshape(count, _BLOCK, texts.shape[1])
    results = by_text[:whole].reshape(count, _BLOCK, len(questions))

    def fill(part: slice) -> None:
        np.matmul(blocks[part], columns, out=results[part])

    if len(texts) < SHARED_FROM:
        fill(slice(None))
    else:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(fill, (slice(count // 2), slice(count // 2, None))))
    by_text[whole:] = texts[whole:] @ columns
    return by_text.T


def cosine_steps(product: Float32Array, dimension: int) -> Float64Array:
    """Return the cosines to which products of vectors of this dimension belong, in whole steps of 1e-5."""
    steps: Float64Array = np.multiply(product, STEPS / scale_of(dimension) ** 2, dtype=np.float64)
    return np.rint(steps, out=steps)
