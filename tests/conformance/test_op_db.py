"""Every operator of PyTorch's database that gives tensors, compiled and compared.

By default a few samples of what leads to Core ATen and one of every fourth of the other entries;
`--samples all` takes every one of them, and also checks that what is excluded still has to be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import Error, ExportError, UnsupportedOpError
from npusim.frontends.torch_export import extract_ir
from tests.conformance import op_db_exclusions as exclusions
from tests.conformance.claims import core_operators
from tests.conformance.torch_samples import (
    Sample,
    difference,
    entries,
    entries_of,
    samples,
    supports,
)

# What a run by default takes of an entry: samples in float32, and one in each of the other dtypes
# where the entry leads to a Core ATen operator.
_FEW = 3
_OTHERS = ("bfloat16", "float16", "int64", "int32", "bool")
_CORE = frozenset(e for name in core_operators() for e in entries_of(name.split(".")[1]))


@pytest.fixture(scope="session")
def device() -> npusim.Device:
    """One thread: the tests themselves run in parallel."""
    return npusim.Device("cpu", threads=1)


@dataclass(frozen=True)
class Typed:
    """A sample of an entry and its dtype."""

    dtype: str
    sample: Sample


class Together(nn.Module):
    """Several calls in one module: extraction costs far more than what it extracts here."""

    def __init__(self, calls: Sequence[Typed]) -> None:
        super().__init__()
        self.calls = [c.sample.call for c in calls]
        self.eval()

    def forward(self, *tensors: Tensor) -> Any:
        """Calls each with its share of the tensors."""
        results, start = [], 0
        for call in self.calls:
            end = start + len(call.places)
            results.append(call(*tensors[start:end]))
            start = end
        return tuple(results)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chooses the entries: those of Core ATen and every fourth of the others, or all."""
    names = list(entries())
    if metafunc.config.getoption("--samples") != "all":
        others = [name for name in names if name not in _CORE and name not in exclusions.EXCLUDED]
        names = [name for name in names if name in _CORE or name in others[::4]]
    metafunc.parametrize("name", names)


def test_entry(name: str, device: npusim.Device, request: pytest.FixtureRequest) -> None:
    everything = request.config.getoption("--samples") == "all"
    reason = exclusions.EXCLUDED.get(name)
    if reason is not None and not everything:
        pytest.skip(reason)
    chosen = _chosen(name, everything)
    if not chosen:
        pytest.skip("PyTorch has no sample on the CPU in these dtypes that gives tensors")
    problems = _problems(chosen, name, device)
    if reason is not None:
        assert problems, f"{name} works: it need not be excluded ({reason})"
        return
    assert not problems, "\n".join(problems)


def _chosen(name: str, everything: bool) -> list[Typed]:
    chosen = []
    for dtype in ("float32", *(_OTHERS if everything or name in _CORE else ())):
        kind = getattr(torch, dtype)
        most = None if everything else _FEW if dtype == "float32" else 1
        if supports(name, kind):
            chosen += [Typed(dtype, sample) for sample in samples(name, kind, most)]
    return chosen


def _problems(calls: list[Typed], name: str, device: npusim.Device) -> list[str]:
    """Returns what is wrong: all calls at once, and by halves where that finds something."""
    if len(calls) == 1:
        problem = _problem(calls[0], name, device)
        return [] if problem is None else [f"{name}({calls[0].sample.label}): {problem}"]
    if _agree(calls, name, device):
        return []
    middle = len(calls) // 2
    return _problems(calls[:middle], name, device) + _problems(calls[middle:], name, device)


def _agree(calls: list[Typed], name: str, device: npusim.Device) -> bool:
    tensors = tuple(tensor for c in calls for tensor in c.sample.tensors)
    try:
        session = npusim.load(npusim.compile(extract_ir(Together(calls), tensors)), device=device)
        results = session(*tensors)
    except Error:
        return False
    start = 0
    for call in calls:
        end = start + len(call.sample.expected)
        if _compare(name, call.sample, results[start:end]) is not None:
            return False
        start = end
    return start == len(results)


def _problem(call: Typed, name: str, device: npusim.Device) -> str | None:
    """Returns what is wrong with a call once it is compiled, or None."""
    sample = call.sample
    try:
        program = npusim.compile(extract_ir(sample.call, sample.tensors))
    except (UnsupportedOpError, ExportError) as error:
        return None if _expected(str(error), name, call.dtype) else str(error)
    try:
        results = npusim.load(program, device=device)(*sample.tensors)
    except Error as error:
        return str(error)
    return _compare(name, sample, results)


def _compare(name: str, sample: Sample, results: Sequence[Any]) -> str | None:
    if name in exclusions.FIRST_ONLY:
        sample, results = replace(sample, expected=sample.expected[:1]), results[:1]
    return difference(sample, results, exclusions.TOLERANCE.get(name, 1.0))


def _expected(message: str, name: str, dtype: str) -> bool:
    """Tells whether a refusal is one that the tables know."""
    if dtype != "float32" and re.search(exclusions.DTYPE_REFUSAL, message):
        return True
    return any(re.search(known, message) for known in exclusions.REFUSED.get(name, ()))
