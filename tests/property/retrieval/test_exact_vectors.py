"""Products of exact vectors are equal alone, in a batch and in any order of their terms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.arrays import Float32Array
from bardo_pipeline.retrieval.exact_vectors import STEPS, cosine_steps, exact, products


def drawn(seed: int, count: int, dimension: int) -> Float32Array:
    """Draw unit vectors, of which the first has one number alone and the second has equal numbers."""
    vectors = np.random.default_rng(seed).standard_normal((count, dimension))
    vectors[0], vectors[0, 0], vectors[1] = 0.0, 1.0, 1.0
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.row("MEM-10")
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 8, 384, 768, 1024]), st.integers(2, 220), st.integers(2, 17))
def test_a_product_does_not_depend_on_its_batch_or_order(seed: int, dimension: int, texts: int, questions: int) -> None:
    held, asked = exact(drawn(seed, texts, dimension)), exact(drawn(seed + 1, questions, dimension))
    together = products(held, asked)
    whole = held.astype(np.int64) @ asked.astype(np.int64).T
    assert (together == whole.T).all()
    shuffled = np.random.default_rng(seed).permutation(dimension)
    for number, question in enumerate(asked):
        assert products(held, question[None, :])[0].tobytes() == together[number].tobytes()
        assert products(held[:, shuffled], question[None, shuffled])[0].tobytes() == together[number].tobytes()


@pytest.mark.row("MEM-10")
@pytest.mark.parametrize("count", [16_383, 16_384, 16_447])
def test_a_product_of_two_threads_is_that_of_one(count: int) -> None:
    held, asked = exact(drawn(3, count, 8)), exact(drawn(4, 5, 8))
    assert (products(held, asked) == (held.astype(np.int64) @ asked.astype(np.int64).T).T).all()


@pytest.mark.row("MEM-10")
def test_cosines_are_close_to_those_of_the_given_vectors() -> None:
    vectors = drawn(7, 500, 384)
    found = cosine_steps(products(exact(vectors), exact(vectors[:20])), 384) / STEPS
    assert np.abs(found - vectors[:20].astype(np.float64) @ vectors.T).max() < 1e-3
    assert (np.argmax(found, axis=1) == np.arange(20)).all()
