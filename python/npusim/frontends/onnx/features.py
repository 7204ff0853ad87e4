"""Operators of the domain ai.onnx.ml that are arithmetic on tensors."""

from __future__ import annotations

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.indexing import positive
from npusim.frontends.onnx.registry import Call, translation


@translation("Binarizer", domain="ai.onnx.ml")
def _binarizer(call: Call, x: Tensor) -> Tensor:
    return (x > call.float("threshold")).to(x.dtype, x.kind)


@translation("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(call: Call, x: Tensor, places: Tensor) -> Tensor:
    size = x.shape[-1]
    rows = x if x.rank > 1 else x.view((1, size))
    index = positive(places, size)
    return rows.op("index_select.default", rows.rank - 1, index.view((places.type.numel,)))
