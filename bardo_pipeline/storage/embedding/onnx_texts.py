"""OnnxTexts: an ONNX text model whose token vectors are averaged, as fastembed runs it.

Importing fastembed loads its models of images and its model hub: 0.7 s of CPU, more than a cold question spends in the
model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from bardo_pipeline.arrays import Float32Array


class OnnxTexts:
    """The model in a folder with `model.onnx`, its tokenizer and the tokenizer's settings."""

    def __init__(self, folder: Path) -> None:
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_length=settings["model_max_length"])
        pad = settings["pad_token"]
        self._tokenizer.enable_padding(pad_id=self._tokenizer.token_to_id(pad), pad_token=pad, length=None)
        options = onnxruntime.SessionOptions()
        # Without a number, the runtime binds its threads to cores: of two processes at once, both to the same core.
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {node.name for node in self._session.get_inputs()}

    def embed(self, texts: Sequence[str], *, batch_size: int) -> Iterator[Float32Array]:
        """Yield the mean of each text's token vectors, from runs of `batch_size` texts."""
        for first in range(0, len(texts), batch_size):
            encoded = self._tokenizer.encode_batch(list(texts[first : first + batch_size]))
            ids, mask = (np.array([getattr(e, name) for e in encoded], np.int64) for name in ("ids", "attention_mask"))
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            (tokens,) = self._session.run(None, {name: given[name] for name in self._inputs})
            sums = np.sum(tokens, axis=1, where=mask[:, :, np.newaxis].astype(bool), dtype=np.float64)
            yield from (sums / mask.sum(axis=1, keepdims=True)).astype(tokens.dtype)
