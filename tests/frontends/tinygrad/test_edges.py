"""What tinygrad makes of zeros, infinities and NaN, recovered operators make of them, too."""

from __future__ import annotations

import pytest

pytest.importorskip("tinygrad")

import numpy as np
from tinygrad import Tensor

import npusim
from npusim.frontends.tinygrad import from_tinygrad

EDGES = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 0.5, -7.0, 3e38, -3e38, 1e-12],
    np.float32,
)
FUNCTIONS = {
    "relu": lambda x: x.relu(),
    "relu6": lambda x: x.relu6(),
    "leaky_relu": lambda x: x.leaky_relu(0.1),
    "abs": lambda x: x.abs(),
    "neg": lambda x: -x,
    "sign": lambda x: x.sign(),
    "maximum": lambda x: x.maximum(0),
    "minimum": lambda x: x.minimum(0),
    "clip": lambda x: x.clip(-1, 1),
    "hardtanh": lambda x: x.hardtanh(),
    "where": lambda x: (x > 0).where(x, 0),
    "where_not": lambda x: (x < 0).where(0, x),
    "isnan": lambda x: x.isnan(),
    "isinf": lambda x: x.isinf(),
    "equal": lambda x: x == 0,
    "quotient": lambda x: 1 / x,
    "sqrt": lambda x: x.sqrt(),
    "floor": lambda x: x.floor(),
    "product": lambda x: (x.reshape(2, 7) @ Tensor(np.eye(7, dtype=np.float32))).relu(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges_are_tinygrads(name: str) -> None:
    function = FUNCTIONS[name]
    expected = function(Tensor(EDGES)).numpy()
    imported = from_tinygrad(function, (Tensor(EDGES),))
    session = npusim.load(npusim.compile(imported.graph), imported.weights)
    (result,) = session(EDGES)
    np.testing.assert_array_equal(result, expected)
