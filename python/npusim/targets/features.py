"""What device code for an architecture is and may use, as data: `features.toml`.

By format of device code ("cubin"): the names of its architectures, which are a prefix, a number and
a suffix, and the features of those that have other ones than the architecture before them:

* `clusters`: blocks of a cluster read each other's shared memory.
* `overlapping_launches`: a launch may start while the one before it still runs.
* `shared_227k`: a block may have 227 KiB of shared memory.
* `tma`: one instruction copies a box of a matrix to shared memory.
* `wgmma`: the tensor core multiplies matrices that lie in shared memory, for four warps at once.

Sources: CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA, target notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from npusim.targets import data_file


@dataclass(frozen=True, slots=True)
class Architecture:
    """What device code is generated for.

    Attributes:
        code_format: of its device code, by which a code generator is chosen.
        features: what that code may use, sorted.
    """

    code_format: str
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Format:
    prefix: str
    suffixes: tuple[str, ...]
    architectures: Mapping[str, tuple[str, ...]]

    def number(self, name: str) -> int | None:
        """Returns the number in an architecture's name; None where it is none of this format."""
        suffixes = "|".join(map(re.escape, self.suffixes))
        found = re.fullmatch(rf"{re.escape(self.prefix)}([0-9]{{1,9}})(?:{suffixes})", name)
        return int(found[1]) if found else None

    def features(self, name: str, number: int) -> tuple[str, ...]:
        """Returns what is listed of a name, or else of the last one up to its number."""
        if name in self.architectures:
            return self.architectures[name]
        plain = {k: self.number(k) for k in self.architectures if k[-1].isdigit()}
        before = [(n, k) for k, n in plain.items() if n is not None and n <= number]
        return self.architectures[max(before)[1]] if before else ()


@cache
def _formats() -> Mapping[str, _Format]:
    data = data_file.read(resources.files(__package__) / "features.toml", "features.toml").data
    return {
        name: _Format(
            row["prefix"],
            tuple(row["suffixes"]),
            {k: tuple(v) for k, v in row["architectures"].items()},
        )
        for name, row in data.items()
    }


def listed_architectures(code_format: str | None = None) -> tuple[str, ...]:
    """Names of the architectures whose features are listed, of one format of device code or all."""
    return tuple(
        name
        for listed, row in _formats().items()
        if code_format in (None, listed)
        for name in row.architectures
    )


def architecture(name: str) -> Architecture | None:
    """Returns what code for an architecture is; None where its name is of no format.

    One that is not listed has the features of the last before it: sm_103 those of sm_100, and
    sm_75, before which there is none, no features.
    """
    for code_format, row in _formats().items():
        number = row.number(name)
        if number is not None:
            return Architecture(code_format, row.features(name, number))
    return None
