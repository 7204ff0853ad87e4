"""The seeds of the run fuzzer: between them they execute every kernel of the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import npusim
from npusim import _runtime
from npusim.ir.symbolic import upper
from npusim.program.program import BufferKind
from npusim.runtime.host import numpy_dtype

SEEDS = sorted((Path(__file__).parent / "corpus" / "run").iterdir())
HEADER = 16


def _ones(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = "float32" if dtype == "bfloat16" else numpy_dtype(dtype)
    return np.ones(tuple(map(upper, shape)), kind)


def _executed(seed: Path) -> set[str]:
    """Runs a seed's program; returns the kernels of its commands, none for a refused one."""
    program = npusim.CompiledProgram.from_bytes(seed.read_bytes()[HEADER:])
    weights = {w.keys[0]: _ones(w.shape, w.dtype) for w in program.weights}
    device = npusim.Device("cpu", threads=1)
    try:
        loaded = npusim.load_weights(weights, program, device)
        for method in program.methods:
            inputs = [_ones(spec.shape, spec.dtype) for spec in method.inputs]
            npusim.load(program, loaded, device, method=method.name)(*inputs)
    except npusim.ProgramFormatError:  # what a run found, and is refused since
        return set()
    methods = (program.init, *program.methods)
    return {program.kernels[c.kernel].name for m in methods for c in m.commands}


def test_every_kernel_is_executed_by_a_seed() -> None:
    executed = set().union(*(_executed(seed) for seed in SEEDS))
    assert executed == set(_runtime.kernel_schemas())


def test_seeds_are_small() -> None:
    """A mutation of a large one is lost in it, and sixteen kibibytes are what the fuzzer takes."""
    assert max(seed.stat().st_size for seed in SEEDS) < 8192
    kinds = {BufferKind.WEIGHT, BufferKind.INPUT}
    for seed in SEEDS:
        program = npusim.CompiledProgram.from_bytes(seed.read_bytes()[HEADER:])
        assert sum(b.bytes for b in program.buffers if b.kind in kinds) < 1 << 16
