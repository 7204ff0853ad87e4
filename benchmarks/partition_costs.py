"""What partitions cost: a node in PyTorch, a run of a program, a crossing, and a cut in ResNet-18.

    PYTHONPATH=python:. python -m benchmarks.partition_costs

On the CPU, one thread. The first three are what `npusim/partition/cost.py` and the data file of
the cpu target round; chains of small pointwise ops are timed, so that next to nothing is computed.
ResNet-18 is cut behind its second stage by an operator that only PyTorch has, and timed beside the
model whole, with that operator replaced by the native one that computes the same, and eager.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from tests.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn

import npusim
from npusim.ir.graph import Graph
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.partition.crossing import Held
from npusim.partition.host import HostRun

_TYPE = TensorType("float32", (4,))


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


def chain(nodes: int) -> Graph:
    """Negations of four numbers, one behind the other."""
    builder = GraphBuilder("chain")
    value = builder.input("x", _TYPE)
    for _ in range(nodes):
        value = builder.node("aten.neg.default", [value], _TYPE)
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
    x = torch.randn(4)
    host = HostRun(chain(50), {})
    plan = npusim.partition(chain(2))
    executor = npusim.DAGExecutor(plan, device, summary=False).load_weights(None)
    native = executor._natives[0]
    ready = {"x": Held("x", _TYPE, device, tensor=x)}

    def there_and_back() -> None:
        values = {"x": Held("x", _TYPE, device, tensor=x)}
        (buffer,) = native.run(values).values()
        Held("y", _TYPE, device, buffer=buffer).tensor()

    actions = {
        "host": lambda: host(lambda name: x, lambda name, made: None),
        "run": lambda: native.run(ready),
        "both": there_and_back,
    }
    times = timed(actions, 400)
    show("a node in PyTorch (a fiftieth of 50)", times["host"], 1 / 50)
    run = show("running a program", times["run"])
    both = show("running it, values crossing there and back", times["both"])
    print(f"{'a crossing (half the difference)':44} {(both - run) / 2:9.1f} us")


def whole_models(device: npusim.Device) -> None:
    x = torch.randn(1, 3, 224, 224)
    models = {"cut": Cut(doubled).eval(), "whole": Cut(lambda y: y + y).eval()}
    actions: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        want = models["whole"](x)
        for name, model in models.items():
            plan = npusim.partition(npusim.extract_ir(model, (x,)))
            print(f"ResNet-18, {name}: {plan.summary()}; {plan.crossing_bytes} bytes cross")
            executor = npusim.DAGExecutor(plan, device, summary=False)
            executor.load_weights(model.state_dict())
            torch.testing.assert_close(executor(x)[0], want, rtol=1e-3, atol=1e-3)
            actions[f"ResNet-18, {name}"] = lambda run=executor: run(x)
        actions["ResNet-18, PyTorch eager"] = lambda: models["whole"](x)
        for name, times in timed(actions, 40).items():
            show(name, times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    cpu = npusim.Device("cpu", threads=1)
    small_costs(cpu)
    whole_models(cpu)
