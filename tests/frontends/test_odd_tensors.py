"""Tensors that are no plain arrays are refused by name, as weights and as example arguments."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import npusim
from npusim.errors import ExportError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    PLAIN = torch.eye(3)
    ODD = {
        "sparse_coo": PLAIN.to_sparse(),
        "sparse_csr": PLAIN.to_sparse_csr(),
        "mkldnn": PLAIN.to_mkldnn(),
        "nested": torch.nested.nested_tensor([PLAIN, PLAIN]),
        "jagged": torch.nested.nested_tensor([PLAIN, PLAIN], layout=torch.jagged),
    }


class Held(nn.Module):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("held", tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.parametrize("kind", ODD)
def test_a_weight_is_refused_by_its_path(kind: str) -> None:
    with pytest.raises(ExportError, match="The weight held"):
        npusim.extract_ir(Held(ODD[kind]).eval(), (PLAIN,))


@pytest.mark.parametrize("kind", ODD)
def test_an_argument_is_refused(kind: str) -> None:
    with pytest.raises(ExportError, match="An example argument"):
        npusim.extract_ir(Held(PLAIN).eval(), (ODD[kind],))


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(f)])
def test_tensors_of_transforms_are_refused(transform) -> None:
    def extract(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ExportError, match=r"torch\.func"):
            npusim.extract_ir(Held(PLAIN).eval(), (x,))
        return x.sum()

    transform(extract)(PLAIN)


def test_the_demos_nodes_say_where_they_come_from() -> None:
    from npusim.demo.digits import DigitsNet

    graph = npusim.extract_ir(DigitsNet().eval(), (torch.zeros(1, 1, 8, 8),))
    sources = [node.source for node in graph.nodes]
    assert all(s is not None and s.file.endswith("digits.py") and s.line for s in sources)
