"""Plans compute what PyTorch computes, whatever runs where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import npusim
from npusim.errors import Error, ProgramFormatError, ShapeError, WeightMismatchError

from .models import EAGER_DEVICE, Function, agree, keep_off, stray


def plan_of(model: nn.Module, *args: Tensor, **options: object) -> npusim.PartitionPlan:
    graph = npusim.extract_ir(model, args)
    return npusim.partition(graph, costs=EAGER_DEVICE, **options)  # type: ignore[arg-type]


class Detector(nn.Module):
    """Convolutions around sampling at computed places, and a branch that goes around it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.places = nn.Conv2d(8, 2, 1)
        self.head = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.stem(x)
        grid = self.places(features).tanh().permute(0, 2, 3, 1)
        sampled = nn.functional.grid_sample(features, stray(grid) - 1, align_corners=False)
        return self.head(sampled + features), features.mean((2, 3))


class Spectrum(nn.Module):
    """Complex numbers in the middle, with a complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, 9, dtype=torch.complex64))
        self.mix = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.mix(x)) * self.filter
        y: Tensor = self.mix(torch.fft.irfft(spectrum.conj()))
        return y + torch.view_as_real(spectrum).sum()


class Solver(nn.Module):
    """Linear algebra with several results, of integers too."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        spd = a @ a.mT + torch.eye(4)
        values, vectors = torch.linalg.eigh(spd)
        lu, pivots = torch.linalg.lu_factor(spd)
        return torch.linalg.solve(spd, b), values, vectors.abs(), lu, pivots


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (Detector(), [(2, 3, 12, 12)]),
        (Spectrum(), [(4, 16)]),
        (Solver(), [(2, 4, 4), (2, 4, 3)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_models_with_strays(model: nn.Module, shapes: list[tuple[int, ...]], device: str) -> None:
    torch.manual_seed(0)
    args = tuple(torch.randn(shape) for shape in shapes)
    plan = plan_of(model.eval(), *args, target=device)
    assert any(p.is_native for p in plan.partitions)
    assert any(not p.is_native for p in plan.partitions)
    agree(plan, model, *args, tolerance=1e-4)


def test_arrays_come_back_as_they_were_given() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"sum": stray(x) + y, "twice": y * 2}

    model = Net().eval()
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    executor = npusim.DAGExecutor(plan_of(model, x, y), summary=False)
    want = model(x, y)
    named = executor.execute(inputs={"y": y.numpy(), "x": x.numpy()})
    assert list(named) == ["sum", "twice"]
    for name, array in named.items():
        assert isinstance(array, np.ndarray)
        np.testing.assert_allclose(array, want[name].numpy(), rtol=1e-5)
    ordered = executor.execute([x, y])
    assert all(isinstance(t, Tensor) for t in ordered.values())
    assert torch.equal(executor(x, y=y)[1], ordered["twice"])
    strided = x.numpy()[::-1].copy()[::-1]
    assert np.array_equal(executor.execute([strided, y.numpy()])["sum"], named["sum"])


def test_bfloat16_stays_bfloat16_across(device: str) -> None:
    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return stray(x * 2) * 3

    x = torch.randn(4, 4, dtype=torch.bfloat16)
    plan = plan_of(Watched().eval(), x, target=device)
    seen = [t.type.dtype for t in plan.transfers]
    assert seen == ["bfloat16", "bfloat16"]
    agree(plan, Watched(), x, tolerance=0)
    rounded = npusim.DAGExecutor(plan, device, summary=False).execute([x.float().numpy()])
    assert rounded["output"].dtype == np.float32, "as everywhere, where NumPy has no bfloat16"


def test_crossing_copies_nothing_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[int] = []

    @torch.library.custom_op("npusim_partition::address", mutates_args=())
    def address(x: Tensor) -> Tensor:
        addresses.append(x.data_ptr())
        y = x + 1
        addresses.append(y.data_ptr())
        return y

    address.register_fake(torch.empty_like)
    x = torch.randn(256, 256)
    plan = plan_of(Function(lambda x: address(x * 2).relu()).eval(), x)
    executor = npusim.DAGExecutor(plan, summary=False)
    given: list[int] = []
    for native in executor._natives.values():
        run = native._executor.run

        def watched(inputs, *args, _run=run, **kwargs):  # type: ignore[no-untyped-def]
            given.extend(b.address for b in inputs.values())
            results = _run(inputs, *args, **kwargs)
            given.extend(b.address for b in results.values())
            return results

        monkeypatch.setattr(native._executor, "run", watched)
    executor(x)
    assert given[0] == x.data_ptr()
    assert given[1:3] == addresses


def test_weights_from_files_are_the_same(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return stray(self.a(x)) @ stray(self.b.weight) + self.b(x)

    model, x = Net().eval(), torch.randn(2, 4)
    state, want = model.state_dict(), model(x)
    folder, shards = tmp_path / "folder", tmp_path / "shards"
    folder.mkdir()
    shards.mkdir()
    save_file(state, folder / "model.safetensors")
    halves = {"x.safetensors": ["a.weight", "a.bias"], "y.safetensors": ["b.weight", "b.bias"]}
    for name, keys in halves.items():
        save_file({key: state[key] for key in keys}, shards / name)
    index = {"weight_map": {key: name for name, keys in halves.items() for key in keys}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(state, tmp_path / "state.pt")
    arrays = {key: tensor.numpy() for key, tensor in state.items()}
    executor = npusim.DAGExecutor(plan_of(model, x), summary=False)
    for source in (
        state,
        arrays,
        folder,
        folder / "model.safetensors",
        shards,
        tmp_path / "state.pt",
    ):
        (y,) = executor.load_weights(source)(x)
        torch.testing.assert_close(y, want)


def test_weights_that_do_not_fit_are_listed_at_once(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return stray(self.a(x)) + stray(self.b)

    model, x = Net().eval(), torch.randn(2, 4)
    executor = npusim.DAGExecutor(plan_of(model, x), summary=False)
    with pytest.raises(WeightMismatchError, match="Call load_weights first"):
        executor(x)
    with pytest.raises(WeightMismatchError, match=r"a.weight(.|\n)*b, float32\[4\], is missing"):
        executor.load_weights({})
    state = model.state_dict()
    with pytest.raises(WeightMismatchError, match=r"b has shape \[5\], expected \[4\]"):
        executor.load_weights({**state, "b": torch.randn(5)})
    with pytest.raises(WeightMismatchError, match="b has dtype int64"):
        executor.load_weights({**state, "b": torch.zeros(4, dtype=torch.int64)})
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    with pytest.raises(ProgramFormatError):
        executor.load_weights(broken)
    half = {key: tensor.half() for key, tensor in state.items()}
    torch.testing.assert_close(executor.load_weights(half)(x)[0], model(x), rtol=1e-2, atol=1e-2)


class Memory(nn.Module):
    """Two states: one that programs alone touch, one that crosses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("trace", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(x)
        before = self.trace * 1
        self.trace.copy_(stray(self.trace) + x)
        shown = self.last + 0
        self.last.copy_(x)
        return self.count * 2 + before, shown


def test_states_go_from_call_to_call(device: str) -> None:
    model = Memory().eval()
    plan = plan_of(model, torch.zeros(3), target=device)
    assert set(plan.carried_states) == {"trace", "last"}
    executor = npusim.DAGExecutor(plan, device, summary=False)
    for _ in range(2):
        eager = Memory().eval()
        for step in range(4):
            x = torch.full((3,), float(step + 1))
            got, want = executor(x), eager(x)
            x += 100  # a state is not what the caller gave
            for y, r in zip(got, want, strict=True):
                torch.testing.assert_close(y, r)
                y += 7  # nor what it got
        np.testing.assert_allclose(executor.state("trace"), eager.trace.numpy(), rtol=1e-6)
        np.testing.assert_allclose(executor.state("count"), eager.count.numpy())
        executor.reset()
        assert not executor.state("count").any()
    with pytest.raises(ShapeError, match="no state 'trance'; it has: count, trace, last"):
        executor.state("trance")


def test_random_operators_differ_from_call_to_call() -> None:
    model = Function(lambda x: torch.rand(4) + x.relu() * 0).eval()
    executor = npusim.DAGExecutor(plan_of(model, torch.zeros(4)), summary=False)
    first, second = executor(torch.zeros(4))[0], executor(torch.zeros(4))[0]
    assert not torch.equal(first, second)


def test_outputs_that_are_inputs_weights_or_known(device: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))
            self.z = nn.Parameter(torch.randn(3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x, self.w, self.w.exp(), stray(self.w), torch.arange(3), self.z, stray(x)

    model, x = Net().eval(), torch.randn(3)
    agree(plan_of(model, x, target=device), model, x)


def test_the_summary_is_one_line_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(Function(lambda x: stray(x.relu())).eval(), torch.randn(3))
    npusim.DAGExecutor(plan)
    err = capfd.readouterr().err
    assert err.startswith("1 of 2 nodes native; 1 on PyTorch: npusim_partition.stray.default (")
    assert err.count("\n") == 1
    npusim.DAGExecutor(plan, summary=False)
    npusim.DAGExecutor(plan_of(Function(torch.relu).eval(), torch.randn(3)))
    assert capfd.readouterr().err == ""


def test_fallback_can_be_refused_when_it_is_run() -> None:
    plan = plan_of(Function(lambda x: stray(x.relu())).eval(), torch.randn(3))
    with pytest.raises(npusim.UnsupportedOpError, match="fallback is an error"):
        npusim.DAGExecutor(plan, fallback="error")
    with pytest.raises(Error, match="'cpu' or 'error'"):
        npusim.DAGExecutor(plan, fallback="never")


def test_inputs_that_do_not_fit() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return stray(x) + y.relu()

    args = (torch.ones(2), torch.ones(2))
    executor = npusim.DAGExecutor(plan_of(Net().eval(), *args), summary=False)
    x = np.ones(2, np.float32)
    for inputs, words in (
        ([x], r"takes 2 inputs \(x, y\), not 1"),
        ({"x": x}, "missing or unknown: y"),
        ({"x": x, "y": x, "z": x}, "missing or unknown: z"),
        ([x, np.ones(3, np.float32)], r"'y' has shape \[3\], expected \[2\]"),
        ([np.ones(2), x], "'x' has dtype float64, expected float32"),
        ([x, [1.0, 2.0]], "'y' is a list"),
    ):
        with pytest.raises(ShapeError, match=words):
            executor.execute(inputs)
    with pytest.raises(ShapeError, match="'x' twice"):
        executor(x, x=x)
    with pytest.raises(ShapeError, match="not 3"):
        executor(x, x, x)


def test_an_operator_that_fails_says_where() -> None:
    model = Function(lambda x: torch.linalg.cholesky_ex(x)[0] + stray(x[0])).eval()
    plan = plan_of(model, torch.eye(3))

    @torch.library.custom_op("npusim_partition::fails", mutates_args=())
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no such thing")

    fails.register_fake(torch.empty_like)
    plan = plan_of(Function(lambda x: fails(x)).eval(), torch.eye(3))
    with pytest.raises(Error, match=r"fails.*float32\[3, 3\].*test_executor.py.*no such thing"):
        npusim.DAGExecutor(plan, summary=False)(torch.eye(3))


def test_a_predicate_leaves_results_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)
    ).eval()
    x = torch.randn(1, 3, 8, 8)
    for ops in (("aten.relu",), ("aten.conv2d",), ("aten.batch_norm", "aten.relu")):
        agree(plan_of(model, x, is_supported=keep_off(*ops)), model, x)
