"""Costs of kernels: each has one, it fits the operands, and known cases count as by hand."""

from __future__ import annotations

import pytest

import npusim.ops  # noqa: F401  (registers the families)
from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS, Params
from npusim.ir.opdef import REGISTRY
from npusim.lowering.assemble import assemble
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig
from tests.conformance.single_op import graph_of, tensors_for
from tests.conformance.test_ops import REFUSED


def fields(stem: str, **given: object) -> Params:
    """The fields of a kernel, zero but for those given."""
    kernel = KERNELS[stem]
    return {**kernel.unpack(bytes(kernel.params_size)), **given}


def check(program: CompiledProgram) -> set[str]:
    """Every operand has a cost that it can hold; returns the kernels."""
    stems = set()
    for method in (program.init, *program.methods):
        for command in method.commands:
            stem = program.kernels[command.kernel].name
            cost = kernel_cost(stem, KERNELS[stem].unpack(command.params))
            assert cost.operations >= 0
            stems.add(stem)
            gathers = stem == "index"  # may read an element more than once
            for operand, size in zip(command.operands, cost.operand_bytes, strict=True):
                held = program.buffers[operand.buffer].bytes
                assert 0 <= size <= held or gathers, (stem, operand, size, held)
    return stems


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_no_command_moves_more_than_its_operands_hold(target: str) -> None:
    config = TargetConfig.named(target)
    stems: set[str] = set()
    for op in REGISTRY.values():
        for case in op.cases if op.name not in REFUSED[target] else ():
            tensors = tensors_for(case, op.dtypes[0], "")
            stems |= check(assemble(graph_of(op, case, tensors, op.dtypes[0]), config))
    assert stems >= {"attention", "conv", "index", "matmul", "pointwise", "pool", "rope", "sort"}


def test_every_kernel_has_a_cost() -> None:
    empty = {"format": 1, "group": 32, "groups": 1}
    for stem, kernel in KERNELS.items():
        known = {name: empty[name] for name, _, _ in kernel.fields if name in empty}
        assert kernel_cost(stem, fields(stem, **known)).operations >= 0


def test_a_product_reads_its_weights_once() -> None:
    params = fields(
        "linear", m=3, n=40, k=64, rows=(40, 0, 0, 0), segments=1, x_dtype=2, w_dtype=2,
        y_dtype=0, has_bias=1, act=7,
    )  # fmt: skip
    cost = kernel_cost("linear", params)
    assert cost.operand_bytes == (3 * 64 * 2, 40 * 64 * 2, 40 * 4, 3 * 40 * 4)
    assert cost.operations == 2 * 3 * 40 * 64 + 2 * 3 * 40


def test_a_broadcast_operand_counts_once() -> None:
    params = fields(
        "pointwise", rank=2, n_inputs=2, n_instructions=2, shape=(8, 5, *[1] * 6),
        x_strides=(5, 1, *[0] * 6, 0, 1, *[0] * 6, *[0] * 80), y_strides=(5, 1, *[0] * 6),
    )  # fmt: skip
    assert kernel_cost("pointwise", params).operand_bytes == (160, 20, 160)
    assert kernel_cost("pointwise", params).operations == 80


@pytest.mark.parametrize(
    ("position", "window", "seen", "pairs"),
    [(10, 0, 12, 11 + 12), (10, 4, 5, 8), (None, 0, 100, 99 + 100)],
)
def test_attention_reads_what_the_cache_holds(
    position: int | None, window: int, seen: int, pairs: int
) -> None:
    params = fields(
        "attention", batch=1, heads=4, kv_heads=2, q_len=2, kv_len=100, head_dim=16, v_dim=16,
        q_strides=(128, 16, 64), k_strides=(3200, 1600, 16), v_strides=(3200, 1600, 16),
        causal=1, has_position=1, window=window, dtype=2,
    )  # fmt: skip
    cost = kernel_cost("attention", params, position)
    row = 2 * seen * 16 * 2
    assert cost.operand_bytes == (4 * 2 * 16 * 2, row, row, 8, 4 * 2 * 16 * 2)
    assert cost.operations == 4 * pairs * (2 * 32 + 5)


def test_a_convolution_counts_its_products() -> None:
    params = fields(
        "conv", batch=2, in_channels=6, out_channels=32, in_size=(1, 9, 9), out_size=(1, 4, 4),
        kernel=(1, 3, 3), groups=2, act=1,
    )  # fmt: skip
    cost = kernel_cost("conv", params)
    outputs = 2 * 32 * 16
    assert cost.operand_bytes == (2 * 6 * 81 * 4, 2 * 16 * 27 * 4, outputs * 4)
    assert cost.operations == 2 * outputs * 27 + outputs
