"""Rows that a mask chooses, traced as all rows and the mask.

Mixtures of experts, and adapters that depend on a language, choose rows by value
(`torch.where(mask)`, `x[mask]`, `x.split(sizes.tolist())`), work on each row, and add or write the
results where they belong. The sizes in between are known only once the model runs, so torch.export
refuses. Here a selection stands for those rows as all rows and which of them count: what works on
each row works on all of them, and what gathers the results leaves out those that do not count. A
function that is not known to work on each row, or a use of how many there are, is refused.

Owns `traced_with_selections`, which traces again in this way what cannot be traced as it is.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function

from npusim.errors import ExportError
from npusim.frontends.expert_loops import LoopBody

Result = TypeVar("Result")


def traced_with_selections(model: nn.Module, trace: Callable[[], Result]) -> Result:
    """Returns what `trace` gives; where it cannot, what it gives with selections as masks.

    Raises:
        ExportError: why it cannot without.
    """
    try:
        return trace()
    except ExportError as error:
        with _selections_as_masks(model) as used:
            try:
                result = trace()
            except ExportError:
                raise error from error.__cause__
        if not used():
            raise
        return result


@contextmanager
def _selections_as_masks(model: nn.Module) -> Iterator[Callable[[], bool]]:
    """Traces calls of a model with selections; yields what tells whether there were any."""
    made: list[_Tracing] = []

    def enter(module: nn.Module, args: Any) -> None:
        made.append(_Tracing())
        made[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        made[-1].__exit__(None, None, None)

    handles = (
        model.register_forward_pre_hook(enter, prepend=True),
        model.register_forward_hook(leave, always_call=True),
    )
    try:
        yield lambda: any(tracing.selected for tracing in made)
    finally:
        for handle in handles:
            handle.remove()


# ---- what stands for values of a size that is not known ----


@dataclass(frozen=True, eq=False)
class _Rows:
    """Which rows count.

    Attributes:
        valid: bool [rows].
        mask: the tensor that chose them; None: the sizes of segments.
        version: of the mask, which a change in place raises.
        segment: of which segments they are, and the how manieth.
    """

    valid: Tensor
    mask: Tensor | None = None
    version: int = 0
    segment: tuple[object, int, int] | None = None

    def where(self, x: Tensor, guards: Sequence[Tensor] = ()) -> Tensor:
        """Returns x [rows, …] with zeros in the rows that do not count."""
        valid = self.valid
        for guard in guards:
            valid = valid & guard
        return torch.where(valid.reshape(-1, *[1] * (x.dim() - 1)), x, torch.zeros_like(x))


class _Selected:
    """Stands for `dense[rows]`. Looks like a tensor as far as functions of rows need it.

    Attributes:
        dense: all rows, [rows, …].
        rows: which count.
        places: where these are the indices of a mask's true elements, the mask's shape.
    """

    def __init__(
        self, tracing: _Tracing, dense: Tensor, rows: _Rows, places: tuple[int, ...] = ()
    ) -> None:
        self.tracing, self.dense, self.rows, self.places = tracing, dense, rows, places
        self.dtype, self.device, self.requires_grad = dense.dtype, dense.device, False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ExportError(f"{_name(func)} takes a selection where no trace sees it.")

    @property
    def shape(self) -> tuple[Any, ...]:
        return (_Count(self), *self.dense.shape[1:])

    def dim(self) -> int:
        return self.dense.dim()

    ndim = property(dim)

    def numel(self) -> _Count:
        return _Count(self)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __iter__(self) -> Iterator[_Place]:
        return self.tracing.iterate(self, LoopBody(sys._getframe(1)))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)
        return lambda *args, **kwargs: _method(method, self, *args, **kwargs)


def _operator(name: str) -> Callable[..., Any]:
    def call(self: _Selected, *args: Any) -> Any:
        return _method(getattr(Tensor, name), self, *args)

    return call


for _each in ("add", "sub", "mul", "truediv", "pow"):
    for _side in ("", "r"):
        setattr(_Selected, f"__{_side}{_each}__", _operator(f"__{_side}{_each}__"))
for _each in ("neg", "matmul", "getitem"):
    setattr(_Selected, f"__{_each}__", _operator(f"__{_each}__"))


def _method(method: Any, self: _Selected, *args: Any, **kwargs: Any) -> Any:
    return handle_torch_function(method, (self,), self, *args, **kwargs)


@dataclass(frozen=True, eq=False)
class _Count:
    """How many rows a selection has. Only whether there are any may be asked, to go on if not."""

    of: _Selected

    def _some(self, other: object) -> bool:
        if other != 0:
            raise ExportError("How many rows a mask chooses is known only once the model runs.")
        self.of.tracing.assume_some(self.of.rows)
        return True

    def __bool__(self) -> bool:
        return self._some(0)

    __gt__ = __ne__ = _some

    def __eq__(self, other: object) -> bool:
        return not self._some(other)


@dataclass(frozen=True)
class _Place:
    """One row of a mask's indices, as numbers: those of a row [n], or one of them."""

    at: tuple[int, ...] | int

    def __getitem__(self, i: int) -> _Place:
        if isinstance(self.at, int):
            raise ExportError("An index has one number.")
        return _Place(self.at[i])

    def item(self) -> int:
        if isinstance(self.at, int):
            return self.at
        (number,) = self.at
        return number

    __int__ = __index__ = item

    def __eq__(self, other: object) -> bool:
        return self.item() == other

    def __ge__(self, other: int) -> bool:
        return self.item() >= other

    def __lt__(self, other: int) -> bool:
        return self.item() < other

    def within(self, size: int) -> int | slice:
        """Returns what indexes a dimension in its place.

        A row after the end counts for nothing: where the mask held there, the model would fail.
        """
        number = min(self.item(), size - 1)
        return number if isinstance(self.at, int) else slice(number, number + 1)


@dataclass(frozen=True, eq=False)
class _Size:
    """A number from `sizes.tolist()`: the `index`-th of them."""

    sizes: Tensor
    index: int


# ---- the trace ----


@dataclass
class _Iteration:
    """A row that a loop is at.

    Attributes:
        guard: bool, whether the model's own loop visits it.
        body: of the loop.
        some: rows that were taken to be there, or else the model goes on to the next row.
    """

    guard: Tensor
    body: LoopBody
    some: list[_Rows] = field(default_factory=list)


class _Tracing(TorchFunctionMode):
    """Sees every function that a model calls, and gives and takes selections.

    Attributes:
        selected: whether there was one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.selected = False
        self._masks: list[tuple[Tensor, _Rows]] = []
        self._elements: list[tuple[Tensor, _Size]] = []
        self._iterations: list[_Iteration] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = _name(func), dict(kwargs or {})
        if name in _HANDLERS:
            result = _HANDLERS[name](self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if any(isinstance(value, _Selected) for value in (*args, *kwargs.values())):
            return self._on_rows(func, name, args, kwargs)
        if self._iterations and _in_place(name, kwargs):
            raise ExportError(f"{name} changes a tensor in a loop over chosen rows.")
        return func(*args, **kwargs)

    # ---- choosing ----

    def _rows_of(self, mask: Tensor) -> _Rows:
        for known, rows in self._masks:
            if known is mask and mask._version == rows.version:
                return rows
        self.selected = True
        valid = mask.clone() if mask.dtype == torch.bool else mask != 0
        self._masks.append((mask, _Rows(valid.reshape(-1), mask, mask._version)))
        return self._masks[-1][1]

    def _where(self, mask: Tensor, *others: Any, **named: Any) -> Any:
        return NotImplemented if others or named else self._nonzero(mask, as_tuple=True)

    def _nonzero(self, mask: Tensor, *, as_tuple: bool = False) -> Any:
        if not isinstance(mask, Tensor) or not mask.dim():
            return NotImplemented
        rows = self._rows_of(mask)
        indices = [
            torch.arange(size).reshape([-1 if i == dim else 1 for i in range(mask.dim())])
            for dim, size in enumerate(mask.shape)
        ]
        flat = [index.expand(mask.shape).reshape(-1) for index in indices]
        places = tuple(mask.shape)
        if not as_tuple:
            return _Selected(self, torch.stack(flat, 1), rows, places)
        return tuple(_Selected(self, index, rows, places[:1] * (len(flat) == 1)) for index in flat)

    def _unbind(self, sizes: Any, dim: int = 0) -> Any:
        """Notes the elements of a vector: tensors without data make `tolist` of their items."""
        if not isinstance(sizes, Tensor) or sizes.dim() != 1 or sizes.is_floating_point():
            return NotImplemented
        elements = sizes.unbind(0)
        self._elements += [(one, _Size(sizes, i)) for i, one in enumerate(elements)]
        return elements

    def _item(self, element: Any) -> Any:
        return next((size for one, size in self._elements if one is element), NotImplemented)

    def _split(self, x: Any, sizes: Any, dim: int = 0) -> Any:
        if not isinstance(sizes, (list, tuple)) or not any(isinstance(s, _Size) for s in sizes):
            return NotImplemented
        source = next(size for size in sizes if isinstance(size, _Size)).sizes
        numbers = [s.index for s in sizes if isinstance(s, _Size) and s.sizes is source]
        if dim or not isinstance(x, Tensor) or numbers != list(range(source.shape[0])):
            raise ExportError("A tensor is split by some of the sizes that a tensor holds.")
        self.selected = True
        ends = source.cumsum(0)
        row, whole = torch.arange(x.shape[0]), object()
        segments = []
        for i in numbers:
            valid = (row >= ends[i] - source[i]) & (row < ends[i])
            segments.append(_Selected(self, x, _Rows(valid, segment=(whole, i, len(numbers)))))
        return segments

    def _getitem(self, x: Any, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if isinstance(x, _Selected):
            return self._columns(x, parts)
        if any(isinstance(part, _Selected) for part in parts):
            return self._gathered(x, parts)
        if len(parts) == 1 and isinstance(parts[0], Tensor) and parts[0].dtype == torch.bool:
            mask = parts[0]
            rows = x.clone().reshape(math.prod(mask.shape), *x.shape[mask.dim() :])
            return _Selected(self, rows, self._rows_of(mask))
        if any(isinstance(part, _Place) for part in parts):
            if any(part is None or part is Ellipsis for part in parts):
                raise ExportError("The place of a row stands beside new dimensions.")
            sized = zip(parts, x.shape, strict=False)
            return x[tuple(p.within(n) if isinstance(p, _Place) else p for p, n in sized)]
        return NotImplemented

    def _columns(self, x: _Selected, parts: tuple[Any, ...]) -> _Selected:
        """Indexes after the rows."""
        plain = all(part is None or isinstance(part, (int, slice)) for part in parts[1:])
        if parts[0] is Ellipsis and len(parts) <= x.dim() and None not in parts and plain:
            return self._like(x, x.dense[parts])
        if parts[0] != slice(None) or not plain:
            raise ExportError("Rows that a mask chose are chosen from again.")
        return self._like(x, x.dense[parts])

    def _gathered(self, x: Any, parts: tuple[Any, ...]) -> _Selected:
        """Takes a row of a tensor for each row of a selection of indices."""
        first = parts[0]
        allowed = (_Selected, slice, type(None))
        if not isinstance(x, Tensor) or not isinstance(first, _Selected):
            raise ExportError("Rows that a mask chose are chosen from again.")
        if not all(isinstance(part, allowed) for part in parts):
            raise ExportError("Indices that a mask chose stand beside others.")
        self._same([part for part in parts if isinstance(part, _Selected)])
        index = [
            part.rows.where(part.dense) if isinstance(part, _Selected) else part for part in parts
        ]
        return self._like(first, x[tuple(index)])

    # ---- gathering ----

    def _index_add_(self, x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
        if not isinstance(index, _Selected) or not isinstance(source, _Selected):
            return NotImplemented
        if dim or index.dim() != 1 or not isinstance(x, Tensor):
            raise ExportError("index_add adds rows that a mask chose to something but rows.")
        self._same([index, source])
        at = index.rows.where(index.dense)
        rows = source.rows.where(source.dense, self._guards(source.rows))
        return x.index_add_(0, at, rows, alpha=alpha)

    def _index_add(self, x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
        if not isinstance(index, _Selected):
            return NotImplemented
        return self._index_add_(x.clone(), dim, index, source, alpha=alpha)

    def _setitem(self, x: Any, index: Any, value: Any) -> Any:
        if not isinstance(value, _Selected):
            return NotImplemented
        mask = value.rows.mask
        if mask is None or index is not mask or mask._version != value.rows.version:
            raise ExportError("Rows that a mask chose are written where it did not choose them.")
        rest = x.shape[mask.dim() :]
        valid = value.rows.valid.reshape(*mask.shape, *[1] * len(rest))
        for guard in self._guards(value.rows):
            valid = valid & guard
        rows = value.dense.reshape(*mask.shape, *rest).to(x.dtype)
        x.copy_(torch.where(valid, rows, x))
        return None

    def _cat(self, tensors: Any, dim: int = 0, **named: Any) -> Any:
        """Puts the segments that a tensor was split into together again."""
        if not any(isinstance(one, _Selected) for one in tensors):
            return NotImplemented
        parts = [one.rows.segment if isinstance(one, _Selected) else None for one in tensors]
        first = parts[0]
        if dim or named or first is None:
            raise ExportError("Rows that masks chose are put together.")
        whole, _, count = first
        if parts != [(whole, i, count) for i in range(count)]:
            raise ExportError("Some of the segments of a tensor are put together, or others.")
        result = tensors[0].dense
        for one in tensors[1:]:
            valid = one.rows.valid.reshape(-1, *[1] * (one.dim() - 1))
            result = torch.where(valid, one.dense, result)
        return result

    # ---- loops ----

    def iterate(self, indices: _Selected, body: LoopBody) -> Iterator[_Place]:
        """Yields the place of every element of a mask, whether it is true or not."""
        if not indices.places:
            raise ExportError("A loop runs over rows that a mask chose.")
        for number, place in enumerate(product(*map(range, indices.places))):
            self._iterations.append(_Iteration(indices.rows.valid[number], body))
            yield _Place(place if indices.dim() == 2 else place[0])
            self._iterations.pop()

    def assume_some(self, rows: _Rows) -> None:
        """Notes that a loop goes on to its next row where there are no such rows.

        Raises:
            ExportError: something else may become of it.
        """
        frame = sys._getframe(1)
        body = self._iterations[-1].body if self._iterations else None
        while body is not None and frame.f_code is not body.code and frame.f_back is not None:
            frame = frame.f_back
        if body is None or frame.f_code is not body.code or frame.f_lineno not in body.skips:
            raise ExportError("Whether a mask chooses any rows is known only once the model runs.")
        self._iterations[-1].some.append(rows)

    def _guards(self, rows: _Rows) -> list[Tensor]:
        """Returns what has to hold for an effect of some rows here and now."""
        for iteration in self._iterations:
            if any(some is not rows for some in iteration.some):
                raise ExportError("Rows are added that do not decide whether a loop goes on.")
        return [iteration.guard for iteration in self._iterations]

    # ---- functions of each row ----

    def _on_rows(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls a function that does the same to each row, on all rows."""
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, _Selected)]
        self._same(given)
        first = args[0] if isinstance(args[0], _Selected) else given[0]
        if name in ("view", "reshape"):
            return self._reshaped(first, args[1:])
        if not _works_on_rows(name, args, kwargs):
            raise ExportError(f"{name} is not known to do the same to each row.")
        result = func(
            *(v.dense if isinstance(v, _Selected) else v for v in args),
            **{k: v.dense if isinstance(v, _Selected) else v for k, v in kwargs.items()},
        )
        if isinstance(result, tuple):
            return tuple(self._like(first, each) for each in result)
        return self._like(first, result)

    def _reshaped(self, x: _Selected, sizes: Any) -> _Selected:
        sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
        kept = isinstance(sizes[0], _Count) and sizes[0].of.rows is x.rows
        rest = [size for size in sizes[1:] if isinstance(size, int)]
        whole = math.prod(rest) == math.prod(x.dense.shape[1:]) and min(rest, default=1) > 0
        if not (kept or sizes[0] == -1) or len(rest) != len(sizes) - 1 or not whole:
            raise ExportError("The rows that a mask chose are reshaped into others.")
        return self._like(x, x.dense.reshape(-1, *rest))

    def _like(self, x: _Selected, dense: Tensor) -> _Selected:
        if dense.dim() < 1 or dense.shape[0] != x.rows.valid.shape[0]:
            raise ExportError("A function of rows gives something else than rows.")
        return _Selected(self, dense, x.rows)

    def _same(self, given: Sequence[_Selected]) -> None:
        if any(one.rows is not given[0].rows for one in given):
            raise ExportError("Rows that different masks chose meet each other.")


# What chooses rows or gathers them; each returns NotImplemented where it does not.
_HANDLERS: dict[str, Callable[..., Any]] = {
    "where": _Tracing._where,
    "nonzero": _Tracing._nonzero,
    "unbind": _Tracing._unbind,
    "item": _Tracing._item,
    "split": _Tracing._split,
    "getitem": _Tracing._getitem,
    "setitem": _Tracing._setitem,
    "index_add": _Tracing._index_add,
    "index_add_": _Tracing._index_add_,
    "cat": _Tracing._cat,
}


def _name(func: Any) -> str:
    """Returns a function's name; operators without underscores, but for those in place."""
    name = str(getattr(func, "__name__", func))
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2]
    aliases = {"split_with_sizes": "split", "argwhere": "nonzero"}
    return aliases.get(name, name)


_OPERATORS_IN_PLACE = {f"i{each}" for each in ("add", "sub", "mul", "truediv", "pow", "matmul")}


def _in_place(name: str, kwargs: dict[str, Any]) -> bool:
    """Tells whether a function changes what it is given."""
    named = name.endswith("_") and not name.startswith("_")
    flagged = kwargs.get("inplace") is True or kwargs.get("out") is not None
    return named or flagged or name in ("setitem", *_OPERATORS_IN_PLACE)


_POINTWISE = {
    *("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rdiv", "pow", "rpow"),
    *(
        "neg",
        "reciprocal",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "square",
        "clamp",
        "clamp_min",
        "clamp_max",
    ),
    *("silu", "gelu", "relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "softplus"),
    *("hardswish", "hardsigmoid", "mish", "logsigmoid", "erf", "sin", "cos"),
    *("clone", "contiguous", "float", "half", "bfloat16", "double", "detach"),
}
_CONVERSIONS = {"to", "type", "type_as"}
# Functions along a dimension -> where it stands among the arguments, the rows' tensor first.
_ALONG = {"softmax": 1, "sum": 1, "mean": 1, "chunk": 2, "split": 2, "unsqueeze": 1, "squeeze": 1}


def _works_on_rows(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Tells whether a call does the same to each row of its selections."""
    values = [*args, *kwargs.values()]
    rank = max(value.dim() for value in values if isinstance(value, _Selected))
    leads = isinstance(args[0], _Selected)
    if _in_place(name, kwargs) or any(v is True for v in values if name not in _ALONG):
        return False
    if name in _CONVERSIONS:
        return leads and sum(isinstance(value, _Selected) for value in values) == 1
    if name in _POINTWISE:
        return all(_aligned(value, rank) for value in values)
    if not leads or any(isinstance(value, _Selected) for value in values[1:]):
        return False
    if name == "linear":
        return rank > 1
    if name == "matmul":
        return rank > 1 and args[1].dim() <= 2
    if name == "dropout":
        return kwargs.get("training", args[2] if len(args) > 2 else None) is False
    if name in ("layer_norm", "rms_norm"):
        return len(args) > 1 and len(args[1]) < rank
    if name not in _ALONG:
        return False
    dim = kwargs.get("dim", args[_ALONG[name]] if len(args) > _ALONG[name] else 0)
    lowest = -rank if name != "unsqueeze" else -rank - 1
    return isinstance(dim, int) and dim not in (0, lowest)


def _aligned(value: Any, rank: int) -> bool:
    """Tells whether an operand meets each row of a selection of that rank with the same values."""
    if isinstance(value, _Selected):
        return value.dim() == rank
    if isinstance(value, Tensor):
        return value.dim() < rank or (value.dim() == rank and value.shape[0] == 1)
    return not isinstance(value, (list, tuple))
