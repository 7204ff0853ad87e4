"""The frame that images of device code share: magic bytes, a JSON header, and blobs after it.

After the magic stands the header's length (u32, little-endian). The header says where in what
follows it each blob lies, as [offset, size].
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from npusim.codegen.wanted import Recipe

_LENGTH = struct.Struct("<I")
# What reading a malformed image may raise.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, struct.error)


def frame(magic: bytes, header: Mapping[str, Any], blobs: bytes) -> bytes:
    """Returns the bytes of an image."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return magic + _LENGTH.pack(len(text)) + text + blobs


def unframe(magic: bytes, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the header and the blobs; one of MALFORMED for other bytes."""
    if data[: len(magic)] != magic:
        raise ValueError("the magic bytes are others")
    start = len(magic) + _LENGTH.size
    size = _LENGTH.unpack_from(data, len(magic))[0]
    return json.loads(data[start : start + size]), data[start + size :]


def blob(data: bytes, place: list[int]) -> bytes:
    """Returns the blob at a place of the header; ValueError where it passes the end."""
    offset, size = place
    if not 0 <= offset <= offset + size <= len(data):
        raise ValueError(f"bytes {offset} … {offset + size} pass the end at {len(data)}")
    return data[offset : offset + size]


def recipe_fields(recipe: Recipe) -> dict[str, Any]:
    """Returns a recipe as the header has it."""
    fields = {
        "settled": recipe.unwritten,
        "libraries": recipe.libraries,
        "narrowed": recipe.cast,
    }
    if recipe.batch_invariance != "none":
        fields["batch_invariance"] = recipe.batch_invariance
    return fields


def recipe_of(header: Mapping[str, Any]) -> Recipe | None:
    """Returns the recipe of a header; None where it has none."""
    stored = header.get("recipe")
    if stored is None:
        return None
    invariance = stored.get("batch_invariance", "none")
    return Recipe(stored["settled"], stored["libraries"], stored["narrowed"], invariance)
