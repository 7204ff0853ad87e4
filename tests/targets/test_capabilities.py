"""A target's list of kernels is true: it is its backend's, and what it lacks is nowhere emitted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim._runtime import isa_names, kernel_schemas
from npusim.abi.kernels import KERNELS
from npusim.codegen.generator import generator_of
from npusim.errors import TargetConstraintError, UnsupportedOpError
from npusim.ir.graph import Constant, Graph, Output, Value
from npusim.ir.opdef import REGISTRY, Case, OpDef, find
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.lowering.context import Lowering
from npusim.lowering.supported import check_supported
from npusim.partition.plan import PartitionPlan
from npusim.program.program import CompiledProgram
from npusim.selftest.single_op import graph_of, tensors_for
from npusim.targets import TargetConfig, data_file, target_names
from npusim.targets.data_file import to_toml
from npusim.targets.target_config import ALL, KernelLimits
from tests.models import build

find("npu.linear")  # registers the ops
CPU = TargetConfig.named("cpu")


def without(target: TargetConfig, *stems: str) -> TargetConfig:
    """The target, lacking some kernels; crossing to it is free, so that costs decide nothing."""
    kernels = tuple(k for k in target.kernels if k not in stems)
    rates = {"run_seconds": 0.0, "transfer_seconds": 0.0, "transfer_rate": 0.0}
    return replace(target, kernels=kernels, **rates)


def emitted(program: CompiledProgram) -> set[str]:
    """The stems of all commands."""
    methods = (program.init, *program.methods)
    return {program.kernels[c.kernel].name for m in methods for c in m.commands}


def native_stems(plan: PartitionPlan) -> set[str]:
    """The stems of all programs of a plan."""
    programs = (p.program for p in plan.partitions)
    return set().union(*(emitted(p) for p in programs if isinstance(p, CompiledProgram)))


def extract(model: nn.Module, *args: Tensor) -> Graph:
    """The model's graph."""
    graph = npusim.extract_ir(model.eval(), args)
    assert isinstance(graph, Graph)
    return graph


# The lists and the backends


@pytest.mark.parametrize("isa", isa_names())
def test_the_cpu_has_what_its_target_lists(isa: str) -> None:
    computed = [stem for stem in CPU.kernels if not KERNELS[stem].collective]
    assert sorted(computed) == sorted(kernel_schemas(isa))
    assert {name: KERNELS[name].schema for name in computed} == kernel_schemas(isa)


@pytest.mark.parametrize("name", target_names())
def test_a_generator_makes_what_its_target_lists(name: str) -> None:
    target = TargetConfig.named(name)
    generator = generator_of(target)
    assert (generator is None) == (target.device in ("cpu", "null"))
    if generator is not None:
        assert set(target.kernels) == set(generator.stems)


def test_cuda_has_a_source_for_every_rule() -> None:
    from npusim.codegen import elementwise
    from npusim.codegen.cuda.source import stem_source

    with_source = {s for s in KERNELS if s in elementwise.RULES or stem_source(s) is not None}
    assert set(TargetConfig.named("cuda").kernels) == with_source


def test_null_takes_what_the_cpu_takes() -> None:
    assert TargetConfig.named("null").kernels == CPU.kernels


@pytest.mark.parametrize("name", target_names())
def test_lists_name_kernels_once(name: str) -> None:
    kernels = TargetConfig.named(name).kernels
    assert len(set(kernels)) == len(kernels)
    assert set(kernels) <= set(KERNELS)


def test_every_kernel_belongs_to_a_target() -> None:
    listed = set().union(*(TargetConfig.named(name).kernels for name in target_names()))
    assert listed == set(KERNELS)


# What is refused


class Scores(nn.Module):
    """A product, a softmax, a product."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax(q @ k, -1) @ k.T


def test_what_needs_a_missing_kernel_is_refused_by_name() -> None:
    graph = extract(Scores(), torch.randn(3, 4), torch.randn(4, 5))
    with pytest.raises(UnsupportedOpError) as caught:
        npusim.compile(graph, replace(CPU, name="small", kernels=("matmul", "copy")))
    text = str(caught.value)
    assert "softmax" in text
    assert "target 'small' has no kernel 'softmax'" in text
    assert "test_capabilities.py:" in text
    assert "matmul(" not in text
    with pytest.raises(UnsupportedOpError, match=r"^3 nodes of .* cannot run on target 'cpu'"):
        npusim.compile(graph, replace(CPU, kernels=()))


def test_handing_out_needs_kernels_too() -> None:
    graph = extract(nn.Flatten(0), torch.randn(3, 4))
    npusim.compile(graph, replace(CPU, kernels=("copy",)))
    with pytest.raises(UnsupportedOpError, match="has no kernel 'copy'"):
        npusim.compile(graph, replace(CPU, kernels=()))


def lowered(graph: Graph, target: TargetConfig) -> tuple[set[str], list[str]]:
    """The stems that a graph is lowered to, and why the others of its nodes are not."""
    low = Lowering(target, trial=True)
    low.method("forward", graph)
    return set(low.kernels), [refusal.why for refusal in low.refused]


def _kinds() -> list[object]:
    return [
        pytest.param(op, case, id=f"{op.name}-{case.id or index}")
        for op in REGISTRY.values()
        for index, case in enumerate(op.cases)
    ]


@pytest.mark.parametrize(("op", "case"), _kinds())
def test_no_op_emits_what_the_target_lacks(op: OpDef, case: Case) -> None:
    """With a kernel less, an op does without or is refused for that kernel."""
    graph = graph_of(op, case, tensors_for(case, op.dtypes[0], ""), op.dtypes[0])
    stems, refused = lowered(graph, CPU)
    assert not refused
    for stem in stems:
        left, refused = lowered(graph, without(CPU, stem))
        assert stem not in left
        other = left - stems  # another way to compute the same
        why = f"target 'cpu' has no kernel '{stem}'"
        assert other or (refused and all(words.startswith(why) for words in refused))


# check and partition answer by the list


class Wide(nn.Module):
    """What passes join: norms and softmax in pieces, rotation, attention, gates, epilogues."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.bn = nn.BatchNorm2d(8)
        self.qkv = nn.Linear(8, 24)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.ones(8))
        angles = torch.outer(torch.arange(36.0), torch.tensor([1.0, 0.1, 0.01, 0.001]))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn(self.depthwise(torch.relu(self.conv(x)))))
        y = y.flatten(2).transpose(1, 2)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        q, k, v = self.qkv(y).chunk(3, -1)
        q, k = (self.turned(t) for t in (q, k))
        scores = q @ k.transpose(1, 2) * 8**-0.5
        scores = torch.exp(scores - scores.amax(-1, keepdim=True))
        y = y + scores / scores.sum(-1, keepdim=True) @ v
        y = y + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))
        return torch.cumsum(torch.softmax(y, 1), 1)

    def turned(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat((-high, low), -1) * self.sin


def wide() -> tuple[nn.Module, Graph, Tensor]:
    torch.manual_seed(0)
    model, x = Wide().eval(), torch.randn(2, 4, 6, 6)
    return model, extract(model, x), x


WIDE_STEMS = (
    *("attention", "conv", "conv_depthwise", "copy", "gemm", "norm", "pack_b", "pointwise"),
    *("scan", "softmax"),
)


def test_the_wide_model_uses_what_the_tests_take_away() -> None:
    assert set(WIDE_STEMS) <= emitted(npusim.compile(wide()[1], CPU)) | {"rope"}


@pytest.mark.parametrize("stem", WIDE_STEMS)
def test_a_kernel_less_sends_to_pytorch_what_needs_it(stem: str) -> None:
    model, graph, x = wide()
    target = without(CPU, stem)
    report = npusim.check(graph, target)
    for node in report.others:
        assert node.status == "fallback"
        if node.constraint == "kernel":
            assert node.reason == f"target 'cpu' has no kernel '{stem}'"
    plan = npusim.partition(graph, target=target)
    assert stem not in native_stems(plan)
    native = {name for name, verdict in plan.verdicts.items() if verdict.is_native}
    assert native == {n.name for n in report.nodes if n.is_native}
    (got,) = npusim.DAGExecutor(plan, summary=False).load_weights(model.state_dict())(x)
    torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("stem", "sent"),
    [
        ("scan", {"aten.cumsum.default"}),
        ("softmax", {"aten.softmax.int"}),
        ("norm", set()),  # in its pieces
        ("attention", set()),
        ("conv_depthwise", set()),  # as any convolution
        ("gemm", set()),  # over rows
    ],
)
def test_only_that_goes_to_pytorch(stem: str, sent: Collection[str]) -> None:
    report = npusim.check(wide()[1], without(CPU, stem))
    needing = {node.op for node in report.others if node.constraint == "kernel"}
    assert needing == set(sent)


@pytest.mark.parametrize("name", ["resnet18", "bert_base", "vit_b_16"])
def test_fused_ops_are_not_refused_for_what_their_pieces_need_not(name: str) -> None:
    """A node is sent to PyTorch only if the target could not run it without its neighbours."""
    from npusim.partition.support import _Alone, refusals

    model, inputs = build(name, small=True)
    graph = extract(model, *inputs)
    for stem in sorted(emitted(npusim.compile(graph, CPU))):
        target = without(CPU, stem)
        alone = _Alone(graph, target)
        for refused, why in refusals(graph, target).items():
            node = graph.nodes[graph.positions[refused]]
            assert alone.refusal(node) == why, (stem, node.op)


# Targets of few kernels


def preset(tmp_path: Path, **changed: object) -> str:
    """The path of a target file like the CPU's but for some keys."""
    data = data_file.read(Path(npusim.__file__).parent / "targets/data/cpu.toml", "cpu").data
    path = tmp_path / "preset.toml"
    path.write_text(to_toml({**data, "name": "preset", **changed}), encoding="utf-8")
    return str(path)


FEW = ["conv", "pack_b", "pool", "copy"]
FREE = {"run_seconds": 0, "transfer_seconds": 0, "transfer_rate": 0}


def test_a_target_of_few_kernels_runs_what_they_compute(tmp_path: Path) -> None:
    """An activation after a convolution needs no kernel of its own, one after a pooling does."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Sigmoid(), nn.Conv2d(8, 4, 3)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 16, 16)
    graph = extract(model, x)
    target = preset(tmp_path, kernels=FEW, **FREE)
    report = npusim.check(graph, target)
    assert [n.op for n in report.others] == ["aten.sigmoid.default"]
    assert report.others[0].reason == "target 'preset' has no kernel 'pointwise'"
    assert report.others[0].constraint == "kernel"
    plan = npusim.partition(graph, target=target)
    assert native_stems(plan) <= set(FEW)
    (got,) = npusim.DAGExecutor(plan, summary=False).load_weights(model.state_dict())(x)
    torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsupportedOpError, match=r"1 node .*(.|\n)*sigmoid.*no kernel 'pointwise'"):
        npusim.compile(graph, target)


def test_linears_need_no_kernel_but_products(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)), torch.randn(4, 5)
    target = preset(tmp_path, kernels=["matmul", "pointwise", "copy"])
    program = npusim.compile(extract(model, x), target)
    assert emitted(program) <= {"matmul", "pointwise", "copy"}
    (got,) = npusim.load(program, model.state_dict())(x)
    torch.testing.assert_close(got, model(x), rtol=1e-5, atol=1e-6)


def test_dtypes_and_ranks_are_limits_of_kernels(tmp_path: Path) -> None:
    limits = {"softmax": {"rank": 2}, "*": {"dtypes": ["float32"]}}
    target = TargetConfig.named(preset(tmp_path, limits=limits))
    assert target.limits == {"softmax": KernelLimits((), 2), ALL: KernelLimits(("float32",), 0)}
    for dtype, shape, why in (
        (torch.float32, (2, 3), ""),
        (
            torch.float32,
            (2, 3, 4),
            "kernel 'softmax' of target 'preset' takes at most 2 dimensions, not 3",
        ),
    ):
        graph = extract(nn.Softmax(-1), torch.randn(shape, dtype=dtype))
        found = npusim.check(graph, target).others
        assert [n.reason for n in found] == [why] * bool(why)
    (found,) = npusim.check(extract(nn.ReLU(), torch.randn(2).double()), target).others
    assert found.constraint == "dtype"
    assert found.reason == "kernel 'pointwise' of target 'preset' takes dtype float32, not float64"


@pytest.mark.parametrize(
    "limits",
    [
        [],
        {"sofmax": {"rank": 2}},
        {"softmax": []},
        {"softmax": {"rank": -1}},
        {"softmax": {"rank": True}},
        {"softmax": {"dtypes": ["float31"]}},
        {"softmax": {"dtypes": "float32"}},
        {"softmax": {"ranks": 2}},
    ],
)
def test_malformed_limits_are_refused(tmp_path: Path, limits: object) -> None:
    with pytest.raises(TargetConstraintError, match=r"preset.toml:\d+: .*'limits"):
        TargetConfig.named(preset(tmp_path, limits=limits))


def test_a_target_may_be_like_another(tmp_path: Path) -> None:
    path = tmp_path / "npu.toml"
    path.write_text('like = "null"\nname = "npu"\nkernels = ["copy"]', encoding="utf-8")
    expected = replace(CPU, name="npu", device="null", kernels=("copy",), hardware=None)
    assert TargetConfig.named(str(path)) == expected
    path.write_text('like = "abacus"', encoding="utf-8")
    with pytest.raises(TargetConstraintError, match=r'npu.toml:1: .*"abacus" to .* cpu, cuda, '):
        TargetConfig.named(str(path))


def test_an_operator_is_asked_with_the_target(tmp_path: Path) -> None:
    x = TensorType("float32", (2, 3))
    small = TargetConfig.named(preset(tmp_path, kernels=FEW))
    assert npusim.is_op_supported("aten.softmax.int", {"dim": 1}, inputs=[x])
    assert not npusim.is_op_supported("aten.softmax.int", {"dim": 1}, inputs=[x], target=small)
    assert npusim.is_op_supported("aten.softmax.int")
    assert not npusim.is_op_supported("aten.softmax.int", target=small)
    assert npusim.is_op_supported("aten.max_pool2d.default", target=small)


def test_what_is_handed_out_as_it_came_is_named() -> None:
    """No node is to blame for an input that the target has no kernel to copy."""
    double, single = TensorType("float64", (3,)), TensorType("float32", (3,))
    graph = Graph(
        "through",
        (Value("x", double), Value("y", single)),
        (Output("first", "x"), Output("second", "y"), Output("third", "c")),
        (),
        (Constant("c", double, bytes(24)),),
        (),
    )
    target = TargetConfig.named("metal:apple7")
    for refuse in (assemble, check_supported):
        with pytest.raises(UnsupportedOpError) as error:
            refuse(graph, target)
        text = str(error.value)
        assert "input 'x' (float64[3]), handed out as it is: kernel 'copy'" in text
        assert "constant 'c' (float64[3])" in text and "'y'" not in text
