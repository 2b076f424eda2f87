"""Embedding models altered on disk, as by a bad update."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from bardo_pipeline.storage.home import Home

_ALTERED = "encoder.layer.3.output.dense.weight"


def own_models(root: Path) -> Path:
    """Give a home models of its own, and return the folder of the one embedder that is built in it."""
    models = root / "models"
    if not models.exists():
        shutil.copytree(Home.open(root).models, models)
    return next(path for path in models.iterdir() if path.name.startswith("minilm-") and "int8" not in path.name)


def altered(folder: Path, strength: float) -> bytes:
    """Change one layer's weights and record the new checksums, as an installation does. Return the old model."""
    file = folder / "model.onnx"
    old = file.read_bytes()
    model = onnx.load_from_string(old)
    for tensor in model.graph.initializer:
        if tensor.name == _ALTERED:
            weights = numpy_helper.to_array(tensor)
            noise = np.random.default_rng(1).normal(size=weights.shape).astype(np.float32)
            changed = weights + strength * weights.std() * noise
            tensor.CopyFrom(numpy_helper.from_array(changed.astype(np.float32), tensor.name))
    put(folder, model.SerializeToString())
    return old


def put(folder: Path, model: bytes) -> None:
    """Install a model in a built folder."""
    (folder / "model.onnx").write_bytes(model)
    sums = json.loads((folder / "build.json").read_text())
    sums["model.onnx"] = hashlib.sha256(model).hexdigest()
    (folder / "build.json").write_text(json.dumps(sums))
