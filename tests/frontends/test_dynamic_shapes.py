"""torch.export's dynamic shapes in the graph: names, bounds, expressions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim.errors import ExportError
from npusim.frontends.dynamic_shapes import always, decided
from npusim.ir.symbolic import Symbol, symbol


class Of(nn.Module):
    """A module around a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


class Named(nn.Module):
    """Arguments by name, one of them nested."""

    def forward(self, x: Tensor, more: dict[str, Tensor], mask: Tensor | None = None) -> Tensor:
        y = x + more["y"].sum(1)
        return y if mask is None else y * mask


def extract(function: Callable[..., Any], *shapes: tuple[int, ...], dims: Any) -> npusim.IR:
    example = tuple(torch.zeros(shape) for shape in shapes)
    return npusim.extract_ir(Of(function).eval(), example, dynamic_shapes=(dims,))


B, S = Dim("batch", min=1, max=8), Dim("seq", max=64)


def test_names_and_bounds() -> None:
    example = (torch.zeros(3, 4), {"y": torch.zeros(3, 6, 4)})
    shapes = {"x": {0: B}, "more": {"y": {0: B, 1: 2 * S}}, "mask": {0: B}}
    for strict in (False, True):
        graph = npusim.extract_ir(
            Named().eval(),
            example,
            {"mask": torch.zeros(3, 4)},
            dynamic_shapes=shapes,
            strict=strict,
        )
        assert graph.symbols == (Symbol("batch", 1, 8), Symbol("seq", 1, 64))
        assert [str(v.type) for v in graph.inputs] == [
            "float32[batch, 4]",
            "float32[batch, 2*seq, 4]",
            "float32[batch, 4]",
        ]


def test_a_minimum_stays() -> None:
    graph = extract(lambda x: x + 1, (5,), dims=({0: Dim("n", min=4, max=9)},))
    assert graph.symbols == (Symbol("n", 4, 9),)


def test_sizes_without_a_name_are_called_after_their_place() -> None:
    dynamic = Dim.DYNAMIC(max=9)
    graph = npusim.extract_ir(
        Named().eval(),
        (torch.zeros(3, 4), {"y": torch.zeros(3, 6, 4)}),
        dynamic_shapes={"x": {0: dynamic}, "more": {"y": {0: dynamic}}},
    )
    assert [s.high for s in graph.symbols] == [9] and graph.symbols[0].name.isidentifier()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.reshape(-1), "float32[4*batch*seq]"),
        (lambda x: x[:, 1:], "float32[batch, seq - 1, 4]"),
        (lambda x: x[:, ::2], "float32[batch, (seq + 1)//2, 4]"),
        (lambda x: torch.cat([x, x[:, :1]], 1), "float32[batch, seq + 1, 4]"),
        (lambda x: x.repeat(1, 3, 1), "float32[batch, 3*seq, 4]"),
        (lambda x: torch.arange(x.shape[1]), "int64[seq]"),
        (lambda x: x.new_zeros(x.shape[1], x.shape[0] + 2), "float32[seq, batch + 2]"),
        (lambda x: x @ x.transpose(1, 2), "float32[batch, seq, seq]"),
        (lambda x: nn.functional.pad(x, (0, 0, 3, 0)), "float32[batch, seq + 3, 4]"),
        (lambda x: x.mean(1) * x.shape[1], "float32[batch, 4]"),
        (lambda x: x[:, x.shape[1] // 2 :], "float32[batch, seq - (seq//2), 4]"),
        (lambda x: x[:, : x.shape[1] // 2 * 2 : 2], "float32[batch, seq//2, 4]"),
        (lambda x: x.narrow(1, x.shape[1] // 3, x.shape[1] // 3), "float32[batch, seq//3, 4]"),
        (lambda x: torch.arange(x.shape[1] - 1, -1, -1), "int64[seq]"),
        (lambda x: x[:, -4:], "float32[batch, -max(0, seq - 4) + seq, 4]"),
    ],
)
def test_results_have_expressions(function: Callable[[Tensor], Tensor], text: str) -> None:
    graph = extract(function, (3, 6, 4), dims=({0: B, 1: S},))
    assert str(graph.types[graph.outputs[0].value]) == text


def test_what_one_element_does_not_allow_a_minimum_does() -> None:
    graph = extract(lambda x: x.chunk(2)[0], (6, 2), dims=({0: Dim("n", min=2, max=9)},))
    assert str(graph.types[graph.outputs[0].value]) == "float32[(n + 1)//2, 2]"


def test_the_last_elements_of_fewer_are_all() -> None:
    def last(x: Tensor) -> Tensor:
        return torch.cat([x[:, -4:], x, x[:, -5:-1:2] + 1], 1)

    run = npusim.load(npusim.compile(extract(last, (3, 6, 4), dims=({0: B, 1: S},))), weights={})
    for length in (1, 3, 4, 7):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(torch.as_tensor(run(x)[0]), last(x))


@pytest.mark.parametrize(
    ("function", "dims", "words"),
    [
        (lambda x: x + 1, {0: Dim("n")}, r"size n has no upper bound.*Dim\(\"n\", max=…\)"),
        (lambda x: x + 1, {0: Dim.DYNAMIC}, "has no upper bound"),
        (lambda x: x + 1, {0: Dim("n", max=2)}, "fix a size that dynamic_shapes leaves open"),
        (lambda x: x.view(2, 2, -1), {0: Dim("n", max=9)}, "multiple"),
        (lambda x: x + torch.ones(4, 1), {0: Dim("n", max=9)}, r"specialized it to be a constant"),
        (
            lambda x: nn.functional.leaky_relu(x, 1 / x.shape[0]),
            {0: Dim("n", max=9)},
            r"takes as numbers \(negative_slope\).*fraction of a symbolic size",
        ),
        (lambda x: x[: int(x.sum())], {0: Dim("n", max=9)}, "values of tensors|Python number"),
        # What a model does of a computed size of one, or by it, is not what it does of others.
        (lambda x: x if x.shape[0] // 2 == 1 else -x, {0: Dim("n", max=9)}, "leaves open"),
        (lambda x: x.chunk(2)[0], {0: Dim("n", max=9)}, "leaves open"),
    ],
)
def test_what_cannot_be_extracted(
    function: Callable[[Tensor], Tensor], dims: Any, words: str
) -> None:
    with pytest.raises(ExportError, match=words):
        extract(function, (4, 2), dims=(dims,))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("s > 0", True),
        ("s > 1", False),
        ("2*s <= 128", True),
        ("Ne(s, b)", True),
        ("Eq(s, b)", False),
    ],
)
def test_what_pytorch_decides_while_decomposing_must_hold_always(text: str, holds: bool) -> None:
    names = {"s": sympy.Symbol("s", integer=True), "b": sympy.Symbol("b", integer=True)}
    sizes = {names["s"]: symbol("seq", 1, 64), names["b"]: symbol("batch", 1, 8)}
    assert always(sympy.sympify(text, names), sizes) is holds


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("floor(s/2) <= s", None),  # which is no size as torch.export writes it
        ("s*b >= 1", True),
        ("Eq(s, b)", None),
        ("Ne(s, b)", None),
        ("Eq(s, 0)", False),
        ("Ne(2*s, 2*s + 1)", True),
        ("s*s < s", False),  # by trying all
        ("s*s <= s", None),
        ("(s < 5) | (s >= 1)", True),
        ("(s < 5) & (s < 1)", False),
        ("(s < 5) | (s < 1)", None),
        ("~(s < 5)", None),
    ],
)
def test_what_is_decided_of_sizes_holds_for_all(text: str, answer: bool | None) -> None:
    names = {"s": sympy.Symbol("s", integer=True), "b": sympy.Symbol("b", integer=True)}
    sizes = {names["s"]: symbol("seq", 1, 64), names["b"]: symbol("batch", 1, 8)}
    condition = sympy.sympify(text, names, evaluate=False)
    assert decided(condition, sizes) is answer


def test_a_decomposition_that_goes_by_the_example_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "sym_max", max)  # as if antialiasing had an `if scale > 1`
    with pytest.raises(ExportError, match="explains an operator in one way where"):
        extract(
            lambda x: nn.functional.interpolate(x, (3, 4), mode="bilinear", antialias=True),
            (1, 2, 6, 7),
            dims=({2: Dim("height", min=2, max=9)},),
        )


def test_the_diagonal_of_what_may_be_wider_or_higher_is_refused() -> None:
    """PyTorch takes its length, which other operators may read, from the example."""
    with pytest.raises(ExportError, match="explains an operator in one way where"):
        extract(lambda x: x.diagonal(1), (4, 6), dims=({0: Dim("m", max=9), 1: Dim("n", max=9)},))


def test_what_cannot_be_compiled_names_the_operator_and_the_line() -> None:
    graph = extract(
        lambda x: torch.linalg.inv(x.transpose(1, 2) @ x),
        (1, 2, 6),
        dims=({2: Dim("n", max=9)},),
    )
    with pytest.raises(npusim.UnsupportedOpError, match=r"test_dynamic_shapes.py:\d+"):
        npusim.compile(graph)
