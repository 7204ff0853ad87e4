"""Launch configurations of index and scatter, on every GPU.

Owns two proofs about addresses: which neighbours an index may move as one pack, and along which
dimensions a scatter's items never meet, so that threads may share them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from npusim.abi.kernels import RANK, Params
from npusim.codegen.launch_config import LaunchConfig, Rule, line

_PACK_BYTES = 16


def _index(p: Params) -> LaunchConfig:
    items = prod(p["shape"][: p["rank"]])
    if items == 0:
        return LaunchConfig(())
    pack = _pack(p)
    return reporting(items // pack, p, PACK=pack, ITEMS=items // pack)


def _pack(p: Params) -> int:
    """Returns how many neighbours along the last dimension move as one."""
    last = p["rank"] - 1
    if last < 0 or p["x_strides"][last] != 1 or p["y_strides"][last] != 1:
        return 1
    if any(p["idx_strides"][k * RANK + last] for k in range(p["n"])):
        return 1
    others = (*p["x_strides"][:last], *p["y_strides"][:last], *p["k_stride"][: p["n"]])
    pack = _PACK_BYTES // int(p["element_size"])
    while any(n % pack for n in (p["shape"][last], *others)):
        pack //= 2
    return pack


def scatter_walk(p: Params) -> LaunchConfig:
    """Returns the configuration in which each thread walks what may meet, STEPS items."""
    shape = p["shape"][: p["rank"]]
    if prod(shape) == 0:
        return LaunchConfig(())
    apart = apart_dims(p)
    items = prod(shape[d] for d in apart)
    return reporting(items, p, APART=dims_mask(apart), ITEMS=items, STEPS=prod(shape) // items)


def dims_mask(dims: list[int]) -> int:
    """Returns a mask of dimensions."""
    return sum(1 << d for d in dims)


def extents(p: Params) -> list[int]:
    """Returns how many places each index tensor chooses among: `k_size` without its sign."""
    return [abs(size) for size in p["k_size"][: p["n"]]]


def apart_dims(p: Params) -> list[int]:
    """Returns the dimensions whose positions keep items apart whatever the indices are.

    Positions and index values are the digits of y's address. When no two strings of digits share
    an address, items that differ in one positional digit never meet.
    """
    dims = [d for d in range(p["rank"]) if p["y_strides"][d] != 0 and p["shape"][d] > 1]
    digits = [(p["shape"][d], p["y_strides"][d]) for d in dims]
    digits += list(zip(extents(p), p["k_stride"][: p["n"]], strict=True))
    return dims if _distinct(digits) else []


def _distinct(digits: list[tuple[int, int]]) -> bool:
    """Tells whether each digit's stride passes all that the smaller ones add up to."""
    reach = 0
    for size, stride in sorted(digits, key=lambda digit: abs(digit[1])):
        if size > 1:
            if abs(stride) <= reach:
                return False
            reach += (size - 1) * abs(stride)
    return True


def reporting(threads: int, p: Params, **defines: int) -> LaunchConfig:
    """Returns a line of threads whose entry takes two tensors, the indices, and where to report."""
    return replace(line(threads, ARGUMENTS=p["n"] + 3, **defines), failure=True)


RULES: dict[str, Rule] = {"index": _index, "scatter": scatter_walk}
