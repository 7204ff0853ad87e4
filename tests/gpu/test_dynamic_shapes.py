"""One program for all sizes on a GPU: it agrees with PyTorch below the bounds and at them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from tests.end_to_end.dynamic_models import MODELS
from tests.end_to_end.test_dynamic_shapes import extracted
from tests.end_to_end.test_models import relative_error
from tests.gpu.device import require_gpu, run

require_gpu()

# What PyTorch 2.11 cannot leave open when it exports: the sizes of images, and fractions of sizes.
TOO_NEW = ("convolutions", "fractions")
NAMES = [name for name in MODELS if name not in TOO_NEW]
CALLS = 4  # combinations of sizes of each model: the example's, the greatest, the least, another


def flat(results: Any) -> tuple[Tensor, ...]:
    """Returns what a model returned as a tuple."""
    leaves = results.values() if isinstance(results, dict) else results
    return (leaves,) if isinstance(leaves, Tensor) else tuple(leaves)


@pytest.mark.parametrize("name", NAMES)
def test_all_sizes_agree(name: str) -> None:
    case = MODELS[name]
    model, graph = extracted(case)
    session = npusim.load(npusim.compile(graph, "cuda"), model.state_dict(), device="cuda")
    relative, absolute = case.tolerance
    calls = [case.arguments(*sizes) for sizes in case.sizes[:CALLS]]
    for arguments in (*calls, *calls[::-1]):
        with torch.no_grad():
            wanted = flat(model(*arguments))
        for given in (arguments, tuple(x.cuda() for x in arguments)):
            results = session(*given)
            assert len(results) == len(wanted)
            for got, want in zip(results, wanted, strict=True):
                assert got.device == given[0].device
                torch.testing.assert_close(got.cpu(), want, rtol=relative, atol=absolute)


def encoder() -> nn.Module:
    """A transformer's encoder whose products are large enough for libraries at large sizes."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("libraries", ["auto", "all", "none"])
def test_halves_agree_whoever_computes(libraries: str) -> None:
    """Products go to libraries or to own kernels, as each size has it."""
    model = encoder().half()
    dims = {0: Dim("batch", max=8), 1: Dim("seq", max=192)}
    graph = npusim.extract_ir(model, (torch.randn(2, 5, 512).half(),), dynamic_shapes=({**dims},))
    target = replace(npusim.TargetConfig.named("cuda:sm_90"), libraries=libraries)
    program = npusim.compile(graph, target, sizes=[{"batch": 1, "seq": 100}])
    session = npusim.load(program, model.state_dict(), device="cuda")
    reference = encoder().half().float()
    for batch, seq in ((1, 100), (3, 17), (8, 192), (1, 1), (2, 191)):
        x = torch.randn(batch, seq, 512).half()
        with torch.no_grad():
            want = reference(x.float())
        (got,) = session(x.cuda())
        assert got.shape == want.shape
        assert relative_error(got.cpu(), want) <= 1e-2, (batch, seq)


def test_sizes_beyond_the_bounds_are_refused() -> None:
    model, graph = extracted(MODELS["bert"])
    session = npusim.load(npusim.compile(graph, "cuda"), model.state_dict(), device="cuda")
    for shape, words in (((9, 32), "batch is 1 … 8"), ((8, 33), "seq is 1 … 32")):
        given = torch.zeros(shape, dtype=torch.int64)
        for ids in (given, given.cuda()):
            with pytest.raises(npusim.ShapeError, match=words):
                session(ids, ids)
    ids = torch.zeros((2, 5), dtype=torch.int64).cuda()
    with pytest.raises(npusim.ShapeError, match=r"expected seq = 5 \(batch = 2, seq = 5\)"):
        session(ids, ids[:, :4].contiguous())


def test_more_sizes_than_are_kept_come_and_go() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh()).eval()
    graph = npusim.extract_ir(model, (torch.zeros(4, 16),), dynamic_shapes=({0: Dim("n", max=32)},))
    session = npusim.load(npusim.compile(graph, "cuda"), model.state_dict(), device="cuda")
    x = torch.randn(32, 16)
    with torch.no_grad():
        want = model(x)
    for n in (*range(1, 33), *range(32, 0, -5), *range(1, 33, 3)):
        torch.testing.assert_close(session(x[:n].cuda())[0].cpu(), want[:n], rtol=1e-4, atol=1e-5)


def test_prepared_sizes_need_no_compiler(tmp_path: Path) -> None:
    code = """
    import os
    import torch, npusim
    from torch.export import Dim
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()).eval()
    graph = npusim.extract_ir(model, (torch.zeros(4, 16),), dynamic_shapes=({0: Dim("n", max=8)},))
    program = npusim.compile(graph, "cuda", sizes=[{"n": 3}])
    program.save(os.environ["PROGRAM"])
    os.environ["NPUSIM_NVRTC"] = "/nowhere/libnvrtc.so"
    from npusim.codegen.cuda import nvrtc
    nvrtc.load.cache_clear()
    session = npusim.load(os.environ["PROGRAM"], model.state_dict(), device="cuda")
    for n in (3, 8):
        x = torch.randn(n, 16)
        with torch.no_grad():
            torch.testing.assert_close(session(x)[0], model(x), rtol=1e-4, atol=1e-5)
    try:
        session(torch.randn(5, 16).cuda())
    except npusim.DeviceError as error:
        print(error)
    """
    out = run(code, PROGRAM=str(tmp_path / "n.npubin"))
    assert "at n = 5: the program has no device code for these sizes, but for n = 8; n = 3" in out
    assert "libnvrtc was not found" in out and "sizes=" in out


def test_arrays_of_the_host_pass_through_the_same_buffers() -> None:
    case = MODELS["derived"]
    model, graph = extracted(case)
    session = npusim.load(npusim.compile(graph, "cuda"), None, device="cuda")
    for sizes in ((2, 7), (8, 32), (1, 2), (2, 7)):
        arguments = case.arguments(*sizes)
        (got,) = session(*(a.numpy() for a in arguments))
        np.testing.assert_allclose(got, model(*arguments).numpy(), rtol=1e-5, atol=1e-6)
