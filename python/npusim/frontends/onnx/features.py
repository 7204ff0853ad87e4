"""Operators of the domain ai.onnx.ml that are arithmetic on tensors: features and linear models.

Labels that are strings have no place in a graph; models that give them are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.indexing import positive
from npusim.frontends.onnx.registry import Call, translation

DOMAIN = "ai.onnx.ml"


@translation("Binarizer", domain=DOMAIN)
def _binarizer(call: Call, x: Tensor) -> Tensor:
    return (x > call.float("threshold")).to(x.dtype, x.kind)


@translation("ArrayFeatureExtractor", domain=DOMAIN)
def _array_feature_extractor(call: Call, x: Tensor, places: Tensor) -> Tensor:
    size = x.shape[-1]
    rows = x if x.rank > 1 else x.view((1, size))
    index = positive(places, size)
    return rows.op("index_select.default", rows.rank - 1, index.view((places.type.numel,)))


@translation("FeatureVectorizer", domain=DOMAIN)
def _feature_vectorizer(call: Call, *parts: Tensor) -> Tensor:
    return call.graph.op("cat.default", [_floats(x) for x in parts], 1)


@translation("Scaler", domain=DOMAIN)
def _scaler(call: Call, x: Tensor) -> Tensor:
    """(x - offset) * scale, in float32 whatever the input is."""
    wide = _floats(x)
    offset, scale = (table(call, name, wide) for name in ("offset", "scale"))
    wide = wide if offset is None else wide - offset
    return wide if scale is None else wide * scale


@translation("Normalizer", domain=DOMAIN)
def _normalizer(call: Call, x: Tensor) -> Tensor:
    """Divides each row by its largest element (MAX), or its norm; rows of zeros stay."""
    wide, kind = _floats(x), call.str("norm", "MAX")
    if kind == "MAX":
        size = wide.op("amax.default", [-1], True)
    else:
        size = wide.op("linalg_vector_norm.default", {"L1": 1.0, "L2": 2.0}[kind], [-1], True)
    nothing = size.equals(0.0)
    return wide / call.graph.op("where.ScalarSelf", nothing, 1.0, size)


@translation("Imputer", domain=DOMAIN)
def _imputer(call: Call, x: Tensor) -> Tensor:
    """Replaces one value, often NaN, by another a column."""
    exact = x.dtype.startswith("int")
    given = call.attrs.get("imputed_value_int64s" if exact else "imputed_value_floats", ())
    values = call.graph.table(np.asarray(list(given)), x)
    if exact:
        missing = x.equals(call.int("replaced_value_int64"))
    else:
        value = call.float("replaced_value_float")
        missing = x.op("isnan.default") if math.isnan(value) else x.equals(value)
    return call.graph.op("where.self", missing, values, x)


@translation("OneHotEncoder", domain=DOMAIN)
def _one_hot_encoder(call: Call, x: Tensor) -> Tensor:
    if "cats_int64s" not in call.attrs:
        raise ExportError("categories that are strings have no place in a graph.")
    known = call.graph.table(np.asarray(call.attrs["cats_int64s"]), "int64")
    wide = x.to("int64", TensorProto.INT64).view((*x.shape, 1))
    return wide.equals(known).to("float32", TensorProto.FLOAT)


@translation("ZipMap", domain=DOMAIN)
def _zip_map(call: Call, x: Tensor) -> Tensor:
    """Maps from labels to numbers are given as the tensor of the numbers, a column a label."""
    return x


# ---- linear models ----


def table(call: Call, name: str, like: Tensor, shape: Sequence[int] | None = None) -> Tensor | None:
    """Returns a list of numbers among the attributes as a tensor, or None when it is absent."""
    values = call.attrs.get(name)
    if values is None or len(values) == 0:
        return None
    array = np.asarray(list(values), np.float64)
    return call.graph.table(array if shape is None else array.reshape(shape), like)


def _floats(x: Tensor) -> Tensor:
    return x.to("float32", TensorProto.FLOAT)


def _scores(call: Call, x: Tensor, count: int) -> Tensor:
    """Returns x · coefficientsᵀ + intercepts, a column a target."""
    wide = _floats(x if x.rank > 1 else x.view((1, x.shape[0])))
    weight = table(call, "coefficients", wide, (count, wide.shape[1]))
    bias = table(call, "intercepts", wide)
    assert weight is not None
    return wide.op("linear.default", weight, bias)


@translation("LinearRegressor", domain=DOMAIN)
def _linear_regressor(call: Call, x: Tensor) -> Tensor:
    scores = _scores(call, x, call.int("targets", 1))
    return post_transform(call, scores)


@translation("LinearClassifier", domain=DOMAIN)
def _linear_classifier(call: Call, x: Tensor) -> list[Tensor | None]:
    """The label of the largest score; of two classes one row of coefficients may stand for both."""
    labels = class_labels(call)
    count = len(call.attrs["coefficients"]) // x.shape[-1]
    scores = _scores(call, x, count)
    if count == 1 and len(labels) == 2:
        transformed = call.str("post_transform", "NONE") != "NONE"
        yes = scores > 0.0
        shown = scores.op("sigmoid.default") if transformed else scores
        other = call.graph.op("rsub.Scalar", shown, 1.0) if transformed else shown * -1.0
        both = call.graph.op("cat.default", [other, shown], 1)
        index = yes.to("int64", TensorProto.INT64).view((scores.shape[0],))
        return [labelled(call, index, labels), both]
    index = scores.op("argmax.default", 1, kind=TensorProto.INT64)
    return [labelled(call, index, labels), post_transform(call, scores)]


def class_labels(call: Call) -> list[int]:
    """Returns a classifier's labels; ExportError when they are strings."""
    for name in ("classlabels_ints", "classlabels_int64s"):
        if len(call.attrs.get(name, ())):
            return [int(v) for v in call.attrs[name]]
    raise ExportError(
        f"{call.op} gives labels that are strings; train it on numbers, which graphs hold."
    )


def labelled(call: Call, index: Tensor, labels: Sequence[int]) -> Tensor:
    """Returns the labels at indices."""
    if list(labels) == list(range(len(labels))):
        return index
    known = call.graph.known(np.asarray(labels, np.int64))
    return known.op("index_select.default", 0, index)


def post_transform(call: Call, scores: Tensor) -> Tensor:
    """Returns scores as a model's `post_transform` wants them."""
    kind = call.str("post_transform", "NONE")
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return scores.op("sigmoid.default")
    if kind == "SOFTMAX":
        return scores.op("softmax.int", -1)
    if kind == "SOFTMAX_ZERO":  # classes with a score of zero stay at zero
        return scores.op("softmax.int", -1) * scores.op("ne.Scalar", 0.0).to("float32")
    raise ExportError(f"the transformation {kind} of scores has no meaning here.")
