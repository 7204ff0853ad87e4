"""How programs and weights come to other processes: by pickle and copy.

Owns what stands for a native object in a pickle. A program stands for itself by its bytes, which
are validated again where they arrive. Weights that came from files are loaded from them again, and
others travel as loading prepared them, for a device of the same kind. What is made of these
(devices, executors, sessions) says in its class what it is made of. Programs, devices and weights
do not change, so their copies are they themselves.
"""

from __future__ import annotations

import copyreg
from typing import Any

from npusim import _runtime
from npusim.errors import Error, WeightMismatchError
from npusim.runtime.checkpoint import Checkpoint

_ORIGIN = "_origin"  # attribute of weights: what `remember` was given


def remember(
    weights: _runtime.Weights,
    program: _runtime.Program,
    device: _runtime.Device,
    source: Checkpoint | None,
    check_nan: bool,
    copy: bool,
) -> _runtime.Weights:
    """Notes how weights were loaded, for pickles of them; returns them.

    Args:
        source: an absolute path, renamed; None for tensors, which are not kept for that.
    """
    setattr(weights, _ORIGIN, (program, device, source, check_nan, copy))
    return weights


def origin(weights: _runtime.Weights) -> tuple[Checkpoint | None, bool]:
    """Returns the checkpoint that weights are from, and whether NaN in it was refused.

    Raises:
        Error: they are not of `load_weights`.
    """
    noted = getattr(weights, _ORIGIN, None)
    if noted is None:
        raise Error("Where these weights are from is not known.", hint="Use npusim.load_weights.")
    return noted[2], noted[3]


def _load_again(
    source: Checkpoint,
    program: _runtime.Program,
    device: _runtime.Device,
    check_nan: bool,
    copy: bool,
) -> _runtime.Weights:
    from npusim.runtime.weights import load_weights

    return load_weights(source, program, device, check_nan=check_nan, copy=copy)


def _from_prepared(
    program: _runtime.Program,
    device: _runtime.Device,
    kind: str,
    persistent: bytes,
    weights: list[tuple[int, bytes]],
) -> _runtime.Weights:
    if device.kind != kind:
        raise WeightMismatchError(
            f"These weights were prepared for {kind}, this device is {device.kind}.",
            hint="Load them from a file: such weights are prepared anew where they are unpickled.",
        )
    made = _runtime.Weights.from_prepared(program, device, persistent, weights)
    return remember(made, program, device, None, False, True)


def _reduce_weights(weights: _runtime.Weights) -> tuple[Any, ...]:
    origin = getattr(weights, _ORIGIN, None)
    if origin is None:
        raise Error("These weights cannot be pickled.", hint="Load them with npusim.load_weights.")
    program, device, source, check_nan, copy = origin
    if source is not None:
        return _load_again, (source, program, device, check_nan, copy)
    return _from_prepared, (program, device, device.kind, *weights.prepared())


def _program_of(image: bytes) -> _runtime.Program:
    return _runtime.Program.from_bytes(image)


def _reduce_program(program: _runtime.Program) -> tuple[Any, ...]:
    return _program_of, (program.to_bytes(),)


copyreg.pickle(_runtime.Weights, _reduce_weights)
copyreg.pickle(_runtime.Program, _reduce_program)
