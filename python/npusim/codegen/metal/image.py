"""The image of a Metal kernel: what a program's kernel table holds for each specialised kernel.

In the frame of `codegen/image_bytes.py`, with the magic `NPUMETL\\x01`. Its blob is the source,
text in the Metal Shading Language, zlib-compressed and self-contained: only Apple's compilers make
device code of it, so the runtime does, where it loads a program. `cpp/metal` reads the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npusim.codegen.image_bytes import (
    MALFORMED,
    blob,
    frame,
    recipe_fields,
    recipe_of,
    unframe,
)
from npusim.codegen.launch_config import Launch, LaunchConfig
from npusim.codegen.wanted import Recipe
from npusim.errors import ProgramFormatError

MAGIC = b"NPUMETL\x01"


@dataclass(frozen=True)
class Image:
    """A kernel's text and how it is dispatched.

    Attributes:
        arch: the oldest GPU family that runs it, such as "apple7".
        source: empty where nothing is launched.
        recipe: of a kernel whose parameters depend on the sizes of a call.
        library: what MPS may compute in place of the launches (`mps.py`).
        batch: most dispatches that a command buffer with this kernel holds; 0: any number.
    """

    arch: str
    config: LaunchConfig
    source: str
    recipe: Recipe | None = None
    library: Mapping[str, Any] | None = None
    batch: int = 0


def pack_image(image: Image) -> bytes:
    """Returns the bytes of an image."""
    source = zlib.compress(image.source.encode(), 9) if image.source else b""
    header: dict[str, Any] = {
        "arch": image.arch,
        "launches": [
            {"entry": x.entry, "grid": x.grid, "block": x.block, "shared": x.shared}
            for x in image.config.launches
        ],
        "scratch": image.config.scratch,
        "failure": image.config.failure,
        "source": [0, len(source)],
    }
    if image.batch:
        header["batch"] = image.batch
    if image.recipe is not None:
        header["recipe"] = recipe_fields(image.recipe)
    if image.library is not None:
        header["library"] = image.library
    return frame(MAGIC, header, source)


def unpack_image(data: bytes) -> Image:
    """Inverse of `pack_image`, but for the macros, which stand in the text.

    Raises:
        ProgramFormatError: not an image, or cut short.
    """
    try:
        header, blobs = unframe(MAGIC, data)
        launches = tuple(
            Launch(tuple(x["grid"]), tuple(x["block"]), x["shared"], x["entry"])
            for x in header["launches"]
        )
        source = blob(blobs, header["source"])
        return Image(
            header["arch"],
            LaunchConfig(launches, header["scratch"], header["failure"]),
            zlib.decompress(source).decode() if source else "",
            recipe_of(header),
            header.get("library"),
            header.get("batch", 0),
        )
    except (*MALFORMED, zlib.error) as error:
        raise ProgramFormatError(f"A Metal kernel's image is malformed: {error}.") from error
