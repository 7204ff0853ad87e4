"""merge_convolutions: sums of convolutions of one input become one convolution."""

import pytest
import torch
from torch import nn

import npusim
from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.fold_batch_norm import fold_batch_norm
from npusim.passes.merge_convolutions import merge_convolutions

NORM = {"training": False, "momentum": 0.1, "eps": 1e-3, "cudnn_enabled": True}


def merged(graph, target):
    return merge_convolutions(fold_batch_norm(canonicalize_conv(graph, target), target), target)


def conv(draft, x, *weight, **attrs):
    return draft.call("aten.conv2d.default", x, draft.w(*weight), draft.w(weight[0]), **attrs)


def added(draft, a, b):
    return draft.call("aten.add.Tensor", a, b, alpha=1)


def convolutions(graph):
    return sum(node.op == "npu.conv" for node in graph.nodes)


def test_windows_within_the_largest(draft, check_pass):
    x = draft.x(2, 4, 7, 6)
    a = conv(draft, x, 4, 2, 3, 3, padding=(1, 1), groups=2)
    b = conv(draft, x, 4, 2, 1, 1, groups=2)
    c = conv(draft, x, 4, 2, 1, 3, padding=(0, 1), groups=2)
    assert convolutions(check_pass(merged, draft.graph(added(draft, added(draft, b, a), c)))) == 1


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_norm_of_the_input(draft, check_pass, groups):
    x = draft.x(2, 4, 7, 6)
    a = conv(draft, x, 4, 4 // groups, 5, 3, padding=(2, 1), groups=groups)
    statistics = [draft.w(4, name=n) for n in ("gamma", "beta", "mean", "var")]
    y = draft.call("aten.batch_norm.default", x, *statistics, **NORM)
    graph = check_pass(merged, draft.graph(added(draft, y, a)))
    assert convolutions(graph) == 1
    assert not any(x in node.inputs for node in graph.nodes if node.op != "npu.conv")


def test_dilated_windows(draft, check_pass):
    x = draft.x(2, 4, 9, 8)
    a = conv(draft, x, 4, 4, 3, 3, padding=(2, 2), dilation=(2, 2))
    b = conv(draft, x, 4, 4, 1, 1)
    assert convolutions(check_pass(merged, draft.graph(added(draft, a, b)))) == 1


@pytest.mark.parametrize("bias", [True, False])
def test_sums_that_begin_with_zero(draft, check_pass, bias):
    x = draft.x(2, 4, 7, 6)
    weights = (draft.w(4, 4, 1, 1), draft.w(4) if bias else None)
    begun = draft.call("aten.add.Scalar", draft.call("aten.conv2d.default", x, *weights), other=0)
    y = added(draft, begun, conv(draft, x, 4, 4, 3, 3, padding=(1, 1)))
    graph = check_pass(merged, draft.graph(y))
    assert convolutions(graph) == 1
    assert [n.op for n in graph.nodes if n.name not in graph.static_values] == ["npu.conv"]


def others(draft):
    x, y = draft.x(2, 4, 8, 8), draft.x(2, 4, 8, 8, name="y")
    three = {"padding": (1, 1)}
    yield added(draft, conv(draft, x, 4, 4, 3, 3, **three), conv(draft, y, 4, 4, 1, 1))
    yield added(draft, conv(draft, x, 4, 4, 1, 3, padding=(0, 1)),
                conv(draft, x, 4, 4, 3, 1, padding=(1, 0)))  # fmt: skip
    yield added(draft, conv(draft, x, 4, 2, 3, 3, groups=2, **three), conv(draft, x, 4, 4, 1, 1))
    yield added(draft, conv(draft, x, 4, 4, 3, 3, padding=(2, 2), dilation=(2, 2)),
                conv(draft, x, 4, 4, 3, 3, **three))  # fmt: skip
    yield added(draft, conv(draft, x, 4, 4, 2, 2, padding=(1, 1), stride=(2, 2), dilation=(2, 2)),
                conv(draft, x, 4, 4, 1, 1, stride=(2, 2)))  # fmt: skip
    kept = conv(draft, x, 4, 4, 1, 1)
    yield added(draft, conv(draft, x, 4, 4, 3, 3, **three), kept)
    yield kept


def test_what_is_no_one_convolution_stays(draft, check_pass):
    graph = draft.graph(*others(draft))
    assert convolutions(check_pass(merged, graph)) == 12


def test_halves_stay(draft, check_pass):
    x, half = draft.x(2, 4, 7, 6, dtype="float16"), {"dtype": "float16"}
    a = draft.call("aten.conv2d.default", x, draft.w(4, 4, 3, 3, **half), None, padding=(1, 1))
    b = draft.call("aten.conv2d.default", x, draft.w(4, 4, 1, 1, **half), None)
    assert convolutions(check_pass(merged, draft.graph(added(draft, a, b)))) == 2


class Branches(nn.Module):
    """A block of RepVGG as it is trained, or one of a depthwise MobileOne."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.wide = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False) for _ in range(2)
        )
        self.narrow = nn.Conv2d(channels, channels, 1, groups=groups, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [N, C, H, W] to [N, C, H, W]."""
        first, second, third, own = self.norms
        sums = 0 + third(self.narrow(x)) + own(x)
        sums = sums + first(self.wide[0](x)) + second(self.wide[1](x))
        return torch.relu(sums)


@pytest.mark.parametrize("groups", [1, 20])
def test_a_block_is_one_command(groups):
    torch.manual_seed(0)
    model = Branches(20, groups).eval()
    for norm in model.norms:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(3, 20, 7, 5)
    program = npusim.compile((model, (x,)))
    assert len(program.methods[0].commands) == 3  # and copies to channels last and back
    session = npusim.load(program, weights=model.state_dict(), threads=1)
    with torch.no_grad():
        torch.testing.assert_close(session(x)[0], model(x), rtol=1e-5, atol=1e-5)
