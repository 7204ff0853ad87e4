"""Every operator of PyTorch's database that gives tensors, compiled and compared.

By default a few samples of each, evenly chosen; `--samples all` takes every one of them, and also
checks that what is excluded still has to be. `-k float32` chooses a dtype, `-k cdist` an entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

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

# What a run by default takes: samples of an entry in float32, and the dtypes of Core ATen besides.
_FEW = 2
_DTYPES = ("float32", "bfloat16", "float16", "int64", "int32", "bool")
_CORE = frozenset(e for name in core_operators() for e in entries_of(name.split(".")[1]))


@pytest.fixture(scope="session")
def device() -> npusim.Device:
    """One thread: the tests themselves run in parallel."""
    return npusim.Device("cpu", threads=1)


def _calls() -> Iterator[object]:
    for name in entries():
        for dtype in _DTYPES:
            if (name in _CORE or dtype == "float32") and supports(name, getattr(torch, dtype)):
                yield pytest.param(name, dtype, id=f"{name}-{dtype}")


@pytest.mark.parametrize(("name", "dtype"), list(_calls()))
def test_entry(
    name: str, dtype: str, device: npusim.Device, request: pytest.FixtureRequest
) -> None:
    everything = request.config.getoption("--samples") == "all"
    reason = exclusions.EXCLUDED.get(name)
    if reason is not None and not everything:
        pytest.skip(reason)
    few = _FEW if dtype == "float32" and name in _CORE else 1
    chosen = samples(name, getattr(torch, dtype), None if everything else few)
    problems = [f"({s.label}): {p}" for s in chosen if (p := _problem(s, name, dtype, device))]
    if reason is not None:
        assert problems or not chosen, f"{name} works: it need not be excluded ({reason})"
        return
    assert not problems, "\n".join(problems)


def _problem(sample: Sample, name: str, dtype: str, device: npusim.Device) -> str | None:
    """Returns what is wrong with a call once it is compiled, or None."""
    try:
        graph = extract_ir(sample.call, sample.tensors)
        program = npusim.compile(graph)
    except (UnsupportedOpError, ExportError) as error:
        return None if _expected(str(error), name, dtype) else str(error)
    try:
        results = npusim.load(program, device=device)(*sample.tensors)
    except Error as error:
        return str(error)
    return difference(sample, results, exclusions.TOLERANCE.get(name, 1.0))


def _expected(message: str, name: str, dtype: str) -> bool:
    """Tells whether a refusal is one that the tables know."""
    if dtype != "float32" and re.search(exclusions.DTYPE_REFUSAL, message):
        return True
    return any(re.search(known, message) for known in exclusions.REFUSED.get(name, ()))
