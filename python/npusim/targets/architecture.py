"""What was fitted to measurements of a device, as data: one file an architecture.

`architectures/<name>.json` holds what the dataclasses of `measured.py` say. Read by passes, code
generation and the costs of partitions, which choose by it, and fit for whatever models times
besides. What a file has no part of was not measured there. A target names the file that describes
its device (`measured`), which may be a user's own; one with the key `like` says where it differs
from an installed one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from npusim.errors import TargetConstraintError
from npusim.targets.measured import Gpu, Measured, PyTorchCosts
from npusim.targets.records import read_record

HOST = "x86_64"  # where PyTorch was measured


@cache
def measured_architectures() -> tuple[str, ...]:
    """Names of the installed files, sorted."""
    folder = resources.files(__package__) / "architectures"
    return tuple(sorted(e.name.removesuffix(".json") for e in folder.iterdir()))


def fitted(name: str) -> Measured:
    """Returns what was measured of an architecture: an installed one, or a path ending in .json.

    Raises:
        TargetConstraintError: nothing was; the message lists those that were measured. Or the file
            is not as this module says; the message names the file and the key.
    """
    return _installed(name) if name in measured_architectures() else _read(name)


@cache
def _installed(name: str) -> Measured:
    return _read(name)


def _read(name: str) -> Measured:
    return read_record(Measured, _data(name), _file(name))


def gpu(name: str) -> Gpu:
    """Returns what was measured of a GPU.

    Raises:
        TargetConstraintError: as `fitted`; or the file is of no GPU.
    """
    found = fitted(name).gpu
    if found is None:
        raise TargetConstraintError(f"{_file(name)}: key 'gpu' is missing.")
    return found


def pytorch_costs(measured: Measured) -> PyTorchCosts:
    """Returns what PyTorch costs beside a device: on its own processor, or on a usual host."""
    costs = measured.pytorch or fitted(HOST).pytorch
    assert costs is not None, HOST
    return costs


def _file(name: str) -> str:
    return name if name.endswith(".json") else f"architectures/{name}.json"


def _data(name: str) -> dict[str, Any]:
    if name in measured_architectures():
        file: Any = resources.files(__package__) / "architectures" / f"{name}.json"
    else:
        file = Path(name)
        if file.suffix != ".json" or not file.is_file():
            raise TargetConstraintError(
                f"Architecture '{name}' was not measured.",
                hint=f"Measured: {', '.join(measured_architectures())}; or pass a .json file.",
            )
    try:
        data = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise TargetConstraintError(f"{_file(name)}: it is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise TargetConstraintError(f"{_file(name)}: it holds no object.")
    like = data.pop("like", None)
    if like is None:
        return data
    if like not in measured_architectures():
        raise TargetConstraintError(
            f"{_file(name)}: 'like' is {json.dumps(like)}, which was not measured.",
            hint=f"Measured: {', '.join(measured_architectures())}.",
        )
    return _merged(_data(like), data)


def _merged(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns objects within objects with some of their keys changed."""
    both = {
        k: _merged(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
        for k, v in changed.items()
    }
    return {**base, **both}
