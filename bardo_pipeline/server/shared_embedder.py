"""SharedEmbedder: one embedding model for all threads of a server, with the vectors of recent questions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from bardo_pipeline.arrays import Float32Array, Float64Array
from bardo_pipeline.retrieval.embedder_interface import Embedder, EmbedderIdentity

_QUESTIONS = 4_096
_QUESTION_CHARACTERS_MAX = 2_000


class SharedEmbedder:
    """Embedder that serves many threads and keeps the vectors of single short texts.

    Texts that wait while the model works are embedded together. The vector of a text does not depend on its batch, so
    a kept vector, one of a batch and one made alone are equal.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder, self._model, self._mutex = embedder, Lock(), Lock()
        self._kept: OrderedDict[str, Float32Array] = OrderedDict()
        self._waiting = set[str]()

    @property
    def identity(self) -> EmbedderIdentity:
        """Identity of the model."""
        return self._embedder.identity

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Return one unit vector per text."""
        if len(texts) != 1 or len(texts[0]) > _QUESTION_CHARACTERS_MAX:
            with self._model:
                return self._embedder.embed(texts)
        while (vector := self._kept_vector(texts[0])) is None:
            with self._model:
                self._embed_waiting()
        return vector[None, :].copy()

    def _kept_vector(self, text: str) -> Float32Array | None:
        """Return the kept vector of a text; without one the text waits."""
        with self._mutex:
            if text in self._kept:
                self._kept.move_to_end(text)
            else:
                self._waiting.add(text)
            return self._kept.get(text)

    def _embed_waiting(self) -> None:
        """Embed all waiting texts in one batch. After a failure each thread tries its own text again."""
        with self._mutex:
            batch = sorted(self._waiting)
            self._waiting.clear()
        vectors = np.asarray(self._embedder.embed(batch), np.float32) if batch else np.zeros((0, 0), np.float32)
        with self._mutex:
            self._kept |= zip(batch, vectors, strict=True)
            while len(self._kept) > _QUESTIONS:
                self._kept.popitem(last=False)

    def raw(self, texts: Sequence[str]) -> Float64Array:
        """Return the vectors before normalization."""
        with self._model:
            return self._embedder.raw(texts)
