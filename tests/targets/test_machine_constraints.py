"""What a machine has no form of goes to the host, with the reason; nothing else does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import npusim
from npusim.errors import TargetConstraintError, UnsupportedOpError
from npusim.targets import TargetConfig, override

EDGE = TargetConfig.named("npu-edge-32x32")
FREE = ("run_seconds=0", "transfer_seconds=0", "transfer_rate=0")


class Mixed(nn.Module):
    """A product in float32 between two of float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ x).double().exp().sum(-1)


def test_a_dtype_that_is_missing_goes_to_the_host() -> None:
    x = torch.randn(4, 4)
    graph = npusim.extract_ir(Mixed().eval(), (x,))
    target = override(EDGE, FREE)
    report = npusim.check(graph, target)
    reasons = {n.op: (n.constraint, n.reason) for n in report.others}
    assert "aten.exp.default" in reasons and "aten.mm.default" not in reasons
    constraint, reason = reasons["aten.exp.default"]
    assert constraint == "dtype"
    assert reason.startswith("machine 'npu-edge-32x32' takes dtype int8 or")
    assert reason.endswith("not float64 ('constraints.dtypes')")
    with pytest.raises(UnsupportedOpError, match=r"not float64 \('constraints.dtypes'\)"):
        npusim.compile(graph, target)
    plan = npusim.partition(graph, target=target)
    (got,) = npusim.DAGExecutor(plan, summary=False).load_weights({})(x)
    torch.testing.assert_close(got, Mixed()(x), rtol=1e-5, atol=1e-6)


def test_a_dtype_that_only_moves_is_not_computed_with() -> None:
    target = TargetConfig.named("gemmini-8")
    assert target.refusal("copy", [("float32", 2), ("float32", 2)]) is None
    why = target.refusal("pointwise", [("float32", 2), ("float32", 2)])
    assert why == (
        "machine 'gemmini-8' takes dtype int32 or int8 to compute 'pointwise' with, not float32"
    )
    assert target.refusal("conv_int8", [("int8", 4), ("float32", 1), ("int8", 4)]) is None


def test_ranks_are_limits() -> None:
    six, seven = ([("float32", rank)] * 2 for rank in (6, 7))
    assert EDGE.refusal("copy", six) is None
    assert EDGE.refusal("copy", seven) == (
        "machine 'npu-edge-32x32' takes at most 6 dimensions, not 7 ('constraints.max_rank')"
    )
    free = override(EDGE, ["constraints.max_rank=0"])
    assert free.refusal("copy", seven) is None


def test_ordinary_models_need_no_host() -> None:
    for name in ("npu-edge-32x32", "scale-32-ws", "tpu-v3", "tpu-v6e"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        graph = npusim.extract_ir(model.eval(), (torch.zeros(1, 3, 8, 8),))
        assert npusim.check(graph, TargetConfig.named(name)).coverage == 1, name


def test_a_machine_may_rule_the_host_out() -> None:
    graph = npusim.extract_ir(Mixed().eval(), (torch.zeros(4, 4),))
    alone = override(EDGE, ["constraints.fallback=refuse"])
    assert EDGE.leaves_nodes and not alone.leaves_nodes
    with pytest.raises(UnsupportedOpError, match="not float64"):
        npusim.partition(graph, target=alone)
    assert npusim.partition(graph, target=EDGE).partitions


def test_layouts_are_those_of_programs() -> None:
    with pytest.raises(TargetConstraintError, match=r"lie as NHWC .*'constraints.layouts'"):
        override(EDGE, ['constraints.layouts=["NCHW"]'])
    other = override(EDGE, ['constraints.layouts=["NCHW"]', "conv_channels_last=false"])
    assert not other.conv_channels_last


class Normed(nn.Module):
    """A convolution and its statistics, a depthwise one, and a layer, all with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.depthwise, self.out = nn.Conv2d(8, 8, 3, groups=8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.out(nn.functional.silu(self.depthwise(y)).mean((2, 3))).softmax(-1)


FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        *((f"scale-32-{flow}", tuple(FLOATS)) for flow in ("ws", "os", "is")),
        ("npu-edge-32x32", tuple(FLOATS)),
        ("tpu-v3", ("float32", "bfloat16")),
        ("tpu-v6e", ("float32", "bfloat16")),
        ("ane-m1", ("float16",)),
        *((name, ()) for name in ("gemmini-8", "ethos-u55-256")),
    ],
)
def test_networks_of_the_floats_of_a_machine_run_on_it_whole(
    name: str, dtypes: tuple[str, ...]
) -> None:
    """What prepares their weights, and the biases beside them, may be of any."""
    for dtype, kind in FLOATS.items():
        torch.manual_seed(0)
        graph = npusim.extract_ir(Normed().eval().to(kind), (torch.zeros(1, 3, 9, 9, dtype=kind),))
        if dtype in dtypes:
            assert npusim.simulate(npusim.compile(graph, name)).seconds > 0
        else:
            with pytest.raises(UnsupportedOpError, match=f"machine '{name}' takes dtype .*{dtype}"):
                npusim.compile(graph, name)


def test_a_roofline_lists_dtypes_that_there_are() -> None:
    with pytest.raises(TargetConstraintError, match="'dtypes' has 'half'; dtypes are float32"):
        override(TargetConfig.named("ane-m1"), ['roofline.dtypes=["half"]'])
