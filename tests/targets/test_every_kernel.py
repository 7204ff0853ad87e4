"""A kernel taken off a target's list changes what `check` and `partition` answer, for every kernel.

What needs it is refused by its name, or is computed by other kernels; which of the two is stated
for each, so that neither happens unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import npusim
from npusim.abi.kernels import KERNELS
from npusim.errors import TargetConstraintError, UnsupportedOpError
from npusim.ir.graph import Graph
from npusim.ir.opdef import find
from npusim.selftest.single_op import graph_of, tensors_for
from npusim.targets import TargetConfig
from npusim.targets.data_file import to_toml
from tests.codegen.cases import NormBetween, paged_step
from tests.targets.test_capabilities import extract, native_stems


def case_of(name: str, index: int = 0, dtype: str = "") -> Callable[[], Graph]:
    """A conformance case of an op, as a graph."""

    def build() -> Graph:
        op = find(name)
        assert op is not None, name
        kind, case = dtype or op.dtypes[0], op.cases[index]
        return graph_of(op, case, tensors_for(case, kind, ""), kind)

    return build


def model(
    make: Callable[[], nn.Module], *shape: int, dtype: str = "float32"
) -> Callable[[], Graph]:
    """A model of one input, as a graph."""
    kind = getattr(torch, dtype)
    return lambda: extract(make().to(kind), torch.zeros(*shape, dtype=kind))


def norm_between() -> Graph:
    """What products of many rows do of the norm between them."""
    x, residual = torch.zeros(2, 20, 24).bfloat16(), torch.zeros(2, 20, 80).bfloat16()
    return extract(NormBetween(), x, residual)


LINEAR = model(lambda: nn.Linear(64, 96), 20, 64)
QUANTIZED = model(lambda: nn.Linear(64, 96), 20, 64, dtype="bfloat16")
NORMED = model(
    lambda: nn.Sequential(nn.RMSNorm(64, eps=1e-6), nn.Linear(64, 96)), 1, 64, dtype="bfloat16"
)
DEPTHWISE = model(lambda: nn.Conv2d(8, 8, 3, groups=8), 1, 8, 9, 9)

# By stem: what needs it.
USES: dict[str, Callable[[], Graph]] = {
    "pointwise": case_of("aten.add.Tensor"),
    "copy": case_of("aten.cat.default"),
    "fill": case_of("aten.scatter_reduce.two", 3),
    "reduce": case_of("aten.sum.default"),
    "softmax": case_of("aten.softmax.int"),
    "norm": case_of("aten.layer_norm.default"),
    "group_norm": case_of("aten.group_norm.default"),
    "pack_b": model(lambda: nn.Conv2d(8, 8, 3), 1, 8, 9, 9),
    "gemm": LINEAR,
    "conv": model(lambda: nn.Conv2d(8, 8, 3), 1, 8, 9, 9),
    "conv_depthwise": DEPTHWISE,
    "winograd_weights": model(lambda: nn.Conv2d(64, 64, 3, padding=1), 1, 64, 56, 56),
    "conv_winograd": model(lambda: nn.Conv2d(64, 64, 3, padding=1), 1, 64, 56, 56),
    "matmul": case_of("aten.matmul.default"),
    "widening_matmul": case_of("npu.matmul", 0, "bfloat16"),
    "grouped_matmul": case_of("aten._grouped_mm.default"),
    "attention": case_of("aten.scaled_dot_product_attention.default"),
    "attention_step": case_of("npu.attention_step", 0, "bfloat16"),
    "paged_attention": case_of("npu.paged_attention"),
    "paged_append": case_of("npu.paged_append"),
    "paged_rope_append": case_of("npu.paged_rope_append"),
    "rope": case_of("npu.rope"),
    "linear": model(lambda: nn.Linear(64, 96), 20, 64, dtype="bfloat16"),
    "normed_linear": case_of("npu.normed_linear", 0, "bfloat16"),
    "linear_before_norm": norm_between,
    "linear_behind_norm": norm_between,
    "linear_rope_append": paged_step,
    "recurrence": case_of("npu.recurrence", 0, "bfloat16"),
    "recurrent_step": case_of("npu.recurrent_step", 0, "bfloat16"),
    "token_mixing": case_of("npu.token_mixing", 0, "bfloat16"),
    "quantize": QUANTIZED,
    "quantized_linear": QUANTIZED,
    "normed_quantized_linear": NORMED,
    "pack_int8": case_of("npu.int8_matmul"),
    "conv_int8": case_of("npu.int8_matmul"),
    "pool": case_of("aten.max_pool2d.default"),
    "index": case_of("aten.embedding.default"),
    "scatter": case_of("aten.scatter.src"),
    "resize": case_of("aten.upsample_nearest2d.vec"),
    "scan": case_of("aten.cumsum.default"),
    "sort": case_of("aten.sort.default"),
    "sample": case_of("npu.sample"),
}

# What is computed by other kernels instead: those that come in. All else is refused by name.
INSTEAD: dict[tuple[str, str], set[str]] = {
    ("cpu", "gemm"): {"linear"},
    ("cpu", "linear"): {"gemm", "pack_b"},
    ("cpu", "winograd_weights"): {"conv", "pack_b"},
    ("cpu", "conv_winograd"): {"conv", "pack_b"},
    ("cpu", "recurrence"): {"linear"},
    ("cuda", "linear"): {"matmul"},
    ("cuda", "attention_step"): {"attention", "rope"},
    ("cuda", "paged_rope_append"): {"paged_append", "rope"},
    ("cuda", "normed_linear"): {"linear", "norm"},
    ("cuda", "normed_quantized_linear"): {"quantized_linear", "norm"},
    ("cuda", "linear_before_norm"): {"norm"},
    ("cuda", "linear_behind_norm"): {"norm"},
    ("cuda", "linear_rope_append"): {"linear", "paged_rope_append"},
    ("cuda", "recurrence"): {"recurrent_step"},
    ("cuda", "recurrent_step"): {"linear"},
    ("cuda", "token_mixing"): {"copy", "linear"},
    ("cpu", "conv_depthwise"): {"conv", "pack_b"},
    ("cuda", "conv_depthwise"): {"conv", "pack_b"},
}
QUANTIZING = ("quantize", "quantized_linear")
ALL = [
    (name, stem)
    for name in ("cpu", "cuda")
    for stem in TargetConfig.named(name).kernels
    if not KERNELS[stem].collective  # tests/runtime/test_ranks.py
]


@cache
def used(stem: str) -> Graph:
    return USES[stem]()


def target_of(folder: Path, name: str, stem: str, without: str = "") -> TargetConfig:
    """The target as a file says it, with a kernel taken off; crossing to it costs nothing."""
    kernels = [kernel for kernel in TargetConfig.named(name).kernels if kernel != without]
    free = {"run_seconds": 0, "transfer_seconds": 0, "transfer_rate": 0}
    quantized = (
        {"weight_quantization": "int8"} if stem in (*QUANTIZING, "normed_quantized_linear") else {}
    )
    data = {"like": name, "name": "less", "kernels": kernels, **free, **quantized}
    (folder / "less.toml").write_text(to_toml(data), encoding="utf-8")
    target = TargetConfig.named(str(folder / "less.toml"))
    return replace(target, code_format="")  # which kernels there are needs no code


def test_every_kernel_is_tried() -> None:
    assert {stem for _, stem in ALL} == set(USES)
    assert set(INSTEAD) <= set(ALL)


@pytest.mark.parametrize(("name", "stem"), ALL)
def test_a_kernel_less(tmp_path: Path, name: str, stem: str) -> None:
    graph = used(stem)
    full = target_of(tmp_path, name, stem)
    assert npusim.check(graph, full).others == ()
    had = native_stems(npusim.partition(graph, target=full))
    assert stem in had
    less = target_of(tmp_path, name, stem, without=stem)
    if stem in QUANTIZING:
        for ask in (npusim.check, npusim.partition):
            with pytest.raises(TargetConstraintError, match="no kernel for quantized weights"):
                ask(graph, target=less)
        return
    left = native_stems(npusim.partition(graph, target=less))
    others = npusim.check(graph, less).others
    if (name, stem) in INSTEAD:
        assert others == ()
        assert left - had == INSTEAD[name, stem]
        assert stem not in left
        return
    assert [node.reason for node in others] == [f"target 'less' has no kernel '{stem}'"]
    assert left == set()
    with pytest.raises(UnsupportedOpError, match=f"no kernel '{stem}'"):
        npusim.compile(graph, less)


# Convolutions whose bias is more than one vector


def pooled() -> tuple[nn.Module, torch.Tensor]:
    """A batch norm behind a convolution, pooled, and read by convolutions of single positions."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    model = nn.Sequential(*layers, nn.Conv2d(8, 6, 1)).eval()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model.half(), torch.randn(2, 3, 12, 12).half()


@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_convolutions_have_the_vectors_that_a_target_takes(name: str, vectors: int) -> None:
    """With one, the command is the plain convolution: sums, a bias, an activation."""
    model, x = pooled()
    target = replace(TargetConfig.named(name), conv_vectors=vectors, code_format="")
    program = npusim.compile(extract(model, x), target)
    counts, sizes, stems = [], [], set()
    for command in program.methods[0].commands:
        stem = program.kernels[command.kernel].name
        stems.add(stem)
        if stem not in ("conv", "conv_depthwise"):
            continue
        fields = KERNELS[stem].unpack(command.params)
        counts.append(fields["has_bias"])
        bias = program.buffers[command.operands[2].buffer]
        sizes.append(bias.bytes // 4 // fields["out_channels"])
    assert stems == {"copy", "conv", "pool"}, "nothing is left beside them"
    assert counts == sizes
    assert max(counts) == vectors and len(counts) == 2
    if name == "cpu":
        (got,) = npusim.load(program, model.state_dict(), device="cpu")(x)
        torch.testing.assert_close(got, model(x), rtol=4e-3, atol=4e-3)
