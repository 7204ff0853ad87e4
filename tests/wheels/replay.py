"""Runs the recorded programs of tests/compatibility with an installed npusim, to the bit.

python replay.py CORPUS [ISA]

Needs NumPy and npusim alone, so that it runs wherever a wheel does. Fails unless the processor's
instruction set is ISA, where that is given; prints what ran.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import npusim


def _array(tensor: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.array(tensor["values"], dtype=tensor["dtype"])


def replay(calls: Path) -> int:
    """Returns how many calls of a recorded program gave the recorded bits."""
    name = calls.name.removesuffix(".calls.json")
    weights = calls.with_name(f"{name}.safetensors")
    program = calls.with_name(f"{name}.npubin")
    session = npusim.load(program, weights=weights if weights.exists() else None, threads=2)
    recorded = json.loads(calls.read_text())["calls"]
    for call in recorded:
        outputs = session(*map(_array, call["inputs"]))
        for got, tensor in zip(outputs, call["outputs"], strict=True):
            expected = _array(tensor)
            if got.dtype != expected.dtype or got.tobytes() != expected.tobytes():
                raise SystemExit(f"FAILED: {calls} gives {got}, recorded is {expected}")
    return len(recorded)


def main(arguments: Sequence[str]) -> None:
    """Does all of it."""
    kind = npusim.Device("cpu", threads=2).kind  # "cpu, avx2"
    if len(arguments) > 1 and kind != f"cpu, {arguments[1]}":
        raise SystemExit(f"FAILED: runs on {kind}, not with {arguments[1]}")
    recorded = sorted(Path(arguments[0]).glob("*/*.calls.json"))
    count = sum(map(replay, recorded))
    if count == 0:
        raise SystemExit(f"FAILED: no recorded calls in {arguments[0]}")
    print(f"{count} recorded calls to the bit on {kind}")


if __name__ == "__main__":
    main(sys.argv[1:])
