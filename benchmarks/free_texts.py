"""Search of stored texts in a warm process: 10,000 and 100,000 texts of ten golems, all of them and one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from bardo_pipeline.api import birth, open_home
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.free_texts import search_texts
from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.text_docs import doc_of
from bardo_pipeline.storage.log.protocol import VECTORS_SCHEMA
from benchmarks.figures import Figure

GOLEMS, QUESTIONS, WORDS = 10, 200, 2_000
SIZES = {10_000: ("10k", 30.0), 100_000: ("100k", 80.0)}
"""Text count -> suffix of the figure, aim in milliseconds (TOOLS, memory_search)."""

START = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH = 10_000


def free_text_figures(root: Path, sizes: dict[int, tuple[str, float]] = SIZES) -> list[Figure]:
    """Measure p99 of a question at each size, to all golems and to one of ten, and the first question of a process."""
    figures = []
    for count, (suffix, aim) in sizes.items():
        context, golems = _home_of_texts(root / suffix, count)
        questions = drawn_questions(QUESTIONS)
        began = time.perf_counter()
        search_texts(context, "the first question", now=START)
        first = time.perf_counter() - began
        everywhere, of_golem = (
            [_asked(context, question, golem_ids) for question in questions] for golem_ids in (None, golems[:1])
        )
        p99, p99_one = (float(np.percentile(times, 99)) for times in (everywhere, of_golem))
        how = f"{count:,} texts of {GOLEMS} golems, p99 of {QUESTIONS} questions, each embedded"
        method = f"{how}; first question of the process {first:.1f} s; peer: one golem of ten"
        figures.append(
            Figure(f"search_texts_p99_ms_{suffix}", p99, "ms", p99_one, p99 / p99_one, f"value <= {aim:g}", method)
        )
    return figures


def _asked(context: DerivationContext, question: str, golem_ids: list[str] | None) -> float:
    began = time.perf_counter()
    results = search_texts(context, question, now=START, golem_ids=golem_ids)
    spent = (time.perf_counter() - began) * 1_000.0
    assert len(results.hits) == 10
    return spent


def drawn_questions(count: int) -> list[str]:
    """Draw questions of six words, as frequent as in the texts of `record_drawn_texts`."""
    return [" ".join(words) for words in _drawn(np.random.default_rng(7), count, 6)]


def _drawn(rng: np.random.Generator, count: int, length: int) -> list[list[str]]:
    """Draw texts of words whose frequencies fall as in a language."""
    share = 1.0 / np.arange(1, WORDS + 1)
    picks = rng.choice(WORDS, (count, length), p=share / share.sum())
    return [[f"w{pick:04}x" for pick in row] for row in picks.tolist()]


def _home_of_texts(root: Path, count: int) -> tuple[DerivationContext, list[str]]:
    """Return a home with texts of ten golems."""
    home = open_home(root)
    golems = [birth(home, lineage=f"line-{number}", at=START) for number in range(GOLEMS)]
    context = DerivationContext.open(root)
    record_drawn_texts(context, golems, count)
    return context, golems


def record_drawn_texts(context: DerivationContext, golems: Sequence[str], count: int) -> None:
    """Record texts of golems that take turns, in sessions of 40 texts each, and a random vector of each text."""
    rng = np.random.default_rng(count)
    texts = iter(_drawn(rng, count, 18))
    for first in range(0, count, _BATCH):
        events = [
            life_event(
                golems[number % len(golems)],
                START + timedelta(minutes=number),
                stored_text(
                    " ".join(words), session=f"s{number // (40 * len(golems))}", speaker=("Ada", "Bob")[number % 2]
                ),
            )
            for number, words in enumerate(islice(texts, _BATCH), first)
        ]
        context.log.record(events, START)
        docs = [doc_of(event.event_id, 0, tuple(event.payload.model_dump().values()), Policy()) for event in events]
        context.log.record_vectors(_vectors(context, [doc.text_hash for doc in docs], rng))


def _vectors(context: DerivationContext, hashes: list[str], rng: np.random.Generator) -> pa.Table:
    identity = context.embedder.identity
    matrix = rng.standard_normal((len(hashes), identity.dimension), dtype=np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    values = asdict(identity) | {"embedder": identity.key, "created_at": START}
    columns = {name: [value] * len(hashes) for name, value in values.items()}
    columns |= {"text_hash": hashes, "vector": list(matrix)}
    return pa.table({name: columns[name] for name in VECTORS_SCHEMA.names}, schema=VECTORS_SCHEMA)
