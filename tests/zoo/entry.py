"""An entry of the zoo: a name, a family, and how its model and example inputs are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.zoo.weights import settle, vary

# A model with whatever weights it starts with, and its example inputs by name.
Build = Callable[[], tuple[nn.Module, dict[str, Tensor]]]


@dataclass(frozen=True)
class Entry:
    """One architecture, small.

    Attributes:
        name: of the architecture and what stands on top of it, unique.
        family: the heading it stands under.
        make: the model and its inputs; draws from torch's generator, which `build` seeds.
        drawn: whether the weights are to be drawn anew; not for models that draw their own.
    """

    name: str
    family: str
    make: Build
    drawn: bool = True

    def build(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """Returns the model in evaluation mode and its inputs; equal in every process."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, inputs = self.make()
            _leave_out_caches(model.eval())
            if self.drawn:
                vary(model)
                settle(model, inputs)
        return model, inputs


def entries(family: str, makes: Mapping[str, Build], *, drawn: bool = True) -> dict[str, Entry]:
    """Returns the entries of one family by name."""
    return {name: Entry(name, family, make, drawn) for name, make in makes.items()}


def _leave_out_caches(model: nn.Module) -> None:
    """A cache of keys and values among the results is state, not an answer."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False
