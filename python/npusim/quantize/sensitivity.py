"""Which layers a bound leaves in bytes: those that do most harm by measure go first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from npusim.compile import Progress
from npusim.quantize.layers import Layer


@dataclass(frozen=True)
class Choice:
    """The layers that multiply bytes, the metric with them, and how it was found.

    Attributes:
        value: None where nothing was measured.
        left_out: names of the others, in the order in which they went.
        alone: the metric with one layer in bytes and no other, by name; where it was measured.
    """

    layers: tuple[Layer, ...]
    value: float | None
    left_out: tuple[str, ...]
    alone: Mapping[str, float]


def choose(
    layers: Sequence[Layer],
    value_of: Callable[[Sequence[Layer]], float],
    bound: float | None,
    measure_all: bool,
    tell: Progress,
) -> Choice:
    """Leaves layers out, the most sensitive first, until the metric is at least the bound.

    The order is that of the metric with each layer alone in bytes, measured once. Without any
    layer in bytes the graph is the float32 one, so the search ends.

    Args:
        value_of: measures the metric with some layers in bytes; greater is better.
        bound: None leaves none out.
        measure_all: measure each layer alone even where the bound is reached at once.
    """
    tell("measuring", 0, 1)
    kept, value = list(layers), value_of(layers)
    reached = bound is None or value >= bound
    alone: dict[str, float] = {}
    if measure_all or not reached:
        for done, layer in enumerate(layers):
            tell(f"measuring {layer.name}", done, len(layers))
            alone[layer.name] = value_of([layer])
    left_out: list[str] = []
    while bound is not None and not value >= bound and kept:
        worst = min(kept, key=lambda layer: alone[layer.name])
        kept.remove(worst)
        left_out.append(worst.name)
        tell(f"leaving {worst.name} out", len(left_out), len(layers))
        value = value_of(kept)
    return Choice(tuple(kept), value, tuple(left_out), alone)
