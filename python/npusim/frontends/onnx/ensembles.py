"""Ensembles of decision trees as products of matrices.

Every decision of every tree is taken for every row; a product with the table of paths then tells
which leaf they lead to, and one with the leaves' numbers adds these up. Dense, hence without a
branch that depends on values: for models of some thousands of leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

_COMPARE = {
    "BRANCH_LEQ": "le", "BRANCH_LT": "lt", "BRANCH_GTE": "ge", "BRANCH_GT": "gt",
    "BRANCH_EQ": "eq", "BRANCH_NEQ": "ne",
}  # fmt: skip
_MEMBER = "BRANCH_MEMBER"
_MODES = (*_COMPARE, _MEMBER)  # by the numbers that TreeEnsemble has for them
_MAX_PATHS = 1 << 24  # decisions times leaves, over all trees


@dataclass(frozen=True)
class _Decision:
    """Compares a feature with a value, or asks for it among several; NaN gives `missing`."""

    feature: int
    kind: str
    values: tuple[float, ...]
    missing: bool


@dataclass
class _Tree:
    """Decisions and leaves of one tree, numbered as they were found.

    Attributes:
        leaves: for each leaf, the numbers that it gives targets.
        paths: for each leaf, the decisions on the way with whether they must be true.
    """

    decisions: list[_Decision] = field(default_factory=list)
    leaves: list[list[tuple[int, float]]] = field(default_factory=list)
    paths: list[list[tuple[int, bool]]] = field(default_factory=list)

    def grow(self, start: Any, at: Callable[[Any], Any], limit: int) -> _Tree:
        """Walks from the root: `at` gives a place's decision and two places, or a leaf's numbers.

        Raises:
            ExportError: a path is longer than there are nodes.
        """
        pending: list[tuple[Any, list[tuple[int, bool]]]] = [(start, [])]
        while pending:
            place, path = pending.pop()
            if len(path) > limit or len(self.decisions) + len(self.leaves) > 2 * limit + 1:
                raise ExportError("a tree goes in circles.")
            found = at(place)
            if isinstance(found, list):
                self.leaves.append(found)
                self.paths.append(path)
                continue
            decision, yes, no = found
            own = len(self.decisions)
            self.decisions.append(decision)
            pending += [(no, [*path, (own, False)]), (yes, [*path, (own, True)])]
        return self


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _trees_by_ids(attrs: Mapping[str, Any], prefix: str) -> list[_Tree]:
    """Reads the trees of attributes `nodes_*`, the numbers of leaves in `<prefix>_*`."""
    modes = [_text(m) for m in attrs["nodes_modes"]]
    tracks = attrs.get("nodes_missing_value_tracks_true") or [0] * len(modes)
    place = {
        key: i
        for i, key in enumerate(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))
    }
    numbers: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for tree, node, target, weight in zip(
        *(attrs[f"{prefix}_{part}"] for part in ("treeids", "nodeids", "ids", "weights")),
        strict=True,
    ):
        numbers.setdefault((tree, node), []).append((target, weight))

    def at(key: tuple[int, int]) -> Any:
        i = place.get(key)
        if i is None:
            raise ExportError(f"tree {key[0]} has no node {key[1]}.")
        if modes[i] == "LEAF":
            return numbers.get(key, [])
        if modes[i] not in _COMPARE:
            raise ExportError(f"the decision {modes[i]} has no meaning here.")
        value = (float(attrs["nodes_values"][i]),)
        decision = _Decision(attrs["nodes_featureids"][i], modes[i], value, bool(tracks[i]))
        sides = (attrs["nodes_truenodeids"][i], attrs["nodes_falsenodeids"][i])
        return decision, *((key[0], side) for side in sides)

    ids = dict.fromkeys(attrs["nodes_treeids"])
    return [_Tree().grow((tree, 0), at, len(modes)) for tree in ids]


def _trees_by_roots(attrs: Mapping[str, Any]) -> list[_Tree]:
    """Reads the trees of the operator TreeEnsemble: nodes and leaves apart, roots by number."""
    modes, splits = list(attrs["nodes_modes"]), list(attrs["nodes_splits"])
    tracks = attrs.get("nodes_missing_value_tracks_true") or [0] * len(modes)
    given = [float(v) for v in attrs.get("membership_values", ())]
    members: list[tuple[float, ...]] = []
    for mode in modes:
        count = next((i for i, v in enumerate(given) if np.isnan(v)), len(given))
        members.append(tuple(given[:count]) if mode == _MODES.index(_MEMBER) else ())
        given = given[count + 1 :] if mode == _MODES.index(_MEMBER) else given

    def at(key: tuple[int, int]) -> Any:
        i, is_leaf = key
        if is_leaf:
            return [(attrs["leaf_targetids"][i], float(attrs["leaf_weights"][i]))]
        if not 0 <= i < len(modes) or not 0 <= modes[i] < len(_MODES):
            raise ExportError(f"the node {i} does not exist, or decides what is not known here.")
        kind = _MODES[modes[i]]
        values = members[i] if kind == _MEMBER else (float(splits[i]),)
        decision = _Decision(attrs["nodes_featureids"][i], kind, values, bool(tracks[i]))
        yes = (attrs["nodes_truenodeids"][i], attrs["nodes_trueleafs"][i])
        return decision, yes, (attrs["nodes_falsenodeids"][i], attrs["nodes_falseleafs"][i])

    return [_Tree().grow((root, 0), at, len(modes)) for root in attrs["tree_roots"]]


# ---- as products ----


def _leaves_reached(call: Call, x: Tensor, trees: list[_Tree]) -> Tensor:
    """Returns 1 where a row reaches a leaf, [trees, rows, leaves], and 0 elsewhere."""
    width = max(1, *(len(t.decisions) for t in trees))
    count = max(len(t.leaves) for t in trees)
    if len(trees) * width * count > _MAX_PATHS:
        raise ExportError(
            f"{len(trees)} trees of up to {count} leaves are too many to compute every branch of."
        )
    nothing = _Decision(0, "BRANCH_LEQ", (0.0,), False)
    flat = [
        decision
        for tree in trees
        for decision in (*tree.decisions, *[nothing] * (width - len(tree.decisions)))
    ]
    # A decision counts 1 on the paths where it must be true, -1 where it must be false.
    signs = np.zeros((len(trees), width, count), np.float32)
    wanted = np.full((len(trees), 1, count), np.inf, np.float32)  # no leaf: never reached
    for t, tree in enumerate(trees):
        for leaf, path in enumerate(tree.paths):
            wanted[t, 0, leaf] = sum(truth for _, truth in path)
            for decision, truth in path:
                signs[t, decision, leaf] = 1.0 if truth else -1.0
    decided = _decided(call, x, flat).to("float32", TensorProto.FLOAT)
    each = decided.view((x.shape[0], len(trees), width)).permute((1, 0, 2))
    met = each.op("matmul.default", call.graph.known(signs))
    return met.equals(call.graph.known(wanted)).to("float32", TensorProto.FLOAT)


def _decided(call: Call, x: Tensor, decisions: Sequence[_Decision]) -> Tensor:
    """Returns the decisions, a column each; a comparison with NaN is what its track says."""
    graph = call.graph
    features = graph.known(np.array([d.feature for d in decisions], np.int64))
    read = x.op("index_select.default", 1, features)
    result: Tensor | None = None
    for kind in dict.fromkeys(d.kind for d in decisions):
        truth = (
            _is_member(call, read, decisions)
            if kind == _MEMBER
            else read.op(
                f"{_COMPARE[kind]}.Tensor",
                graph.table(np.array([d.values[0] if d.values else 0.0 for d in decisions]), read),
            )
        )
        where = graph.known(np.array([d.kind == kind for d in decisions]))
        own = truth.op("logical_and.default", where)
        result = own if result is None else result.op("logical_or.default", own)
    assert result is not None
    missing = np.array([d.missing for d in decisions])
    if missing.any():
        absent = read.op("isnan.default").op("logical_and.default", graph.known(missing))
        result = result.op("logical_or.default", absent)
    return result


def _is_member(call: Call, x: Tensor, decisions: Sequence[_Decision]) -> Tensor:
    """Returns where a column's element is among its decision's values."""
    longest = max(len(d.values) for d in decisions)
    values = np.full((len(decisions), longest), np.nan)
    for i, decision in enumerate(decisions):
        values[i, : len(decision.values)] = decision.values
    same = x.view((*x.shape, 1)).equals(call.graph.table(values, x))
    return same.op("any.dim", 2)


def _totals(call: Call, x: Tensor, trees: list[_Tree], count: int) -> Tensor:
    """Returns what the leaves reached give each target or class, [rows, count]."""
    numbers = np.zeros((len(trees), max(len(t.leaves) for t in trees), count))
    for t, tree in enumerate(trees):
        for leaf, given in enumerate(tree.leaves):
            for target, weight in given:
                if not 0 <= target < count:
                    raise ExportError(f"a leaf gives target {target} a number; there are {count}.")
                numbers[t, leaf, target] += weight
    rows = x if x.rank > 1 else x.view((1, x.shape[0]))
    if rows.dtype != "float64":  # what the values of decisions are compared in
        rows = rows.to("float32", TensorProto.FLOAT)
    reached = _leaves_reached(call, rows, trees).to(rows.dtype)
    each = reached.op("matmul.default", call.graph.table(numbers, rows))
    how = call.attrs.get("aggregate_function", "SUM")
    if how in ("SUM", b"SUM", "AVERAGE", b"AVERAGE", 0, 1):
        total = each.op("sum.dim_IntList", [0])
        return total * (1 / len(trees)) if how in ("AVERAGE", b"AVERAGE", 0) else total
    return each.op("amin.default" if how in ("MIN", b"MIN", 2) else "amax.default", [0])


@translation("TreeEnsemble", domain=DOMAIN)
def _ensemble(call: Call, x: Tensor) -> Tensor:
    """Aggregation and transformation are numbers here, and names in the older operators."""
    attrs = {**call.attrs, "aggregate_function": call.int("aggregate_function", 1)}
    total = _totals(replace(call, attrs=attrs), x, _trees_by_roots(attrs), call.int("n_targets", 1))
    names = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    kind = names[call.int("post_transform") % len(names)]
    return post_transform(replace(call, attrs={"post_transform": kind}), total)


@translation("TreeEnsembleRegressor", domain=DOMAIN)
def _regressor(call: Call, x: Tensor) -> Tensor:
    trees = _trees_by_ids(call.attrs, "target")
    total = _totals(call, x, trees, call.int("n_targets", 1)).to("float32", TensorProto.FLOAT)
    base = table(call, "base_values", total)
    return post_transform(call, total if base is None else total + base)


@translation("TreeEnsembleClassifier", domain=DOMAIN)
def _classifier(call: Call, x: Tensor) -> list[Tensor | None]:
    """Of two classes the leaves may hold numbers for one alone: what is left is the other's."""
    labels, ids = class_labels(call), set(call.attrs["class_ids"])
    total = _totals(call, x, _trees_by_ids(call.attrs, "class"), len(labels))
    total = total.to("float32", TensorProto.FLOAT)
    base = table(call, "base_values", total)
    if len(labels) == 2 and len(ids) == 1:
        column = total.slice(1, max(ids), max(ids) + 1)
        column = column if base is None else column + base
        return _of_one_column(call, column, labels)
    total = total if base is None else total + base
    index = total.op("argmax.default", 1, kind=TensorProto.INT64)
    return [labelled(call, index, labels), post_transform(call, total)]


def _of_one_column(call: Call, score: Tensor, labels: list[int]) -> list[Tensor | None]:
    kind = call.str("post_transform", "NONE")
    positive = all(w >= 0 for w in call.attrs["class_weights"])
    if kind == "LOGISTIC":
        shown = score.op("sigmoid.default")
        yes, other = score > 0.0, call.graph.op("rsub.Scalar", shown, 1.0)
    elif kind == "NONE" and positive:
        shown, yes = score, score > 0.5
        other = call.graph.op("rsub.Scalar", shown, 1.0)
    elif kind == "NONE":
        shown, yes, other = score, score > 0.0, score * -1.0
    else:
        raise ExportError(f"the transformation {kind} of one class's scores has no meaning here.")
    index = yes.to("int64", TensorProto.INT64).view((score.shape[0],))
    return [labelled(call, index, labels), call.graph.op("cat.default", [other, shown], 1)]
