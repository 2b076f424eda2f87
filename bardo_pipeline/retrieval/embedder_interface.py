"""Defines the embedder protocol and the identity by which vectors are keyed. Pure.

A vector is recorded as an event, keyed by the hash of its text and by its embedder, so a rebuild reads vectors instead
of computing them. Hashing and embedding both use the text returned by `preprocess`.
"""

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from bardo_pipeline.arrays import Float32Array, Float64Array
from bardo_pipeline.errors import QueryError

PREPROCESS = "NFC; whitespace collapsed to one space; stripped"
"""Describes `preprocess`; part of every embedder's identity, so it changes whenever the code changes."""


@dataclass(frozen=True)
class EmbedderIdentity:
    """Identity of an embedder; two embedders with the same key return the same vectors.

    model: its published name. version: of the weights and the runtime, precision included. preprocess_hash: hash of the
    preprocessing (see `spell`). chunk_config: description of how long texts are cut.
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
        """Return the identity of the `turn`-th complete re-embedding with the same model; turn 0 is this identity."""
        return replace(self, version=f"{self.version} turn {turn}") if turn else self

    def __str__(self) -> str:
        return f"{self.model} ({self.version}, {self.dimension} dimensions, key {self.key})"


class Embedder(Protocol):
    """Turns texts into unit vectors; the result for a text is bitwise equal, alone or in any batch."""

    @property
    def identity(self) -> EmbedderIdentity:
        """Identity by which the vectors of this embedder are keyed."""
        ...

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Return one row of L2 norm 1 per text: [len(texts), dimension]."""
        ...

    def raw(self, texts: Sequence[str]) -> Float64Array:
        """Return the vectors before normalization; their norms reveal drift."""
        ...


def unit(raw: Float64Array) -> Float32Array:
    """Normalize each row to L2 norm 1. A row of zeros or with NaN becomes NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(raw / np.linalg.norm(raw, axis=1, keepdims=True), dtype=np.float32)


def preprocess(text: str) -> str:
    """Return the text to hash and embed: NFC, whitespace collapsed to one space, stripped."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def check_question(question: str, bytes_max: int) -> str:
    """Return the preprocessed question. Raises QueryError if it is empty, too long or not valid Unicode."""
    try:
        size = len(question.encode())
    except UnicodeEncodeError:
        raise QueryError("the question contains surrogates, which are no Unicode text: remove them") from None
    if size > bytes_max:
        raise QueryError(f"the question has {size:,} bytes, and at most {bytes_max:,} are read: ask for less at a time")
    preprocessed = preprocess(question)
    if not preprocessed:
        raise QueryError("the question is empty: name a subject")
    return preprocessed


def text_hash(text: str) -> str:
    """Return the SHA-256 of the preprocessed text, 64 hex digits. Texts that differ only in spacing share it."""
    return hashlib.sha256(preprocess(text).encode()).hexdigest()


def spell(fields: dict[str, str | int]) -> str:
    """Return 16 hex digits of the SHA-256 of `fields` as canonical JSON (sorted keys, no spaces, UTF-8)."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
