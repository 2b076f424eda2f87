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
    """Embedder that serves threads one after the other and keeps the vectors of single short texts.

    A vector does not depend on the batch of its text, so a kept vector equals a new one.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder, self._mutex = embedder, Lock()
        self._kept: OrderedDict[str, Float32Array] = OrderedDict()

    @property
    def identity(self) -> EmbedderIdentity:
        """Identity of the model."""
        return self._embedder.identity

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Return one unit vector per text."""
        if len(texts) != 1 or len(texts[0]) > _QUESTION_CHARACTERS_MAX:
            with self._mutex:
                return self._embedder.embed(texts)
        (text,) = texts
        with self._mutex:
            if text in self._kept:
                self._kept.move_to_end(text)
            else:
                self._kept[text] = np.asarray(self._embedder.embed(texts), np.float32)
                if len(self._kept) > _QUESTIONS:
                    self._kept.popitem(last=False)
            return self._kept[text].copy()

    def raw(self, texts: Sequence[str]) -> Float64Array:
        """Return the vectors before normalization."""
        with self._mutex:
            return self._embedder.raw(texts)
