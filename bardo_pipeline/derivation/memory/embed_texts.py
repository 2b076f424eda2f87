"""Embeds texts and records their vectors; refuses to embed after the model has drifted.

A vector is an event keyed by text hash and embedder, so a text is embedded once and a rebuild needs no model.
Source: architecture ("What is an event, not a projection"); MEM (embedding integrity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Float32Array
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import EmbedderMismatch, EmbeddingPaused
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.retrieval.embedder_drift import REFERENCE_TEXTS, drift_of, norm_variance_of
from bardo_pipeline.retrieval.embedder_interface import text_hash, unit
from bardo_pipeline.storage.locks import held_if_free
from bardo_pipeline.storage.log.embedding_table import Checked
from bardo_pipeline.storage.log.protocol import VECTORS_SCHEMA

_SHARES = 4
"""Shares of texts for each hash bucket: a share is the most by which one bucket embeds longer than another."""


def recorded_vectors(context: DerivationContext, texts: Sequence[str], now: datetime) -> tuple[list[str], pa.Table]:
    """Return the hash of each text and the vectors of all (text_hash, vector); embed only texts without a vector.

    New vectors are recorded at `now`, batch by batch, so an interruption loses one batch. Raises EmbeddingPaused if
    vectors are missing and the model has drifted.
    """
    hashes = [text_hash(text) for text in texts]
    identity = context.embedder.identity
    vectors = context.log.vectors(identity.key, hashes)
    on_record = set(vectors["text_hash"].to_pylist())
    by_hash = {h: text for h, text in zip(hashes, texts, strict=True) if h not in on_record}
    if by_hash:
        _check_model(context, now)
        _record_missing(context, by_hash, now)
        vectors = context.log.vectors(identity.key, hashes)
    return hashes, vectors


def _record_missing(context: DerivationContext, by_hash: dict[str, str], now: datetime) -> None:
    """Embed and record texts. Hash buckets that run at once share the texts that several of them lack.

    The texts have shares, and each bucket begins at another one. One bucket at a time embeds a share, and it leaves out
    what others recorded. A bucket comes back to the shares at which others work when it has embedded the rest.
    """
    if context.bucket is None:
        _record(context, by_hash, now)
        return
    count, first = _SHARES * context.bucket.count, _SHARES * context.bucket.number

    def embed(share: int) -> None:
        hashes = [h for h in by_hash if int(h[:8], 16) % count == share]
        on_record = set(context.log.vectors(context.embedder.identity.key, hashes)["text_hash"].to_pylist())
        if missing := {h: by_hash[h] for h in hashes if h not in on_record}:
            _record(context, missing, now)

    later: list[int] = []
    for share in (*range(first, count), *range(first)):
        with held_if_free(context.home.locks / f"embed-{share}.lock") as is_free:
            (embed if is_free else later.append)(share)
    for share in later:
        with context.home.lock(f"embed-{share}"):
            embed(share)


def embed_new(context: DerivationContext, by_hash: dict[str, str], now: datetime) -> tuple[list[str], Float32Array]:
    """Embed texts without looking for their vectors in the log, and record the vectors; return them by hash.

    Raises EmbeddingPaused if the model has drifted.
    """
    _check_model(context, now)
    return _record(context, by_hash, now)


def _record(context: DerivationContext, by_hash: dict[str, str], now: datetime) -> tuple[list[str], Float32Array]:
    missing, step, parts = sorted(by_hash), context.policy.embedding.batch_texts, []
    for at in range(0, len(missing), step):
        batch = missing[at : at + step]
        matrix = context.embedder.embed([by_hash[h] for h in batch])
        context.log.record_vectors(_vector_rows(context, batch, matrix, now))
        parts.append(matrix)
    return missing, np.concatenate(parts)


def _vector_rows(context: DerivationContext, hashes: Sequence[str], matrix: Float32Array, now: datetime) -> pa.Table:
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
    """Embed the reference texts, compare them with their recorded vectors, and record the verdict.

    The first check of an embedder records the vectors and is healthy. Each call records one check.
    """
    identity, log = context.embedder.identity, context.embedding_log
    raw = context.embedder.raw(REFERENCE_TEXTS)
    today, hashes = unit(raw), [text_hash(text) for text in REFERENCE_TEXTS]
    vectors = context.log.vectors(identity.key, hashes)
    earlier = log.checks(identity.key)
    if vectors.num_rows < len(hashes) and (not vectors.num_rows or pausing_check(context) is None):
        on_record = set(vectors["text_hash"].to_pylist())
        missing = [at for at, h in enumerate(hashes) if h not in on_record]
        context.log.record_vectors(_vector_rows(context, [hashes[at] for at in missing], today[missing], now))
        vectors = context.log.vectors(identity.key, hashes)
    order = [hashes.index(h) for h in vectors["text_hash"].to_pylist()]
    recorded = np.array(vectors["vector"].to_pylist(), dtype=np.float32).reshape(-1, identity.dimension)
    drift = drift_of(
        recorded,
        today[order],
        norm_variance_ppm=norm_variance_of(raw),
        norm_first_ppm=earlier[0].drift.norm_variance_ppm if earlier else None,
        policy=context.policy.embedding,
    )
    return log.record_check(now, context.embedder_name, identity, drift)


def last_check(context: DerivationContext) -> Checked | None:
    """Return the newest check of the context's embedder."""
    checks = context.embedding_log.checks(context.embedder.identity.key)
    return checks[-1] if checks else None


def pausing_check(context: DerivationContext) -> Checked | None:
    """Return the newest check if it is critical, which pauses embedding, else None."""
    check = last_check(context)
    return check if check is not None and check.drift.verdict == "critical" else None


def drift_warning(context: DerivationContext) -> str | None:
    """Return the warning below an answer if the last check of the embedding model was critical; None if not."""
    failed_check = pausing_check(context)
    if failed_check is None:
        return None
    return (
        f"{context.embedder_name} had drifted from its recorded vectors at the last check "
        f"({failed_check.at:%Y-%m-%d %H:%M}): similarities here are unreliable; `bardo drift` shows details."
    )


def suspect_count(context: DerivationContext) -> int:
    """Return the number of vectors recorded after the last healthy check if the newest one is critical, else 0."""
    if pausing_check(context) is None:
        return 0
    key = context.embedder.identity.key
    healthy = [check.at for check in context.embedding_log.checks(key) if check.drift.verdict != "critical"]
    return context.log.count_vectors(key, healthy[-1] if healthy else None)


def _check_model(context: DerivationContext, now: datetime) -> None:
    """Check the model if a check is due; raise EmbeddingPaused if the last verdict is critical."""
    with context.home.lock("drift"):  # of two buckets that embed at once, one checks
        last = last_check(context)
        if last is None or now - last.at >= timedelta(days=context.policy.embedding.drift_days):
            last = check_drift(context, now=now)
    if last.drift.verdict == "critical":
        raise EmbeddingPaused(
            f"{context.embedder.identity} no longer gives its recorded vectors: {'; '.join(last.drift.says)} (checked "
            f"{last.at:%Y-%m-%d %H:%M}). Embedding is paused; waiting texts are kept. Restore the model and run "
            "`bardo drift --check`, or embed everything again with the present model: `bardo reembed`"
        )


def check_embedder_matches(context: DerivationContext) -> None:
    """Raise EmbedderMismatch if the recorded episodes have vectors of another embedder."""
    table = context.projections.growing("episodes").table
    keys = table.load(table.tail()[1][-1:], ["embedder"])["embedder"].unique().to_pylist()
    identity = context.embedder.identity
    if keys and keys != [identity.key]:
        identities = context.log.identities()
        embedders = ", ".join(str(identities.get(key, key)) for key in keys)
        raise EmbedderMismatch(
            f"{table.path} holds vectors of {embedders}; the opened model is {identity}: vectors of two models never "
            "mix. Restore that model, or run `bardo reembed`"
        )
