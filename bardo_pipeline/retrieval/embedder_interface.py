"""Embedding: what a vector is keyed by, and what an embedder must do. Pure.

A vector is an event, keyed by the hash of its text and by its embedder: a rebuild reads vectors, it does not make them
again. So the text that is hashed is the text that is embedded: both go through `preprocess`.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.errors import QueryError

PREPROCESS = "NFC; whitespace collapsed to one space; stripped"
"""What `preprocess` does, in words: part of every embedder's identity. Changing the code means changing the words."""

_WHITESPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class EmbedderIdentity:
    """Everything that decides which vector a text gets: two embedders with one key give the same vectors.

    model: its published name. version: of the weights and of the way they are run (precision included).
    dimension: components a vector. preprocess_hash: of what happens to a text before the model (see `spell`).
    chunk_config: how a text longer than the model reads is cut, in words.
    """

    model: str
    version: str
    dimension: int
    preprocess_hash: str
    chunk_config: str

    @cached_property
    def key(self) -> str:
        """Short name of this identity: 16 hex digits of the SHA-256 of its fields, the same on every machine."""
        return spell(asdict(self))

    def at_turn(self, turn: int) -> Self:
        """This identity when everything is embedded anew by the same model for the `turn`-th time; turn 0 is itself."""
        return replace(self, version=f"{self.version} turn {turn}") if turn else self

    def __str__(self) -> str:
        return f"{self.model} ({self.version}, {self.dimension} dimensions, key {self.key})"


class Embedder(Protocol):
    """Turns texts into unit vectors: the same text gives the same bits, alone or in a batch, in any order."""

    @property
    def identity(self) -> EmbedderIdentity:
        """What the vectors of this embedder are keyed by."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row per text, in order: float32 [len(texts), dimension], each row of L2 norm 1."""
        ...

    def raw(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The same vectors as the model gives them, before they are made 1 long: their lengths tell of a shift."""
        ...


def unit(raw: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rows of any length made 1 long: float32. A row of zeros, or with NaN in it, becomes NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(raw / np.linalg.norm(raw, axis=1, keepdims=True), dtype=np.float32)


def preprocess(text: str) -> str:
    """The text as it is hashed and embedded: NFC, runs of whitespace made one space, stripped."""
    return _WHITESPACE.sub(" ", unicodedata.normalize("NFC", text)).strip()


def check_question(question: str, bytes_max: int) -> str:
    """The question as it is embedded. Raises QueryError for an empty one, and one that is too long or not Unicode."""
    try:
        size = len(question.encode())
    except UnicodeEncodeError:
        raise QueryError("the question holds what is no Unicode: leave the surrogates out") from None
    if size > bytes_max:
        raise QueryError(f"the question has {size:,} bytes, and at most {bytes_max:,} are read: ask for less at a time")
    asked = preprocess(question)
    if not asked:
        raise QueryError("an empty question asks for nothing: say what to look for")
    return asked


def text_hash(text: str) -> str:
    """SHA-256 of the preprocessed text in UTF-8: 64 hex digits. Texts that differ only in spacing share it."""
    return hashlib.sha256(preprocess(text).encode()).hexdigest()


def spell(fields: dict[str, str | int]) -> str:
    """16 hex digits of the SHA-256 of `fields` as canonical JSON (sorted keys, no spaces, UTF-8)."""
    spelt = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(spelt.encode()).hexdigest()[:16]
