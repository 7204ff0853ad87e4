"""What cannot be extracted is refused with the reason, the user's own line, and what to change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

import npusim
from npusim.errors import ExportError

from .modules import Compute, Counter


def refusal(model: Any, *args: Any) -> str:
    if isinstance(model, nn.Module):
        model.eval()
    with pytest.raises(ExportError) as caught:
        npusim.extract_ir(model, args)
    message = str(caught.value)
    assert "Traceback" not in message
    return message


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:  # the branch
        return x
    return -x


def loops(x: Tensor) -> Tensor:
    while x.max() > 1:  # the loop
        x = x / 2
    return x


def test_control_flow_on_data(capfd: pytest.CaptureFixture[str]) -> None:
    message = refusal(Compute(branches), torch.ones(2))
    assert "control flow depends on the values of tensors" in message
    assert "test_refusals.py:" in message
    assert "if x.sum() > 0:  # the branch" in message
    assert "torch.where" in message
    assert "the loop" in refusal(Compute(loops), torch.ones(2))
    assert capfd.readouterr().err == "", "torch.export's own report is held back"


def test_all_results_that_depend_on_data_are_listed_at_once() -> None:
    def function(x: Tensor) -> tuple[Any, ...]:
        return x[x > 0], x.nonzero(), x * x.sum().item()

    message = refusal(Compute(function), torch.ones(3))
    assert "aten.index.Tensor" in message
    assert "aten.nonzero" in message
    assert "Tensor.item" in message
    assert message.count("test_refusals.py:") == 3


def test_operators_for_control_flow() -> None:
    def counts(x: Tensor) -> Any:
        body = (lambda i, x: i < 3, lambda i, x: (i + 1, x * 2))
        return while_loop(*body, (torch.tensor(0), x))

    message = refusal(Compute(counts), torch.ones(2))
    assert "control flow operator while_loop is not supported; write the loop in Python" in message


def test_buffers_that_change_places() -> None:
    class Swapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(2))
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.a, self.b = self.b + x, self.a
            return self.a + self.b

    assert "assign a copy (self.a = self.b.clone())" in refusal(Swapping(), torch.ones(2))


@torch.library.custom_op("npusim_refusals::changes", mutates_args=("x",))
def changes(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * 2


@changes.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_operators_that_change_their_operands() -> None:
    message = refusal(Compute(lambda x: changes(x * 2, x)), torch.ones(2))
    assert "npusim_refusals.changes.default changes its operands; have it return new" in message


def test_dtypes_that_no_graph_has() -> None:
    message = refusal(Compute(lambda x: x), torch.empty(2, dtype=torch.float8_e4m3fnuz))
    assert "dtype float8_e4m3fnuz is not supported; supported are float32" in message


def test_state_that_changes() -> None:
    counter = Counter()
    counter.count += 3
    assert "count: forward changes this buffer, and it does not start as zeros" in refusal(
        counter, torch.ones(2)
    )
    message = refusal(Compute(lambda x: x.add_(1)), torch.ones(2))
    assert "the argument x is changed in place" in message


def test_a_model_in_training_mode() -> None:
    with pytest.raises(ExportError, match=r"training mode. Call model.eval\(\)"):
        npusim.extract_ir(nn.Linear(2, 2), (torch.ones(2),))


def test_what_is_no_module() -> None:
    assert "takes a torch.nn.Module, not function" in refusal(branches, torch.ones(2))
    with pytest.raises(ExportError, match="args must be a tuple"):
        npusim.extract_ir(nn.ReLU().eval(), 3)


def test_arguments_the_model_cannot_take() -> None:
    assert "example arguments" in refusal(nn.Linear(2, 2), torch.ones(2), torch.ones(2))
    assert "example arguments" in refusal(nn.Linear(2, 2))
    assert "example arguments" in refusal(nn.Linear(2, 2), torch.ones(3))


def test_errors_of_the_models_own_code() -> None:
    def function(x: Tensor) -> Tensor:
        raise ValueError("no such mode")

    message = refusal(Compute(function), torch.ones(2))
    assert "ValueError: no such mode, at " in message
    assert "test_refusals.py:" in message


def test_results_that_are_no_tensors() -> None:
    assert "is 5, not a tensor" in refusal(Compute(lambda x: (x, 5)), torch.ones(2))
    assert "returns no tensor" in refusal(Compute(lambda x: None), torch.ones(2))
    message = refusal(Compute(lambda x: object()), torch.ones(2))
    assert "not a tensor, tuple, list or dict" in message


def test_numpy_in_the_middle() -> None:
    message = refusal(Compute(lambda x: torch.from_numpy(x.numpy() + 1)), torch.ones(2))
    assert "NumPy" in message


def test_memory_that_a_graph_does_not_know() -> None:
    model = Compute(lambda x: x.t().as_strided((2, 2), (1, 1)))
    assert "reads its operand's memory" in refusal(model, torch.ones(3, 4))


def test_a_literal_without_data() -> None:
    model = Compute(lambda x: x + torch.tensor([1.0, 2.0], device="meta"))
    assert "meta" in refusal(model, torch.ones(2))
