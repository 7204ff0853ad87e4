"""The stage behind `assemble`: commands become kernels specialised by their parameters.

Owns what a kernel is compiled from, and compiling what the cache does not have in parallel; which
kernels there are is `kernel_table.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from npusim.codegen import cache, nvrtc
from npusim.codegen.choices import Choice, Choices, prepare_libraries, sized_choice, with_library
from npusim.codegen.elementwise import generated_source
from npusim.codegen.geometry import Geometry
from npusim.codegen.image import Image, pack_image
from npusim.codegen.kernel_table import KernelTable, WantedImage
from npusim.codegen.launch import RULES
from npusim.codegen.source import kernel_source, stem_source
from npusim.codegen.variants import variants
from npusim.errors import UnsupportedOpError
from npusim.ops.kernels import KERNELS
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

_OPTIONS = ("--std=c++20", "-default-device")


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
        TargetConstraintError: the compiler does not know the target's architecture.
        ShapeError: sizes that calls cannot have.
        Error: the compiler is not installed; the message says how to install it.
    """
    wanted = [*prepared_sizes(program), *sizes]
    check_sizes(program.methods, wanted)
    if not target.arch:
        return program
    program, choices = prepare_libraries(_at_greatest(program), target, tuned or {})
    table = KernelTable(program, target)
    prepared = {m.name: combinations(m, wanted) for m in program.methods}
    init = table.add(program.init, [{}])
    methods = tuple(table.add(m, prepared[m.name]) for m in program.methods)
    _check_sources(program, target, table.stems)
    images = [(image, _choice(image, target, choices, tuned or {})) for image in table.images()]
    return replace(
        program,
        kernels=table.kernels(compile_images(images, target.arch)),
        init=init,
        methods=methods,
        metadata=_with_sizes(program, prepared),
    )


def compile_images(images: Sequence[tuple[WantedImage, Choice]], arch: str) -> list[bytes]:
    """Returns images in order; each with the choice of who computes it.

    Raises:
        TargetConstraintError: the compiler does not know the architecture.
        Error: the compiler is not installed.
    """
    compiler = nvrtc.load()
    compiler.require(arch)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda row: _image(compiler, arch, *row), images))


def specialise(
    stem: str, params: bytes, settled: int = 0, variant: str = ""
) -> tuple[str, Geometry, tuple[str, ...]]:
    """Returns a kernel's source, geometry and compiler options, without the architecture.

    Args:
        settled: a mask of `settled_operands`.
        variant: a geometry of `variants`, instead of the rule's.
    """
    fields = KERNELS[stem].unpack(params)
    geometry = variants(stem, params)[variant] if variant else RULES[stem](fields)
    body = generated_source(stem, fields) or stem_source(stem)
    assert body is not None, stem
    macros = (f"-DNPUSIM_{name}={value}" for name, value in geometry.defines.items())
    source = kernel_source(stem, fields, body, settled)
    return source, geometry, (*_OPTIONS, *macros)


def _at_greatest(program: CompiledProgram) -> CompiledProgram:
    """Returns the program with parameters of commands as they are at the greatest sizes."""

    def sized(method: Method) -> Method:
        greatest = greatest_sizes(method)
        commands = (replace(c, params=params_at(c, greatest)) for c in method.commands)
        return replace(method, commands=tuple(commands))

    return replace(program, methods=tuple(map(sized, program.methods)))


def _choice(image: WantedImage, target: TargetConfig, choices: Choices, tuned: Choices) -> Choice:
    key = (image.stem, image.params)
    if image.recipe is None:
        return choices.get(key, Choice())
    return sized_choice(*key, target, tuned.get(key), image.recipe.narrowed)


def _with_sizes(
    program: CompiledProgram, prepared: Mapping[str, Sequence[Sizes]]
) -> Mapping[str, object]:
    """Returns the metadata with the sizes that methods have device code for."""
    symbolic = {m.name: [dict(s) for s in prepared[m.name]] for m in program.methods if m.symbols}
    return {**program.metadata, PREPARED: symbolic} if symbolic else program.metadata


def _check_sources(program: CompiledProgram, target: TargetConfig, stems: Iterable[str]) -> None:
    missing = sorted(stem for stem in stems if stem not in RULES)
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


def _image(compiler: nvrtc.Nvrtc, arch: str, wanted: WantedImage, choice: Choice) -> bytes:
    stem, params = wanted.stem, wanted.params
    source, geometry, options = specialise(stem, params, wanted.settled, choice.variant)
    geometry = geometry.on(arch)
    cubin = b""
    if geometry.launches:
        all_options = (f"--gpu-architecture={arch}", *options)
        name = cache.key(source, all_options, compiler.version)
        stored = cache.read(name)
        if stored is None:
            stored, _ = compiler.compile(source, all_options, f"{stem}.cu")
            cache.write(name, stored)
        cubin = stored
    image = Image(arch, geometry, cubin, source, options, dependent=geometry.overlaps)
    image = replace(image, recipe=wanted.recipe)
    return pack_image(with_library(image, stem, params, choice))
