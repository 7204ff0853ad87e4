"""What happens to complex numbers, said of pairs: arithmetic, sums, products, shapes, choices.

A rule gets the node in its complex form and gives the pair of its result, or the result itself
where that is real. Pairs have one dimension more, the last one, so whatever happens to the
dimensions in front happens to both parts alike.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from npusim.frontends.complex_pairs import NoPair, Rule, Writer, is_node, rank
from npusim.frontends.fourier import FOURIER

aten = torch.ops.aten


def _bound(node: Node) -> dict[str, Any]:
    """Returns a call's arguments by name, defaults included."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
    return {a.name: given.get(a.name, a.default_value) for a in schema}


def _plain(node: Node) -> tuple[Any, ...]:
    """Returns the arguments of a call that gives nothing by keyword."""
    if node.kwargs:
        raise NoPair
    return tuple(node.args)


# ---- arithmetic ----


def _apply(writer: Writer, function: Any, x: Any, y: Any) -> Any:
    """Computes with two parts, each a node or a number."""
    name = function._qualified_op_name.split("::")[-1]
    if not is_node(y) and (y == 0 or (name == "mul" and y == 1)):  # what changes nothing
        return 0.0 if name == "mul" and y == 0 else x
    if is_node(x) and is_node(y):
        return writer.call(function.Tensor, x, y)
    if is_node(x):
        return writer.call(function.Scalar, x, y)
    if not is_node(y):
        return {"add": x + y, "sub": x - y, "mul": x * y}[name]
    if x == 0 and name != "sub":
        return 0.0 if name == "mul" else y
    if name == "sub":
        return writer.call(aten.add.Scalar, writer.call(aten.neg.default, y), x)
    return writer.call(function.Scalar, y, x)


def _times(writer: Writer, x: Any, y: Any) -> Any:
    return _apply(writer, aten.mul, x, y)


def _polar(writer: Writer, node: Node) -> Node:
    size, angle = _plain(node)
    parts = (writer.call(f, angle) for f in (aten.cos.default, aten.sin.default))
    return writer.join(*(writer.call(aten.mul.Tensor, size, part) for part in parts))


def _product(writer: Writer, node: Node) -> Node:
    x, y = _plain(node)
    if not (writer.is_complex(x) and writer.is_complex(y)):
        scaled, factor = (y, x) if writer.is_complex(y) else (x, y)
        if is_node(scaled):
            return writer.call(node.target, writer.pair(scaled), writer.factor(factor))
    return _multiplied(writer, writer.parts(x), writer.parts(y))


def _multiplied(writer: Writer, x: tuple[Any, Any], y: tuple[Any, Any]) -> Node:
    (a, b), (c, d) = x, y
    parts = [
        _apply(writer, aten.sub, _times(writer, a, c), _times(writer, b, d)),
        _apply(writer, aten.add, _times(writer, a, d), _times(writer, b, c)),
    ]
    return writer.join(*(_filled(writer, part, None, parts) for part in parts))


def _square(writer: Writer, x: Any) -> Node:
    """Returns |x|², real."""
    a, b = writer.parts(x)
    return writer.call(aten.add.Tensor, _times(writer, a, a), _times(writer, b, b))


def _inverse(writer: Writer, x: Any) -> tuple[Any, Any]:
    """Returns the parts of 1 / x."""
    if not is_node(x):
        number = 1 / complex(x)
        return number.real, number.imag
    (a, b), size = writer.parts(x), _square(writer, x)
    return (
        writer.call(aten.div.Tensor, a, size),
        writer.call(aten.neg.default, writer.call(aten.div.Tensor, b, size)),
    )


def _quotient(writer: Writer, node: Node) -> Node:
    x, y = _plain(node)
    if not writer.is_complex(y):
        return writer.call(node.target, writer.pair(x), writer.factor(y))
    return _multiplied(writer, writer.parts(x), _inverse(writer, y))


def _sum(writer: Writer, node: Node) -> Node:
    """Sums and differences of complex and real numbers, `other` times alpha."""
    x, y, *rest = node.args
    alpha = rest[0] if rest else node.kwargs.get("alpha", 1)
    if set(node.kwargs) - {"alpha"} or not isinstance(alpha, (int, float)):
        raise NoPair
    function = aten.add if "add" in str(node.target) else aten.sub
    if is_node(x) and is_node(y) and x in writer.pairs and y in writer.pairs:
        return writer.call(function.Tensor, writer.pair(x), writer.pair(y), alpha=alpha)
    (a, b), (c, d) = writer.parts(x), writer.parts(y)
    if alpha != 1:
        c, d = _times(writer, c, alpha), _times(writer, d, alpha)
    shape = node.meta["val"].shape
    parts = [_apply(writer, function, *both) for both in ((a, c), (b, d))]
    return writer.join(*(_filled(writer, part, shape, parts) for part in parts))


def _filled(writer: Writer, part: Any, shape: Any, parts: list[Any]) -> Node:
    """Returns a part, a number maybe, as a tensor of a shape, or of the other part's."""
    if not is_node(part):
        other = next((p for p in parts if is_node(p)), None)
        if other is None:
            raise NoPair
        part = writer.call(aten.full_like.default, other, part)
    if shape is None or tuple(part.meta["val"].shape) == tuple(shape):
        return part
    return writer.call(aten.expand.default, part, list(shape))


def _negative(writer: Writer, node: Node) -> Node:
    return writer.call(aten.neg.default, writer.pair(_plain(node)[0]))


def _conjugate(writer: Writer, node: Node) -> Node:
    real, imaginary = writer.parts(_plain(node)[0])
    return writer.join(real, writer.call(aten.neg.default, imaginary))


def _absolute(writer: Writer, node: Node) -> Node:
    return writer.call(aten.sqrt.default, _square(writer, _plain(node)[0]))


def _angle(writer: Writer, node: Node) -> Node:
    real, imaginary = writer.parts(_plain(node)[0])
    return writer.call(aten.atan2.default, imaginary, real)


def _exponential(writer: Writer, node: Node) -> Node:
    real, imaginary = writer.parts(_plain(node)[0])
    size = writer.call(aten.exp.default, real)
    turns = (writer.call(f, imaginary) for f in (aten.cos.default, aten.sin.default))
    return writer.join(*(_times(writer, size, turn) for turn in turns))


def _logarithm(writer: Writer, node: Node) -> Node:
    size = writer.call(aten.log.default, _absolute(writer, node))
    return writer.join(size, _angle(writer, node))


def _reciprocal(writer: Writer, node: Node) -> Node:
    return writer.join(*_inverse(writer, _plain(node)[0]))


def _power(writer: Writer, node: Node) -> Node:
    """Small whole powers."""
    x, exponent = _plain(node)
    if exponent not in (1, 2, 3):
        raise NoPair
    power = writer.pair(x)
    for _ in range(int(exponent) - 1):
        halves = (writer.call(aten.select.int, power, rank(power) - 1, i) for i in (0, 1))
        power = _multiplied(writer, tuple(halves), writer.parts(x))  # type: ignore[arg-type]
    return power


# ---- sums and products ----


def _dimensions(node: Node, dims: Any) -> list[int]:
    """Returns dimensions counted from the front; None and [] are all."""
    count = rank(node)
    dims = [dims] if isinstance(dims, int) else dims
    return [d % count for d in dims] if dims else list(range(count))


def _reduced(writer: Writer, node: Node) -> Node:
    """sum and mean: of both parts."""
    given = _bound(node)
    x = given["self"]
    if given.get("dtype") is not None:
        raise NoPair
    function = aten.sum.dim_IntList if "sum" in str(node.target) else aten.mean.dim
    dims = _dimensions(x, given.get("dim"))
    return writer.call(function, writer.pair(x), dims, bool(given.get("keepdim", False)))


def _norm(writer: Writer, node: Node) -> Node:
    given = _bound(node)
    x = given["self"]
    if given["dtype"] is not None:
        raise NoPair
    size = writer.call(aten.sqrt.default, _square(writer, x))
    dims = None if given["dim"] is None else _dimensions(x, given["dim"])
    return writer.call(node.target, size, given["ord"], dims, bool(given["keepdim"]))


def _matrix_product(writer: Writer, node: Node) -> Node:
    x, y = _plain(node)
    (a, b), (c, d) = writer.parts(x), writer.parts(y)

    def times(p: Any, q: Any) -> Any:
        return writer.call(node.target, p, q) if is_node(p) and is_node(q) else None

    ac, bd, ad, bc = times(a, c), times(b, d), times(a, d), times(b, c)
    real = ac if bd is None else writer.call(aten.sub.Tensor, ac, bd)
    crossed = [p for p in (ad, bc) if p is not None]
    imaginary = crossed[0] if len(crossed) == 1 else writer.call(aten.add.Tensor, *crossed)
    return writer.join(real, imaginary)


# ---- shapes: what happens to dimensions before the last ----


def _same(writer: Writer, node: Node) -> Node:
    return writer.pair(node.args[0])


def _converted(writer: Writer, node: Node) -> Node:
    """To complex from whatever; from complex, the real part."""
    (x,) = node.args
    found, wanted = x.meta["val"], node.meta["val"]  # type: ignore[union-attr]
    if not wanted.is_complex():
        return writer.call(node.target, writer.parts(x)[0], **node.kwargs)
    dtype = wanted.dtype.to_real()
    if found.is_complex():
        pair = writer.pair(x)
        same = found.dtype == wanted.dtype
        return pair if same else writer.call(aten._to_copy.default, pair, dtype=dtype)
    real = x if found.dtype == dtype else writer.call(aten._to_copy.default, x, dtype=dtype)
    return writer.join(real, writer.call(aten.full_like.default, real, 0.0))  # type: ignore[arg-type]


def _full(writer: Writer, node: Node) -> Node:
    """A tensor of one complex number, or of a real one that is to be complex."""
    given, wanted = _bound(node), node.meta["val"]
    number, shape = complex(given["fill_value"]), list(wanted.shape)
    dtype = wanted.dtype.to_real()
    real, imaginary = (
        writer.call(aten.full.default, shape, part, dtype=dtype, device=wanted.device)
        for part in (number.real, number.imag)
    )
    return writer.join(real, imaginary)


def _full_like(writer: Writer, node: Node) -> Node:
    given, wanted = _bound(node), node.meta["val"]
    if not wanted.is_complex():
        raise NoPair
    like, number = writer.parts(given["self"])[0], complex(given["fill_value"])
    dtype = wanted.dtype.to_real()
    real, imaginary = (
        writer.call(aten.full_like.default, like, part, dtype=dtype)
        for part in (number.real, number.imag)
    )
    return writer.join(real, imaginary)


def _reshaped(writer: Writer, node: Node) -> Node:
    return writer.view(writer.pair(_plain(node)[0]), (*node.meta["val"].shape, 2))


def _expanded(writer: Writer, node: Node) -> Node:
    pair = writer.pair(_plain(node)[0])
    wanted = node.meta["val"].shape
    front = len(wanted) + 1 - rank(pair)
    if front:  # new dimensions in front
        pair = writer.view(pair, (*[1] * front, *pair.meta["val"].shape))
    sizes = [-1 if not isinstance(n, int) else n for n in wanted]
    return writer.call(aten.expand.default, pair, [*sizes, 2])


def _permuted(writer: Writer, node: Node) -> Node:
    x, order = _plain(node)
    count = rank(node)
    return writer.call(node.target, writer.pair(x), [*(d % count for d in order), count])


def _along(writer: Writer, node: Node) -> Node:
    """Operators of (x, dimension, ...)."""
    x, *rest = _plain(node)
    dimension, *rest = rest or [0]
    count = rank(x) + (node.target is aten.unsqueeze.default)
    return writer.call(node.target, writer.pair(x), dimension % count, *rest)


def _along_several(writer: Writer, node: Node) -> Node:
    """Operators of (x, dimensions)."""
    x, dims = _plain(node)
    return writer.call(node.target, writer.pair(x), _dimensions(x, dims))


def _put(writer: Writer, node: Node) -> Node:
    """Operators of (x, what is put there, dimension, ...)."""
    x, source, *rest = _plain(node)
    dimension, *rest = rest or [0]
    return writer.call(
        node.target, _either(writer, x), _either(writer, source), dimension % rank(x), *rest
    )


def _joined(writer: Writer, node: Node) -> Node:
    parts, dimension = (*_plain(node), 0)[:2]
    pairs = [_either(writer, part) for part in parts]
    return writer.call(node.target, pairs, dimension % rank(node))


def _split(writer: Writer, node: Node) -> list[Node]:
    x, sizes, dimension = (*_plain(node), 0)[:3]
    found = writer.call(node.target, writer.pair(x), sizes, dimension % rank(x))
    return [writer.call(operator.getitem, found, i) for i in range(len(found.meta["val"]))]


def _taken(writer: Writer, node: Node) -> Node:
    source, index = node.args
    found = writer.pairs[source]  # type: ignore[index]
    if not isinstance(found, list):
        raise NoPair
    return found[index]  # type: ignore[index]


def _padded(writer: Writer, node: Node) -> Node:
    x, sizes, value = (*_plain(node), 0)[:3]
    if value != 0:
        raise NoPair
    return writer.call(node.target, writer.pair(x), [0, 0, *sizes], 0.0)


def _indexed(writer: Writer, node: Node) -> Node:
    x, indices = _plain(node)
    return writer.call(node.target, writer.pair(x), indices)


def _index_put(writer: Writer, node: Node) -> Node:
    x, indices, values, *rest = _plain(node)
    return writer.call(node.target, _either(writer, x), indices, _either(writer, values), *rest)


def _chosen(writer: Writer, node: Node) -> Node:
    condition, x, y = _plain(node)
    return writer.call(
        node.target, writer.factor(condition), _either(writer, x), _either(writer, y)
    )


def _copied(writer: Writer, node: Node) -> Node:
    """What is written over a complex tensor, in its shape."""
    x, source = _plain(node)
    pair = _either(writer, source)
    wanted = [*node.meta["val"].shape, 2]
    if not writer.is_complex(x) or rank(pair) > len(wanted):
        raise NoPair
    return writer.call(aten.expand.default, pair, wanted)


def _either(writer: Writer, value: Any) -> Node:
    """Returns the pair of a tensor, be it complex or real."""
    if value in writer.pairs:
        return writer.pair(value)
    return writer.join(value, writer.call(aten.full_like.default, value, 0.0))


_SHAPES: dict[Any, Rule] = {
    **dict.fromkeys((aten.view_as_real.default, aten.clone.default, aten.alias.default), _same),
    **dict.fromkeys((aten.view.default, aten.reshape.default), _reshaped),
    **dict.fromkeys((aten.unsqueeze.default, aten.select.int, aten.squeeze.dim), _along),
    **dict.fromkeys((aten.slice.Tensor, aten.index_select.default), _along),
    **dict.fromkeys((aten.squeeze.dims, aten.flip.default), _along_several),
    **dict.fromkeys((aten.slice_scatter.default, aten.select_scatter.default), _put),
    **dict.fromkeys((aten.split_with_sizes.default, aten.split.Tensor), _split),
    aten._to_copy.default: _converted,
    aten.expand.default: _expanded,
    aten.permute.default: _permuted,
    aten.cat.default: _joined,
    operator.getitem: _taken,
    aten.constant_pad_nd.default: _padded,
    aten.index.Tensor: _indexed,
    aten.index_put.default: _index_put,
    aten.where.self: _chosen,
    aten.copy.default: _copied,
    aten.full.default: _full,
    aten.full_like.default: _full_like,
}


def _complex(writer: Writer, node: Node) -> Node:
    parts, shape = list(_plain(node)), node.meta["val"].shape
    return writer.join(*(_filled(writer, part, shape, parts) for part in parts))


def _viewed(writer: Writer, node: Node) -> Node:
    (pair,) = _plain(node)
    return pair  # type: ignore[no-any-return]


RULES: dict[Any, Rule] = {
    **_SHAPES,
    **FOURIER,
    aten.view_as_complex.default: _viewed,
    aten.complex.default: _complex,
    aten.polar.default: _polar,
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _product),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _quotient),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _sum),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _sum),
    aten.neg.default: _negative,
    **dict.fromkeys((aten._conj.default, aten._conj_physical.default), _conjugate),
    aten.abs.default: _absolute,
    aten.angle.default: _angle,
    aten.exp.default: _exponential,
    aten.log.default: _logarithm,
    aten.reciprocal.default: _reciprocal,
    aten.pow.Tensor_Scalar: _power,
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default), _reduced),
    **dict.fromkeys((aten.mean.dim, aten.mean.default), _reduced),
    aten.linalg_vector_norm.default: _norm,
    **dict.fromkeys((aten.matmul.default, aten.mm.default, aten.bmm.default), _matrix_product),
}
