"""cuBLASLt and cuDNN in place of own kernels, on a GPU: the same results, wherever tensors lie.

Skipped where there is no GPU, or the library is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import npusim
from npusim.targets import TargetConfig
from npusim.tune import apply, tune
from tests.gpu.launch_configs import Layers, normal

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.2e-2, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def device() -> npusim.Device:
    try:
        return npusim.Device("cuda")
    except npusim.DeviceError as error:
        pytest.skip(f"needs a GPU: {error}")


def target(libraries: str) -> TargetConfig:
    return replace(TargetConfig.named("cuda"), libraries=libraries)


PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "plain": (F.linear, [(80, 64)], [(96, 64)]),
    "bias": (F.linear, [(80, 64)], [(96, 64), (96,)]),
    "relu": (lambda x, w, b: F.relu(F.linear(x, w, b)), [(128, 256)], [(512, 256), (512,)]),
    "gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        [(65, 256)],
        [(48, 256), (48,)],
    ),
    "residual": (
        lambda x, r, w, b: F.linear(x, w, b) + r,
        [(80, 64), (80, 96)],
        [(96, 64), (96,)],
    ),
    "two matrices": (
        lambda x, v, w: torch.cat((F.linear(x, v), F.linear(x, w)), -1),
        [(80, 64)],
        [(96, 64), (32, 64)],
    ),
    "batches": (torch.matmul, [(3, 4, 40, 64), (3, 4, 64, 72)], []),
    "transposed": (
        lambda a, b: torch.matmul(a, b.transpose(-1, -2)),
        [(5, 40, 64), (5, 72, 64)],
        [],
    ),
    "one matrix for all": (torch.matmul, [(5, 40, 64), (64, 72)], []),
}


def _conv(**options: int) -> Callable[..., Tensor]:
    return lambda x, w, b: F.conv2d(x, w, b, **options)  # type: ignore[arg-type]


CONVOLUTIONS: dict[
    str, tuple[Callable[..., Tensor], list[tuple[int, ...]], list[tuple[int, ...]]]
] = {
    "3x3": (_conv(padding=1), [(2, 32, 20, 18)], [(64, 32, 3, 3), (64,)]),
    "1x1": (_conv(), [(2, 64, 14, 14)], [(128, 64, 1, 1), (128,)]),
    "stride": (_conv(stride=2, padding=1), [(2, 32, 21, 18)], [(64, 32, 3, 3), (64,)]),
    "dilation": (_conv(dilation=2, padding=2), [(1, 32, 21, 18)], [(64, 32, 3, 3), (64,)]),
    "groups": (_conv(groups=4, padding=1), [(2, 64, 16, 16)], [(128, 16, 3, 3), (128,)]),
    "relu": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        [(2, 32, 20, 18)],
        [(64, 32, 3, 3), (64,)],
    ),
    "residual": (
        lambda x, r, w, b: F.relu(F.conv2d(x, w, b) + F.relu(r)),
        [(2, 64, 14, 14), (2, 128, 14, 14)],
        [(128, 64, 1, 1), (128,)],
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, dtype: torch.dtype, device: npusim.Device) -> None:
    _check("cublaslt", *PRODUCTS[name], dtype, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dtype: torch.dtype, device: npusim.Device) -> None:
    _check("cudnn", *CONVOLUTIONS[name], dtype, device)


def _check(
    library: str,
    run: Callable[..., Tensor],
    inputs: list[tuple[int, ...]],
    weights: list[tuple[int, ...]],
    dtype: torch.dtype,
    device: npusim.Device,
) -> None:
    torch.manual_seed(0)
    model = Layers(run, [normal(*shape).to(dtype) for shape in weights]).eval()
    given = [torch.randn(*shape).to(dtype) for shape in inputs]
    state = {k: v.detach() for k, v in model.state_dict().items()}
    with torch.no_grad():
        exact = run(*(t.double() for t in given), *(w.double() for w in model.weights)).numpy()
        program = npusim.compile((model, tuple(given)), target=target("all"))
    own = npusim.compile((model, tuple(given)), target=target("none"))
    results = {}
    for name, compiled in (("library", program), ("own", own)):
        session = npusim.load(compiled, state, device=device)
        names = session.executor.implementations()
        if name == "own":
            assert not any(names)
        elif not any(n.startswith(library) for n in names):
            pytest.skip(f"{library} is not installed, or has no plan for this")
        first = [t.cuda() for t in given]
        second = [t.cuda().clone() for t in given]  # elsewhere: the graph is given new addresses
        outputs = [
            session(*tensors)[0].double().cpu().numpy() for tensors in (first, second, first)
        ]
        assert all(np.array_equal(y, outputs[0]) for y in outputs), "depends on where tensors lie"
        results[name] = outputs[0]
    for name, y in results.items():
        error = np.linalg.norm(y - exact) / np.linalg.norm(exact)
        assert error < TOLERANCE[dtype], f"{name}: relative error {error:.2e}"


def test_libraries_can_be_switched_off(
    device: npusim.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = torch.randn(80, 64), torch.randn(96, 64)
    model = Layers(F.linear, [w]).eval()
    program = npusim.compile((model, (x,)), target=target("all"))
    monkeypatch.setenv("NPUSIM_CUDA_LIBRARIES", "off")
    session = npusim.load(program, model.state_dict(), device=npusim.Device("cuda"))
    assert not any(session.executor.implementations())
    (y,) = session(x)
    assert torch.allclose(y, x @ w.T, rtol=1e-4, atol=1e-4)


def test_a_tuned_program_computes_the_same(device: npusim.Device) -> None:
    torch.manual_seed(0)
    x, w, b = (t.half() for t in (torch.randn(64, 256), normal(128, 256), normal(128)))
    model = Layers(F.linear, [w, b]).eval()
    program = npusim.compile((model, (x,)), target=target("none"))
    tuning = tune(program, device)
    (times,) = tuning.microseconds.values()
    assert times["own"] > 0 and len(times) > 1
    session = npusim.load(apply(program, tuning), model.state_dict(), device=device)
    exact = F.linear(x.double(), w.double(), b.double())
    (y,) = session(x)
    assert (y.double() - exact).norm() / exact.norm() < TOLERANCE[torch.float16]
