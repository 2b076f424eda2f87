"""Retrieval by four factors from 10,000 to 1,000,000 entries, against a matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, DECAY_CLASSES, ENTRY_KINDS, ENTRY_SCHEMA, MOMENT
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.situation import Situation
from benchmarks.figures import Figure

DIMENSION, K = 384, 5
START_US, HOUR_US = 1_700_000_000_000_000, 3_600_000_000
SIZES = {10_000: ("10k", 2.0, 1_000), 100_000: ("100k", 8.0, 400), 1_000_000: ("1m", 70.0, 100)}
"""Entry count -> suffix of the figure, aim in milliseconds, number of questions."""
PEER = 100_000
"""Entry count of the comparison with a matrix product; smaller sizes fit the CPU cache (0.1 ms a product)."""


def retrieve_figures(sizes: dict[int, tuple[str, float, int]] = SIZES) -> list[Figure]:
    """Measure p99 of a question at each size, and its median against a matrix product at PEER entries."""
    figures = []
    for count, (suffix, aim, questions) in sizes.items():
        ours, bare = _timed(count, questions)
        worst, product = (float(np.percentile(times, 99)) for times in (ours, bare))
        how = f"{count:,} entries, {DIMENSION} dimensions, {K} wanted, all awake, embedding excluded"
        method = (
            f"{how}; p99 of {questions:,} questions with different vectors, moods and moments; peer: p99 of the product"
        )
        figures.append(
            Figure(f"retrieve_p99_ms_{suffix}", worst, "ms", product, worst / product, f"value <= {aim:g}", method)
        )
        if count == PEER:
            ratio = float(np.median(ours)) / float(np.median(bare))
            method = f"{how}; medians, alternating runs; peer: the matrix product"
            value = float(np.median(ours))
            figures.append(
                Figure("retrieve_vs_numpy", value, "ms", float(np.median(bare)), ratio, "ratio <= 1.4", method)
            )
    return figures


def _timed(count: int, questions: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of each question and of the matrix product with its vector, run alternately."""
    rng = np.random.default_rng(count)
    book = grimoire(count, rng)
    questions_asked = rng.standard_normal((questions, DIMENSION), dtype=np.float32)
    questions_asked /= np.linalg.norm(questions_asked, axis=1, keepdims=True)
    moods = rng.uniform(-1.0, 1.0, (questions, 3))
    ours, bare = [], []
    for number in range(questions + 2):
        vector, at = questions_asked[number % questions], START_US + number * 60_000_000
        pleasure, arousal, dominance = moods[number % questions].tolist()
        situation = Situation(at, tick=number, mood=(pleasure, arousal, dominance), thought_tick=max(number - 1, 0))
        bare.append(_milliseconds(lambda vector=vector: book.vectors @ vector))
        ours.append(_milliseconds(lambda v=vector, s=situation: book.retrieve(v, s, K)))
    return ours[2:], bare[2:]  # the first two warm up


def _milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def grimoire(count: int, rng: np.random.Generator) -> Grimoire:
    """Make a grimoire of entries of all kinds, classes, ages and moods, with distinct texts."""
    vectors = rng.standard_normal((count, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Grimoire(entries(count, rng), vectors, np.arange(count), Policy())


def entries(count: int, rng: np.random.Generator) -> pa.Table:
    """Make active entries (ENTRY_SCHEMA) with random values in all columns that affect a score."""

    def words(choices: tuple[str, ...]) -> pa.Array:
        return pa.array(choices).take(pa.array(rng.integers(0, len(choices), count)))

    def ages(days: float) -> pa.Array:
        return pa.array(START_US - rng.integers(0, int(days * 24) * HOUR_US, count)).cast(MOMENT)

    numbers = pa.array([f"{i:024x}" for i in range(count)])
    random_columns = {
        "golem_id": pa.repeat(pa.scalar("g-bench"), count),
        "origin_golem_id": pa.repeat(pa.scalar("g-bench"), count),
        "entry_id": numbers,
        "structure": numbers,
        "text": numbers,
        "kind": words(ENTRY_KINDS),
        "status": pa.repeat(pa.scalar("active"), count),
        "provenance": words(("self", "death_testament")),
        "decay_class": words(DECAY_CLASSES),
        "regime": words(REGIMES),
        "anomaly_band": words(ANOMALY_BANDS),
        "is_bloodstain": pa.array(rng.random(count) < 0.1),
        "confidence_ppm": pa.array(rng.integers(100_000, 10**6, count)),
        "anchor_at": ages(60),
        "created_at": ages(60),
        "validated_at": ages(60),
        "own_count": pa.array(rng.integers(1, 50, count)),
        **{n: pa.array(rng.integers(0, 8, count)) for n in ("validations", "contradictions")},
        **{f"{n}_sum_milli": pa.array(rng.integers(-900, 900, count)) for n in ("pleasure", "arousal", "dominance")},
    }
    constants = Structure("pattern", "ethereum", "uniswap_v3", "USDC/WETH")._asdict()
    columns = [
        random_columns.get(field.name, _plain(field, constants.get(field.name), count)) for field in ENTRY_SCHEMA
    ]
    return pa.Table.from_arrays(
        [c.cast(f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)], schema=ENTRY_SCHEMA
    )


def _plain(field: pa.Field, value: str | None, count: int) -> pa.Array:
    """Return a constant column: `value`, else null if allowed, else "general", False or 0."""
    if value is None and field.nullable:
        return pa.nulls(count, field.type)
    empty = "general" if pa.types.is_string(field.type) else False if pa.types.is_boolean(field.type) else 0
    return pa.repeat(pa.scalar(value if value is not None else empty), count)
