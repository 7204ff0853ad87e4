"""Launch configurations: what Python decides beside the source of a stem, on any GPU.

A stem's rule takes the command's parameters and returns its LaunchConfig; the constants that source
and rule must agree on are defined by the rule and reach the source as macros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from npusim.abi.kernels import Params

MAX_GRID = (2**31 - 1, 65535, 65535)
# What rules and kernels are written for: every GPU of NVIDIA's and Apple's has these.
LANES = 32  # threads of a warp, or SIMD group
MAX_THREADS = 1024  # of a block, or threadgroup


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of an entry: numbers of blocks and threads, and bytes of dynamic shared memory.

    Attributes:
        elsewhere: these bytes where the code is of another architecture than it was made for; None:
            the same.
        padded_shared: these bytes for architectures whose launches overlap: more than are used, to
            limit occupancy, so that a multiprocessor which is free early does not take a second
            block of the launch; None: the same.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    entry: str = "npusim_kernel"
    elsewhere: int | None = None
    padded_shared: int | None = None

    def on(self, features: Collection[str]) -> Launch:
        """Returns the launch for an architecture of such features (`targets/features.py`)."""
        pads = "overlapping_launches" in features and "shared_227k" in features
        if self.padded_shared is None or not pads:
            return replace(self, padded_shared=None)
        padded = replace(self, shared=self.padded_shared, elsewhere=self.shared)
        return replace(padded, padded_shared=None)


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A matrix of 16-bit elements that is loaded by TMA, in tiles of 64 elements by `box` rows.

    Attributes:
        operand: that holds it; the one behind the last: the scratch memory.
        stride: bytes from one row to the next.
    """

    operand: int
    rows: int
    columns: int
    stride: int
    box: int


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Everything a command needs besides its code.

    Attributes:
        launches: run in order; none when there is nothing to compute.
        scratch: bytes of memory the launches share, after the operands; 0: no such argument.
        failure: the kernel reports what only running reveals, through a last argument.
        exchange: ranks exchange values in it: a last argument leads to the others' memory.
        overlaps: the launches gain from starting while those before them run. Tiles do not: their
            blocks would gather on the processors that are free first.
        maps: matrices whose maps the launches take after all pointers.
        product: of a command that becomes another one once its weights are expanded, the parameters
            of that one, whose kernel the last launch runs; None: it is its own.
        defines: macros the source is compiled with, `NPUSIM_` before each name.
    """

    launches: tuple[Launch, ...]
    scratch: int = 0
    failure: bool = False
    exchange: bool = field(default=False, kw_only=True)
    overlaps: bool = field(default=True, kw_only=True)
    maps: tuple[TensorMap, ...] = field(default=(), kw_only=True)
    product: Params | None = field(default=None, kw_only=True)
    defines: Mapping[str, int] = field(default_factory=dict)

    def on(self, features: Collection[str]) -> LaunchConfig:
        """Returns the launch configuration for an architecture of such features."""
        return replace(self, launches=tuple(x.on(features) for x in self.launches))


Rule: TypeAlias = Callable[[Params], LaunchConfig]


def blocks(count: int, each: int) -> int:
    """Returns how many groups of `each` cover `count`."""
    return (count + each - 1) // each


def line(threads: int, block: int = 256, **defines: int) -> LaunchConfig:
    """Returns the launch configuration of `threads` independent threads in one dimension.

    The source knows the block as NPUSIM_BLOCK, and walks on by the grid's size where the threads
    exceed the largest grid.
    """
    if threads == 0:
        return LaunchConfig(())
    grid = min(blocks(threads, block), MAX_GRID[0])
    return LaunchConfig((Launch((grid, 1, 1), (block, 1, 1)),), defines={"BLOCK": block, **defines})


def as_int(p: Params, name: str) -> int:
    """Returns a field that is one integer."""
    value = p[name]
    assert isinstance(value, int), name
    return value


def as_ints(p: Params, name: str) -> tuple[int, ...]:
    """Returns a field of several integers."""
    value = p[name]
    assert isinstance(value, tuple), name
    return tuple(int(v) for v in value)
