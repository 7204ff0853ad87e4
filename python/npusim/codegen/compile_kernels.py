"""The stage behind `assemble`: commands become kernels specialised by their parameters.

Each distinct triple (stem, parameters, settled operands) of a program is one kernel of its table,
with an image of its own; the third is 0 where the source does not ask for it. Owns the order of
that table, and compiling what the cache does not have in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from npusim.codegen import cache, nvrtc
from npusim.codegen.choices import Choice, Choices, prepare_libraries, with_library
from npusim.codegen.elementwise import generated_source
from npusim.codegen.geometry import Geometry
from npusim.codegen.image import Image, pack_image
from npusim.codegen.launch import RULES
from npusim.codegen.settled import settled_operands
from npusim.codegen.source import kernel_source, orders_itself, stem_source
from npusim.codegen.variants import variants
from npusim.errors import TargetConstraintError, UnsupportedOpError
from npusim.ir.symbolic import describe
from npusim.ops.kernels import KERNELS
from npusim.program.program import CompiledProgram, Kernel, Method
from npusim.targets import TargetConfig

_OPTIONS = ("--std=c++20", "-default-device")

_Key = tuple[str, bytes, int]  # stem, parameters, settled operands


def generate(
    program: CompiledProgram, target: TargetConfig, tuned: Choices | None = None
) -> CompiledProgram:
    """Returns the program with device code for every command, where the target needs that.

    Args:
        program: as assembled, or generated before.
        tuned: measured choices; commands without one have the default.

    Raises:
        UnsupportedOpError: a command needs a kernel that the target has no source for.
        TargetConstraintError: the compiler does not know the target's architecture, or the program
            has symbolic sizes.
        Error: the compiler is not installed; the message says how to install it.
    """
    if not target.arch:
        return program
    symbols = {s for method in program.methods for s in method.symbols}
    if symbols:
        raise TargetConstraintError(
            f"Target '{target.name}' compiles sizes into its kernels, and the model leaves some "
            f"open ({describe(symbols)}).",
            hint="Fix them, once for each that is called (npusim.specialize), or compile for cpu.",
        )
    program, choices = prepare_libraries(program, target, tuned or {})
    methods = (program.init, *program.methods)
    keys: dict[_Key, int] = {}
    for method in methods:
        for key in _keys(program, method):
            keys.setdefault(key, len(keys))
    _check_sources(program, target, keys)
    compiler = nvrtc.load()
    compiler.require(target.arch)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        images = list(
            pool.map(
                lambda key: _image(compiler, target.arch, key, choices.get(key[:2], Choice())), keys
            )
        )
    kernels = tuple(
        Kernel(stem, KERNELS[stem].schema, image)
        for (stem, _, _), image in zip(keys, images, strict=True)
    )
    init, *others = (_renumbered(program, method, keys) for method in methods)
    return replace(program, kernels=kernels, init=init, methods=tuple(others))


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


def _keys(program: CompiledProgram, method: Method) -> list[_Key]:
    """Returns the key of each command."""
    return [
        (stem, command.params, settled if orders_itself(stem) else 0)
        for command, settled in zip(method.commands, settled_operands(program, method), strict=True)
        for stem in (program.kernels[command.kernel].name,)
    ]


def _check_sources(program: CompiledProgram, target: TargetConfig, keys: Iterable[_Key]) -> None:
    missing = sorted({stem for stem, _, _ in keys if stem not in RULES})
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


def _image(compiler: nvrtc.Nvrtc, arch: str, key: _Key, choice: Choice) -> bytes:
    stem, params, settled = key
    source, geometry, options = specialise(stem, params, settled, choice.variant)
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
    return pack_image(with_library(image, stem, params, choice))


def _renumbered(program: CompiledProgram, method: Method, keys: dict[_Key, int]) -> Method:
    chosen = zip(method.commands, _keys(program, method), strict=True)
    return replace(method, commands=tuple(replace(c, kernel=keys[key]) for c, key in chosen))
