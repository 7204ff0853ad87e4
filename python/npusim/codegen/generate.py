"""The stage after `assemble`: commands become kernels specialised by their parameters.

Owns for which sizes of a call there is device code, and the refusal of commands without kernels;
which kernels there are is `kernel_table.py`'s, what they are made of the target's generator's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from npusim.codegen.choice import Choice, Choices
from npusim.codegen.generator import CodeGenerator, generator_of
from npusim.codegen.kernel_table import KernelTable
from npusim.codegen.limits import check_limits
from npusim.codegen.step_sizes import step_sizes
from npusim.codegen.wanted import WantedImage
from npusim.errors import UnsupportedOpError
from npusim.program.program import CompiledProgram, Method
from npusim.program.sized_command import (
    PREPARED,
    Sizes,
    check_sizes,
    combinations,
    greatest_sizes,
    params_at,
    prepared_sizes,
)
from npusim.targets import TargetConfig


def generate(
    program: CompiledProgram,
    target: TargetConfig,
    tuned: Choices | None = None,
    sizes: Sequence[Sizes] = (),
) -> CompiledProgram:
    """Returns the program with device code for every command, where the target needs that.

    Args:
        program: as assembled, or generated before.
        tuned: measured choices; commands without one have the default.
        sizes: values of symbolic sizes to have device code for, besides the greatest ones and those
            that the program was generated for before.

    Raises:
        UnsupportedOpError: a command needs a kernel that the target has no source for.
        TargetConstraintError: the compiler does not know the target's architecture, or a command
            passes a limit of its launches.
        ShapeError: sizes that calls cannot have.
        Error: the compiler is not installed; the message says how to install it.
    """
    wanted = [*prepared_sizes(program), *sizes]
    check_sizes(program.methods, wanted)
    generator = generator_of(target)
    if generator is None:
        return program
    if not wanted:
        wanted = step_sizes(program)
        check_sizes(program.methods, wanted)
    program, choices = generator.prepare(_at_greatest(program), target, tuned or {})
    table = KernelTable(program, target, generator)
    prepared = {m.name: combinations(m, wanted) for m in program.methods}
    init = table.add(program.init, [{}])
    methods = tuple(table.add(m, prepared[m.name]) for m in program.methods)
    _check_sources(program, target, generator, table.stems)
    rows = [(w, _choice(generator, w, target, choices, tuned or {})) for w in table.images()]
    made = replace(
        program,
        kernels=table.kernels(generator.images(rows, target)),
        init=init,
        methods=methods,
        metadata=_with_sizes(program, prepared),
    )
    check_limits(made, target, generator)
    return made


def _at_greatest(program: CompiledProgram) -> CompiledProgram:
    """Returns the program with parameters of commands as they are at the greatest sizes."""

    def sized(method: Method) -> Method:
        greatest = greatest_sizes(method)
        commands = (replace(c, params=params_at(c, greatest)) for c in method.commands)
        return replace(method, commands=tuple(commands))

    return replace(program, methods=tuple(map(sized, program.methods)))


def _choice(
    generator: CodeGenerator,
    image: WantedImage,
    target: TargetConfig,
    choices: Choices,
    tuned: Choices,
) -> Choice:
    key = (image.stem, image.params)
    if image.recipe is None:
        return choices.get(key, Choice())
    return generator.choose(image, image.recipe, target, tuned.get(key))


def _with_sizes(
    program: CompiledProgram, prepared: Mapping[str, Sequence[Sizes]]
) -> Mapping[str, object]:
    """Returns the metadata with the sizes that methods have device code for."""
    symbolic = {m.name: [dict(s) for s in prepared[m.name]] for m in program.methods if m.symbols}
    return {**program.metadata, PREPARED: symbolic} if symbolic else program.metadata


def _check_sources(
    program: CompiledProgram, target: TargetConfig, generator: CodeGenerator, stems: Iterable[str]
) -> None:
    missing = sorted(stem for stem in stems if stem not in generator.stems)
    if missing:
        methods = (program.init, *program.methods)
        nodes = (
            f"  {node.op} ({node.name}): no kernel {stem}"
            for method in methods
            for command in method.commands
            if (stem := program.kernels[command.kernel].name) in missing
            for node in (program.nodes[command.node],)
        )
        raise UnsupportedOpError(
            f"Some nodes cannot run on target '{target.name}':\n" + "\n".join(dict.fromkeys(nodes)),
            hint="\nReplace these operations in the model, or compile for another target.",
        )
