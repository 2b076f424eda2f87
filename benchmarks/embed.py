"""Embedding against fastembed alone, and approximate against exact vector search."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Float32Array
from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, episodes_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.embed_texts import recorded_vectors
from bardo_pipeline.policy import GrowthPolicy, Policy
from bardo_pipeline.storage.embedding.embedders import open_embedder
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index.ivf_tuning import learned
from benchmarks.figures import Figure
from benchmarks.world import NOW, World

TEXTS_MAX, REPEATS = 1_000, 10
ROUNDS = 3
VECTORS = 100_000
QUESTIONS = 100
NEAREST = 10
SPREAD = 0.6  # length of the noise added to a text's unit vector; the distance of texts on one subject


def embed_figures(world: World, root: Path) -> list[Figure]:
    """Measure distinct texts per second against fastembed, and a search of 100,000 vectors against an exact one."""
    texts = _texts(world)
    encoded = texts.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    models = root / "models"
    model: Any = open_embedder("minilm", models)
    bare = dict.fromkeys((32, 256), fastembed_model(next(path.parent for path in models.glob("minilm-*/model.onnx"))))
    ours, peer_seconds = float("inf"), float("inf")
    for number in range(ROUNDS):
        stores = _stores(root / f"home-{number}", models)
        stores.embedder.embed(distinct[:8])
        started = time.perf_counter()
        result = texts.dictionary_encode()
        _, known = recorded_vectors(stores, result.dictionary.to_pylist(), NOW)
        ours = min(ours, time.perf_counter() - started)
        assert known.num_rows == len(distinct), "each distinct text has one vector"
        for size, peer in bare.items():
            started = time.perf_counter()
            assert len(list(peer.embed(distinct, batch_size=size))) == len(distinct)
            peer_seconds = min(peer_seconds, time.perf_counter() - started)
    rate, peer_rate = len(distinct) / ours, len(distinct) / peer_seconds
    how = (
        f"{len(texts):,} texts, {len(distinct):,} of them distinct: hashed, embedded once, stored durably with "
        f"metadata, the model checked for drift; best of {ROUNDS}; peer: fastembed alone on the distinct texts, "
        "the same model, the better of batches of 32 and 256"
    )
    figure = Figure("embed_vs_fastembed", rate, "texts/s", peer_rate, rate / peer_rate, "ratio >= 0.9", how)
    vectors = model.embed(distinct)
    return [figure, _approximate(vectors, root / "lance")]


def fastembed_model(folder: Path) -> Any:
    """Return fastembed's own object for the model minilm that is built in this folder."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    name = "bardo/all-MiniLM-L6-v2"
    if not any(model["model"] == name for model in TextEmbedding.list_supported_models()):
        TextEmbedding.add_custom_model(
            model=name, pooling=PoolingType.MEAN, normalization=False, sources=ModelSource(hf="local/none"), dim=384,
            model_file="model.onnx",
        )  # fmt: skip
    # With a given folder and local files only, fastembed never contacts a hub.
    return TextEmbedding(
        name, specific_model_path=str(folder), local_files_only=True, providers=["CPUExecutionProvider"]
    )


def _texts(world: World) -> pa.StringArray:
    """Return the texts of the first episodes, made distinct by episode id, each 10 times, shuffled."""
    records = pa.concat_tables(world.cycles[:REPEATS]).select(list(EPISODE_COLUMNS)).combine_chunks()
    cycle = (records["tick"].to_numpy() - 1) // world.policy.curator.cycle_ticks + 1
    episodes = episodes_of(records, cycle, world.policy).slice(0, TEXTS_MAX).select(["text", "episode_id"]).to_pylist()
    order = np.random.default_rng(2).permutation(np.tile(np.arange(len(episodes)), REPEATS))
    return pa.array(
        [f"{episodes[at]['text']} It was {episodes[at]['episode_id']}." for at in order.tolist()], pa.string()
    )


def _stores(root: Path, models: Path) -> DerivationContext:
    Home.create(root, Policy(), NOW)
    (root / "models").symlink_to(models, target_is_directory=True)
    return DerivationContext.open(root, policy=Policy())


def _approximate(vectors: Float32Array, folder: Path) -> Figure:
    import lancedb

    rng = np.random.default_rng(11)
    near = vectors[rng.integers(0, len(vectors), VECTORS)]
    noise = rng.normal(size=near.shape).astype(np.float32)
    held = near + SPREAD * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    held /= np.linalg.norm(held, axis=1, keepdims=True)
    kind = pa.list_(pa.float32(), held.shape[1])
    table = pa.table(
        {
            "text_hash": [f"{number:064x}" for number in rng.integers(0, 2**63, VECTORS)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(held.astype(np.float32).reshape(-1)), type=kind),
        }
    )
    lance = lancedb.connect(folder).create_table("texts", table)
    started = time.perf_counter()
    search = learned(lance, None, GrowthPolicy())
    spent = time.perf_counter() - started
    assert search is not None, "the policy's minimum of vectors is reached"
    exact, quick = ([_search_once(lance, v, n) for v in held[:QUESTIONS]] for n in (0, search.looked_at))
    exact_ms, quick_ms = (float(np.median([ms for ms, _ in some])) for some in (exact, quick))
    recall = sum(len(hits & wanted) for (_, wanted), (_, hits) in zip(exact, quick, strict=True)) / (
        QUESTIONS * NEAREST
    )
    how = (
        f"{VECTORS:,} vectors around {len(vectors):,} texts, {NEAREST} nearest, p50 of {QUESTIONS} searches through "
        f"{search.looked_at} of {search.lists} lists; recall@{NEAREST} {recall:.3f}, {search.recall_ppm / 1e6:.3f} "
        f"measured while tuning in {spent:.1f} s; peer: exact search"
    )
    return Figure("similar_ms_100k", quick_ms, "ms", exact_ms, exact_ms / quick_ms, "ratio > 1, recall >= 0.95", how)


def _search_once(table: Any, vector: Float32Array, looked_at: int) -> tuple[float, set[str]]:
    started = time.perf_counter()
    query = table.search(vector, vector_column_name="vector", query_type="vector").distance_type("cosine")
    query = query.nprobes(looked_at) if looked_at else query.bypass_vector_index()
    hashes = query.select(["text_hash", "_distance"]).limit(NEAREST).to_arrow()["text_hash"].to_pylist()
    return (time.perf_counter() - started) * 1e3, set(hashes)
