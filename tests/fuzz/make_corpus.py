"""Writes the seeds of the fuzzers to tests/fuzz/corpus: small and valid.

PYTHONPATH=python python tests/fuzz/make_corpus.py
"""

from __future__ import annotations

import dataclasses
import json
import runpy
import struct
from collections.abc import Iterator
from pathlib import Path

from npusim.program.program import BufferKind, CompiledProgram, Method

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "format" / "golden" / "make_golden.py"
SYMBOLIC = HERE.parent / "format" / "symbolic_program.py"


def programs() -> Iterator[tuple[str, CompiledProgram]]:
    """Yields the golden program and what is left of it when parts are taken away."""
    whole: CompiledProgram = runpy.run_path(str(GOLDEN))["golden_program"]()
    yield "whole", whole
    no_init = dataclasses.replace(whole.init, commands=())
    kept = tuple(dataclasses.replace(k, image=b"") for k in whole.kernels)
    without_constants = tuple(
        dataclasses.replace(b, kind=BufferKind.STATE) if b.kind is BufferKind.CONSTANT else b
        for b in whole.buffers
    )
    small = dataclasses.replace(
        whole, kernels=kept, buffers=without_constants, constants=b"", metadata={}
    )
    yield "small", small
    yield "no_init", dataclasses.replace(small, init=no_init)
    yield "one_method", dataclasses.replace(small, methods=whole.methods[:1])
    weights = (whole.weights[0], dataclasses.replace(whole.weights[1], shape=(0, 2**38)))
    yield "large_shape", dataclasses.replace(small, weights=weights)
    held = [i for i, b in enumerate(small.buffers) if b.kind is BufferKind.STATE]
    states = [
        {"name": f"s{i}", "buffer": i, "dtype": "uint8", "shape": [small.buffers[i].bytes]}
        for i in held
    ]
    facts = {"max_context": 9, "eos_token_ids": [1], "caches": [{"state": "s", "axis": 0}]}
    metadata = {"states": states, "language_model": facts}
    yield "states", dataclasses.replace(small, metadata=metadata)
    for name in ("symbolic", "specialized"):
        yield name, runpy.run_path(str(SYMBOLIC))[f"{name}_program"]()
    empty = Method("forward", (), (), (), 0)
    yield (
        "smallest",
        CompiledProgram("null", (), (), (empty,), no_init, (), (), b"", 0, 0),
    )


def safetensors(header: object, data: bytes, padding: int = 0) -> bytes:
    """Returns a safetensors image."""
    text = json.dumps(header).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + data


def checkpoints() -> Iterator[tuple[str, bytes]]:
    """Yields images of checkpoints."""

    def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    yield "empty", safetensors({}, b"")
    yield "metadata", safetensors({"__metadata__": {"format": "pt", "ü": '\\"\n'}}, b"", 6)
    yield "one", safetensors({"w": tensor("F32", [2, 2], 0, 16)}, bytes(16))
    entries = {
        "scalar": tensor("I64", [], 0, 8),
        "empty": tensor("F16", [3, 0], 8, 8),
        "b": tensor("BF16", [3], 8, 14),
        "🙂": tensor("F8_E4M3", [2], 14, 16),
        "new": tensor("X1", [9], 16, 18),
    }
    yield "many", safetensors({"__metadata__": {}, **entries}, bytes(range(18)), 3)
    index = {"metadata": {"total_size": -1.5e3, "x": [True, None]}, "weight_map": {"w": "a"}}
    yield "index", json.dumps(index).encode()


def main() -> None:
    """Writes all seeds."""
    for name, program in programs():
        (HERE / "corpus" / "program" / f"{name}.npubin").write_bytes(program.to_bytes())
    for name, image in checkpoints():
        (HERE / "corpus" / "safetensors" / f"{name}.safetensors").write_bytes(image)


if __name__ == "__main__":
    main()
