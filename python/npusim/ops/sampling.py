"""`npu.sample`: one step of generating, the choice of the next token from the scores of all.

`npu.sample(logits[…, v], options float64[5], seed int64[1], length int64[1], token int64[1, 1],
history int64[n])` puts `token` into row length - 1 of the history and chooses the token after it,
as `kernels/shared/sampling.h` says, to the bit. Options are temperature, top k, top p, min p and
repetition penalty; the draw after `length` tokens is that of SplitMix64 after length steps from
the seed. It gives

* `chosen` int64[1]: the token, or -1 where no score is above -inf,
* `next` int64[1, 1]: the same, with 0 for none: what can be fed to the model,
* the history with its new row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npusim.errors import ShapeError
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, codes

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE = "npu.sample"
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

_FLOATS = ("float32", "float16", "bfloat16")
_ONE = 1 << 32  # the weight of the highest score
_MASK = (1 << 64) - 1
_FRACTION = (316565, 2851892, 20649629, 119192922, 515882353, 1488522230, 1 << 31)


def _lower(node: Node, low: Lowering) -> None:
    logits, options, seed, length, token, history = low.inputs(node)
    assert logits is not None and options is not None and seed is not None
    assert length is not None and token is not None and history is not None
    chosen, following, longer = node.outputs
    params = {
        "size": logits.numel,
        "capacity": history.numel,
        **codes(dtype=logits.dtype),
    }
    reads = [low.dense(x) for x in (logits, options, seed, length)]
    writes = [low.updated(following, token), low.updated(longer, history), low.result(chosen)]
    low.emit("sample", params, reads, writes, update=True)


def weights(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Returns the weights of float32 scores, none of them NaN: uint64, 2**32 for the highest."""
    highest = scores.max()
    if np.isinf(highest):
        return np.where(scores == highest, _ONE, 0).astype(np.uint64)
    with np.errstate(all="ignore"):
        scale = np.float32(np.float64(1.4426950408889634) * 16777216.0 / np.float64(temperature))
        distance = highest - scores
        steps = distance * scale
    inside = (steps < np.float32(33 << 24)) & (distance > 0)
    halved = np.where(inside, steps, 0).astype(np.uint64)
    f = (halved & np.uint64(0xFFFFFF)) << np.uint64(8)
    p = np.full_like(f, 23325)
    for coefficient in _FRACTION:
        p = np.uint64(coefficient) - (p * f >> np.uint64(32))
    found = np.uint64(2) * p >> (halved >> np.uint64(24))
    return np.where(distance == 0, np.uint64(_ONE), np.where(inside, found, np.uint64(0)))


def _penalised(scores: np.ndarray, history: np.ndarray, penalty: float) -> np.ndarray:
    scores, factor = scores.copy(), np.float32(penalty)
    said = np.unique(history[(history >= 0) & (history < scores.size)])
    old = scores[said]
    with np.errstate(all="ignore"):
        new = np.where(old > 0, old / factor, old * factor).astype(np.float32)
    lost = np.isneginf(new) & ~np.isneginf(old)
    scores[said] = np.where(lost, np.finfo(np.float32).min, new)
    return scores


def _bits(seed: int, length: int) -> int:
    state = (seed + length * 0x9E3779B97F4A7C15) & _MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31


def choose(scores: np.ndarray, options: np.ndarray, bits: int) -> int:
    """Returns the next token, or -1; `scores` float32[v] after the penalty. Sorts where kernels
    select."""
    temperature, top_k, top_p, min_p, _ = (float(x) for x in options)
    possible = scores > -np.inf  # false for NaN
    if not possible.any():
        return -1
    scores = np.where(possible, scores, np.float32(-np.inf))
    if not temperature > 0:
        return int(scores.argmax())
    found = weights(scores, temperature)
    keep = possible.copy()
    if 1 <= top_k < scores.size:
        keep &= scores >= np.sort(scores)[-int(top_k)]
    if top_p < 1:
        kept = np.flatnonzero(keep)
        order = kept[np.argsort(-scores[kept], kind="stable")]
        total = int(found[order].sum())
        wanted = min(max(int(np.ceil(top_p * float(total))), 1), total)
        before = np.cumsum(found[order]) - found[order]
        keep[order[before >= wanted]] = False
    share = min(min_p, 1.0) if min_p > 0 else 0.0  # of NaN none
    least = max(int(np.ceil(share * float(_ONE))), 1)
    keep &= found >= least
    ends = np.cumsum(np.where(keep, found, np.uint64(0)))
    drawn = (bits >> 11 << 11) * int(ends[-1]) >> 64
    return int(np.searchsorted(ends, drawn, side="right"))


def reference_sample(
    logits: Tensor,
    options: Tensor,
    seed: Tensor,
    length: Tensor,
    token: Tensor,
    history: Tensor,
    /,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `npu.sample`; ShapeError for a length that is no row of the history."""
    import torch

    count, longer = int(length), history.clone()
    if not 1 <= count <= history.numel():
        raise ShapeError(f"{SAMPLE}: length {count} is outside 1 … {history.numel()}.")
    longer[count - 1] = token.reshape(())
    scores, numbers = logits.float().reshape(-1).numpy(), options.double().numpy()
    if numbers[4] != 1:
        scores = _penalised(scores, longer[:count].numpy(), numbers[4])
    chosen = choose(scores, numbers, _bits(int(seed), count))
    return torch.tensor([chosen]), torch.tensor([[max(chosen, 0)]]), longer


def infer_sample(
    logits: TensorType,
    options: TensorType,
    seed: TensorType,
    length: TensorType,
    token: TensorType,
    history: TensorType,
    /,
) -> tuple[TensorType, TensorType, TensorType]:
    """Returns the types of `npu.sample`; ShapeError when the operands do not fit."""
    if logits.rank == 0 or any(n != 1 for n in logits.shape[:-1]) or not logits.shape[-1]:
        raise ShapeError(f"{SAMPLE}: the scores are {logits}; expected one row of them.")
    for name, given, expected in (
        ("options", options, TensorType("float64", (len(OPTIONS),))),
        ("seed", seed, TensorType("int64", (1,))),
        ("length", length, TensorType("int64", (1,))),
        ("token", token, TensorType("int64", (1, 1))),
    ):
        if given != expected:
            raise ShapeError(f"{SAMPLE}: {name} is {given}; expected {expected}.")
    if history.dtype != "int64" or history.rank != 1 or not history.shape[0]:
        raise ShapeError(f"{SAMPLE}: the history is {history}; expected int64[n].")
    return TensorType("int64", (1,)), token, history


def _supported(node: Node, graph: Graph) -> str | None:
    dtype = graph.types[str(node.inputs[0])].dtype
    return None if dtype in _FLOATS else f"dtype {dtype}; supported are {', '.join(_FLOATS)}"


def _case(label: str, size: int, *options: float, length: int = 3, capacity: int = 9) -> Case:
    """A case with the first options; the others are off."""
    numbers = (*options, *(0.0, 0.0, 1.0, 0.0, 1.0)[len(options) :])
    return Case(
        (
            (1, 1, size),
            ((5,), ("float64", *numbers)),
            ((1,), ("int", -(2**62), 2**62)),
            ((1,), ("int", length, length + 1)),
            ((1, 1), ("int", 0, size)),
            ((capacity,), ("int", 0, size)),
        ),
        id=label,
    )


register(
    OpDef(
        SAMPLE,
        lower=_lower,
        supports=_supported,
        reference=reference_sample,
        infer=infer_sample,
        cases=(
            _case("greedy", 1000),
            _case("greedy_penalty", 50, 0.0, 0.0, 1.0, 0.0, 4.0, length=9),
            _case("temperature", 3000, 0.8),
            _case("top_k", 3000, 1.0, 40.0),
            _case("top_p", 3000, 1.0, 0.0, 0.9),
            _case("min_p", 3000, 1.0, 0.0, 1.0, 0.05),
            _case("all", 20_000, 0.7, 300.0, 0.8, 0.001, 1.3, length=200, capacity=256),
            _case("flat", 5000, 1e30, 0.0, 0.3),
            _case("one", 1, 1.0, 5.0, 0.5, 0.5, 1.1, length=1, capacity=1),
        ),
    )
)
