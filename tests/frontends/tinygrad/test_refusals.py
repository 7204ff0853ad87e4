"""What a graph cannot hold is refused, with its reason and what to do."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("tinygrad")

import numpy as np
from tinygrad import Tensor, TinyJit, Variable
from tinygrad.function import function as kept

import npusim
from npusim.frontends.tinygrad import from_tinygrad
from npusim.frontends.tinygrad.releases import for_version
from tests.frontends.tinygrad.running import check, tensor

X = (2, 3)


def _symbolic(x: Tensor) -> Tensor:
    return x[: Variable("n", 1, 2).bind(2)] + 1


def _fails(x: Tensor) -> Tensor:
    return x @ Tensor.ones(7, 7)


REFUSED = {
    "a value": (lambda x: x * x.sum().item(), r"asks for values.*depend on the input x"),
    "an array": (lambda x: Tensor(x.numpy()), r"asks for values"),
    "symbolic": (_symbolic, r"is a Variable.*one graph for each"),
    "random": (lambda x: x + Tensor.rand(2, 3), r"UOp THREEFRY.*random numbers"),
    "no tensor": (lambda x: 3, r"returns no tensor, but int"),
    "its own failure": (_fails, r"fails while it is imported.*cannot dot"),
    "empty": (lambda x: x + Tensor.empty(2, 3), r"empty tensor of 6 elements.*weights="),
    "several devices": (lambda x: x.shard(("CPU:0", "CPU:1"), 0) + 1, r"spread over several"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name):
    function, message = REFUSED[name]
    with pytest.raises(npusim.ExportError, match=message):
        from_tinygrad(function, tensor(*X))
    check(lambda x: x + 1, tensor(*X))  # nothing of the failed import is left behind


def test_a_variable_as_argument():
    with pytest.raises(npusim.ExportError, match="argument n is a Variable"):
        from_tinygrad(lambda x, n: x[:n], (tensor(*X), Variable("n", 1, 2).bind(1)))


def test_a_large_tensor_without_a_name():
    table = Tensor(np.zeros((600, 600), np.float32)).realize()
    with pytest.raises(npusim.ExportError, match=r"360000 elements.*weights={'table'"):
        from_tinygrad(lambda x: x + table[:2, :3], tensor(*X))
    imported = from_tinygrad(lambda x: x + table[:2, :3], tensor(*X), weights={"table": table})
    assert [w.key for w in imported.graph.weights] == ["table"]


def test_a_state_that_does_not_start_as_zeros():
    total = Tensor(np.ones(X, np.float32)).realize()
    with pytest.raises(npusim.ExportError, match=r"assigns to total.*zeros"):
        from_tinygrad(lambda x: total.assign(total + x), tensor(*X), weights={"total": total})


def test_a_jit_counts_as_its_function():
    jitted = TinyJit(lambda x: (x * 2).realize())
    imported = from_tinygrad(jitted, tensor(*X))
    assert [n.op for n in imported.graph.nodes] == ["aten.mul.Scalar"]
    assert jitted.cnt == 0 and jitted.captured is None


def test_functions_that_tinygrad_keeps_whole():
    @kept
    def inner(x, y):
        return x @ y + 1

    y = tensor(3, 4)
    imported = check(lambda x: inner(x, y).relu(), tensor(*X))
    assert imported.report.recovered == {"linear": 1}
    computed = inner(x := tensor(*X), y)
    with pytest.raises(npusim.ExportError, match="keeps whole; give the function"):
        from_tinygrad(computed, x)


def test_a_jit_that_lost_its_function():
    jitted = TinyJit(lambda x: (x * 2).realize())
    for _ in range(3):
        jitted(tensor(*X))
    loaded = pickle.loads(pickle.dumps(jitted))
    with pytest.raises(npusim.ExportError, match="holds kernels, and no function"):
        from_tinygrad(loaded, tensor(*X))


def test_tensors_that_were_computed_but_not_realised():
    x = tensor(*X)
    y = x * 2
    imported = from_tinygrad({"sum": y.sum(), "rest": [y + 1]}, {"x": x})
    assert [o.name for o in imported.graph.outputs] == ["sum", "rest.0"]
    assert [v.name for v in imported.graph.inputs] == ["x"]


def test_tensors_that_were_realised():
    x = tensor(*X)
    y = (x * 2).realize()
    with pytest.raises(npusim.ExportError, match=r"do not depend on input.*realised"):
        from_tinygrad(y + 1, x)


def test_training_is_refused(monkeypatch):
    from npusim.frontends.tinygrad import releases

    monkeypatch.setattr(type(releases.installed()), "is_training", lambda self: True)
    with pytest.raises(npusim.ExportError, match="training mode"):
        from_tinygrad(lambda x: x, tensor(*X))


@pytest.mark.parametrize("version", ["0.12.0", "0.15.1", "1.0.0"])
def test_other_releases(version):
    with pytest.raises(npusim.Error, match=rf"tinygrad {version} .*0\.13 and 0\.14"):
        for_version(version)


def test_aliases_and_names():
    class Model:
        def __init__(self):
            self.first = self.second = tensor(3, 4)

        def __call__(self, x, scale=2.0):
            return x @ self.first + x @ self.second * scale

    graph = from_tinygrad(Model(), (tensor(*X), 3.0)).graph
    (weight,) = graph.weights
    assert (graph.name, weight.key, weight.aliases) == ("Model", "first", ("second",))
