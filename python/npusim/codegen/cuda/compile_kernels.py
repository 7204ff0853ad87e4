"""Images of CUDA kernels: what a kernel is compiled from, and compiling what the cache has not."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen import cache
from npusim.codegen.choice import Choice
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.choices import with_library
from npusim.codegen.cuda.dialect import DIALECT
from npusim.codegen.cuda.image import Image, pack_image
from npusim.codegen.cuda.source import expanded_source, kernel_source, stem_source
from npusim.codegen.cuda.variants import config_of
from npusim.codegen.elementwise import generated_source
from npusim.codegen.launch_config import LaunchConfig
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
) -> tuple[str, LaunchConfig, tuple[str, ...]]:
    """Returns a kernel's source, config and compiler options, without the architecture.

    Args:
        unwritten: a mask of `unwritten_operands`.
        variant: a name that `config_of` knows, instead of the rule's.
    """
    fields = KERNELS[stem].unpack(params)
    config = config_of(stem, params, variant)
    macros = (f"-DNPUSIM_{name}={value}" for name, value in config.defines.items())
    return source_of(stem, fields, config, unwritten), config, (*_OPTIONS, *macros)


def source_of(stem: str, fields: Params, config: LaunchConfig, unwritten: int = 0) -> str:
    """Returns what NVRTC is given for a command of a launch configuration."""
    if config.product is not None:
        return expanded_source(fields, config.product, unwritten)
    body = generated_source(stem, fields, DIALECT) or stem_source(stem)
    assert body is not None, stem
    return kernel_source(stem, fields, body, unwritten)


def _image(
    compiler: nvrtc.Nvrtc,
    target: TargetConfig,
    compiled: list[str],
    wanted: WantedImage,
    choice: Choice,
) -> bytes:
    stem, params, arch = wanted.stem, wanted.params, target.arch
    source, config, options = specialise(stem, params, wanted.unwritten, choice.variant)
    config = config.on(target.features)
    cubin = b""
    if config.launches:
        all_options = (f"--gpu-architecture={arch}", *options)
        name = cache.key(source, all_options, compiler.version)
        stored = _CACHE.read(name)
        logger.debug("kernel %s: %s %s", stem, "cache hit" if stored else "cache miss", name)
        if stored is None:
            compiled.append(stem)
            stored, _ = compiler.compile(source, all_options, f"{stem}.cu")
            _CACHE.write(name, stored)
        cubin = stored
    image = Image(arch, config, cubin, source, options, dependent=config.overlaps)
    image = replace(image, recipe=wanted.recipe)
    return pack_image(with_library(image, stem, params, choice))
