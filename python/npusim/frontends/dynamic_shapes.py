"""torch.export's symbolic sizes as npusim's.

Owns the names and bounds of symbols (`dynamic_shapes` says them, torch.export may narrow them) and
the way from sympy's expressions to `ir/symbolic.py`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from types import FrameType
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions

from npusim.errors import ExportError, SymbolicSizeError
from npusim.frontends.fractions import ratio_of, rounded_size
from npusim.frontends.refusals import is_users
from npusim.ir.symbolic import bounds, evaluate, maximum, minimum, symbol, symbols_of
from npusim.ir.types import TensorType
from npusim.ops.schema import dtype_name

_CALLS: Mapping[str, Callable[[int, int], int]] = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
}
# What a relation says of the difference of its sides.
_OF_DIFFERENCE: Mapping[str, Callable[[int], bool]] = {
    "Equality": lambda d: d == 0,
    "Unequality": lambda d: d != 0,
    "StrictLessThan": lambda d: d < 0,
    "LessThan": lambda d: d <= 0,
    "StrictGreaterThan": lambda d: d > 0,
    "GreaterThan": lambda d: d >= 0,
}
_TRIED_SIZES = 4096
_FOLDS: Mapping[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Max": maximum,
    "Min": minimum,
}


def is_about_sizes(error: BaseException | None) -> bool:
    """Tells whether torch.export failed since a model fixes a size that was to be left open."""
    said = "" if error is None else str(error)
    # The second: torch.export fails itself, over a least value that it wants to propose.
    return "Constraints violated" in said or "Dim with inconsistent min" in said


@contextlib.contextmanager
def sizes_of_one_open() -> Iterator[None]:
    """Has torch.export take no notice of sizes that may turn out to be 1.

    Otherwise it refuses `x[1:]` of what may have two rows. This, on the other hand, refuses code
    that handles a size of 1 by itself, as some of PyTorch's own does, so it is tried second.
    Process-wide while it lasts, and without effect where PyTorch has no such option.
    """
    if not hasattr(_config, "backed_size_oblivious"):
        yield
        return
    with _config.patch(backed_size_oblivious=True):
        yield


@contextlib.contextmanager
def decisions(program: ExportedProgram) -> Iterator[list[Any]]:
    """Yields a list that holds, at the end, the conditions that PyTorch took for granted inside.

    torch.export closes the records of a program when it is done; decomposing it asks more. Sizes
    that it found to be one, since an operator wants that, stand in the conditions as one. What is
    a symbol there only since an argument of forward is a whole number stands as that number.
    """
    found: list[Any] = []
    environment = _environment(program)
    if environment is None:
        yield found
        return
    before, closed = len(environment.guards), environment.frozen
    sizes = set(environment.var_to_range)
    environment.frozen = False
    try:
        yield found
    finally:
        environment.frozen = closed
    one = {
        v: by
        for v, by in environment.replacements.items()
        if by.is_Symbol or (by.is_Integer and v not in sizes)
    }
    found += [sympy.sympify(guard.expr).xreplace(one) for guard in environment.guards[before:]]


class Sizes:
    """The symbolic sizes of one exported program.

    Args:
        program: as torch.export gives it.
        dynamic_shapes: what it was given; None for a program of static shapes.

    Raises:
        ExportError: a size without an upper bound.
    """

    def __init__(self, program: ExportedProgram, dynamic_shapes: Any) -> None:
        self._symbols: dict[sympy.Symbol, int] = {}
        if dynamic_shapes is None:
            return
        wanted = {d.__name__: d for d in _named_dims(dynamic_shapes)}
        unbounded = []
        for variable, where in _input_symbols(program).items():
            name = _name_of(program, variable) or where
            found = program.range_constraints.get(variable)
            low = 0 if found is None else int(found.lower)
            high = None if found is None or not found.upper.is_Integer else int(found.upper)
            if low <= 2:  # torch.export never traces sizes of 0 and 1, whatever may be called
                low = max(1, getattr(wanted.get(name), "min", 1))
            if high is None:
                unbounded.append(name)
                continue
            self._symbols[variable] = symbol(name, low, high)
        if unbounded:
            raise ExportError(
                f"The size{'s' if len(unbounded) > 1 else ''} {', '.join(unbounded)} has no upper "
                "bound, and memory is planned for it.",
                hint=f'Write torch.export.Dim("{unbounded[0]}", max=…).',
            )

    def of(self, value: Any) -> int:
        """Returns a SymInt, or a number, as a size.

        Raises:
            ExportError: it depends on the values of tensors, or is no expression npusim has.
        """
        if type(value) is int or not isinstance(value, torch.SymInt):
            return int(value)
        return size_of(sympy.sympify(value.node.expr), self._symbols)

    def of_expression(self, expr: Any) -> int:
        """Returns one of sympy's integer expressions as a size; raises as `of` does."""
        return size_of(expr, self._symbols)

    def type_of(self, tensor: Tensor) -> TensorType:
        """Returns the type of a traced tensor; raises as `of` does."""
        return TensorType(dtype_name(tensor.dtype), tuple(map(self.of, tensor.shape)))

    def check(self, conditions: Iterable[Any]) -> None:
        """Checks what PyTorch took for granted, by the example's sizes, while it decomposed.

        Raises:
            ExportError: one of sympy's conditions does not hold for all sizes.
        """
        for condition in conditions:
            if not always(condition, self._symbols):
                names = {v: sympy.Symbol(str(size)) for v, size in self._symbols.items()}
                raise ExportError(
                    "PyTorch explains an operator in one way where "
                    f"{condition.xreplace(names)}, and in another way elsewhere.",
                    hint="Narrow the bounds of dynamic_shapes, or keep that size fixed.",
                )

    def knows(self, value: Any) -> bool:
        """Tells whether a size is a number, or depends on the shapes of the inputs alone."""
        return type(value) is int or (
            isinstance(value, torch.SymInt)
            and sympy.sympify(value.node.expr).free_symbols <= set(self._symbols)
        )

    def knows_number(self, value: Any) -> bool:
        """As `knows`, for a SymFloat or SymBool."""
        return sympy.sympify(value.node.expr).free_symbols <= set(self._symbols)


def size_of(expr: Any, symbols: Mapping[sympy.Symbol, int]) -> int:
    """Returns one of sympy's expressions as a size.

    Raises:
        ExportError: it is no expression npusim has, or reads other symbols.
    """
    if expr.is_Integer:
        return int(expr)
    if expr in symbols:
        return symbols[expr]
    name = type(expr).__name__
    try:
        rounded = rounded_size(expr, lambda part: size_of(part, symbols))
        if rounded is not None:
            return rounded
        if name in _FOLDS:
            ordered = _constants_last(expr.args)
            return reduce(_FOLDS[name], [size_of(a, symbols) for a in ordered])
        if name in _CALLS and len(expr.args) == 2:
            return _CALLS[name](*(size_of(a, symbols) for a in expr.args))
        if isinstance(expr, (sympy.Pow, functions.PowByNatural)) and expr.args[1].is_Integer:
            return reduce(_FOLDS["Mul"], [size_of(expr.args[0], symbols)] * int(expr.args[1]))
    except SymbolicSizeError as error:
        raise ExportError(f"the size {expr}: {error}") from None
    raise ExportError(f"the size {expr} is no expression that npusim knows.")


def always(condition: Any, symbols: Mapping[sympy.Symbol, int]) -> bool:
    """Tells whether one of sympy's conditions holds for all sizes.

    That two sizes differ counts as such: what holds for different ones has to be right for equal
    ones, as everywhere.
    """
    if isinstance(condition, sympy.And):
        return all(always(part, symbols) for part in condition.args)
    return isinstance(condition, sympy.Ne) or decided(condition, symbols) is True


def decided(condition: Any, symbols: Mapping[sympy.Symbol, int]) -> bool | None:
    """Tells what one of sympy's relations is for all sizes; None where that depends on them.

    By bounds, or else by trying all sizes, if there are few enough.
    """
    if isinstance(condition, (sympy.And, sympy.Or)):
        answers = [decided(part, symbols) for part in condition.args]
        settling = isinstance(condition, sympy.Or)  # the answer of one part that is the whole's
        if settling in answers:
            return settling
        return None if None in answers else not settling
    if isinstance(condition, sympy.Not):
        answer = decided(condition.args[0], symbols)
        return None if answer is None else not answer
    if not isinstance(condition, sympy.core.relational.Relational):
        return bool(condition) if condition in (sympy.true, sympy.false) else None
    try:
        (top, bottom), (other, below) = (
            ratio_of(side, lambda part: size_of(part, symbols), exact=True)
            for side in condition.args
        )
        difference = top * below - other * bottom
    except (ExportError, SymbolicSizeError):
        return None
    holds = _OF_DIFFERENCE.get(type(condition).__name__)
    if holds is None:
        return None
    low, high = bounds(difference)
    ordered = not isinstance(condition, (sympy.Eq, sympy.Ne))
    if low == high or low > 0 or high < 0 or (ordered and holds(low) == holds(high)):
        return holds(low)
    ranges = {s.name: range(s.low, s.high + 1) for s in symbols_of(difference)}
    if math.prod(map(len, ranges.values())) > _TRIED_SIZES:
        return None
    found = {
        holds(evaluate(difference, dict(zip(ranges, sizes, strict=True))))
        for sizes in itertools.product(*ranges.values())
    }
    return found.pop() if len(found) == 1 else None


@contextlib.contextmanager
def exact_sizes(dynamic_shapes: Any) -> Iterator[None]:
    """Has torch.export take npusim's arithmetic for sizes where its own gives up.

    Such as that `n // 2 <= n`: what is not known becomes a condition on the sizes of calls, and a
    size that is to be open is then refused. Whether a computed size is one is asked by PyTorch
    for strides and for what it repeats, and is answered as of a size of an input, which it never
    takes for one: by the example. Process-wide while it lasts.

    Args:
        dynamic_shapes: as torch.export takes it; its named sizes may have a least value.
    """
    own = ShapeEnv._maybe_evaluate_static
    least = {d.__name__: int(d.min) for d in _named_dims(dynamic_shapes)}

    @functools.wraps(own)
    def evaluated(environment: ShapeEnv, expr: Any, **options: Any) -> Any:
        found = own(environment, expr, **options)
        if found is not None or not isinstance(expr, sympy.logic.boolalg.Boolean):
            return found
        if options.get("unbacked_only") or options.get("compute_hint"):
            return found
        sizes = {
            v: n for v in expr.free_symbols if (n := _open_size(environment, v, least)) is not None
        }
        answer = decided(expr, sizes)
        if answer is None:
            answer = _as_of_more_than_one(environment, expr)
        return found if answer is None else sympy.sympify(answer)

    ShapeEnv._maybe_evaluate_static = evaluated
    try:
        yield
    finally:
        ShapeEnv._maybe_evaluate_static = own


def _open_size(
    environment: ShapeEnv, variable: sympy.Symbol, least: Mapping[str, int]
) -> int | None:
    """Returns the symbol of an input's size, from 1 on where torch.export has it from 2 on.

    Args:
        least: by name, what the caller says of a size.
    """
    known = environment.var_to_range.get(variable)
    if known is None or variable not in _examples(environment) or not known.upper.is_Integer:
        return None
    low = int(known.lower)
    if low <= 2:
        low = max(1, least.get(_debug_name(environment, variable) or "", 1))
    return symbol(str(variable), low, int(known.upper))


def _examples(environment: ShapeEnv) -> Mapping[sympy.Symbol, Any]:
    """Returns the sizes of the example arguments, by symbol."""
    held = vars(environment)
    found: Mapping[sympy.Symbol, Any] = held.get(  # its name was another
        "backed_var_to_val", held.get("var_to_val", {})
    )
    return found


def _as_of_more_than_one(environment: ShapeEnv, condition: Any) -> bool | None:
    """Returns what it is to be equal to one of a size that is not one in the example; else None.

    Only where PyTorch asks: what a model itself does by a size is nothing that may be taken for
    granted.
    """
    if not isinstance(condition, (sympy.Eq, sympy.Ne)) or sympy.Integer(1) not in condition.args:
        return None
    (size,) = (side for side in condition.args if side != 1)
    example = size.xreplace(dict(_examples(environment)))
    if not example.is_Integer or example == 1 or _asked_by_the_model():
        return None
    return isinstance(condition, sympy.Ne)


_OF_SIZES = ("/fx/experimental/", "/torch/__init__.py", "/_sympy/", str(__file__))


def _asked_by_the_model() -> bool:
    """Tells whether a condition is one of the model's own.

    What was asked before, and is looked at again in the end, was asked by the model as well: of
    conditions that are answered here nothing is kept.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in _OF_SIZES):
        if frame.f_code.co_name.startswith("produce_guards"):
            return True
        frame = frame.f_back
    return frame is None or is_users(frame.f_code.co_filename)


def _constants_last(args: tuple[Any, ...]) -> list[Any]:
    return sorted(args, key=lambda a: bool(a.is_Integer))


def _named_dims(shapes: Any) -> Iterator[Any]:
    """Yields the named Dims in `dynamic_shapes`, and what they are derived from."""
    if isinstance(shapes, Mapping):
        shapes = list(shapes.values())
    if isinstance(shapes, (tuple, list)):
        for item in shapes:
            yield from _named_dims(item)
    elif hasattr(shapes, "__name__") and hasattr(shapes, "min"):
        yield shapes
        if hasattr(shapes, "root"):
            yield shapes.root


def _input_symbols(program: ExportedProgram) -> dict[sympy.Symbol, str]:
    """Returns the symbols in the shapes of inputs, with a name from where each first stands."""
    found: dict[sympy.Symbol, str] = {}
    for node in program.graph.nodes:
        tensor = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(tensor, torch.Tensor):
            continue
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                expr = sympy.sympify(size.node.expr)
                for variable in sorted(expr.free_symbols, key=str):
                    found.setdefault(variable, f"{node.name}_{axis}")
    return found


def _name_of(program: ExportedProgram, variable: sympy.Symbol) -> str | None:
    """Returns the name that `dynamic_shapes` gives a symbol, or None."""
    environment = _environment(program)
    return None if environment is None else _debug_name(environment, variable)


def _debug_name(environment: ShapeEnv, variable: sympy.Symbol) -> str | None:
    same = {variable}
    same.update(v for v, by in environment.replacements.items() if by == variable)
    for source in (s for v in same for s in environment.var_to_sources.get(v, ())):
        text = _source_text(source)
        name = environment.source_name_to_debug_name.get(text, text)
        if str(name).isidentifier():
            return str(name)
    return None


def _environment(program: ExportedProgram) -> ShapeEnv | None:
    """Returns where PyTorch keeps what it knows of a program's symbols, if it has any."""
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            environment: ShapeEnv = mode.shape_env
            return environment
    return None


def _source_text(source: Any) -> str:
    """Returns a source's name; it is a method in some versions of PyTorch."""
    name = source.name
    return str(name() if callable(name) else name)
