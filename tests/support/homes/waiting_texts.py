"""Texts of a home that wait for a vector."""

from __future__ import annotations

from datetime import datetime

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.shared_texts import shared_texts


def embed_waiting(context: DerivationContext, *, now: datetime, limit: int | None = None) -> int:
    """Embed texts that wait for a vector, the newest first; return the number that still waits."""
    with shared_texts(context, now) as held:
        held.embed_all(context, held.index.keys, now, limit)
        return held.index.waiting_count(held.index.keys)
