"""Checkpoint: where weights come from, where that is more than a path or a mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npusim import _runtime
from npusim.errors import Error
from npusim.module_tensors import is_module, module_tensors

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose tensors are named otherwise than the program's weights.

    Stands wherever weights are asked for. A module that was wrapped before it was exported has keys
    like `model.conv.weight`; the checkpoint of what is inside says `conv.weight`:

        npusim.load("net.npubin", npusim.Checkpoint("net.safetensors", {"model.": ""}))

    Attributes:
        source: a path, a mapping or a module, as `load_weights` takes them; a module becomes the
            mapping of its tensors.
        rename: what the program's keys begin with, and what the checkpoint has in its place. The
            longest beginning that a key has counts; `{"": "module."}` puts one before all.

    Raises:
        Error: `rename` is no mapping from strings to strings.
    """

    source: str | os.PathLike[str] | Mapping[str, Any] | nn.Module
    rename: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses what is no mapping of names; asks a module for its tensors."""
        if is_module(self.source):
            tensors = {path: tensor for path, tensor, _ in module_tensors(self.source)}
            object.__setattr__(self, "source", tensors)
        pairs = self.rename.items() if isinstance(self.rename, Mapping) else [(None, None)]
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            raise Error(
                f"rename is {self.rename!r}.",
                hint='Give a mapping from beginnings of keys: {"model.": ""}.',
            )

    @property
    def names(self) -> list[tuple[str, str]]:
        """The renaming as the runtime takes it."""
        return list(self.rename.items())

    def name_of(self, key: str) -> str:
        """Returns the checkpoint's name of a program's key."""
        return _runtime.renamed(key, self.names)
