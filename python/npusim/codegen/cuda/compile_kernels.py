"""Images of CUDA kernels: what a kernel is compiled from, and compiling what the cache has not."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from npusim.abi.kernels import KERNELS
from npusim.codegen import cache
from npusim.codegen.choice import Choice
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.choices import with_library
from npusim.codegen.cuda.elementwise import generated_source
from npusim.codegen.cuda.geometry import Geometry
from npusim.codegen.cuda.image import Image, pack_image
from npusim.codegen.cuda.launch import RULES
from npusim.codegen.cuda.source import kernel_source, stem_source
from npusim.codegen.cuda.variants import variants
from npusim.codegen.wanted import WantedImage
from npusim.targets import TargetConfig

logger = logging.getLogger(__name__)

_CACHE = cache.KernelCache("cuda", b"\x7fELF")
_OPTIONS = ("--std=c++20", "-default-device")


def compile_images(
    images: Sequence[tuple[WantedImage, Choice]], target: TargetConfig
) -> list[bytes]:
    """Returns images in order; each with the choice of who computes it.

    Raises:
        TargetConstraintError: the compiler does not know the architecture.
        Error: the compiler is not installed.
    """
    compiler = nvrtc.load()
    compiler.require(target.arch)
    compiled: list[str] = []  # stems of kernels that the cache had not
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        made = list(pool.map(lambda row: _image(compiler, target, compiled, *row), images))
    logger.info(
        "%d kernels for %s: %d compiled, the others from %s or of libraries",
        *(len(images), target.arch, len(compiled), _CACHE.folder()),
    )
    return made


def specialise(
    stem: str, params: bytes, unwritten: int = 0, variant: str = ""
) -> tuple[str, Geometry, tuple[str, ...]]:
    """Returns a kernel's source, geometry and compiler options, without the architecture.

    Args:
        unwritten: a mask of `unwritten_operands`.
        variant: a geometry of `variants`, instead of the rule's.
    """
    fields = KERNELS[stem].unpack(params)
    geometry = variants(stem, params)[variant] if variant else RULES[stem](fields)
    body = generated_source(stem, fields) or stem_source(stem)
    assert body is not None, stem
    macros = (f"-DNPUSIM_{name}={value}" for name, value in geometry.defines.items())
    source = kernel_source(stem, fields, body, unwritten)
    return source, geometry, (*_OPTIONS, *macros)


def _image(
    compiler: nvrtc.Nvrtc,
    target: TargetConfig,
    compiled: list[str],
    wanted: WantedImage,
    choice: Choice,
) -> bytes:
    stem, params, arch = wanted.stem, wanted.params, target.arch
    source, geometry, options = specialise(stem, params, wanted.unwritten, choice.variant)
    geometry = geometry.on(target.features)
    cubin = b""
    if geometry.launches:
        all_options = (f"--gpu-architecture={arch}", *options)
        name = cache.key(source, all_options, compiler.version)
        stored = _CACHE.read(name)
        logger.debug("kernel %s: %s %s", stem, "cache hit" if stored else "cache miss", name)
        if stored is None:
            compiled.append(stem)
            stored, _ = compiler.compile(source, all_options, f"{stem}.cu")
            _CACHE.write(name, stored)
        cubin = stored
    image = Image(arch, geometry, cubin, source, options, dependent=geometry.overlaps)
    image = replace(image, recipe=wanted.recipe)
    return pack_image(with_library(image, stem, params, choice))
