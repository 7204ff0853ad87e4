"""PyTorch to Graph, through torch.export on tensors without data.

Owns the way from a module and example arguments to an exported program in the one dialect of the
IR: trace, and decompose (`decompositions.py`); `exported_program.py` makes a Graph of it. Shapes
are static but where `dynamic_shapes` says otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from npusim.errors import ExportError, first_line
from npusim.frontends import decompositions as policy
from npusim.frontends.branches import write_as_choices
from npusim.frontends.complex_pairs import write_as_pairs
from npusim.frontends.complex_rules import RULES as COMPLEX_RULES
from npusim.frontends.constant_values import ASKING, decided
from npusim.frontends.distinct_calls import decomposed
from npusim.frontends.dynamic_shapes import (
    Sizes,
    decisions,
    exact_sizes,
    is_about_sizes,
    sizes_of_one_open,
)
from npusim.frontends.equal_layers import saw_a_stand_in, traced_once
from npusim.frontends.exported_program import translate
from npusim.frontends.open_calls import open_call
from npusim.frontends.operator_tables import quick_tables
from npusim.frontends.recurrences import recurrences_as_given
from npusim.frontends.refusals import explain, users_frames
from npusim.frontends.selected_rows import traced_with_selections
from npusim.frontends.uncompiled import compiled_when_called
from npusim.frontends.weight_free import fake_arguments, module_tensors, weight_free
from npusim.ir.graph import Graph

logger = logging.getLogger(__name__)

Progress: TypeAlias = "Callable[[str, int, int], object]"


def extract_ir(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    model_name: str | None = None,
    strict: bool = False,
    dynamic_shapes: Any = None,
    progress: Progress | None = None,
) -> Graph:
    """Extracts the graph of a model, without its weights.

    What a mask chooses, and torch.export refuses, is computed for all rows (selected_rows.py). Of
    `torch.cond` both branches are computed (branches.py), so that both have to be able to run.

    Args:
        model: in evaluation mode, on any device, the meta device included; its weights are
            neither read nor copied, and it is left as it was.
            A buffer that forward changes in place (a cache, a counter) is a state of the graph:
            it starts as zeros and keeps its content from call to call.
        args: example arguments, a tuple (a single tensor may stand alone). Only shapes and dtypes
            of tensors count; other values (None, numbers, strings) become part of the graph.
        kwargs: example keyword arguments.
        model_name: the graph's name; by default the name of the model's class.
        strict: trace the model's bytecode as `torch.export.export(strict=True)` does.
        dynamic_shapes: which sizes of the inputs are symbolic, as torch.export takes it:
            `{"x": {0: torch.export.Dim("batch", max=8)}}`. Each needs an upper bound; the example
            arguments must have sizes of 2 or more there. See docs/dynamic-shapes.md.
        progress: called as (stage, done, total) before each stage.

    Raises:
        ExportError: the model cannot be traced, or does what a graph cannot express; says where
            in the model's code, and what to change.
    """
    arguments = _check_arguments(model, args)
    name = model_name or type(model).__name__
    tensors = module_tensors(model)
    calls = arguments, dict(kwargs or {})
    told = progress or (lambda *_: None)

    def graph() -> Graph:
        program = _exported(model, *calls, name, strict, dynamic_shapes, told)
        told("translating", 2, 3)
        return translate(program, tensors, name, Sizes(program, dynamic_shapes))

    plain = strict or dynamic_shapes is not None
    found = graph() if plain else traced_with_selections(model, graph)
    logger.info("%s: %d nodes, %d weights", name, len(found.nodes), len(found.weights))
    return found


def _exported(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    strict: bool,
    dynamic_shapes: Any,
    progress: Progress,
) -> ExportedProgram:
    """Returns the program of a model; a second attempt leaves sizes of 1 open as well.

    One after a failure in a layer that is traced for its equals traces each.
    """
    try:
        return _export(model, args, kwargs, name, strict, dynamic_shapes, progress)
    except ExportError as error:
        if saw_a_stand_in(error.__cause__):
            logger.info("%s: traced again, each layer, for: %s", name, first_line(error))
            return _export(model, args, kwargs, name, strict, None, progress, once=False)
        if dynamic_shapes is None or not is_about_sizes(error.__cause__):
            raise
        logger.info("%s: traced again with sizes of one open, for: %s", name, first_line(error))
        with sizes_of_one_open():
            try:
                return _export(model, args, kwargs, name, strict, dynamic_shapes, progress)
            except ExportError:
                raise error from error.__cause__


def _check_arguments(model: object, args: Any) -> tuple[Any, ...]:
    if not isinstance(model, nn.Module):
        raise ExportError(
            f"extract_ir takes a torch.nn.Module, not {type(model).__name__}.",
            hint="Put a function into a module's forward.",
        )
    if model.training:
        raise ExportError(
            f"{type(model).__name__} is in training mode.", hint="Call model.eval() first."
        )
    if isinstance(args, Tensor):
        return (args,)
    if not isinstance(args, (tuple, list)):
        raise ExportError(f"args must be a tuple of example arguments, not {type(args).__name__}.")
    return tuple(args)


def _export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    strict: bool,
    dynamic_shapes: Any,
    progress: Progress,
    *,
    once: bool = True,
) -> ExportedProgram:
    """Returns the decomposed program of a model whose tensors hold no data."""
    mode = FakeTensorMode(shape_env=None if dynamic_shapes is None else ShapeEnv())
    no_context = contextlib.nullcontext()
    with contextlib.ExitStack() as stack:
        for context in (
            *(torch.no_grad(), _reference_paths(), users_frames(), _quiet(), _uncollected()),
            weight_free(model, mode),
            _known_answers(model),
            no_context if strict else compiled_when_called(),
            no_context if dynamic_shapes is None else exact_sizes(dynamic_shapes),
            traced_once(model) if once and not strict and not dynamic_shapes else no_context,
        ):
            stack.enter_context(context)
        handle = model.register_forward_hook(plain_outputs)
        stack.callback(handle.remove)
        try:
            progress("exporting", 0, 3)
            program = torch.export.export(
                model,
                fake_arguments(args, mode),
                fake_arguments(kwargs, mode),
                strict=strict,
                dynamic_shapes=dynamic_shapes,
            )
            write_as_choices(program.graph_module)
            policy.keep_replaced_buffers(program.graph)
            policy.keep_instance_norm(program.graph)
            policy.shape_bags(program.graph)
            progress("decomposing", 1, 3)
            with decisions(program) as decided, quick_tables():
                program = decomposed(program, policy.decompositions())
            Sizes(program, dynamic_shapes).check(decided)
            policy.drop_assertions(program.graph)
            policy.write_through_masks(program.graph)
            write_as_pairs(program.graph, COMPLEX_RULES)
            return program
        except ExportError:
            raise
        except Exception as error:  # a trace runs, and fails in, any code
            raise explain(error, name) from error


def call_without_data(model: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Runs forward on tensors without data, for what it leaves behind.

    As plain PyTorch first, which takes a sixth of a trace's time; a forward that needs what only a
    trace has (data-dependent choices that it writes down) runs in one.

    Raises:
        ExportError: the model cannot be traced.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # constants that forward makes of itself
    try:
        with torch.no_grad(), _reference_paths(), _quiet(), weight_free(model, mode), mode:
            model(*fake_arguments(args, mode))
    except Exception as error:  # forward is any code, and reads values that are not there
        logger.info("%s: traced, for it does not run: %s", type(model).__name__, first_line(error))
        unused_inputs(model, args)


def unused_inputs(model: nn.Module, args: tuple[Tensor, ...]) -> set[int]:
    """Returns the numbers of the arguments that forward does not use, by a trace without data.

    Raises:
        ExportError: the model cannot be traced.
    """
    return traced_with_selections(model, lambda: _unused_inputs(model, args))


def _unused_inputs(model: nn.Module, args: tuple[Tensor, ...]) -> set[int]:
    mode = FakeTensorMode()
    with torch.no_grad(), _reference_paths(), users_frames(), _quiet(), weight_free(model, mode):
        try:
            with compiled_when_called(), _known_answers(model):
                program = torch.export.export(model, fake_arguments(args, mode), strict=False)
            unused = {node.name for node in program.graph.nodes if not node.users}
            names = program.graph_signature.user_inputs
            return {i for i, name in enumerate(names) if name in unused}
        except ExportError:
            raise
        except Exception as error:  # a trace runs, and fails in, any code
            raise explain(error, type(model).__name__) from error


class _KnownAnswers(TorchFunctionMode):
    """Leaves out of a trace what constants decide, and what sets the mode of gradients as it is.

    Functions that would fix sizes that are to stay open are called as others.

    torch.export cuts a graph in pieces at each such call (a rotation's `torch.no_grad`, say) and
    joins them again, which takes a tenth of an extraction's time.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch._C._set_grad_enabled and args == (torch.is_grad_enabled(),):
            return None
        if func in ASKING and (answer := decided(func, args, kwargs or {})) is not None:
            return answer[0]
        call = open_call(func, args, kwargs or {}) or func
        return call(*args, **(kwargs or {}))


@contextlib.contextmanager
def _known_answers(model: nn.Module) -> Iterator[None]:
    """Runs forward in `_KnownAnswers`: within the modes of the trace, which see what it passes."""
    entered: list[_KnownAnswers] = []

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(_KnownAnswers())
        entered[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        entered.pop().__exit__(None, None, None)

    handles = (
        model.register_forward_pre_hook(enter, prepend=True),
        model.register_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _reference_paths() -> Iterator[None]:
    """Keeps modules on paths that traces can follow, and gives the results of modules themselves.

    nn.Transformer and nn.MultiheadAttention do not call their opaque fused kernels.
    """
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with recurrences_as_given():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Saves a sixth of a trace's time: it makes millions of objects, nearly all of which stay."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Holds back what torch.export prints about a failure that is about to be explained."""
    names = (
        *("torch.fx.experimental.symbolic_shapes", "torch.export._trace"),
        "torch._subclasses.fake_tensor",
    )
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    held = io.StringIO()
    try:
        for logger in loggers:
            logger.disabled = True
        with warnings.catch_warnings(), contextlib.redirect_stderr(held):
            warnings.simplefilter("ignore", FutureWarning)
            # nn.LSTM keeps its weights in a list too; replacing them by stand-ins is no new state.
            warnings.filterwarnings("ignore", r"The tensor attributes? \S*_flat_weights")
            yield
        sys.stderr.write(held.getvalue())
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def plain_outputs(module: nn.Module, args: Any, output: Any) -> Any:
    """A forward hook: turns a dataclass that torch.export does not know into a dict."""
    if not dataclasses.is_dataclass(output) or isinstance(output, type):
        return output
    if type(output) in pytree.SUPPORTED_NODES:
        return output
    return {f.name: getattr(output, f.name) for f in dataclasses.fields(output)}
