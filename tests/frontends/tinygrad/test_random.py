"""Random programs give natively what they give in tinygrad."""

from __future__ import annotations

import pytest

pytest.importorskip("tinygrad")

from tests.frontends.tinygrad.expressions import program
from tests.frontends.tinygrad.running import check, tensor


@pytest.mark.parametrize("seed", range(20))
def test_a_random_program(seed):
    check(program(seed), tensor(2, 3, 4, 4, seed=seed), tolerance=2e-4)
