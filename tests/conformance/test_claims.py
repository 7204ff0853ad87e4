"""What npusim claims of Core ATen holds: each operator in each dtype, run and compared.

docs/ops.md shows the claims; `python -m tests.conformance.operator_table` writes it anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import npusim
from tests.conformance.claims import (
    DECOMPOSED,
    DECOMPOSED_CASES,
    DTYPES,
    NATIVE,
    UNCOVERED,
    Example,
    claim,
    core_operators,
    example,
    is_decomposed,
)
from tests.conformance.operator_table import operator_table
from tests.conformance.test_ops import UNSPECIFIED
from tests.conformance.torch_samples import difference

# Which of equal elements comes first is unspecified: only the values are compared.
_UNSTABLE = ("aten.topk.default",)

# Sums of many terms and gradients of norms: PyTorch adds in another order.
_TOLERANCE = 4.0


@pytest.fixture(scope="module")
def device() -> npusim.Device:
    """One thread: the tests themselves run in parallel."""
    return npusim.Device("cpu", threads=1)


@pytest.mark.parametrize("name", core_operators())
def test_claims(name: str, device: npusim.Device) -> None:
    for dtype in DTYPES:
        made = None if name in UNCOVERED else example(name, dtype)
        if not isinstance(made, Example):
            continue
        if claim(name, dtype, "cpu").status not in (NATIVE, DECOMPOSED):
            continue
        program = npusim.compile(made.graph)
        results = npusim.load(program, device=device)(*made.sample.tensors)
        sample = made.sample
        if name in _UNSTABLE:
            sample, results = replace(sample, expected=sample.expected[:1]), results[:1]
        if name not in UNSPECIFIED:
            assert difference(sample, results, _TOLERANCE) is None, sample.label


def test_every_operator_is_accounted_for() -> None:
    """A reason stands only where nothing computes the operator, a case only where it is needed."""
    core = set(core_operators())
    assert set(UNCOVERED) <= core and set(DECOMPOSED_CASES) <= core
    assert not set(UNCOVERED) & set(DECOMPOSED_CASES)
    assert {name for name in core - set(UNCOVERED) if is_decomposed(name)} == set(DECOMPOSED_CASES)
    for name in core - set(UNCOVERED):
        assert claim(name, "float32", "cpu").status != "fallback", name


def test_table_is_up_to_date() -> None:
    path = Path(__file__).parents[2] / "docs" / "ops.md"
    written = path.read_text("utf-8") == operator_table()
    assert written, "run python -m tests.conformance.operator_table"
