"""Modules with buffers that forward changes: states of the program, updated where they lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.program.program import BufferKind


class Stateful(nn.Module):
    """A module whose forward works on two buffers."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("a", torch.zeros(4, 3), persistent=False)
        self.register_buffer("b", torch.zeros(4, 3), persistent=False)
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def append(m: nn.Module, x: Tensor) -> Tensor:
    m.a.index_copy_(0, torch.arange(1) + m.at, x[:1])
    m.at.add_(1)
    return m.a.sum(0)


def append_by_index_put(m: nn.Module, x: Tensor) -> Tensor:
    m.a[torch.arange(2) + m.at] = x[:2]
    m.at.add_(1)
    return m.a * 2


def swap(m: nn.Module, x: Tensor) -> Tensor:
    old = m.a.clone()
    m.a.copy_(m.b + x)
    m.b.copy_(old)
    return m.a - m.b


def exchange(m: nn.Module, x: Tensor) -> Tensor:
    m.a.add_(x)
    a, b = m.a.clone(), m.b.clone()
    m.a.copy_(b)
    m.b.copy_(a)
    return m.a + 2 * m.b


def shift(m: nn.Module, x: Tensor) -> Tensor:
    m.a[1:] = m.a[:-1].clone()
    m.a[0] = x[0]
    return m.a + 0


def overwrite(m: nn.Module, x: Tensor) -> Tensor:
    m.a.copy_(x)
    return x * 2


def read_old_content(m: nn.Module, x: Tensor) -> Tensor:
    old = m.a[1:3]
    old = old + 0
    m.a[2:4] = x[:2]
    return old + m.a[2:4]


def return_old_content(m: nn.Module, x: Tensor) -> Tensor:
    old = m.a.clone()
    m.a[0:1] = x[:1] + 1
    return old


def replace_and_return_old(m: nn.Module, x: Tensor) -> Tensor:
    old = m.a
    m.a = m.a * 0.5 + x
    return old


def replace_and_return_view(m: nn.Module, x: Tensor) -> Tensor:
    old = m.a[1:]
    m.a = torch.cat([m.a[1:], x[:1]])
    m.b += old.sum()
    return old.T


def replace_what_was_changed(m: nn.Module, x: Tensor) -> Tensor:
    m.a += 1
    old = m.a
    m.a = m.a * x
    old.add_(m.a)
    return old


def change_and_return_old(m: nn.Module, x: Tensor) -> Tensor:
    old = m.a
    m.a.copy_(x + m.a)
    return old


@pytest.mark.parametrize(
    "function",
    [
        replace_and_return_old,
        replace_and_return_view,
        replace_what_was_changed,
        change_and_return_old,
        append,
        append_by_index_put,
        swap,
        exchange,
        shift,
        overwrite,
        read_old_content,
        return_old_content,
    ],
    ids=lambda f: f.__name__,
)
def test_agrees_with_pytorch_call_after_call(
    function: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    graph = npusim.extract_ir(Stateful(function).eval(), (torch.zeros(4, 3),))
    session = npusim.load(npusim.compile(graph))
    model = Stateful(function).eval()
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x = torch.randn(4, 3, generator=generator)
        with torch.no_grad():
            expected = model(x.clone()).clone()
        (actual,) = session(x)
        torch.testing.assert_close(actual, expected)


def test_an_append_writes_the_state_itself() -> None:
    """No command copies a cache: what is appended is scattered into the state's memory."""
    program = npusim.compile((Stateful(append).eval(), (torch.zeros(4, 3),)))
    kinds = [
        (program.kernels[c.kernel].name, program.buffers[c.operands[-1].buffer])
        for c in program.methods[0].commands
    ]
    scatters = [buffer for kernel, buffer in kinds if kernel == "scatter"]
    assert [b.kind for b in scatters] == [BufferKind.STATE]
    assert all(b.bytes == 8 for kernel, b in kinds if kernel == "copy")  # the position alone


def test_two_methods_share_weights_and_what_init_makes_of_them() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(32, 48)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.fc(x))

    model = Scale().eval()
    one, many = (npusim.extract_ir(model, (torch.zeros(n, 32),)) for n in (1, 5))
    alone = npusim.compile(one)
    both = npusim.compile(npusim.Module("scale", {"one": one, "many": many}))
    assert len(both.weights) == len(alone.weights) == 2
    assert both.persistent_bytes == alone.persistent_bytes
    assert len(both.init.commands) == len(alone.init.commands)
