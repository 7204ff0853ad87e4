"""The image of a CUDA kernel: what a program's kernel table holds for each specialised kernel.

`NPUCUDA\\x01`, the length of a JSON header (u32, little-endian), the header, and after it the
blobs it points to: the cubin for its architecture, and the source, zlib-compressed and
self-contained, which the runtime compiles where the machine's GPU is of another architecture.
`cpp/cuda` reads the same bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from npusim.codegen.cuda.launch_config import Launch, LaunchConfig, TensorMap
from npusim.codegen.wanted import Recipe
from npusim.errors import ProgramFormatError

MAGIC = b"NPUCUDA\x01"
_LENGTH = struct.Struct("<I")


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
    if image.config.maps:
        header["maps"] = [asdict(x) for x in image.config.maps]
    if image.operands is not None:
        header["operands"] = image.operands
    if image.library is not None:
        header["library"] = dict(image.library)
    if image.recipe is not None:
        recipe = image.recipe
        header["recipe"] = {
            "settled": recipe.unwritten,
            "libraries": recipe.libraries,
            "narrowed": recipe.cast,
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    return MAGIC + _LENGTH.pack(len(text)) + text + image.cubin + source


def unpack_image(data: bytes) -> Image:
    """Inverse of `pack_image`, but for the macros, which stand among the options.

    Raises:
        ProgramFormatError: not an image, or cut short.
    """
    try:
        header, blobs = _parts(data)
        launches = tuple(
            Launch(tuple(x["grid"]), tuple(x["block"]), x["shared"], x["entry"], x.get("elsewhere"))
            for x in header["launches"]
        )
        maps = tuple(TensorMap(**x) for x in header.get("maps", ()))
        return Image(
            header["arch"],
            LaunchConfig(launches, header["scratch"], header["failure"], maps=maps),
            _blob(blobs, header["cubin"]),
            zlib.decompress(_blob(blobs, header["source"])).decode(),
            tuple(header["options"]),
            header["dependent"],
            header.get("operands"),
            header.get("library"),
            _recipe(header),
        )
    except (ValueError, KeyError, TypeError, struct.error, zlib.error) as error:
        raise ProgramFormatError(f"A CUDA kernel's image is malformed: {error}.") from error


def read_recipe(data: bytes) -> Recipe:
    """Returns the recipe of an image.

    Raises:
        ProgramFormatError: not an image, or one without a recipe.
    """
    try:
        header, _ = _parts(data)
        recipe = _recipe(header)
        if recipe is None:
            raise ValueError("there is no recipe")
        return recipe
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise ProgramFormatError(f"A CUDA kernel's image is malformed: {error}.") from error


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the header and the blobs."""
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("the magic bytes are others")
    start = len(MAGIC) + _LENGTH.size
    size = _LENGTH.unpack_from(data, len(MAGIC))[0]
    return json.loads(data[start : start + size]), data[start + size :]


def _recipe(header: Mapping[str, Any]) -> Recipe | None:
    stored = header.get("recipe")
    if stored is None:
        return None
    return Recipe(stored["settled"], stored["libraries"], stored["narrowed"])


def _blob(data: bytes, place: list[int]) -> bytes:
    offset, size = place
    if not 0 <= offset <= offset + size <= len(data):
        raise ValueError(f"bytes {offset} … {offset + size} pass the end at {len(data)}")
    return data[offset : offset + size]
