"""Partitioned models on a GPU: programs there, PyTorch on the CPU, and what crosses between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim.abi.scalar import OPCODES
from npusim.codegen import generate
from npusim.targets import TargetConfig
from npusim.verify import tensor_leaves
from tests.end_to_end.test_models import relative_error
from tests.gpu.device import require_gpu, run
from tests.models import build
from tests.partition.models import EAGER_DEVICE, keep_off, stray
from tests.partition.test_dynamic_sizes import BATCH, SEQ, Tagger, arguments, check
from tests.partition.test_random_graphs import check_seed
from tests.verify.faults import plant

require_gpu()


def interrupted(model: nn.Module) -> nn.Module:
    """A ResNet with an operator that only PyTorch has after its second stage."""
    model.layer2.register_forward_hook(lambda module, args, y: stray(y) * 0.5)
    return model


def resnet(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model, (x,) = build("resnet18", small=True)
    return interrupted(model).to(dtype), (x.to(dtype),)


def encoder(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model, inputs = build("bert_base", small=True)
    return model.to(dtype), inputs


@pytest.mark.parametrize(
    ("make", "off", "dtype", "tolerance"),
    [
        (resnet, (), torch.float32, 1e-3),
        (resnet, (), torch.bfloat16, 6e-2),
        (encoder, ("aten.layer_norm",), torch.float32, 1e-3),
        (encoder, ("aten.layer_norm",), torch.bfloat16, 6e-2),
    ],
)
def test_models_in_parts(
    make: Callable[[torch.dtype], tuple[nn.Module, tuple[Tensor, ...]]],
    off: tuple[str, ...],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """What the caller brings decides where results lie; their values do not depend on it."""
    model, inputs = make(dtype)
    graph = npusim.extract_ir(model, inputs)
    plan = npusim.partition(graph, keep_off(*off), "cuda", costs=EAGER_DEVICE)
    assert sum(p.is_native for p in plan.partitions) >= 2 and plan.fallback_nodes
    assert {t.type.dtype for t in plan.transfers} >= {str(dtype).removeprefix("torch.")}
    executor = npusim.DAGExecutor(plan, "cuda", summary=False).load_weights(model.state_dict())
    with torch.no_grad():
        wants = tensor_leaves(model(*inputs))
    there = executor(*(x.cuda() for x in inputs))
    for here in (executor(*inputs), executor(*inputs)):
        for y, g, want in zip(here, there, wants, strict=True):
            assert (y.device.type, g.device.type, y.dtype) == ("cpu", "cuda", want.dtype)
            assert torch.equal(y, g.cpu())
            assert relative_error(y, want) <= tolerance


def test_a_plan_that_was_saved_runs_in_another_process(tmp_path: Path) -> None:
    model, (x,) = resnet(torch.float32)
    plan = npusim.partition(npusim.extract_ir(model, (x,)), target="cuda", costs=EAGER_DEVICE)
    plan.save(tmp_path / "net.npuplan")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    np.save(tmp_path / "x.npy", x.numpy())
    with torch.no_grad():
        np.save(tmp_path / "want.npy", model(x).numpy())
    code = f"""
    import numpy as np, npusim
    import tests.partition.models
    folder = {str(tmp_path)!r}
    plan = npusim.PartitionPlan.load(folder + "/net.npuplan")
    executor = npusim.DAGExecutor(plan, "cuda").load_weights(folder + "/state.pt")
    (got,), want = executor(np.load(folder + "/x.npy")), np.load(folder + "/want.npy")
    assert isinstance(got, np.ndarray) and abs(got - want).max() <= 1e-3 * abs(want).max()
    print("same")
    """
    assert run(code) == "same\n"


@pytest.mark.parametrize("seed", [1, 7, 19, 23, 31])
def test_random_graphs(seed: int) -> None:
    check_seed(seed, "cuda")


@pytest.mark.parametrize(
    ("make", "off", "stem", "changes"),
    [
        (resnet, (), "conv", {"act": OPCODES["tanh"][0]}),
        (encoder, ("aten.gelu",), "norm", {"eps": 0.5}),
    ],
)
@pytest.mark.parametrize("which", [0, -1])
def test_a_planted_fault_is_found_in_its_partition(
    make: Callable[[torch.dtype], tuple[nn.Module, tuple[Tensor, ...]]],
    off: tuple[str, ...],
    stem: str,
    changes: dict[str, Any],
    which: int,
) -> None:
    model, inputs = make(torch.float32)
    graph = npusim.extract_ir(model, inputs)
    plan = npusim.partition(graph, keep_off(*off), "cuda", costs=EAGER_DEVICE)
    with_stem = [p for p in plan.partitions if stem in {kernel for kernel, _ in p.commands}]
    chosen = with_stem[which]
    assert chosen.program is not None and len(with_stem) >= 2
    planted, index = plant(chosen.program, stem, 0, **changes)
    wrong = replace(chosen, program=generate(planted, TargetConfig.named("cuda")))
    parts = tuple(wrong if p.index == chosen.index else p for p in plan.partitions)
    ok, report = npusim.verify_plan(
        replace(plan, partitions=parts),
        state_dict=model.state_dict(), test_inputs=inputs, device="cuda", tolerance=1e-3,
    )  # fmt: skip
    first = report.first_divergence
    assert not ok and first is not None
    assert (first.partition, first.command, first.cause) == (chosen.index, index, "command")
    ok, report = npusim.verify_plan(
        plan, state_dict=model.state_dict(), test_inputs=inputs, device="cuda", tolerance=1e-3,
        bisect=True,
    )  # fmt: skip
    assert ok, report


def test_results_are_the_callers_own() -> None:
    """Pinned memory is used again by the next call; what a caller holds is not."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x * 2
            return y, stray(y), stray(y).view(-1) + 1

    x = torch.randn(300, 700)
    graph = npusim.extract_ir(Net().eval(), (x,))
    plan = npusim.partition(graph, target="cuda", costs=EAGER_DEVICE)
    executor = npusim.DAGExecutor(plan, "cuda", summary=False)
    held = [(executor(k * x), Net()(k * x)) for k in range(1, 5)]
    held += [(executor(k * x.numpy()), Net()(k * x)) for k in range(5, 8)]
    for got, want in held:
        for y, r in zip(got, want, strict=True):
            torch.testing.assert_close(torch.as_tensor(y), r, rtol=1e-5, atol=1e-5)


def test_sizes_that_calls_choose() -> None:
    model = Tagger().eval()
    batch, seq = Dim("batch", max=BATCH), Dim("seq", max=SEQ)
    sizes = {"x": {0: batch, 1: seq}, "scale": {0: batch}}
    graph = npusim.extract_ir(model, arguments(3, 5), dynamic_shapes=sizes)
    plan = npusim.partition(graph, target="cuda", costs=EAGER_DEVICE)
    executor = npusim.DAGExecutor(plan, "cuda", summary=False).load_weights(model.state_dict())
    for n, length in ((3, 5), (BATCH, SEQ), (1, 1), (2, SEQ - 1), (BATCH, 1), (3, 5)):
        check(executor, model, n, length)
    with pytest.raises(npusim.ShapeError, match="batch is 1 … 4"):
        executor(torch.zeros(BATCH + 1, 5, 16), torch.zeros(BATCH + 1))
