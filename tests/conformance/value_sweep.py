"""Runs operators over every value of small dtypes and the edges of large ones, beside PyTorch.

`python -m tests.conformance.value_sweep [PART …]` is the whole sweep (`make values`): it writes one
line an operator and dtype that differs, and the counts. `test_values.py` runs a thinner one. Parts
are the functions in `PARTS`.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import npusim
from npusim._runtime import isa_names
from npusim.errors import Error
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Graph
from tests.conformance import value_calls as calls
from tests.conformance import value_operands as operands
from tests.conformance.value_operands import DTYPES, dtype_of

# Units in the last place that a result may differ by where PyTorch's is itself an approximation.
ULPS = {torch.float64: 8, torch.float32: 8, torch.float16: 1, torch.bfloat16: 1}
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
_CALLS = 500  # of one graph


@dataclass(frozen=True)
class Call:
    """A function of some of a batch's tensors.

    Attributes:
        op, dtype: what the counts are kept by.
        what: the arguments, for messages.
        places: which tensors of the batch it takes.
        rounded: whether its floats may differ by `ULPS`.
        wide: computes the same of float32 tensors, where it is another function.
        exact: computes the right result of NumPy arrays, where PyTorch's vectors do not.
        terms: of a sum, the sizes of what is added.
    """

    op: str
    dtype: str
    what: str
    function: Callable[..., Any]
    places: tuple[int, ...]
    rounded: bool = False
    wide: Callable[..., Any] | None = None
    exact: Callable[..., Any] | None = None
    terms: Callable[..., Any] | None = None


class Batch:
    """Calls that share operands, and become one graph."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.calls: list[Call] = []
        self._places: dict[int, int] = {}

    def add(
        self,
        op: str,
        what: str,
        function: Callable[..., Any],
        *tensors: Tensor,
        dtype: str = "",
        **others: Any,
    ) -> None:
        """Adds a call; its dtype is that of the first tensor, `others` are more of `Call`."""
        places = tuple(self._place(t) for t in tensors)
        name = dtype or str(tensors[0].dtype).removeprefix("torch.")
        self.calls.append(Call(op, name, what, function, places, op in calls.ROUNDED, **others))

    def _place(self, tensor: Tensor) -> int:
        if id(tensor) not in self._places:
            self._places[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._places[id(tensor)]


@dataclass
class Tally:
    """What a sweep found, by (operator, dtype)."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    values: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    accepted: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def differ(self, call: Call, count: int, message: str) -> None:
        """Notes values of a call that differ."""
        key = (call.op, call.dtype)
        self.wrong[key] += count
        self.examples.setdefault(key, []).append(f"{call.what}: {message}")


class _Together(nn.Module):
    def __init__(self, chosen: Sequence[Call]) -> None:
        super().__init__()
        self.calls = chosen
        self.eval()

    def forward(self, *tensors: Tensor) -> Any:
        """Returns every call's result."""
        return tuple(c.function(*(tensors[p] for p in c.places)) for c in self.calls)


@functools.cache
def devices() -> dict[str, npusim.Device]:
    """Returns a single-threaded device for each instruction set that this processor runs."""
    return {isa: npusim.Device("cpu", threads=1, isa=isa) for isa in isa_names()}


def run(batch: Batch, tally: Tally, every: int = 1) -> None:
    """Compares the calls of a batch that PyTorch computes, on every instruction set.

    Args:
        every: takes one call of so many, always the same ones, spread over the operators.
    """
    wanted: list[tuple[Call, Tensor]] = []
    for call in batch.calls:
        if zlib.crc32(f"{call.op} {call.dtype} {call.what}".encode()) % every:
            continue
        expected = _eager(call, batch.tensors)
        if expected is not None:
            wanted.append((call, expected))
            tally.calls[call.op, call.dtype] += 1
            tally.values[call.op, call.dtype] += expected.numel()
    for start in range(0, len(wanted), _CALLS):
        _compare_all(wanted[start : start + _CALLS], batch.tensors, tally)


def _eager(call: Call, tensors: Sequence[Tensor]) -> Tensor | None:
    """Returns PyTorch's result, or None where it refuses the call."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call.function(*(tensors[p] for p in call.places))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, OverflowError):
        return None
    return result if isinstance(result, Tensor) else None


def _compare_all(wanted: Sequence[tuple[Call, Tensor]], given: list[Tensor], tally: Tally) -> None:
    """Compiles calls as one graph and compares; by halves where that is refused."""
    used = sorted({p for call, _ in wanted for p in call.places})
    tensors = [given[p] for p in used]
    moved = [replace(c, places=tuple(map(used.index, c.places))) for c, _ in wanted]
    try:
        graph = extracted(moved, tensors)
        program = npusim.compile(graph)
        results = {isa: npusim.load(program, device=d)(*tensors) for isa, d in devices().items()}
    except Exception as error:
        if len(wanted) == 1:
            known = isinstance(error, Error)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            call = wanted[0][0]
            tally.refused.setdefault(
                f"{call.op} {call.dtype} {'' if known else '!'}{text.splitlines()[0][:160]}", []
            ).append(call.what)
            return
        middle = len(wanted) // 2
        _compare_all(wanted[:middle], given, tally)
        _compare_all(wanted[middle:], given, tally)
        return
    for index, (call, expected) in enumerate(wanted):
        for isa, found in results.items():
            count, message = _judged(call, torch.as_tensor(found[index]), expected, given)
            if count:
                tally.differ(call, count, f"{isa}: {message}")
                break


def extracted(chosen: Sequence[Call], tensors: Sequence[Tensor]) -> Graph:
    """Returns calls over a batch's tensors as a graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return extract_ir(_Together(chosen), tuple(tensors))


def difference(got: Tensor, want: Tensor, rounded: bool) -> tuple[int, str]:
    """Returns how many elements differ, and the first of them.

    NaN equals NaN whatever its bits; -0.0 differs from 0.0 where results are exact.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return max(want.numel(), 1), f"{got.dtype}{list(got.shape)}, not {want.dtype}"
    if not want.dtype.is_floating_point:
        wrong = got != want
    else:
        apart = _ordered(got) - _ordered(want)
        far = (apart.abs() > ULPS[want.dtype]) if rounded else (_bits(got) != _bits(want))
        wrong = (far | (got.isnan() != want.isnan())) & ~(got.isnan() & want.isnan())
    count = int(wrong.sum())
    if not count:
        return 0, ""
    first = int(wrong.reshape(-1).nonzero()[0])
    return count, (
        f"[{first}] is {got.reshape(-1)[first].item()!r}, "
        f"PyTorch has {want.reshape(-1)[first].item()!r} ({count} of {want.numel()})"
    )


def _judged(call: Call, got: Tensor, expected: Tensor, given: Sequence[Tensor]) -> tuple[int, str]:
    """Compares with PyTorch's result, and with a better one where PyTorch's is approximate."""
    is_16_bit = expected.dtype in (torch.float16, torch.bfloat16)
    rounded = call.rounded
    if call.op in calls.EITHER_ZERO:
        got, expected = got + 0, expected + 0
    count, message = difference(got, expected, rounded)
    if not count or not expected.is_floating_point():
        return count, message
    if rounded:
        # Approximations overflow, and fall below the normal numbers, a little apart.
        info = torch.finfo(expected.dtype)
        ends = (expected.abs() > info.max / 4) | (expected.abs() < info.tiny * 4)
        better = torch.where(ends, got, _in_float64(call, given, expected))
        near, message = difference(got, better, True)
        if near and call.terms is not None:
            near = _beyond_terms(call, got, better, given)
        return (near, message) if near else (0, "")
    if is_16_bit and call.op in calls.ROUNDED_16_BIT:
        function = call.wide or call.function
        wide = [_in_float32(given[p], expected.dtype, i) for i, p in enumerate(call.places)]
        return difference(got, function(*wide).to(expected.dtype), rounded=False)
    function = call.exact or (calls.BY_NUMPY.get(call.op) if len(call.places) == 2 else None)
    if function is not None:
        dtype = torch.float64 if expected.dtype is torch.float64 else torch.float32
        arrays = (given[p].to(expected.dtype).to(dtype).numpy() for p in call.places)
        with np.errstate(all="ignore"):
            exact = torch.as_tensor(np.asarray(function(*arrays)))
        return difference(got, exact.to(expected.dtype), rounded=False)
    return count, message


def _beyond_terms(call: Call, got: Tensor, want: Tensor, given: Sequence[Tensor]) -> int:
    """Returns how many elements are off by more than rounding the terms of a sum explains."""
    assert call.terms is not None
    terms = call.terms(*(given[p].double() for p in call.places))
    allowed = ULPS[want.dtype] * torch.finfo(want.dtype).eps * terms
    apart = (got.double() - want.double()).abs() > allowed
    return int(((apart & want.isfinite()) | (got.isfinite() != want.isfinite())).sum())


def _in_float32(x: Tensor, dtype: torch.dtype, position: int) -> Tensor:
    """Returns what 16-bit quotients are computed of: a right operand of one element unrounded."""
    return x.float() if position == 1 and x.numel() == 1 else x.to(dtype).float()


def _in_float64(call: Call, given: Sequence[Tensor], expected: Tensor) -> Tensor:
    """Returns what PyTorch computes in float64, rounded once, where that is a number."""
    wide = [given[p].double() if given[p].is_floating_point() else given[p] for p in call.places]
    return torch.where(expected.isnan(), expected, call.function(*wide).to(expected.dtype))


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(_BITS[x.dtype.itemsize])


def _ordered(x: Tensor) -> Tensor:
    """Returns integers in the order of the floats; neighbours differ by 1, the zeros by nothing."""
    bits = _bits(x).to(torch.int64)
    least = torch.iinfo(_BITS[x.dtype.itemsize]).min
    return torch.where(bits < 0, least - bits, bits)


# ---- the parts of the sweep: batches of calls


def unary(most: int) -> Iterator[Batch]:
    """Every operator of one tensor over all values of its dtype."""
    for dtype in DTYPES:
        batch = Batch()
        x = operands.thinned(operands.values(dtype), most)
        for name, function in {**calls.EXACT_UNARY, **calls.ROUNDED_UNARY}.items():
            batch.add(name, dtype, function, x)
        yield batch


def conversions(most: int) -> Iterator[Batch]:
    """Every dtype to every other, alone and after another conversion."""
    batch = Batch()
    for dtype in DTYPES:
        x = operands.thinned(operands.values(dtype), most)
        for other in DTYPES:
            to = dtype_of(other)
            batch.add(f"to_{other}", dtype, lambda x, to=to: x.to(to), x)
            batch.add(f"to_{other}_int64", dtype, lambda x, to=to: x.to(to).to(torch.int64), x)
            batch.add(f"to_{other}_float64", dtype, lambda x, to=to: (x * 1).to(to).double(), x)
    yield batch


def tensors(most: int) -> Iterator[Batch]:
    """Operators of two tensors over pairs of values, for every pair of dtypes."""
    for left in DTYPES:
        batch = Batch()
        for right in DTYPES:
            x, y = operands.pairs(left, right, most)
            _two(batch, x, y, right)
        yield batch


def zero_dimensional(most: int) -> Iterator[Batch]:
    """The same where one operand, or both, is a 0-d tensor."""
    for left in DTYPES:
        batch = Batch()
        for right in DTYPES:
            x = operands.thinned(operands.edges(left), most)
            few = operands.thinned(operands.edges(right), 3)
            for y in few.unbind():
                _two(batch, x, y.clone(), f"0-d {right} {y.item()}")
                _two(batch, y.clone(), x, f"{left} on the right of 0-d {y.item()}")
                _two(batch, x, y.reshape(1).clone(), f"one {right} {y.item()}")
            _two(batch, x[1].clone(), few[-1].clone(), f"0-d both {right}")
        yield batch


def _two(batch: Batch, x: Tensor, y: Tensor, what: str) -> None:
    for name, function in {**calls.BINARY, **calls.ROUNDED_BINARY}.items():
        batch.add(name, what, function, x, y)
    a, b = operands.divisible(x, y)
    for name, function in calls.DIVISIONS.items():
        batch.add(name, what, function, a, b)


def scalars(most: int) -> Iterator[Batch]:
    """Operators of a tensor and a Python scalar of each kind and sign."""
    each = len(operands.INTEGERS) if most > 20 else 9
    numbers: list[Any] = [*operands.BOOLEANS[: each - 7]]
    numbers += [*operands.INTEGERS[:each], *operands.FLOATS[:each]]
    for dtype in DTYPES:
        batch = Batch()
        x = operands.filled_up(operands.thinned(operands.values(dtype), 65536 if most > 20 else 64))
        for number in numbers:
            _with_scalar(batch, x, number)
        yield batch


def _differs_by_design(name: str, x: Tensor, number: Any) -> bool:
    """Tells what docs/numerics.md says of a call with a scalar, or torch.export cannot trace."""
    if x.dtype is torch.bool and "shift" in name:
        return True
    fraction = isinstance(number, float) and not number.is_integer()
    if not x.is_floating_point():
        # PyTorch's own decompositions
        return (fraction and name == "threshold") or (
            isinstance(number, float) and name == "addcmul"
        )
    if name.endswith("_alpha"):  # a product and a sum, rounded once or twice
        return True
    is_16_bit = x.dtype in (torch.float16, torch.bfloat16)
    return is_16_bit and name == "rdiv"


def _with_scalar(batch: Batch, x: Tensor, number: Any) -> None:
    for name, function in {**calls.SCALAR_RIGHT, **calls.SCALAR_ROUNDED}.items():
        if _differs_by_design(name, x, number):
            continue
        terms = calls.TERMS.get(name)
        others: dict[str, Any] = {}
        if terms is not None:
            others["terms"] = functools.partial(terms, s=number)
        batch.add(name, repr(number), lambda x, f=function: f(x, number), x, **others)
    whole = not x.dtype.is_floating_point and not isinstance(number, float)
    if not whole or x.dtype is torch.bool:
        a, divides = x, number != 0
    else:
        wrapped = torch.tensor([number]).to(x.dtype).item()
        least = torch.iinfo(x.dtype).min
        a = torch.where(x == least, torch.zeros_like(x), x) if wrapped == -1 else x
        divides = wrapped != 0
    if divides or not whole:
        for name, function in calls.SCALAR_DIVISIONS.items():
            if name in calls.BY_NUMPY and not whole and abs(number) < 1:
                continue  # PyTorch's vectors lose long quotients
            batch.add(name, repr(number), lambda x, f=function: f(x, number), a)
    b = x[x != 0] if whole else x
    if whole and x.dtype is not torch.bool and x.dtype.is_signed:
        b = b[b != -1]
    held: Any = number
    if x.is_floating_point():
        kind = torch.float64 if isinstance(number, float) else None
        held = torch.tensor(number, dtype=kind).to(x.dtype).item()
    for name, function in calls.SCALAR_LEFT_DIVISIONS.items():
        others = {"wide": functools.partial(lambda x, f: f(x, held), f=function)}
        if name.removeprefix("r") in calls.BY_NUMPY:
            others["exact"] = functools.partial(_left, calls.BY_NUMPY[name[1:]], held)
        batch.add(name, repr(number), lambda x, f=function: f(x, number), b, **others)


def _left(function: Callable[..., Any], number: float, x: Any) -> Any:
    return function(np.asarray(number, x.dtype), x)


def reductions(most: int) -> Iterator[Batch]:
    """Reductions, scans, sorts and index operators over rows of edge values."""
    for dtype in DTYPES:
        batch = Batch()
        x = operands.thinned(operands.edges(dtype), 240)
        width = 12 if len(x) >= 36 else 1
        rows = x[: len(x) // width * width].reshape(-1, width)
        rows = rows.repeat(1, 8)[:, :8] if width == 1 else rows
        floats = rows.dtype.is_floating_point
        for name, function in calls.REDUCTIONS.items():
            if not (floats and name in calls.ORDERED_SUMS):
                batch.add(name, f"{list(rows.shape)}", function, rows)
        index = torch.tensor([[1, 0, 3], [2, 2, 5]])[torch.arange(len(rows)) % 2]
        for name, function in calls.INDEXED.items():
            if name == "index_add_alpha" and (floats or dtype == "bool"):
                continue  # a product and a sum; of bool, PyTorch's own decomposition mixes dtypes
            if floats and name in calls.ORDERED_SUMS:
                continue
            batch.add(name, f"{list(rows.shape)}", function, rows, index)
        yield batch


def creations(most: int) -> Iterator[Batch]:
    """What makes tensors of nothing, in every dtype."""
    batch = Batch()
    zero = torch.zeros(1)
    for dtype in DTYPES:
        kind = dtype_of(dtype)
        for name, function in calls.CREATIONS.items():
            batch.add(name, dtype, lambda _, f=function, d=kind: f(d), zero, dtype=dtype)
    yield batch


PARTS: dict[str, Callable[[int], Iterable[Batch]]] = {
    part.__name__: part
    for part in (*(unary, conversions, tensors, zero_dimensional, scalars, reductions, creations),)
}


def sweep(part: str, most: int, every: int = 1) -> Tally:
    """Runs one call of every so many of a part, with up to `most` values of an operand."""
    tally = Tally()
    for batch in PARTS[part](most):
        run(batch, tally, every)
    return tally


def main(parts: Sequence[str]) -> int:
    """Prints what differs, what is refused, and counts; returns 1 where anything differs."""
    wrong = 0
    for part in parts or PARTS:
        began = time.monotonic()
        tally = sweep(part, 1 << 16 if part in ("unary", "conversions") else 256)
        for key in sorted(tally.wrong):
            calls_wrong = len(tally.examples[key])
            print(f"{part}: {key[0]} {key[1]}: {tally.wrong[key]} of {tally.values[key]} values, "
                  f"{calls_wrong} of {tally.calls[key]} calls")  # fmt: skip
            for example in tally.examples[key][:3]:
                print(f"    {example}")
        for text, what in sorted(tally.refused.items()):
            print(f"{part}: refused: {text} ({len(what)} calls, such as {what[0]})")
        print(
            f"{part}: {sum(tally.calls.values())} calls of {len(tally.calls)} operators × dtypes, "
            f"{sum(tally.values.values())} values; {sum(tally.wrong.values())} values of "
            f"{len(tally.wrong)} operators × dtypes differ, {sum(map(len, tally.refused.values()))}"
            f" calls are refused; {time.monotonic() - began:.0f} s",
            flush=True,
        )
        wrong += sum(tally.wrong.values())
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
