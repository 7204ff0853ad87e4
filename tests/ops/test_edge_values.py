"""edge_values: which numbers of a dtype are tried."""

from __future__ import annotations

import pytest

from npusim.ops.edge_values import integer_edges


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [("int8", -128, 127), ("uint8", 0, 255), ("int64", -(2**63), 2**63 - 1)],
)
def test_integers_at_the_ends_and_about_numbers(dtype: str, least: int, most: int) -> None:
    numbers = (7.0, 7.0, float("inf"), float("nan"), 1e30, -1.0)
    expected = {least, least + 1, -2, -1, 0, 1, 2, 6, 7, 8, most - 1, most}
    kept = sorted(v for v in expected if least <= v <= most)
    assert integer_edges(dtype, numbers).tolist() == kept
