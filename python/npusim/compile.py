"""The flow: a model becomes a Graph, the passes rewrite it, the lowering makes it a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npusim.errors import GraphError
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig

Progress = Callable[[str, int, int], None]


def compile(
    model: str | Path | Graph | Module | tuple[Any, ...],
    target: str | TargetConfig = "cpu",
    *,
    quantize: str | None = None,
    precision: str | None = None,
    sizes: Sequence[Mapping[str, int]] = (),
    tensor_parallel: int = 1,
    dump_passes: str | Path | None = None,
    progress: Progress | None = None,
) -> CompiledProgram:
    """Compiles a model for a target.

    Args:
        model: the path of an IR file, a Graph, a Module of several methods, or (torch module,
            example arguments).
        target: a target's name, the path of a target file, or a TargetConfig.
        quantize: how linears have their weights, such as "int8" or "int4-g32" (see
            `TargetConfig.weight_quantization`); by default as the target says.
        precision: what a model of float32 is multiplied and stored in: "float32", "bfloat16",
            "float16", or "mixed", which multiplies in bfloat16 and stores float32
            (docs/numerics.md); by default as the target says. Inputs, outputs and states keep
            their dtypes.
        sizes: of a model with symbolic sizes, values of these by name, for which the program
            brings device code; a symbol that is not given takes its greatest value. Calls of the
            greatest sizes and of these need no compiler; other sizes are compiled when a call comes
            with them. A target without device code is ready for all sizes as it is.
        tensor_parallel: how many ranks run the program together, each over its parts of the weights
            (docs/tensor-parallel.md).
        dump_passes: a folder that receives the graph as text after each pass; of a Module, a
            folder in it for each method.
        progress: called as (stage, done, total) before each stage.

    Raises:
        UnsupportedOpError: nodes the target has no kernel for; all of them are listed.
        Error: the target needs device code, and its compiler is not installed.
        TargetConstraintError: unknown target, quantization or precision, a model of 16 bits where
            others are asked for, a node that breaks a limit, a machine that the program does
            not fit into, or ranks that cannot share the model.
        ShapeError: `sizes` that calls cannot have.
        GraphError, ExportError: the model is malformed or cannot be exported.
    """
    # Imported here: `import npusim` brings this function and must stay cheap, without NumPy even.
    from npusim.codegen import generate
    from npusim.lowering.assemble import assemble
    from npusim.lowering.supported import check_supported, foreign_values
    from npusim.passes.run import run_passes
    from npusim.schedule import with_simulation

    config = configured(target, quantize, precision)
    source = _ir_of(model)
    lowered: Graph | Module

    def check(graph: Graph) -> None:
        if foreign_values(graph):  # passes know the dtypes of devices alone
            check_supported(graph, config)

    def lower(graph: Graph, dump_dir: Path | None) -> Graph:
        check(graph)
        return run_passes(graph, config, dump_dir=dump_dir, progress=progress)

    folder = None if dump_passes is None else Path(dump_passes)
    if tensor_parallel != 1:
        from npusim.passes.run_for_ranks import run_for_ranks

        for graph in (source,) if isinstance(source, Graph) else source.methods.values():
            check(graph)
        lowered = run_for_ranks(source, config, tensor_parallel, dump_dir=folder, progress=progress)
    elif isinstance(source, Graph):
        lowered = lower(source, folder)
    else:
        methods = {n: lower(g, folder and folder / n) for n, g in source.methods.items()}
        lowered = replace(source, methods=methods)
    program = generate(assemble(lowered, config), config, sizes=sizes)
    return with_simulation(program, config)


def configured(
    target: str | TargetConfig, quantize: str | None = None, precision: str | None = None
) -> TargetConfig:
    """Returns a target as `compile` is asked for it. Raises TargetConstraintError, as it does."""
    config = target if isinstance(target, TargetConfig) else TargetConfig.named(target)
    if quantize is not None:
        config = replace(config, weight_quantization=quantize)
    if precision is not None:
        config = replace(config, precision=precision)
    return config


def _ir_of(model: str | Path | Graph | Module | tuple[Any, ...]) -> Graph | Module:
    if isinstance(model, (Graph, Module)):
        return model
    if isinstance(model, (str, Path)):
        return load_ir(model)
    if isinstance(model, tuple) and len(model) in (2, 3):
        from npusim.frontends.torch_export import extract_ir

        return extract_ir(*model)
    raise GraphError(
        f"Cannot compile a {type(model).__name__}.",
        hint="Pass the path of an IR file, an IR, or (module, example_args).",
    )
