"""Handmade episodes: fifty typical texts, lives that contain them, and a search that returns equal texts too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bardo_pipeline.curator.episodes import EPISODE_SCHEMA
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import episode_index
from bardo_pipeline.retrieval.embedder_interface import text_hash
from tests.conftest import NOW

REGIMES = ("a rising trend", "a volatile market", "a calm market", "an unclear market", "a falling trend")
EVENTS = ("gas spiked", "liquidity moved", "the price jumped", "credits ran low", "its forecasts failed")
DEEDS = ("held", "re-centred the position")
TEXTS = tuple(f"In {r} with WETH/USDC, {e}, the golem {d}." for r in REGIMES for e in EVENTS for d in DEEDS)


def rows(which: list[int], golems: list[str], ticks: list[int], matrix: NDArray, **fields: Any) -> pa.Table:
    """Episodes of the texts numbered `which`; fields that the index does not read have arbitrary values."""
    count, texts = len(which), [TEXTS[at] for at in which]
    known: dict[str, list[Any]] = {
        "episode_id": [f"{g}:{t}" for g, t in zip(golems, ticks, strict=True)],
        "golem_id": golems,
        "tick": ticks,
        "text": texts,
        "text_hash": [text_hash(text) for text in texts],
        "embedder": ["a8b9d7620f31dcab"] * count,
        "vector": [matrix[at] for at in which],
    } | fields
    anything = {"string": "x", "int64": 1, "double": 0.5, "bool": True}
    plain = {f.name: [anything.get(str(f.type), NOW)] * count for f in EPISODE_SCHEMA}
    return pa.table(plain | known, schema=EPISODE_SCHEMA)


def lives(first_tick: int, tick_count: int, matrix: NDArray, golems: int = 3) -> pa.Table:
    """Return golems whose lives contain all texts in turn, each with another first text."""
    at = [(g, t) for t in range(first_tick, first_tick + tick_count) for g in range(golems)]
    which = [(t * 7 + g * 3) % len(TEXTS) for g, t in at]
    return rows(which, [f"g-{g}" for g, _ in at], [t for _, t in at], matrix)


def many(count: int, seed: int = 5) -> pa.Table:
    """Return episodes with one text each, whose vectors form forty clusters, as texts of one domain do."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(40, 384))
    spread = centres[rng.integers(0, 40, count)] + 0.5 * rng.normal(size=(count, 384))
    vectors = (spread / np.linalg.norm(spread, axis=1, keepdims=True)).astype(np.float32)
    texts = [f"{TEXTS[at % len(TEXTS)]} Case {at}." for at in range(count)]
    by_key = {"text": texts, "text_hash": [text_hash(text) for text in texts], "vector": list(vectors)}
    golems = [f"g-{at % 5}" for at in range(count)]
    return rows([at % len(TEXTS) for at in range(count)], golems, [*range(count)], vectors[: len(TEXTS)], **by_key)


def all_matches(context: DerivationContext, text: str, limit: int) -> pa.Table:
    """Return the episodes of a home most similar to a text, also several with the same text."""
    (vector,) = context.embedder.embed([text])
    return episode_index(context).search(vector, text=text, limit=limit)
