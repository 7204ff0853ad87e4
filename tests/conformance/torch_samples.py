"""PyTorch's own samples of its operators (`op_db`), each as a module of one call.

Owns the way from an entry of the database to a graph and to tensors, and how close a result has to
be to PyTorch's. `op_db_exclusions.py` says what is left out, and why.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.conformance.op_db_exclusions import SAMPLED_BY

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


# Two things take longer than the samples. Before an entry's, PyTorch looks for a test of its own in
# every frame of the stack, and asks thousands of modules whether a frame's file is theirs; before
# each, it writes the stack down once for each kind of device that it might have to seed later.
assert hasattr(common_utils, "extract_test_fn") and hasattr(common_utils, "set_rng_seed")
common_utils.extract_test_fn = lambda: None
common_utils.set_rng_seed = _seed

# (relative, absolute) by dtype. 16-bit floats: PyTorch rounds between the steps of a composite,
# npusim where its graph does.
TOLERANCE = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


class Call(nn.Module):
    """A call of a function; its tensors are the arguments of forward, in order."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.function = function
        leaves, self.tree = pytree.tree_flatten((args, dict(kwargs)))
        self.fixed = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.eval()

    def forward(self, *tensors: Tensor) -> Any:
        """Calls the function with the tensors in their places; complex results become pairs."""
        leaves = list(self.fixed)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return pytree.tree_map(_real, self.function(*args, **kwargs))


def _real(result: Any) -> Any:
    if isinstance(result, Tensor) and result.is_complex():
        return torch.view_as_real(result.resolve_conj())
    return result


@dataclass(frozen=True)
class Sample:
    """One call of an operator.

    Attributes:
        label: for messages: shapes and the other arguments.
        expected: PyTorch's results, in order.
    """

    label: str
    call: Call
    tensors: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]


@cache
def entries() -> dict[str, Any]:
    """Returns the database by the entries' full names."""
    return {entry.full_name: entry for entry in op_db}


@cache
def entries_of(packet: str) -> tuple[str, ...]:
    """Returns the entries that sample an ATen operator, such as "convolution"."""
    own = (name for name, entry in entries().items() if entry.aten_name == packet)
    return SAMPLED_BY.get(packet) or tuple(own)


def supports(name: str, dtype: torch.dtype) -> bool:
    """Tells whether PyTorch runs an entry in a dtype on the CPU."""
    return dtype in entries()[name].supported_dtypes("cpu")


def samples(name: str, dtype: torch.dtype, most: int | None) -> list[Sample]:
    """Returns samples of an entry, evenly chosen; without those that give no tensors.

    Args:
        most: how many at most; None: all.
    """
    entry = entries()[name]
    torch.manual_seed(0)
    found = list(entry.sample_inputs("cpu", dtype, requires_grad=False))
    if most is not None and len(found) > most:
        found = [found[i * len(found) // most] for i in range(most)]
    made = (_sample(entry.op, s.input, s.args, s.kwargs) for s in found)
    return [sample for sample in made if sample is not None]


def _sample(
    function: Callable[..., Any], first: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Sample | None:
    call = Call(function, (first, *args), kwargs)
    leaves = pytree.tree_leaves(((first, *args), dict(kwargs)))
    tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, Tensor))
    if any(t.layout is not torch.strided for t in tensors):
        return None
    try:
        results = pytree.tree_leaves(call(*(t.clone() for t in tensors)))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None  # PyTorch itself refuses it
    if not results or not all(isinstance(r, Tensor) for r in results):
        return None
    label = ", ".join(map(_shown, leaves))
    return Sample(label, call, tensors, tuple(r.detach() for r in results))


def _shown(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"


def difference(sample: Sample, results: Sequence[Any], scale: float = 1.0) -> str | None:
    """Returns how results differ from PyTorch's, or None when they agree.

    A result also agrees when it is as close to PyTorch's in float64 as PyTorch's own is.
    """
    if len(results) != len(sample.expected):
        return f"{len(results)} results instead of {len(sample.expected)}"
    wide: tuple[Tensor | None, ...] | None = None
    for index, (result, want) in enumerate(zip(results, sample.expected, strict=True)):
        got = torch.as_tensor(result)
        if not sample.tensors:  # without a tensor among the inputs the results are NumPy arrays
            got = got.to(want.dtype)
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            return f"{_shown(got)} instead of {_shown(want)}"
        message = _distance(got, want, scale)
        if message is None:
            continue
        wide = _in_float64(sample) if wide is None else wide
        if not _as_close(got, want, wide[index], scale):
            return message
    return None


def _distance(got: Tensor, want: Tensor, scale: float) -> str | None:
    relative, absolute = TOLERANCE.get(want.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(
            got, want, rtol=relative * scale, atol=absolute * scale, equal_nan=True
        )
    except AssertionError as error:
        return str(error)
    return None


def _in_float64(sample: Sample) -> tuple[Tensor | None, ...]:
    wide = [t.double() if t.is_floating_point() else t for t in sample.tensors]
    try:
        results = pytree.tree_leaves(sample.call(*wide))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return (None,) * len(sample.expected)
    return tuple(results)


def _as_close(got: Tensor, want: Tensor, wide: Tensor | None, scale: float) -> bool:
    if wide is None or not got.is_floating_point() or wide.shape != got.shape:
        return False
    finite = torch.isfinite(wide) & torch.isfinite(want)
    if not torch.equal(torch.isfinite(got) & finite, finite) or not bool(finite.any()):
        return False
    mine, theirs = ((t.double() - wide)[finite].abs() for t in (got, want))
    relative, absolute = TOLERANCE[want.dtype]
    allowed = scale * (absolute + relative * wide[finite].abs()) + 2 * theirs.max()
    return bool((mine <= allowed).all())
