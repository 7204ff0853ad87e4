"""What the fuzzers start from: small files of every kind that npusim's Python side reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import npusim
from npusim.ir.graph import Graph
from npusim.ir.json import graph_to_json
from npusim.ir.opdef import REGISTRY
from npusim.selftest.single_op import graph_of, tensors_for


class Small(nn.Module):
    """Convolution, norms, attention, an embedding and a cache: one of each family, tiny."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.table = nn.Embedding(7, 4)
        self.fc = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, image: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes float32 [1, 2, 6, 6] and int64 [1, 5]."""
        x = F.max_pool2d(F.relu(self.norm(self.conv(image))), 2).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.table(ids), x, x)
        z = self.fc(F.layer_norm(torch.cat([x, y], 1), (4,))).softmax(-1)
        self.seen.copy_(self.seen + z.mean((0, 1)))
        return z, torch.topk(z[..., 0], 3).values * self.seen


class Mixed(nn.Module):
    """A network with an operator that no target has a kernel for."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes float32 [2, 3]."""
        return F.relu(torch.special.bessel_j0(self.fc(x))) + 1


class Open(nn.Module):
    """A network whose batch and length calls choose."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes float32 [batch, length, 4]."""
        y = self.fc(x)
        return (y @ y.transpose(1, 2)).softmax(-1).sum(-1).tanh()


@cache
def networks() -> tuple[Graph, ...]:
    """Returns graphs of whole models."""
    from torch.export import Dim

    torch.manual_seed(0)
    small = npusim.extract_ir(
        Small().eval(), (torch.zeros(1, 2, 6, 6), torch.zeros(1, 5, dtype=torch.int64))
    )
    dims = {"x": {0: Dim("batch", max=4), 1: Dim("length", max=6)}}
    return small, npusim.extract_ir(Open().eval(), (torch.zeros(2, 3, 4),), dynamic_shapes=dims)


@cache
def graphs() -> tuple[dict[str, Any], ...]:
    """Returns JSON trees of graphs: one of every conformance case, and whole networks."""
    trees = [graph_to_json(graph) for graph in networks()] * 20
    for name, op in REGISTRY.items():
        if name.startswith("transformers."):
            continue
        for case in op.cases:
            tensors = tensors_for(case, op.dtypes[0], name)
            graph = graph_of(op, case, tensors, op.dtypes[0])
            if sum(t.numel for t in graph.types.values()) < 5000:
                trees.append(graph_to_json(graph))
    return tuple(trees)


def _saved(write: Callable[[Path], object]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


@cache
def plans() -> tuple[bytes, ...]:
    """Returns files of plans: one all native, one with a part in PyTorch."""
    native = npusim.partition(networks()[0], target="cpu")
    mixed = npusim.partition(npusim.extract_ir(Mixed().eval(), (torch.zeros(2, 3),)), target="cpu")
    return _saved(native.save), _saved(mixed.save)


@cache
def onnx_models() -> tuple[bytes, ...]:
    """Returns ONNX files: exports of the networks, and one case of each of ONNX's own operators."""
    from onnx.backend.test.case.node import collect_testcases

    files = []
    for case in collect_testcases(None):
        data = case.model.SerializeToString()
        if len(data) < 4096:
            files.append(data)
    small = networks()[0]
    return tuple(files) + (_exported(small),) * 50


def _exported(graph: Graph) -> bytes:
    from npusim.exporters.onnx import export_onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        export_onnx(graph, path, Small().state_dict())
        return path.read_bytes()


@cache
def foreign() -> tuple[dict[str, Any], ...]:
    """Returns JSON trees that the package pytorch-ir writes; none when it is not installed."""
    import importlib
    import json

    if importlib.util.find_spec("torch_ir") is None:
        return ()
    torch_ir = importlib.import_module("torch_ir")
    arguments = torch.zeros(1, 2, 6, 6), torch.zeros(1, 5, dtype=torch.int64)
    with torch.device("meta"):
        model = Small().eval()
    meta = tuple(t.to("meta") for t in arguments)
    return (json.loads(_saved(lambda path: torch_ir.extract_ir(model, meta).save(str(path)))),)
