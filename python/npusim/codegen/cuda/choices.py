"""Who computes a command on a GPU: the own kernel, in one of its variants, or a library.

Owns the default, and which commands a program can leave to a library at all: what the library wants
in another form than the own kernel has it is prepared by the init method.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.kernels import KERNELS, RANK
from npusim.abi.scalar import OPCODES
from npusim.codegen.choice import Choice, Choices
from npusim.codegen.cuda import (
    expanded_codes,
    one_order,
    tma_attention,
    tma_codes,
    tma_matmul,
)
from npusim.codegen.cuda.image import Image
from npusim.codegen.cuda.library import library_problem, own_operands, prefers_library
from npusim.codegen.cuda.variants import CLUSTER, variants
from npusim.codegen.library import CastOperand, LibraryProblem
from npusim.codegen.wanted import Recipe
from npusim.ir.types import DTYPES
from npusim.program.program import (
    ALIGNMENT,
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Kernel,
    Method,
    Operand,
)
from npusim.targets import TargetConfig


def default_choice(stem: str, params: bytes, target: TargetConfig) -> Choice:
    """Returns the choice where nothing was measured."""
    own = Choice(variant=_variant(stem, params, target))
    problem = library_problem(stem, params) if target.libraries != "none" else None
    if problem is None:
        return own
    if target.libraries == "all" or (prefers_library(problem) and not own.variant):
        return replace(own, library=problem.name)
    return own


def sized_choice(
    stem: str, params: bytes, target: TargetConfig, tuned: Choice | None, recipe: Recipe
) -> Choice:
    """Returns the choice for a command at some sizes of a call, whose operands are given.

    Args:
        tuned: what was measured for these parameters.
        recipe: whether the command has the operand that a library wants in another dtype, and
            whether its rows are to have the same bits in any number of them.
    """
    fields = KERNELS[stem].unpack(params)
    ordered = one_order.variant_of(stem, fields, target.uses_tma, recipe.batch_invariance)
    if ordered is not None:
        return Choice(variant=ordered)
    choice = tuned or default_choice(stem, params, target)
    problem = library_problem(stem, params) if choice.library else None
    if problem is not None and problem.cast is not None and not recipe.cast:
        return replace(choice, library="")
    return choice


def _variant(stem: str, params: bytes, target: TargetConfig) -> str:
    """Returns the variant of the own kernel where an architecture has a better one than all do."""
    fields = KERNELS[stem].unpack(params)
    if stem == "attention":
        best = tma_attention.best(fields) if target.uses_tma else None
        if best is not None:
            return best.name
        clustered = "clusters" in target.features and CLUSTER in variants(stem, params)
        return CLUSTER if clustered else ""
    if stem in tma_codes.STEMS and target.uses_tma:
        return expanded_codes.best(fields)
    if stem not in tma_matmul.STEMS or not target.uses_tma:
        return ""
    found = tma_matmul.tiles(fields, 1)
    if not found and stem != "linear":  # few rows beside a norm, which nothing streams
        return one_order.variant_of(stem, fields, tma=True, how="auto") or ""
    return found[0].name if found else ""


def prepare_libraries(
    program: CompiledProgram, target: TargetConfig, tuned: Choices
) -> tuple[CompiledProgram, Choices]:
    """Returns the program with the operands that libraries want, and the choice for each command.

    Args:
        tuned: choices that were measured; the others are the default ones.
    """
    choices: dict[tuple[str, bytes], Choice] = {}
    methods = (program.init, *program.methods)
    for method in methods:
        for command in method.commands:
            key = (program.kernels[command.kernel].name, command.params)
            choices[key] = tuned.get(key, default_choice(*key, target))
            if choices[key].library and not _can_take(program, method, command):
                choices[key] = replace(choices[key], library="")
    preparation = _Preparation(program)
    prepared = tuple(
        replace(m, commands=tuple(preparation.command(c, choices) for c in m.commands))
        for m in program.methods
    )
    return preparation.finish(prepared), choices


def with_library(image: Image, stem: str, params: bytes, choice: Choice) -> Image:
    """Returns an image that says what a library may compute, where that is the choice."""
    image = replace(image, operands=own_operands(stem, params))
    problem = library_problem(stem, params) if choice.library else None
    if problem is None or not image.config.launches:
        return image
    plan = {"plan": choice.plan, "version": choice.version} if choice.version else {}
    return replace(image, library={**problem.header, **plan})


def _problem(program: CompiledProgram, command: Command) -> LibraryProblem | None:
    return library_problem(program.kernels[command.kernel].name, command.params)


def _can_take(program: CompiledProgram, method: Method, command: Command) -> bool:
    """Tells whether a library's operands are there, or init can make them."""
    problem = _problem(program, command)
    if problem is None or problem.cast is None:
        return problem is not None
    kind = program.buffers[command.operands[problem.cast.operand].buffer].kind
    static = kind in (BufferKind.WEIGHT, BufferKind.CONSTANT, BufferKind.PERSISTENT)
    return static and method is not program.init


class _Preparation:
    """Buffers and commands of init that make operands in a library's dtype, each once."""

    def __init__(self, program: CompiledProgram) -> None:
        self._program = program
        self._buffers = list(program.buffers)
        self._persistent = program.persistent_bytes
        self._commands: list[Command] = []
        self._made: dict[tuple[Operand, int], Operand] = {}

    def command(self, command: Command, choices: Choices) -> Command:
        """Returns a command with all operands its library wants."""
        key = (self._program.kernels[command.kernel].name, command.params)
        own = own_operands(*key)
        problem = _problem(self._program, command) if choices[key].library else None
        if problem is None or problem.cast is None or len(command.operands) != own:
            return command
        wide = command.operands[problem.cast.operand]
        made = (wide, problem.cast.dtype)
        if made not in self._made:
            self._made[made] = self._cast_bias(command, wide, problem.cast)
        return replace(command, operands=(*command.operands, self._made[made]))

    def finish(self, methods: tuple[Method, ...]) -> CompiledProgram:
        """Returns the program with these methods."""
        program = self._program
        if not self._commands:
            return replace(program, methods=methods)
        kernel = Kernel("pointwise", KERNELS["pointwise"].schema)
        init = replace(program.init, commands=(*program.init.commands, *self._commands))
        return replace(
            program,
            kernels=(*program.kernels, kernel),
            buffers=tuple(self._buffers),
            init=init,
            methods=methods,
            persistent_bytes=self._persistent,
        )

    def _cast_bias(self, command: Command, wide: Operand, wanted: CastOperand) -> Operand:
        size = next(bytes for code, bytes, _ in DTYPES.values() if code == wanted.dtype)
        bytes_ = wanted.count * size
        self._buffers.append(Buffer(BufferKind.PERSISTENT, bytes_, self._persistent))
        self._persistent += (bytes_ + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        index = len(self._buffers) - 1
        operands = (replace(wide, access=Access.READ), Operand(index, 0, Access.WRITE))
        kernel = len(self._program.kernels)  # finish() puts `pointwise` there
        params = _cast(wanted.count, wanted.dtype)
        self._commands.append(Command(kernel, command.node, params, operands))
        return Operand(index, 0, Access.READ)


def _cast(count: int, dtype: int) -> bytes:
    """Returns the parameters of y = x, from dense float32 to another float dtype."""
    copy = [OPCODES["copy"][0], 1, 0, 0, 0, 0]
    return KERNELS["pointwise"].pack(
        {
            "rank": 1,
            "n_inputs": 1,
            "n_instructions": 1,
            "result": 1,
            "result_class": 0,
            "y_dtype": dtype,
            "x_dtype": [0],
            "x_class": [0],
            "shape": [count, *[1] * (RANK - 1)],
            "y_strides": [1],
            "x_strides": [1],
            "code": copy,
            "constants": [],
            "int_constants": [],
        }
    )
