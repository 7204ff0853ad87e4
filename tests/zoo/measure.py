"""One entry, the whole way: extracted, checked, compiled, run, and compared with PyTorch."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import npusim
from npusim.frontends.torch_export import extract_ir, plain_outputs
from npusim.ir.graph import Graph
from npusim.verify import all_weights
from tests.zoo.entry import Entry

# The largest difference, relative to the largest value of the output, that float32 may show.
TOLERANCE = 1e-4
_DRAWS = 0  # where PyTorch's generator is when a model is called: what it draws is compared, too


@dataclass(frozen=True)
class Row:
    """What became of an entry.

    Attributes:
        name, family: the entry's.
        exportable: whether torch.export accepts the model.
        nodes, native: how many nodes the graph has, and how many of them the target runs.
        fallback: ops that PyTorch runs, with their number.
        error: the largest relative difference from PyTorch over all outputs.
        problem: why there is no error, in one line.
        seconds: how long all of it took.
    """

    name: str
    family: str
    exportable: bool = True
    nodes: int = 0
    native: int = 0
    fallback: tuple[tuple[str, int], ...] = ()
    error: float | None = None
    problem: str = ""
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the model ran and gave PyTorch's numbers."""
        return self.error is not None and self.error <= TOLERANCE

    @property
    def is_native(self) -> bool:
        """Whether PyTorch ran nothing of it."""
        return self.agrees and self.native == self.nodes


def measure(entry: Entry) -> Row:
    """Takes an entry the whole way on the CPU."""
    start = time.perf_counter()
    fields: dict[str, Any] = {"name": entry.name, "family": entry.family}
    try:
        model, inputs = entry.build()
        graph = extract_ir(model, (), inputs, model_name=entry.name)
    except npusim.Error as error:
        fields |= {"problem": first_line(error), "exportable": is_exportable(model, inputs)}
        return Row(**fields, seconds=time.perf_counter() - start)
    try:
        fields |= support(graph)
        wanted = expected(model, inputs)
        assert depends(model, inputs, wanted), f"{entry.name} answers the same to every input"
        fields["error"] = largest_error(run(graph, model, inputs), wanted)
    except npusim.Error as error:
        fields["problem"] = first_line(error)
    return Row(**fields, seconds=time.perf_counter() - start)


def support(graph: Graph) -> dict[str, Any]:
    """Returns how much of the graph is native, as fields of a Row."""
    report = npusim.check(graph)
    return {
        "nodes": len(report.nodes),
        "native": len(report.nodes) - len(report.others),
        "fallback": tuple(sorted(Counter(n.op for n in report.others).items())),
    }


def run(graph: Graph, model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Returns the graph's outputs in order; what the target cannot run, PyTorch does."""
    executor = npusim.DAGExecutor(npusim.partition(graph), npusim.Device("cpu", threads=2))
    # Large tables that state_dict() leaves out are weights too.
    executor.load_weights(all_weights(graph, model.state_dict(), model))
    torch.manual_seed(_DRAWS)
    outputs = executor.execute({v.name: inputs[v.name] for v in graph.inputs})
    return [torch.as_tensor(y) for y in outputs.values()]


def expected(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Returns PyTorch's outputs, flat and in order."""
    torch.manual_seed(_DRAWS)
    with torch.no_grad():
        outputs = plain_outputs(model, (), model(**inputs))
    return [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]


_KEPT = ("attention_mask", "bbox")  # not any integers will do


def depends(model: nn.Module, inputs: dict[str, Tensor], wanted: list[Tensor]) -> bool:
    """Tells whether other inputs give visibly other outputs: else agreeing means nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        others = {k: t if k in _KEPT else _other(t) for k, t in inputs.items()}
    changes = map(relative_error, expected(model, others), wanted)
    return any(change > 100 * TOLERANCE for change in changes)


def _other(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return torch.randn_like(tensor) if tensor.min() < 0 else torch.rand_like(tensor)
    return tensor.flip(-1)


def largest_error(results: list[Tensor], wanted: list[Tensor]) -> float:
    """Returns the largest of max |got - want| / max |want| over the outputs.

    Infinite where a shape, a dtype or an infinite value differs; integers differ by being unequal.
    """
    if [(t.shape, t.dtype) for t in results] != [(t.shape, t.dtype) for t in wanted]:
        return float("inf")
    return max(map(relative_error, results, wanted), default=float("inf"))


def relative_error(got: Tensor, want: Tensor) -> float:
    """Returns max |got - want| / max |want| over finite values; infinite when others differ."""
    if want.numel() == 0 or torch.equal(got, want):
        return 0.0
    finite = torch.isfinite(want)
    odd = torch.equal(got[~finite].nan_to_num(7.0), want[~finite].nan_to_num(7.0))
    if not got.is_floating_point() or not torch.isfinite(got[finite]).all() or not odd:
        return float("inf")
    scale = want[finite].double().abs().max().clamp(min=1e-30)
    return float((got[finite].double() - want[finite].double()).abs().max() / scale)


def is_exportable(model: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Tells whether torch.export takes the model as it stands, weights and all."""
    try:
        with torch.no_grad():
            torch.export.export(model, (), inputs, strict=False)
    except Exception:  # a trace runs, and fails in, any code
        return False
    return True


def first_line(error: Exception) -> str:
    """Returns an error's text as one line."""
    return " ".join(str(error).split())
