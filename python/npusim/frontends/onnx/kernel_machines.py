"""Support vector machines of ai.onnx.ml: kernels between rows and support vectors, and votes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.features import (
    DOMAIN,
    class_labels,
    labelled,
    post_transform,
    table,
)
from npusim.frontends.onnx.registry import Call, translation


def _kernel(call: Call, x: Tensor, vectors: Tensor) -> Tensor:
    """Returns the kernel between rows and support vectors, [rows, vectors]."""
    gamma, offset, degree = (float(v) for v in call.attrs.get("kernel_params", (0, 0, 0)))
    kind = call.str("kernel_type", "LINEAR")
    if kind == "RBF":
        apart = x.view((x.shape[0], 1, x.shape[1])) - vectors
        squares = (apart * apart).op("sum.dim_IntList", [-1])
        return (squares * -gamma).op("exp.default")
    product = x.op("linear.default", vectors)
    if kind == "LINEAR":
        return product
    scaled = product * gamma + offset
    if kind == "POLY":
        return scaled.op("pow.Tensor_Scalar", degree)
    if kind == "SIGMOID":
        return scaled.op("tanh.default")
    raise ExportError(f"the kernel {kind} has no meaning here.")


@translation("SVMRegressor", domain=DOMAIN)
def _svm_regressor(call: Call, x: Tensor) -> Tensor:
    rows = x.to("float32", TensorProto.FLOAT)
    count, rho = call.int("n_supports"), float(call.attrs["rho"][0])
    weights = call.attrs["coefficients"]
    if count:
        vectors = table(call, "support_vectors", rows, (count, rows.shape[1]))
        assert vectors is not None
        rows = _kernel(call, rows, vectors)
    weight = call.graph.table(np.asarray(weights, np.float64).reshape(1, -1), rows)
    total = rows.op("linear.default", weight) + rho
    if call.int("one_class"):
        return (total > 0.0).to("float32", TensorProto.FLOAT) * 2.0 - 1.0
    return post_transform(call, total)


@translation("SVMClassifier", domain=DOMAIN)
def _svm_classifier(call: Call, x: Tensor) -> list[Tensor | None]:
    """Every pair of classes decides between its two, and the class of most votes is the label."""
    labels, sizes = class_labels(call), list(call.attrs.get("vectors_per_class", ()))
    if len(sizes) != len(labels) or len(labels) < 2:
        raise ExportError("a classifier without support vectors for each class is not read.")
    rows = x.to("float32", TensorProto.FLOAT)
    vectors = table(call, "support_vectors", rows, (sum(sizes), rows.shape[1]))
    assert vectors is not None
    pairs = [(i, j) for i in range(len(labels)) for j in range(i + 1, len(labels))]
    weight = call.graph.table(_pair_weights(call, sizes, pairs), rows)
    rho = table(call, "rho", rows)
    decisions = _kernel(call, rows, vectors).op("linear.default", weight, rho)
    if call.attrs.get("prob_a"):
        return _with_probabilities(call, decisions, labels)
    wins = (decisions > 0.0).to("float32", TensorProto.FLOAT)
    counts = np.zeros((len(pairs), len(labels)))
    for row, (i, j) in enumerate(pairs):
        counts[row, i], counts[row, j] = 1.0, -1.0
    losses = -counts.clip(max=0).sum(0)
    votes = wins.op("matmul.default", call.graph.table(counts, rows))
    votes = votes + call.graph.table(losses, rows)
    index = votes.op("argmax.default", 1, kind=TensorProto.INT64)
    if len(labels) == 2:
        decisions = call.graph.op("cat.default", [decisions * -1.0, decisions], 1)
    return [labelled(call, index, labels), post_transform(call, decisions)]


def _pair_weights(call: Call, sizes: list[int], pairs: list[tuple[int, int]]) -> Any:
    """Returns each pair's coefficients of the vectors; those of a class against a later one stand
    a row further up than those against an earlier one."""
    given = np.asarray(list(call.attrs["coefficients"]), np.float64).reshape(len(sizes) - 1, -1)
    ends = np.cumsum(sizes)
    weights = np.zeros((len(pairs), int(ends[-1])))
    for row, (i, j) in enumerate(pairs):
        for own, other in ((i, j - 1), (j, i)):
            place = slice(ends[own] - sizes[own], ends[own])
            weights[row, place] = given[other, place]
    return weights


def _with_probabilities(call: Call, decisions: Tensor, labels: list[int]) -> list[Tensor | None]:
    """Returns the likelier of two classes, and what ONNX Runtime iterates towards until it is
    within 0.0025; of more classes there is no formula for it."""
    if len(labels) != 2:
        raise ExportError("probabilities of more than two classes are found by an iteration.")
    a, b = float(call.attrs["prob_a"][0]), float(call.attrs["prob_b"][0])
    first = (decisions * -a - b).op("sigmoid.default")
    both = call.graph.op("cat.default", [first, call.graph.op("rsub.Scalar", first, 1.0)], 1)
    index = both.op("argmax.default", 1, kind=TensorProto.INT64)
    return [labelled(call, index, labels), both]
