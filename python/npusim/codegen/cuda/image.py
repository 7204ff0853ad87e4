"""The image of a CUDA kernel: what a program's kernel table holds for each specialised kernel.

In the frame of `codegen/image_bytes.py`, with the magic `NPUCUDA\\x01`. Its blobs are the cubin for
its architecture, and the source, zlib-compressed and self-contained, which the runtime compiles
where the machine's GPU is of another architecture.
`cpp/cuda` reads the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from npusim.codegen.image_bytes import (
    MALFORMED,
    blob,
    frame,
    recipe_fields,
    recipe_of,
    unframe,
)
from npusim.codegen.launch_config import Launch, LaunchConfig, TensorMap
from npusim.codegen.wanted import Recipe
from npusim.errors import ProgramFormatError

MAGIC = b"NPUCUDA\x01"


@dataclass(frozen=True)
class Image:
    """A kernel's device code and how to launch it.

    Attributes:
        options: what the source is compiled with, but for the architecture.
        dependent: the launches may start while the one before still runs: every thread waits for it
            (`wait_on_dependencies` of kernels/cuda/common/dependent_launch.h).
        operands: how many of the command's the launches take; None: all of them.
        library: what a library may compute in place of the launches (docs/npubin.md, "Libraries").
        recipe: of a kernel whose parameters depend on the sizes of a call.
    """

    arch: str
    config: LaunchConfig
    cubin: bytes
    source: str
    options: tuple[str, ...]
    dependent: bool = False
    operands: int | None = None
    library: Mapping[str, Any] | None = None
    recipe: Recipe | None = None


def pack_image(image: Image) -> bytes:
    """Returns the bytes of an image."""
    source = zlib.compress(image.source.encode(), 9)
    header: dict[str, Any] = {
        "arch": image.arch,
        "launches": [
            {"entry": x.entry, "grid": x.grid, "block": x.block, "shared": x.shared}
            | ({} if x.elsewhere is None else {"elsewhere": x.elsewhere})
            for x in image.config.launches
        ],
        "scratch": image.config.scratch,
        "failure": image.config.failure,
        "dependent": image.dependent,
        "cubin": [0, len(image.cubin)],
        "source": [len(image.cubin), len(source)],
        "options": image.options,
    }
    if image.config.exchange:
        header["exchange"] = True
    if image.config.maps:
        header["maps"] = [asdict(x) for x in image.config.maps]
    if image.operands is not None:
        header["operands"] = image.operands
    if image.library is not None:
        header["library"] = dict(image.library)
    if image.recipe is not None:
        header["recipe"] = recipe_fields(image.recipe)
    return frame(MAGIC, header, image.cubin + source)


def unpack_image(data: bytes) -> Image:
    """Inverse of `pack_image`, but for the macros, which stand among the options.

    Raises:
        ProgramFormatError: not an image, or cut short.
    """
    try:
        header, blobs = unframe(MAGIC, data)
        launches = tuple(
            Launch(tuple(x["grid"]), tuple(x["block"]), x["shared"], x["entry"], x.get("elsewhere"))
            for x in header["launches"]
        )
        maps = tuple(TensorMap(**x) for x in header.get("maps", ()))
        return Image(
            header["arch"],
            LaunchConfig(
                launches,
                header["scratch"],
                header["failure"],
                exchange=header.get("exchange", False),
                maps=maps,
            ),
            blob(blobs, header["cubin"]),
            zlib.decompress(blob(blobs, header["source"])).decode(),
            tuple(header["options"]),
            header["dependent"],
            header.get("operands"),
            header.get("library"),
            recipe_of(header),
        )
    except (*MALFORMED, zlib.error) as error:
        raise ProgramFormatError(f"A CUDA kernel's image is malformed: {error}.") from error


def read_recipe(data: bytes) -> Recipe:
    """Returns the recipe of an image.

    Raises:
        ProgramFormatError: not an image, or one without a recipe.
    """
    try:
        header, _ = unframe(MAGIC, data)
        recipe = recipe_of(header)
        if recipe is None:
            raise ValueError("there is no recipe")
        return recipe
    except MALFORMED as error:
        raise ProgramFormatError(f"A CUDA kernel's image is malformed: {error}.") from error
