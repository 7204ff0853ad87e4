"""What partitions cost: a node in PyTorch, a run of a program, a crossing, and a cut in ResNet-18.

    PYTHONPATH=python:. python -m benchmarks.partition_costs [--device cuda]

On the CPU with one thread, or on a GPU beside PyTorch on one thread of the CPU. The small costs are
what `npusim/partition/cost.py` and the target's data file round; chains of small pointwise ops are
timed, so that next to nothing is computed. ResNet-18 is cut after its second stage by an operator
that only PyTorch has, and timed beside the model whole, with that operator replaced by the native
one that computes the same, and eager; what the cut costs stands beside what the target's file
predicts. On a GPU, calls from NumPy to NumPy are timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from tests.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn

import npusim
from npusim.ir.graph import Graph
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.partition.cost import CostModel, Work
from npusim.partition.crossing import Held
from npusim.partition.host import HostRun
from npusim.targets import TargetConfig

_SMALL, _LARGE = TensorType("float32", (4,)), TensorType("float32", (1 << 22,))


@torch.library.custom_op("npusim_benchmarks::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """An operator without kernels of npusim."""
    return x + x


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Cut(nn.Module):
    """ResNet-18 with an operator between its second and third stage."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = ResNet(BasicBlock, (2, 2, 2, 2))
        self.between = between
        self.net.layer2.register_forward_hook(lambda module, args, y: self.between(y))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return y


def chain(nodes: int, type: TensorType = _SMALL) -> Graph:
    """Negations, one after another."""
    builder = GraphBuilder("chain")
    value = builder.input("x", type)
    for _ in range(nodes):
        value = builder.node("aten.neg.default", [value], type)
    builder.output("y", value)
    return builder.build()


def timed(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Returns the times of actions that take turns, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for index in range(rounds + 5):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if index >= 5:
                times[name].append(time.perf_counter() - start)
    return times


def show(what: str, times: list[float], share: float = 1.0) -> float:
    """Prints a median in microseconds with its spread; returns it."""
    median = statistics.median(times) * share * 1e6
    tenths = statistics.quantiles(times, n=10)
    low, high = (tenths[i] * share * 1e6 for i in (0, -1))
    print(f"{what:44} {median:9.1f} us  ({low:.1f} - {high:.1f})")
    return median


def small_costs(device: npusim.Device) -> None:
    """Times a node in PyTorch, a run of a program, and crossings of few and many bytes."""
    host = HostRun(chain(50), {})
    x = torch.randn(4)
    nodes = timed({"": lambda: host(lambda name: x, lambda name, made: None)}, 200)
    show("a node in PyTorch (a fiftieth of 50)", nodes[""], 1 / 50)
    for type in (_SMALL, _LARGE):  # apart: many bytes leave the caches cold
        times = timed(_runs(device, type), 200)
        run = show(f"running a program, {type.nbytes} bytes", times["run"])
        both = show("running it, values crossing there and back", times["both"])
        print(f"{'a crossing (half the difference)':44} {(both - run) / 2:9.1f} us")


def _runs(device: npusim.Device, type: TensorType) -> dict[str, Callable[[], object]]:
    plan = npusim.partition(chain(2, type), target=device.name)
    executor = npusim.DAGExecutor(plan, device, summary=False).load_weights(None)
    native = executor._natives[0]
    x = torch.randn(type.shape)
    ready = {"x": Held("x", type, device, tensor=x)}

    def run() -> None:
        native.run(ready, native.inputs)
        device.wait_for(device.stream)

    def there_and_back() -> None:
        values = {"x": Held("x", type, device, tensor=x)}
        (buffer,) = native.run(values, native.inputs).values()
        Held("y", type, device, buffer=buffer).tensor()

    return {"run": run, "both": there_and_back}


def whole_models(device: npusim.Device) -> None:
    """Times ResNet-18 cut, whole and eager, and compares the cut's cost with the prediction."""
    x = torch.randn(1, 3, 224, 224)
    models = {"cut": Cut(doubled).eval(), "whole": Cut(lambda y: y + y).eval()}
    actions: dict[str, Callable[[], object]] = {}
    crossing: list[int] = []
    with torch.no_grad():
        want = models["whole"](x)
        for name, model in models.items():
            plan = npusim.partition(npusim.extract_ir(model, (x,)), target=device.name)
            print(f"ResNet-18, {name}: {plan.summary()}; {plan.crossing_bytes} bytes cross")
            crossing += [t.nbytes for t in plan.transfers]
            executor = npusim.DAGExecutor(plan, device, summary=False)
            executor.load_weights(model.state_dict())
            torch.testing.assert_close(executor(x)[0], want, rtol=1e-2, atol=1e-2)
            actions[f"ResNet-18, {name}"] = partial(executor, x.numpy())
        found = [show(name, times) for name, times in timed(actions, 40).items()]
        eager = timed({"": lambda: models["whole"](x)}, 40)  # apart: it leaves caches and GPU cold
        show("ResNet-18, PyTorch eager on the CPU", eager[""])
    costs = CostModel.of(TargetConfig.named(device.name))
    read = sum(crossing) // 2  # the operator reads what crosses once, and writes as much
    host = costs.host(Work(read // 4, 2 * read))
    cut = costs.run_seconds + host + sum(map(costs.transfer, crossing))
    print(f"{'the cut':44} {found[0] - found[1]:9.1f} us, predicted {cut * 1e6:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    chosen = parser.parse_args().device
    torch.set_num_threads(1)
    device = npusim.Device(chosen, threads=1 if chosen == "cpu" else None)
    print(device.description)
    small_costs(device)
    whole_models(device)
