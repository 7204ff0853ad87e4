"""Scatters that sort their items, or add by atomic operations, have the bits of row-major order.

That of the CPU's kernel, which visits items one after another.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.rules import RULES
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.codegen.ptxas import SPILLED, spilled

TARGET = TargetConfig.named("cuda:sm_90a")
WALK, ATOMIC, SORTED = range(3)
NAN, INF = float("nan"), float("inf")
_RANDOM = torch.Generator().manual_seed(3)


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *given: Tensor) -> Tensor:
        return self.call(*given)


def _ids(high: int, *shape: int, low: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=_RANDOM)


def _values(dtype: torch.dtype, *shape: int) -> Tensor:
    """Returns numbers of many magnitudes, so that another order has other bits."""
    scaled = torch.randn(shape, generator=_RANDOM) * 4.0 ** _ids(3, *shape, low=-2)
    return scaled.to(dtype) if dtype.is_floating_point else (scaled * 3).to(dtype)


def _edges(*shape: int) -> Tensor:
    """Returns numbers among which are zeros of both signs, infinities and a few NaN."""
    chosen = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, 2.0, NAN])
    which = torch.randint(0, 7, shape, generator=_RANDOM)
    which[torch.rand(shape, generator=_RANDOM) < 0.01] = 7
    return chosen[which]


def _index_add(y: Tensor, i: Tensor, x: Tensor) -> Tensor:
    return y.index_add(0, i, x)


def _put(y: Tensor, i: Tensor, j: Tensor, x: Tensor) -> Tensor:
    return y.index_put((i, j), x, accumulate=True)


def _set_apart(y: Tensor, i: Tensor, j: Tensor, x: Tensor) -> Tensor:
    z = y.clone()
    z[i, :, j] = x
    return z


def _power_law(high: int, count: int) -> Tensor:
    return (high * torch.rand(count, generator=_RANDOM) ** 6).long()


def _shuffled(*counts: int) -> Tensor:
    """Returns each index so many times, in any order."""
    ids = torch.repeat_interleave(torch.tensor(counts))
    return ids[torch.randperm(len(ids), generator=_RANDOM)]


def _reduce(how: str) -> Callable[..., Tensor]:
    return lambda y, i, x: y.scatter_reduce(0, i, x, how)


F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
I64, I32, I8, BOOL = torch.int64, torch.int32, torch.int8, torch.bool
# What is computed of which tensors, and in which way.
CALLS: dict[str, tuple[Callable[..., Tensor], list[Tensor], int]] = {
    "columns": (_index_add, [_values(F32, 9, 5), _ids(9, 300, low=-9), _values(F32, 300, 5)], 2),
    "several tiles": (
        _index_add,
        [_values(F32, 300, 1), _power_law(300, 5001), _values(F32, 5001, 1)],
        2,
    ),
    "three passes": (
        lambda y, i, x: y.index_add(0, i, x),
        [torch.zeros(70000), _ids(70000, 4500), _values(F32, 4500)],
        2,
    ),
    "three passes of a block": (
        lambda y, i, x: y.index_add(0, i, x),
        [torch.zeros(70000), _ids(70000, 2500), _values(F32, 2500)],
        2,
    ),
    "all equal": (
        _index_add,
        [_values(F16, 4, 3), torch.full((401,), 2), _values(F16, 401, 3)],
        2,
    ),
    # Runs of 64 items, 65, and as many as a block loads at once, twice; and of one item more.
    "long runs": (
        _index_add,
        [_values(F32, 5, 10), _shuffled(64, 65, 1024, 513, 129), _values(F32, 1795, 10)],
        2,
    ),
    "long runs of wide numbers": (
        _index_add,
        [_values(F64, 5, 32), _shuffled(0, 64, 512, 1), _values(F64, 577, 32)],
        2,
    ),
    "a long run among many": (
        _index_add,
        [_values(F32, 700), _shuffled(300, *[1] * 600, 257, 256), _values(F32, 1413)],
        2,
    ),
    "a middle dimension": (
        lambda y, i, x: y.index_add(1, i, x),
        [_values(BF16, 3, 7, 4), _ids(7, 222), _values(BF16, 3, 222, 4)],
        2,
    ),
    "an index for each element": (
        lambda y, i, x: y.scatter_add(0, i, x),
        [_values(F32, 11, 6), _ids(11, 130, 6), _values(F32, 140, 7)],
        2,
    ),
    "along the last dimension": (
        lambda y, i, x: y.scatter_add(1, i, x),
        [_values(F64, 6, 11), _ids(11, 5, 130), _values(F64, 6, 130)],
        2,
    ),
    "an expanded index": (
        lambda y, i, x: y.scatter_add(0, i.unsqueeze(1).expand(-1, 6), x),
        [_values(F32, 11, 6), _ids(11, 130), _values(F32, 130, 6)],
        2,
    ),
    "two indices": (
        _put,
        [_values(F32, 5, 6, 3), _ids(5, 20, 9, low=-5), _ids(6, 9), _values(F32, 20, 9, 3)],
        2,
    ),
    "indices apart": (
        _set_apart,
        [_values(F32, 5, 6, 3), _ids(5, 150), _ids(3, 150), _values(F32, 150, 6)],
        2,
    ),
    "the last of equals": (
        lambda y, i, x: y.index_put((i,), x),
        [_values(F32, 40, 3), _ids(40, 500), _values(F32, 500, 3)],
        2,
    ),
    "one value for all": (
        lambda y, i, x: y.index_put((i,), x, accumulate=True),
        [_values(F32, 40), _ids(40, 500), _values(F32, 1)],
        2,
    ),
    "largest": (_reduce("amax"), [_edges(9, 2), _ids(9, 200, 2), _edges(200, 2)], 2),
    "smallest": (_reduce("amin"), [_edges(9, 2), _ids(9, 200, 2), _edges(200, 2)], 2),
    "products": (_reduce("prod"), [_edges(9, 2), _ids(9, 200, 2), _edges(200, 2)], 2),
    "means": (_reduce("mean"), [_values(F32, 9), _ids(9, 200), _values(F32, 200)], 2),
    "bytes": (_index_add, [_values(I8, 9, 2), _ids(9, 200), _values(I8, 200, 2)], 2),
    "truth": (_index_add, [_values(BOOL, 9, 2), _ids(9, 200), _values(BOOL, 200, 2)], 2),
    "whole products": (_reduce("prod"), [_values(I32, 9), _ids(9, 200), _values(I32, 200)], 2),
    "whole sums": (_index_add, [_values(I64, 9, 2), _ids(9, 200), _values(I64, 200, 2)], 1),
    "whole extremes": (_reduce("amin"), [_values(I64, 9), _ids(9, 200), _values(I64, 200)], 1),
    "32 bits": (_index_add, [_values(I32, 9, 2), _ids(9, 200), _values(I32, 200, 2)], 1),
    "32 bits' extremes": (_reduce("amax"), [_values(I32, 9), _ids(9, 200), _values(I32, 200)], 1),
    "few": (_index_add, [_values(F32, 9, 5), _ids(9, 12), _values(F32, 12, 5)], 0),
}


def _program(call: Callable[..., Tensor], given: list[Tensor]) -> CompiledProgram:
    graph = npusim.extract_ir(Function(call).eval(), tuple(given))
    return assemble(run_passes(graph, TARGET), TARGET)


def _ways(program: CompiledProgram) -> list[int]:
    """Returns the way of each scatter in a program."""
    keys = [key for key in host.keys_of([program]) if key[0] == "scatter"]
    rule = RULES["scatter"]
    return [rule(KERNELS["scatter"].unpack(params)).defines["WAY"] for _, params in keys]


@pytest.fixture(scope="module")
def programs() -> dict[str, CompiledProgram]:
    return {name: _program(call, given) for name, (call, given, _) in CALLS.items()}


@pytest.fixture(scope="module")
def kernels(
    programs: dict[str, CompiledProgram], tmp_path_factory: pytest.TempPathFactory
) -> dict[host.Key, host.HostKernel]:
    if host.COMPILER is None:
        pytest.skip("no C++ compiler to run kernels with")
    return host.build(host.keys_of(programs.values()), tmp_path_factory.mktemp("scatter"))


def _bits(t: Tensor) -> Tensor:
    """Returns an element's bits; those of a NaN are not told apart."""
    if t.is_floating_point():
        t = torch.where(t.isnan(), NAN, t)
    return t.contiguous().view(torch.uint8)


@pytest.mark.parametrize("name", CALLS)
def test_bits_are_those_of_the_cpu(
    name: str, programs: dict[str, CompiledProgram], kernels: dict[host.Key, host.HostKernel]
) -> None:
    call, given, way = CALLS[name]
    assert way in _ways(programs[name])
    (data,) = host.run_program(programs[name], kernels, [_bytes(t) for t in given])
    (want,) = npusim.load(npusim.compile((Function(call).eval(), tuple(given)), "cpu"))(*given)
    got = torch.frombuffer(bytearray(data), dtype=given[0].dtype).reshape(want.shape)
    assert torch.equal(_bits(got), _bits(torch.as_tensor(want)))


@pytest.mark.parametrize("name", ["columns", "two indices", "whole sums", "the last of equals"])
def test_indices_out_of_range_are_reported(
    name: str, programs: dict[str, CompiledProgram], kernels: dict[host.Key, host.HostKernel]
) -> None:
    given = [t.clone() for t in CALLS[name][1]]
    size = given[0].shape[0]
    for value in (size, -size - 1, 2**62, -(2**63)):
        given[1].view(-1)[7] = value
        with pytest.raises(host.KernelFailure) as raised:
            host.run_program(programs[name], kernels, [_bytes(t) for t in given])
        assert raised.value.args == (1, value, size)


def _bytes(t: Tensor) -> bytes:
    return bytes(t.contiguous().view(torch.uint8).numpy().tobytes())


def _rule(items: int, rows: int, stride: int = 1, mode: int = 1) -> dict[str, int]:
    """Returns what is chosen for items [items, 1] that go to `rows` places `stride` apart."""
    given = {
        "mode": mode, "dtype": 0, "idx_dtype": 4, "n": 1, "rank": 1, "shape": (items,),
        "src_strides": (1,), "y_strides": (0,), "idx_strides": (1,), "k_size": (rows,),
        "k_stride": (stride,),
    }  # fmt: skip
    fields = KERNELS["scatter"].fields
    params = {
        name: tuple(value) + (0,) * (count - len(value)) if isinstance(value, tuple) else value
        for name, _, count in fields
        for value in [given[name]]
    }
    return dict(RULES["scatter"](params).defines)


def test_what_sorting_would_ask_too_much_for_is_walked() -> None:
    """Scratch memory, keys of 32 bits; and strides that go back, and few steps."""
    assert _rule(10**6, 10**4)["WAY"] == SORTED
    assert _rule(10**8, 10**4)["WAY"] == WALK
    assert _rule(10**6, 2**32)["WAY"] == WALK
    assert _rule(10**6, 2**32, stride=0)["WAY"] == SORTED, "one place"
    assert _rule(10**6, 10**4, stride=-1)["WAY"] == WALK
    assert _rule(10, 10**4)["WAY"] == WALK


def test_blocks_take_runs_where_threads_would_be_few() -> None:
    """Runs of the mean length are long where there are 100 of 10,000 items, and not of 10."""
    assert _rule(10**6, 100)["LONG"] < 10**4
    assert _rule(10**6, 10**5)["LONG"] > 10


def test_kernels_compile_without_spilling(
    programs: dict[str, CompiledProgram], compiler: nvrtc.Nvrtc
) -> None:
    for name in ("three passes", "two indices"):
        (key, *_) = (key for key in host.keys_of([programs[name]]) if key[0] == "scatter")
        source, _, options = specialise(*key)
        options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
        log = compiler.compile(source, options, "scatter")[1]
        assert spilled(log) <= SPILLED, log
