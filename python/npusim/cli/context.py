"""How many tokens a language model says that it can hold."""

from __future__ import annotations

import json
from pathlib import Path


def known_positions(folder: Path, most: int) -> int:
    """Returns how many positions a model's configuration names, `most` at most.

    Where it names none, or cannot be read, that is `most`: the extraction says what is wrong.
    """
    from npusim.runtime.gguf import SUFFIX, gguf_context

    if folder.suffix == SUFFIX:
        return min(gguf_context(folder) or most, most)
    try:
        known = json.loads((folder / "config.json").read_bytes()).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError, RecursionError):
        return most
    return min(known, most) if isinstance(known, int) and known > 0 else most
