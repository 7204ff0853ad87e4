"""TargetConfig: the capabilities of a target that the passes and the lowering ask for.

One data file a target lies in `targets/data/`; unknown and missing keys are refused, so that a
file never says something nobody reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from npusim.errors import TargetConstraintError


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Capabilities of one target.

    Attributes:
        name: what `compile(target=…)` is given and what the program carries.
        device: the runtime backend that runs it.
        kernels: names of the kernels the backend has.
        pointwise_inputs: most tensors one fused chain may read.
        pointwise_instructions: most instructions of one fused chain.
        pointwise_registers: most values alive at once in one fused chain.
        conv_channels_last: convolution and pooling kernels want channels-last tensors.
        winograd_tiles: output tile sizes of the Winograd kernels, smallest first; empty: none.
        epilogue_activations: scalar opcodes that gemm and conv can apply to their results.
        weight_quantization: how linears have their weights: "none", or a scheme such as "int8",
            "int4-g32" or "int4-g128-asymmetric" (`ops/quantization.py` lists them).
    """

    name: str
    device: str
    kernels: tuple[str, ...]
    pointwise_inputs: int
    pointwise_instructions: int
    pointwise_registers: int
    conv_channels_last: bool
    winograd_tiles: tuple[int, ...]
    epilogue_activations: tuple[str, ...]
    weight_quantization: str

    @classmethod
    def named(cls, name: str) -> TargetConfig:
        """Returns a target of this installation, or reads the file that `name` is a path to.

        Raises:
            TargetConstraintError: no such target; the message lists those that exist.
        """
        if name in target_names():
            file = resources.files(__package__) / "data" / f"{name}.json"
            return cls.from_json(file.read_text("utf-8"), name)
        path = Path(name)
        if path.suffix == ".json" and path.is_file():
            return cls.from_json(path.read_text("utf-8"), name)
        known = ", ".join(target_names())
        raise TargetConstraintError(
            f"Unknown target '{name}'.", hint=f"Known targets: {known}; or pass a .json file."
        )

    @classmethod
    def from_json(cls, text: str, origin: str) -> TargetConfig:
        """Parses a target file; TargetConstraintError for a malformed one."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise TargetConstraintError(f"Target {origin} is not JSON: {error}.") from error
        if not isinstance(data, dict):
            raise TargetConstraintError(f"Target {origin}: expected an object at the top.")
        names = {f.name for f in fields(cls)}
        if set(data) != names:
            wrong = sorted(set(data) ^ names)
            raise TargetConstraintError(
                f"Target {origin}: unknown or missing keys {wrong}.",
                hint=f"A target has exactly these: {sorted(names)}.",
            )
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items()
        }
        return cls(**values)


def target_names() -> tuple[str, ...]:
    """Names of the targets of this installation."""
    files = (entry.name for entry in (resources.files(__package__) / "data").iterdir())
    return tuple(sorted(f[: -len(".json")] for f in files if f.endswith(".json")))
