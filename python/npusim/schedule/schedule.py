"""How a described machine computes a command: tiles, order of loops, what lies where.

A schedule is data. It is chosen by `search.py`, kept in a program's optional section (`section.py`)
and walked, tile by tile, by the timing model. A command has one, or several that follow one another
(attention: two products with a softmax between them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from npusim.abi.scalar import OPCODES
from npusim.ir.types import DTYPES
from npusim.targets.records import FROM_MINUS_1, Contradiction

AXES = ("b", "m", "n", "k")
DRAM = "dram"
Form = Literal["product", "conv", "depthwise", "rows", "elements", "move"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Extents along the axes of a command's loops.

    Of a product, y[b, m, n] = sum over k of x[b, m, k] * w[b, k, n]. Of a convolution `b` are
    groups, `m` pixels of the output in all items, `n` and `k` channels out and in of a group; what
    is summed over besides are its `taps`. Of rows, `m` counts them and `n` their elements; of
    elements and moves, `m` counts elements.
    """

    b: int = 1
    m: int = 1
    n: int = 1
    k: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            if getattr(self, axis) < 1:
                raise Contradiction("an axis has at least 1.", axis)

    def of(self, axis: str) -> int:
        """Returns the extent along an axis, by its letter."""
        return int(getattr(self, axis))


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """Where an operand of a command lies, and what of it is moved.

    A tile is read before the first step whose coordinates along `axes` differ from those of the
    step before, or with `resident` before the first step ever that has these coordinates. It is
    written after the last step of its coordinates.

    Attributes:
        operand: its index in the command; -1: made and used within the command alone.
        role: "x", "w", "y", …: what it is to the command.
        axes: letters of the axes that it has; others repeat it.
        write: whether the command makes it.
        source: "dram", or the memory that it lies in all the time, so that nothing is moved.
        tile_bytes: of a whole tile.
        row_bytes: of them, that lie side by side in DRAM.
        transfers: tiles that are moved.
        total_bytes: that are moved.
        resident: all of it stays in the memory until the command ends.
    """

    operand: int = field(metadata=FROM_MINUS_1)
    role: str
    axes: str
    write: bool
    source: str
    tile_bytes: int
    row_bytes: int
    transfers: int
    total_bytes: int
    resident: bool = False

    def __post_init__(self) -> None:
        for at, axis in enumerate(self.axes):
            if axis not in AXES or axis in self.axes[:at]:
                raise Contradiction("axes are some of 'bmnk', each once.", "axes")
        if self.source != DRAM and (self.transfers or self.total_bytes):
            raise Contradiction("what lies on the chip is not moved.", "transfers")


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one command, or a part of one, is computed.

    Attributes:
        command: its index in the method.
        form: which loops it has.
        unit: what computes it: the array, the vector unit, the DMA alone, or the host.
        dtype: of what is computed with.
        sizes: of the whole command.
        tile: of a step; the last one along an axis is what is left.
        loops: axes, the outermost first. k is always the innermost, so that sums stay where they
            are added up.
        operands: in the order of the command.
        vector: by scalar opcode, elements that pass the vector unit.
        taps: kernel positions of a convolution.
        sums, addends: how many sums over lanes the vector unit makes, of how many elements each.
        memory: that tiles are held in.
        bytes: of it that are in use, with what is kept there for other commands.
        double_buffer: the next tiles are loaded while one is computed.
        cycles: estimate by which it was chosen, of the core's clock; `least_cycles`: what no
            schedule can be below by that estimate.
    """

    command: int
    form: Form
    unit: Literal["mxu", "vpu", "dma", "host"]
    dtype: str
    sizes: Sizes
    tile: Sizes
    loops: tuple[str, ...]
    operands: tuple[OperandPlan, ...]
    vector: Mapping[str, float] = field(default_factory=dict, hash=False)
    taps: int = 1
    memory: str = ""
    bytes: int = 0
    double_buffer: bool = False
    cycles: float = 0.0
    least_cycles: float = 0.0
    sums: int = 0
    addends: int = 1

    def __post_init__(self) -> None:
        if sorted(self.loops) != sorted(set(self.loops)) or not set(self.loops) <= set(AXES):
            raise Contradiction("loops are axes, each once.", "loops")
        if "k" in self.loops[:-1]:
            raise Contradiction("k is the innermost loop.", "loops")
        for axis in AXES:
            if self.tile.of(axis) > self.sizes.of(axis):
                raise Contradiction("a tile is no greater than the whole.", "tile", axis)
            if axis not in self.loops and self.trips(axis) > 1:
                raise Contradiction("an axis of several tiles is looped over.", "loops")
        for key in ("taps", "addends"):
            if getattr(self, key) < 1:
                raise Contradiction("there is at least 1.", key)
        if self.dtype not in DTYPES:
            raise Contradiction(f"no dtype is called that. {', '.join(DTYPES)}.", "dtype")
        if unknown := [op for op in self.vector if op not in OPCODES]:
            raise Contradiction("no scalar operation is called that.", "vector", unknown[0])

    def trips(self, axis: str) -> int:
        """Returns how many tiles there are along an axis."""
        return -(-self.sizes.of(axis) // self.tile.of(axis))

    @property
    def steps(self) -> int:
        """How many tiles are computed."""
        trips = [self.trips(axis) for axis in AXES]
        return trips[0] * trips[1] * trips[2] * trips[3]

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the array, without what is padded."""
        if self.form not in ("product", "conv", "depthwise"):
            return 0
        return self.sizes.b * self.sizes.m * self.sizes.n * self.sizes.k * self.taps

    @property
    def dram_bytes(self) -> int:
        """Bytes that it moves from and to DRAM."""
        return sum(plan.total_bytes for plan in self.operands)
