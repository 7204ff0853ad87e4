"""Types of matrix products and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import kind_of, require, require_float
from npusim.ops.inference.sizes import broadcast_shapes, differ, require_shape

Rule = Callable[..., TensorType]


def _same_dtype(*operands: TensorType | None) -> str:
    there = [o for o in operands if o is not None]
    require(len({o.dtype for o in there}) == 1, f"{', '.join(map(str, there))} differ in dtype.")
    require(kind_of(there[0].dtype) != "bool", "it takes no tensors of bool.")
    return there[0].dtype


def _linear(x: TensorType, weight: TensorType, bias: TensorType | None) -> TensorType:
    dtype = _same_dtype(x, weight, bias)
    fits = x.rank > 0 and weight.rank in (1, 2) and not differ(x.shape[-1], weight.shape[-1])
    require(fits, f"x is {x}, but the weight is {weight}; expected [n, k].")
    result = (*x.shape[:-1], *weight.shape[:-1])
    if bias is not None and weight.rank == 1:
        require(bias.rank == 0, f"the bias is {bias}, expected a scalar.")
    elif bias is not None:
        fits = bias.rank <= 1 and broadcast_shapes(bias.shape, weight.shape[:1]) == weight.shape[:1]
        require(fits, f"the bias is {bias}, the weight {weight}.")
    return TensorType(dtype, result)


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a product as torch.matmul has it; ShapeError when there is none."""
    require(len(a) > 0 and len(b) > 0, "a scalar has no product of matrices.")
    inner = b[-2] if len(b) > 1 else b[0]
    require(not differ(a[-1], inner), f"{list(a)} cannot be multiplied by {list(b)}.")
    batch = broadcast_shapes(a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _matmul(a: TensorType, b: TensorType) -> TensorType:
    return TensorType(_same_dtype(a, b), matmul_shape(a.shape, b.shape))


def _of_ranks(first: int, second: int) -> Rule:
    def rule(a: TensorType, b: TensorType) -> TensorType:
        require((a.rank, b.rank) == (first, second), f"it does not multiply {a} by {b}.")
        if first == 3:
            require(not differ(a.shape[0], b.shape[0]), f"{a} and {b} differ in their batches.")
        return _matmul(a, b)

    return rule


def _added(first: int, second: int) -> Rule:
    product = _of_ranks(first, second)

    def rule(x: TensorType, a: TensorType, b: TensorType, beta: Any, alpha: Any) -> TensorType:
        _same_dtype(x, a, b)
        result = product(a, b)
        joint = broadcast_shapes(x.shape, result.shape)
        require_shape(joint, result.shape, "what is added, broadcast,")
        fraction = isinstance(beta, float) or isinstance(alpha, float)
        require(kind_of(x.dtype) == "float" or not fraction, "integers have no fractions of them.")
        return result

    return rule


def _attention(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: TensorType | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> TensorType:
    require_float(q, k, v)
    dtype = _same_dtype(q, k, v)
    require(min(q.rank, k.rank, v.rank) >= 2, f"q is {q}, k {k}, v {v}; expected [.., n, dim].")
    require(0 <= dropout <= 1, f"the probability of dropout is {dropout}.")
    require(mask is None or not causal, "it has a mask beside the causal one.")
    fits = not differ(q.shape[-1], k.shape[-1]) and not differ(k.shape[-2], v.shape[-2])
    require(fits, f"q is {q}, k {k}, v {v}; they do not fit together.")
    batches = [t.shape[:-2] for t in (q, k, v)]
    if gqa:
        heads = [batch[-1] if batch else 0 for batch in batches]
        whole = all(h and heads[0] % h == 0 for h in heads)
        require(whole, f"q is {q}, k {k}, v {v}; expected heads in whole groups.")
        batches = [(*batch[:-1], heads[0]) for batch in batches]
    batch = broadcast_shapes(*batches)
    # Of none, PyTorch's result has q's batches, whatever k's and v's are.
    whole = 0 not in (q.shape[-2], k.shape[-2], v.shape[-1]) or batch == batches[0]
    require(whole, f"q is {q}, k {k}, v {v}; expected q of all batches, as there is nothing else.")
    if mask is not None:
        known = ("bool", "float32", dtype)
        require(mask.dtype in known, f"the mask is {mask}, of neither bool, float32 nor {dtype}.")
        require(mask.rank >= 2, f"the mask is {mask}, expected [.., n, m].")
        scores = (*batch, q.shape[-2], k.shape[-2])
        require_shape(broadcast_shapes(mask.shape, scores), scores, "the mask, broadcast,")
    return TensorType(dtype, (*batch, q.shape[-2], v.shape[-1]))


RULES: dict[str, Rule] = {
    "aten.linear.default": _linear,
    "aten.matmul.default": _matmul,
    "aten.mm.default": _of_ranks(2, 2),
    "aten.bmm.default": _of_ranks(3, 3),
    "aten.mv.default": _of_ranks(2, 1),
    "aten.dot.default": _of_ranks(1, 1),
    "aten.addmm.default": _added(2, 2),
    "aten.baddbmm.default": _added(3, 3),
    "aten.addmv.default": _added(2, 1),
    "aten.scaled_dot_product_attention.default": _attention,
}
