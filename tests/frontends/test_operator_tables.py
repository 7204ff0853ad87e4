"""What quick_tables() leaves in PyTorch's tables is what PyTorch itself leaves there."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._export import utils
from torch._ops import OperatorBase
from torch.utils._python_dispatch import TorchDispatchMode

import npusim
from npusim.frontends import torch_export
from npusim.frontends.operator_tables import quick_tables


class Composites(nn.Module):
    """Operators that stay whole, that are taken apart, and of another namespace."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 3, 8, 8] to [N, 3]."""
        y = (
            nn.functional.instance_norm(x)
            + torch.stft(x.flatten(), 8, return_complex=True).real[0, 0]
        )
        return nn.functional.silu(y).mean((2, 3)).softmax(1)


def test_graphs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Composites().eval(), torch.randn(2, 3, 8, 8)
    quick = npusim.extract_ir(model, (x,))
    monkeypatch.setattr(torch_export, "quick_tables", contextlib.nullcontext)
    assert npusim.extract_ir(model, (x,)) == quick


def test_pytorch_has_its_own_functions_back() -> None:
    before = utils._materialize_cpp_cia_ops, OperatorBase.py_impl
    with pytest.raises(KeyError), quick_tables():
        assert OperatorBase.py_impl is not before[1]
        raise KeyError
    assert (utils._materialize_cpp_cia_ops, OperatorBase.py_impl) == before


def test_operators_are_looked_up_once_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", lambda: calls.append(1))
    for models in (1, 2):
        with quick_tables():
            utils._collect_all_valid_cia_ops()
            utils._collect_all_valid_cia_ops()
        assert len(calls) == models


def test_a_pytorch_of_other_tables_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "_materialize_cpp_cia_ops")
    before = OperatorBase.py_impl
    with quick_tables():
        assert OperatorBase.py_impl is before


class _Mode(TorchDispatchMode):
    pass


def test_functions_are_entered_as_pytorch_does() -> None:
    entered = {}
    for tables in (contextlib.nullcontext, quick_tables):
        operator: Any = OperatorBase()
        operator._dispatch_cache = {DispatchKey.CPU: None}  # what was found before is out of date
        operator.name = lambda: "an operator"
        with tables():
            assert operator.py_impl(DispatchKey.CPU)(abs) is abs
            assert operator._dispatch_cache == {}
            operator.py_impl(_Mode)(max)
            with pytest.raises(RuntimeError, match="override a python impl"):
                operator.py_impl(DispatchKey.CPU)(min)
            with pytest.raises(AssertionError, match="register a mode"):
                operator.py_impl(DispatchKey.Python)(min)
        entered[tables] = operator.py_kernels, operator.python_key_table
    assert entered[quick_tables] == entered[contextlib.nullcontext]
    assert entered[quick_tables] == ({DispatchKey.CPU: abs}, {_Mode: max})
