"""What was fitted to measurements of a device, as data: one file an architecture.

`architectures/<name>.toml` holds what the dataclasses of `measured.py` say. Read by passes, code
generation and the costs of partitions, which choose by it, and fit for whatever models times
besides. What a file has no part of was not measured there. A target names the file that describes
its device (`measured`), which may be a user's own; one with the key `like` says where it differs
from an installed one.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from npusim.errors import TargetConstraintError
from npusim.targets import data_file
from npusim.targets.data_file import DataFile
from npusim.targets.measured import Gpu, Measured, PyTorchCosts
from npusim.targets.records import read_record

HOST = "x86_64"  # where PyTorch was measured


@cache
def measured_architectures() -> tuple[str, ...]:
    """Names of the installed files, sorted."""
    folder = resources.files(__package__) / "architectures"
    return tuple(sorted(e.name.removesuffix(".toml") for e in folder.iterdir()))


def fitted(name: str) -> Measured:
    """Returns what was measured of an architecture: an installed one, or a path ending in .toml.

    Raises:
        TargetConstraintError: nothing was; the message lists those that were measured. Or the file
            is not as this module says; the message names the file, the line and the key.
    """
    return _fitted_installed(name) if name in measured_architectures() else _fitted(name)


@cache
def _fitted_installed(name: str) -> Measured:
    return _fitted(name)


def _fitted(name: str) -> Measured:
    file = _file(name)
    return read_record(Measured, file.data, file.place)


def gpu(name: str) -> Gpu:
    """Returns what was measured of a GPU.

    Raises:
        TargetConstraintError: as `fitted`; or the file is of no GPU.
    """
    found = fitted(name).gpu
    if found is None:
        raise TargetConstraintError(f"{_file(name).name}: key 'gpu' is missing.")
    return found


def pytorch_costs(measured: Measured) -> PyTorchCosts:
    """Returns what PyTorch costs beside a device: on its own processor, or on a usual host."""
    costs = measured.pytorch or fitted(HOST).pytorch
    assert costs is not None, HOST
    return costs


def _file(name: str) -> DataFile:
    known = measured_architectures()
    if name in known:
        file = _installed(name)
    else:
        said = f"Architecture '{name}' was not measured."
        file = data_file.own_file(name, said, f"Measured: {', '.join(known)}")
    return data_file.like(file, _file, known)


def _installed(name: str) -> DataFile:
    folder = resources.files(__package__) / "architectures"
    return data_file.read(folder / f"{name}.toml", f"architectures/{name}.toml")
