"""SharedEmbedder: one embedding model for all threads of a server, with the vectors of recent questions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
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
        self._waiting: dict[str, Future[Float32Array]] = {}

    @property
    def identity(self) -> EmbedderIdentity:
        """Identity of the model."""
        return self._embedder.identity

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Return one unit vector per text."""
        if len(texts) != 1 or len(texts[0]) > _QUESTION_CHARACTERS_MAX:
            with self._model:
                return self._embedder.embed(texts)
        return self._question(texts[0])[None, :].copy()

    def _question(self, text: str) -> Float32Array:
        """Return the vector of a question: a kept one, or one of the next batch."""
        with self._mutex:
            kept = self._kept.get(text)
            if kept is not None:
                self._kept.move_to_end(text)
                return kept
            result = self._waiting.setdefault(text, Future())
        with self._model:
            if not result.done():
                self._embed_waiting()
        return result.result()

    def _embed_waiting(self) -> None:
        """Embed all waiting questions in one batch; a failure is raised by each of them.

        A question waits until its vector is kept, so a thread that asks it meanwhile waits for the same vector.
        """
        with self._mutex:
            batch = dict(self._waiting)
        try:
            vectors = np.asarray(self._embedder.embed(list(batch)), np.float32)
        except BaseException as error:
            with self._mutex:
                for text, result in batch.items():
                    del self._waiting[text]
                    result.set_exception(error)
            return
        with self._mutex:
            for text, vector in zip(batch, vectors, strict=True):
                self._kept[text] = vector
                del self._waiting[text]
            while len(self._kept) > _QUESTIONS:
                self._kept.popitem(last=False)
        for result, vector in zip(batch.values(), vectors, strict=True):
            result.set_result(vector)

    def raw(self, texts: Sequence[str]) -> Float64Array:
        """Return the vectors before normalization."""
        with self._model:
            return self._embedder.raw(texts)
