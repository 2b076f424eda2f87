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
    context: DerivationContext, texts: Sequence[str], now: datetime, *, tell: Tell | None = None
) -> tuple[list[str], pa.Table]:
    """The hash of each text, and the vectors of all (text_hash, vector): only texts that are new here are embedded.

    now: when vectors made here are recorded. They are recorded batch by batch: an interruption loses one batch.
    Raises EmbeddingPaused where vectors are missing and the model has drifted from those on record.
    """
    hashes = [text_hash(text) for text in texts]
    identity = context.embedder.identity
    known = context.log.vectors(identity.key, hashes)
    on_record = set(known["text_hash"].to_pylist())
    by_hash = {h: text for h, text in zip(hashes, texts, strict=True) if h not in on_record}
    if by_hash:
        _must_be_sound(context, now)
        _record(context, by_hash, now, tell or (lambda done, count: None))
        known = context.log.vectors(identity.key, hashes)
    return hashes, known


def _record(context: DerivationContext, by_hash: dict[str, str], now: datetime, tell: Tell) -> None:
    missing, step = sorted(by_hash), context.policy.embedding.batch_texts
    for at in range(0, len(missing), step):
        some = missing[at : at + step]
        matrix = context.embedder.embed([by_hash[h] for h in some])
        context.log.record_vectors(_vector_rows(context, some, matrix, now))
        tell(at + len(some), len(missing))


def _vector_rows(
    context: DerivationContext, hashes: Sequence[str], matrix: NDArray[np.float32], now: datetime
) -> pa.Table:
    identity, count = context.embedder.identity, len(hashes)
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


def check_drift(context: DerivationContext, *, now: datetime) -> Checked:
    """Embed the reference texts as the model does today, compare them with their vectors on record, record the verdict.

    The first check of an embedder records their vectors, and is healthy. Repeated, it is one check more.
    """
    identity, log = context.embedder.identity, context.embedding_log
    raw = context.embedder.raw(REFERENCE_TEXTS)
    today, hashes = unit(raw), [text_hash(text) for text in REFERENCE_TEXTS]
    known = context.log.vectors(identity.key, hashes)
    earlier = log.checks(identity.key)
    if known.num_rows < len(hashes) and (not known.num_rows or paused(context) is None):
        on_record = set(known["text_hash"].to_pylist())
        fresh = [at for at, h in enumerate(hashes) if h not in on_record]
        context.log.record_vectors(_vector_rows(context, [hashes[at] for at in fresh], today[fresh], now))
        known = context.log.vectors(identity.key, hashes)
    place = [hashes.index(h) for h in known["text_hash"].to_pylist()]
    recorded = np.array(known["vector"].to_pylist(), dtype=np.float32).reshape(-1, identity.dimension)
    found = drift_of(
        recorded,
        today[place],
        norm_variance_ppm=norm_variance_of(raw),
        norm_first_ppm=earlier[0].found.norm_variance_ppm if earlier else None,
        policy=context.policy.embedding,
    )
    return log.record_check(now, context.embedder_name, identity, found)


def last_check(context: DerivationContext) -> Checked | None:
    """The newest check of the embedder that these stores use."""
    checks = context.embedding_log.checks(context.embedder.identity.key)
    return checks[-1] if checks else None


def paused(context: DerivationContext) -> Checked | None:
    """The check that stops vectors from being made: the newest one, if it was critical."""
    found = last_check(context)
    return found if found is not None and found.found.verdict == "critical" else None


def suspects(context: DerivationContext) -> int:
    """How many vectors were recorded after the last check that was not critical, if the newest one is."""
    if paused(context) is None:
        return 0
    key = context.embedder.identity.key
    sound = [check.at for check in context.embedding_log.checks(key) if check.found.verdict != "critical"]
    return context.log.count_vectors(key, sound[-1] if sound else None)


def _must_be_sound(context: DerivationContext, now: datetime) -> None:
    """Check the model where that is due; raise EmbeddingPaused where it has drifted too far to make vectors."""
    last = last_check(context)
    if last is None or now - last.at >= timedelta(days=context.policy.embedding.drift_days):
        last = check_drift(context, now=now)
    if last.found.verdict == "critical":
        raise EmbeddingPaused(
            f"{context.embedder.identity} gives other vectors than it gave: {'; '.join(last.found.says)} (checked "
            f"{last.at:%Y-%m-%d %H:%M}). None are made, and what waits for them keeps: put the model back as it was "
            "and run `bardo drift --check`, or embed everything anew by the model as it is now: `bardo reembed`"
        )


def must_match(context: DerivationContext) -> None:
    """Raise EmbedderMismatch where the episodes on record are of another embedder than the one that is opened."""
    table = context.projections.growing("episodes").table
    held = table.load(table.tail()[1][-1:], ["embedder"])["embedder"].unique().to_pylist()
    mine = context.embedder.identity
    if held and held != [mine.key]:
        known = context.log.identities()
        theirs = ", ".join(str(known.get(key, key)) for key in held)
        raise EmbedderMismatch(
            f"{table.path} holds vectors of {theirs}; the model that is here is {mine}: vectors of two models never "
            "mix. Put that model back, or run `bardo reembed`"
        )
