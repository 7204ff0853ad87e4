"""The stage behind `assemble`: commands become kernels specialised by their parameters.

Each distinct pair (stem, parameters) of a program is one kernel of its table, with an image of its
own. Owns the order of that table, and compiling what the cache does not have in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from npusim.codegen import cache, nvrtc
from npusim.codegen.elementwise import generated_source
from npusim.codegen.geometry import Geometry
from npusim.codegen.image import Image, pack_image
from npusim.codegen.launch import RULES
from npusim.codegen.source import kernel_source, stem_source
from npusim.errors import UnsupportedOpError
from npusim.ops.kernels import KERNELS
from npusim.program.program import Command, CompiledProgram, Kernel, Method
from npusim.targets import TargetConfig

_OPTIONS = ("--std=c++20", "-default-device")

_Key = tuple[str, bytes]  # stem and parameters


def generate(program: CompiledProgram, target: TargetConfig) -> CompiledProgram:
    """Returns the program with device code for every command, where the target needs that.

    Raises:
        UnsupportedOpError: a command needs a kernel that the target has no source for.
        TargetConstraintError: the compiler does not know the target's architecture.
        Error: the compiler is not installed; the message says how to install it.
    """
    if not target.arch:
        return program
    methods = (program.init, *program.methods)
    keys: dict[_Key, int] = {}
    for method in methods:
        for command in method.commands:
            keys.setdefault(_key(program, command), len(keys))
    _check_sources(program, target, keys)
    compiler = nvrtc.load()
    compiler.require(target.arch)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        images = list(pool.map(lambda key: _image(compiler, target.arch, *key), keys))
    kernels = tuple(
        Kernel(stem, KERNELS[stem].schema, image)
        for (stem, _), image in zip(keys, images, strict=True)
    )
    init, *others = (_renumbered(program, method, keys) for method in methods)
    return replace(program, kernels=kernels, init=init, methods=tuple(others))


def specialise(stem: str, params: bytes) -> tuple[str, Geometry, tuple[str, ...]]:
    """Returns a kernel's source, geometry and compiler options, without the architecture."""
    fields = KERNELS[stem].unpack(params)
    geometry = RULES[stem](fields)
    body = generated_source(stem, fields) or stem_source(stem)
    assert body is not None, stem
    macros = (f"-DNPUSIM_{name}={value}" for name, value in geometry.defines.items())
    return kernel_source(stem, fields, body), geometry, (*_OPTIONS, *macros)


def _key(program: CompiledProgram, command: Command) -> _Key:
    return program.kernels[command.kernel].name, command.params


def _check_sources(program: CompiledProgram, target: TargetConfig, keys: Iterable[_Key]) -> None:
    missing = sorted({stem for stem, _ in keys if stem not in RULES})
    if missing:
        methods = (program.init, *program.methods)
        nodes = (
            f"  {node.op} ({node.name}): no kernel {stem}"
            for method in methods
            for command in method.commands
            if (stem := _key(program, command)[0]) in missing
            for node in (program.nodes[command.node],)
        )
        raise UnsupportedOpError(
            f"Some nodes cannot run on target '{target.name}':\n" + "\n".join(dict.fromkeys(nodes)),
            hint="\nReplace these operations in the model, or compile for another target.",
        )


def _image(compiler: nvrtc.Nvrtc, arch: str, stem: str, params: bytes) -> bytes:
    source, geometry, options = specialise(stem, params)
    cubin = b""
    if geometry.launches:
        all_options = (f"--gpu-architecture={arch}", *options)
        name = cache.key(source, all_options, compiler.version)
        stored = cache.read(name)
        if stored is None:
            stored, _ = compiler.compile(source, all_options, f"{stem}.cu")
            cache.write(name, stored)
        cubin = stored
    return pack_image(Image(arch, geometry, cubin, source, options))


def _renumbered(program: CompiledProgram, method: Method, keys: dict[_Key, int]) -> Method:
    commands = (replace(c, kernel=keys[_key(program, c)]) for c in method.commands)
    return replace(method, commands=tuple(commands))
