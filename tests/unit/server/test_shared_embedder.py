"""The embedder of a server: many threads get the vectors that the model gives one by one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import numpy as np
import pytest

from bardo_pipeline.errors import StoreError
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.server.shared_embedder import SharedEmbedder
from bardo_pipeline.storage.embedding.embedders import open_embedder


@pytest.mark.row("MEM-9")
def test_threads_get_the_vectors_of_the_model_bit_by_bit(embedders: Path) -> None:
    model = open_embedder("minilm", embedders)
    texts = [f"gas cost {number % 9} " + "in a crash " * (number % 4) for number in range(48)]
    shared = SharedEmbedder(model)
    with ThreadPoolExecutor(8) as threads:
        vectors = list(threads.map(lambda text: shared.embed([text]), texts))
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_array_equal(vector, model.embed([text]))


class _Held:
    """A model that waits for a signal and counts its batches."""

    identity = EmbedderIdentity("held", "1", 2, "-", "-")

    def __init__(self, *, fails: bool = False) -> None:
        self.may_go, self.batches, self.fails = Event(), list[list[str]](), fails

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(list(texts))
        assert self.may_go.wait(60)
        if self.fails:
            raise StoreError("the model is gone")
        return np.array([[len(text), 1.0] for text in texts], np.float32)

    def raw(self, texts: Sequence[str]) -> np.ndarray:
        return self.embed(texts).astype(np.float64)


def test_texts_that_wait_are_embedded_together_and_each_only_once() -> None:
    model = _Held()
    shared = SharedEmbedder(model)
    start = Barrier(9)

    def ask(number: int) -> np.ndarray:
        start.wait(60)
        return shared.embed(["x" * (number % 4 + 1)])

    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(ask, number) for number in range(8)]
        start.wait(60)
        model.may_go.set()
        assert [answer.result()[0, 0] for answer in answers] == [number % 4 + 1 for number in range(8)]
    asked = [text for batch in model.batches for text in batch]
    assert sorted(asked) == ["x" * length for length in range(1, 5)]


def test_a_failure_of_the_model_is_raised_and_not_kept() -> None:
    model = _Held(fails=True)
    shared = SharedEmbedder(model)
    model.may_go.set()
    with pytest.raises(StoreError):
        shared.embed(["gas"])
    model.fails = False
    assert shared.embed(["gas"])[0, 0] == 3
