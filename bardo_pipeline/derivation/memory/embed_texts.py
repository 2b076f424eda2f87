"""Vectors: the one place where texts become vectors on record, and where that stops when the model has drifted.

A vector is an event, keyed by the hash of its text and by its embedder: a text is embedded once in the life of a home,
and a rebuild asks no model. Source: architecture ("What is an event, not a projection"); MEM (embedding integrity).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import EmbedderMismatch, EmbeddingPaused
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.retrieval.embedder_drift import drift_of, norm_variance_of
from bardo_pipeline.retrieval.embedder_interface import text_hash, unit
from bardo_pipeline.retrieval.reference_texts import REFERENCE_TEXTS
from bardo_pipeline.storage.log.embedding_table import Checked
from bardo_pipeline.storage.log.protocol import VECTORS_SCHEMA

Tell = Callable[[int, int], None]
"""Told how many of how many texts are embedded."""


def recorded_vectors(
    stores: DerivationContext, texts: Sequence[str], now: datetime, *, tell: Tell | None = None
) -> tuple[list[str], pa.Table]:
    """The hash of each text, and the vectors of all (text_hash, vector): only texts that are new here are embedded.

    now: when vectors made here are recorded. They are recorded batch by batch: an interruption loses one batch.
    Raises EmbeddingPaused where vectors are missing and the model has drifted from those on record.
    """
    hashes = [text_hash(text) for text in texts]
    identity = stores.embedder.identity
    known = stores.log.vectors(identity.key, hashes)
    on_record = set(known["text_hash"].to_pylist())
    by_hash = {h: text for h, text in zip(hashes, texts, strict=True) if h not in on_record}
    if by_hash:
        _must_be_sound(stores, now)
        _record(stores, by_hash, now, tell or (lambda done, count: None))
        known = stores.log.vectors(identity.key, hashes)
    return hashes, known


def _record(stores: DerivationContext, by_hash: dict[str, str], now: datetime, tell: Tell) -> None:
    missing, step = sorted(by_hash), stores.policy.embedding.batch_texts
    for at in range(0, len(missing), step):
        some = missing[at : at + step]
        matrix = stores.embedder.embed([by_hash[h] for h in some])
        stores.log.record_vectors(_vector_rows(stores, some, matrix, now))
        tell(at + len(some), len(missing))


def _vector_rows(
    stores: DerivationContext, hashes: Sequence[str], matrix: NDArray[np.float32], now: datetime
) -> pa.Table:
    identity, count = stores.embedder.identity, len(hashes)
    flat = np.ascontiguousarray(matrix, dtype=np.float32).reshape(-1)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * identity.dimension)
    constant = {n: pa.scalar(v, VECTORS_SCHEMA.field(n).type) for n, v in asdict(identity).items()}
    constant |= {"embedder": pa.scalar(identity.key, pa.string()), "created_at": pa.scalar(now, MOMENT)}
    columns = {n: pa.repeat(value, count) for n, value in constant.items()} | {
        "text_hash": pa.array(hashes, pa.string()),
        "vector": pa.ListArray.from_arrays(offsets, pa.array(flat), type=VECTORS_SCHEMA.field("vector").type),
    }
    return pa.table({n: columns[n] for n in VECTORS_SCHEMA.names}, schema=VECTORS_SCHEMA)


# drift


def check_drift(stores: DerivationContext, *, now: datetime) -> Checked:
    """Embed the reference texts as the model does today, compare them with their vectors on record, record the verdict.

    The first check of an embedder records their vectors, and is healthy. Repeated, it is one check more.
    """
    identity, log = stores.embedder.identity, stores.embedding_log
    raw = stores.embedder.raw(REFERENCE_TEXTS)
    today, hashes = unit(raw), [text_hash(text) for text in REFERENCE_TEXTS]
    known = stores.log.vectors(identity.key, hashes)
    earlier = log.checks(identity.key)
    if known.num_rows < len(hashes) and (not known.num_rows or paused(stores) is None):
        on_record = set(known["text_hash"].to_pylist())
        fresh = [at for at, h in enumerate(hashes) if h not in on_record]
        stores.log.record_vectors(_vector_rows(stores, [hashes[at] for at in fresh], today[fresh], now))
        known = stores.log.vectors(identity.key, hashes)
    place = [hashes.index(h) for h in known["text_hash"].to_pylist()]
    recorded = np.array(known["vector"].to_pylist(), dtype=np.float32).reshape(-1, identity.dimension)
    found = drift_of(
        recorded,
        today[place],
        norm_variance_ppm=norm_variance_of(raw),
        norm_first_ppm=earlier[0].found.norm_variance_ppm if earlier else None,
        policy=stores.policy.embedding,
    )
    return log.record_check(now, stores.embedder_name, identity, found)


def last_check(stores: DerivationContext) -> Checked | None:
    """The newest check of the embedder that these stores use."""
    checks = stores.embedding_log.checks(stores.embedder.identity.key)
    return checks[-1] if checks else None


def paused(stores: DerivationContext) -> Checked | None:
    """The check that stops vectors from being made: the newest one, if it was critical."""
    found = last_check(stores)
    return found if found is not None and found.found.verdict == "critical" else None


def suspects(stores: DerivationContext) -> int:
    """How many vectors were recorded after the last check that was not critical, if the newest one is."""
    if paused(stores) is None:
        return 0
    key = stores.embedder.identity.key
    sound = [check.at for check in stores.embedding_log.checks(key) if check.found.verdict != "critical"]
    return stores.log.count_vectors(key, sound[-1] if sound else None)


def _must_be_sound(stores: DerivationContext, now: datetime) -> None:
    """Check the model where that is due; raise EmbeddingPaused where it has drifted too far to make vectors."""
    last = last_check(stores)
    if last is None or now - last.at >= timedelta(days=stores.policy.embedding.drift_days):
        last = check_drift(stores, now=now)
    if last.found.verdict == "critical":
        raise EmbeddingPaused(
            f"{stores.embedder.identity} gives other vectors than it gave: {'; '.join(last.found.says)} (checked "
            f"{last.at:%Y-%m-%d %H:%M}). None are made, and what waits for them keeps: put the model back as it was "
            "and run `bardo drift --check`, or embed everything anew by the model as it is now: `bardo reembed`"
        )


def must_match(stores: DerivationContext) -> None:
    """Raise EmbedderMismatch where the episodes on record are of another embedder than the one that is opened."""
    table = stores.projections.growing("episodes").table
    held = table.load(table.tail()[1][-1:], ["embedder"])["embedder"].unique().to_pylist()
    mine = stores.embedder.identity
    if held and held != [mine.key]:
        known = stores.log.identities()
        theirs = ", ".join(str(known.get(key, key)) for key in held)
        raise EmbedderMismatch(
            f"{table.path} holds vectors of {theirs}; the model that is here is {mine}: vectors of two models never "
            "mix. Put that model back, or run `bardo reembed`"
        )
