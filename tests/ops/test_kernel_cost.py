"""Costs of kernels: each has one, it fits the operands, and known cases count as by hand."""

from __future__ import annotations

import pytest

import npusim.ops  # noqa: F401  (registers the families)
from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS, Params
from npusim.ir.opdef import REGISTRY
from npusim.lowering.assemble import assemble
from npusim.program.program import CompiledProgram
from npusim.selftest.single_op import graph_of, tensors_for
from npusim.targets import TargetConfig
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


F32, F16, BF16, F64, I64, I32, I8, U8 = 0, 1, 2, 3, 4, 5, 7, 8
SHAPE = (3, 4, *[1] * 6)

# Stem, fields, bytes of each operand, operations: counted by hand.
BY_HAND: list[tuple[str, Params, tuple[int, ...], int]] = [
    ("pointwise", {"n_inputs": 1, "n_instructions": 5, "shape": SHAPE, "x_dtype": (F16,),
                   "x_strides": (4, 1, *[0] * 94), "y_strides": (4, 1, *[0] * 6)},
     (12 * 2, 12 * 4), 12 * 5),
    ("copy", {"element_size": 2, "rank": 2, "shape": SHAPE, "x_strides": (0, 1, *[0] * 6),
              "y_strides": (4, 1, *[0] * 6)}, (4 * 2, 12 * 2), 0),
    ("copy", {"element_size": 4, "rank": 2, "shape": (5, 3), "x_strides": (-1, 1),
              "y_strides": (3, 1)}, (7 * 4, 15 * 4), 0),  # windows of 3 in 7, backwards
    ("fill", {"element_size": 8, "rank": 2, "shape": SHAPE, "y_strides": (4, 1, *[0] * 6)},
     (12 * 8,), 0),
    ("reduce", {"rank": 1, "reduced_rank": 1, "shape": (3,), "reduced": (5,), "x_strides": (5,),
                "reduced_strides": (1,), "x_dtype": F16}, (15 * 2, 3 * 4), 15),
    ("softmax", {"outer": 2, "size": 3, "inner": 5, "x_dtype": BF16}, (60, 120), 5 * 30),
    ("norm", {"rows": 4, "size": 6, "has_weight": 1, "has_bias": 1, "w_dtype": F16},
     (96, 12, 12, 96), 24 * (5 + 2)),
    ("norm", {"kind": 1, "rows": 4, "size": 6, "has_weight": 1}, (96, 24, 96), 24 * (3 + 1)),
    ("group_norm", {"batch": 2, "channels": 6, "spatial": 5, "has_weight": 1, "act": 1},
     (240, 24, 240), 60 * (5 + 1 + 1)),
    ("pack_b", {"groups": 2, "n": 17, "taps": 3, "channels": 4, "y_dtype": BF16},
     (24 * 17 * 4, 24 * 32 * 2), 0),
    ("gemm", {"m": 3, "n": 17, "k": 5, "has_bias": 1, "residual": 1, "r_dtype": F16},
     (60, 5 * 32 * 4, 17 * 4, 51 * 2, 51 * 4), 2 * 3 * 17 * 5 + 2 * 51),
    ("conv", {"batch": 1, "in_channels": 4, "out_channels": 6, "in_size": (1, 3, 3),
              "out_size": (1, 5, 5), "kernel": (1, 2, 2), "groups": 2, "transposed": 1},
     (36 * 4, 2 * 16 * 4 * 2 * 4, 150 * 4), 2 * 36 * 4 * 3),
    ("conv", {"batch": 1, "in_channels": 4, "out_channels": 6, "in_size": (1, 3, 3), "groups": 1,
              "out_size": (1, 3, 3), "kernel": (1, 1, 2), "stride": (1, 2, 2), "has_bias": 1,
              "residual": 1, "transposed": 2},  # of four phases
     (36 * 4, 4 * 16 * 8 * 4, 6 * 4, 4 * 54 * 4, 4 * 54 * 4), 4 * 54 * (2 * 8 + 2)),
    ("conv_depthwise", {"batch": 2, "in_channels": 8, "out_channels": 8, "in_size": (1, 4, 4),
                        "out_size": (1, 2, 2), "kernel": (1, 3, 3), "act": 1},
     (256 * 4, 72 * 4, 64 * 4), 64 * (2 * 9 + 1)),
    ("winograd_weights", {"n": 5, "channels": 3, "tile": 2, "x_dtype": F16},
     (135 * 2, 4 * 4 * 16 * 3 * 4), 0),
    ("conv_winograd", {"batch": 1, "in_channels": 3, "out_channels": 5, "in_size": (1, 6, 6),
                       "out_size": (1, 4, 4), "kernel": (1, 3, 3), "tile": 2, "has_bias": 1},
     (108 * 4, 4 * 4 * 16 * 3 * 4, 5 * 4, 80 * 4), 80 * (2 * 9 * 3 + 1)),
    ("matmul", {"batch": (1, 1, 1, 1, 2, 3), "m": 4, "n": 5, "k": 6, "dtype": F64, "alpha": 0.5,
                "a_batch": (0, 0, 0, 0, 24, 0), "b_batch": (0, 0, 0, 0, 0, 30), "a_m": 6,
                "a_k": 1, "b_k": 5, "b_n": 1},
     (2 * 24 * 8, 3 * 30 * 8, 6 * 20 * 8), 6 * 20 * (2 * 6 + 1)),
    ("widening_matmul", {"batch": (1, 1, 1, 1, 1, 2), "m": 3, "n": 5, "k": 4, "dtype": BF16,
                         "alpha": 1, "a_batch": (0, 0, 0, 0, 0, 12), "a_m": 4, "a_k": 1,
                         "b_batch": (0, 0, 0, 0, 0, 20), "b_k": 5, "b_n": 1},
     (2 * 12 * 2, 2 * 20 * 2, 2 * 15 * 4), 2 * 15 * 2 * 4),
    ("grouped_matmul", {"batch": (1, 1, 1, 1, 1, 4), "m": 7, "n": 5, "k": 3, "alpha": 1},
     (84, 4 * 15 * 4, 4 * 4, 140), 2 * 105),
    ("grouped_matmul", {"batch": (1, 1, 1, 1, 1, 4), "m": 2, "n": 5, "k": 3, "alpha": 1},
     (24, 2 * 15 * 4, 4 * 4, 40), 2 * 30),
    ("attention", {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 3, "kv_len": 5, "head_dim": 4,
                   "v_dim": 6, "has_mask": 1, "mask_dtype": 9, "softcap": 1.0,
                   "q_strides": (24, 12, 4), "k_strides": (20, 20, 4), "v_strides": (30, 30, 6),
                   "mask_strides": (0, 0, 5, 1)},
     (24 * 4, 20 * 4, 30 * 4, 15, 36 * 4), 30 * (2 * 10 + 5 + 1 + 2)),
    ("attention_step", {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "v_dim": 8,
                        "rotary_dim": 8, "limit": 10, "cs_strides": (0, 8), "dtype": BF16},
     (256, 128, 64, 32, 64, 8, 4 * 10 * 32, 4 * 10 * 16, 128), 80 * (48 + 5) + 3 * 12 * 8),
    ("paged_attention", {"heads": 4, "kv_heads": 2, "length": 3, "head_dim": 8, "v_dim": 6,
                         "pages": 9, "page_tokens": 16, "requests": 2, "table_length": 4,
                         "window": 20, "dtype": BF16},
     (4 * 3 * 8 * 2, 2 * 8 * 16 * 8 * 2, 2 * 8 * 16 * 6 * 2, 24, 24, 64, 4 * 3 * 6 * 2),
     4 * 3 * 20 * (2 * 14 + 5)),
    ("paged_append", {"heads": 2, "length": 3, "head_dim": 8, "pages": 9, "page_tokens": 16,
                      "requests": 2, "table_length": 4},
     (2 * 3 * 8 * 4, 24, 24, 64, 2 * 3 * 8 * 4), 0),
    ("paged_rope_append", {"heads": 4, "kv_heads": 2, "length": 3, "head_dim": 8, "v_dim": 6,
                           "rotary_dim": 4, "pages": 1, "page_tokens": 2, "requests": 2,
                           "table_length": 4, "cs_strides": (4, 4), "dtype": BF16},
     (3 * 4 * 16, 3 * 2 * 16, 3 * 2 * 12, 3 * 16, 3 * 16, 24, 24, 64, 3 * 4 * 16, 2 * 2 * 16,
      2 * 2 * 12), 3 * 3 * 6 * 4),
    ("rope", {"batch": 2, "length": 3, "parts": 2, "heads": (4, 1, 0), "head_dim": (8, 6, 0),
              "rotate": (1, 0, 0), "rotary_dim": 4, "dtype": F16, "has_position": 1,
              "cs_strides": (0, 4, 12, 4)},
     (24 * 16, 6 * 12, 12 * 4, 24 * 4, 8, 24 * 16, 6 * 12), 3 * 24 * 4),
    ("linear", {"m": 3, "n": 5, "k": 8, "rows": (4, 6, 0, 0), "segments": 2, "gated": 1, "act": 1,
                "x_dtype": BF16, "w_dtype": BF16, "y_dtype": BF16},
     (48, 64, 96, 30), 2 * 3 * 10 * 8 + 15 + 15),
    ("normed_linear", {"m": 1, "n": 4, "k": 8, "rows": (4, 0, 0, 0), "segments": 1,
                       "x_dtype": BF16, "w_dtype": BF16, "y_dtype": BF16},
     (16, 64, 16, 8), 2 * 32 + 4 * 8),
    ("recurrent_step", {"m": 2, "units": 3, "k": 8, "cell": 2, "has_bias": 1, "has_addend": 1,
                        "dtype": BF16},
     (32, 192, 48, 48, 12, 12, 12), 2 * 24 * 8 + 2 * 24 + 9 * 6),
    ("recurrent_step", {"m": 2, "units": 3, "k": 8, "cell": 1, "has_bias": 0, "has_addend": 1,
                        "dtype": BF16},
     (32, 144, 36, 12, 12), 2 * 18 * 8 + 18 + 7 * 6),
    ("recurrent_step", {"m": 2, "units": 3, "k": 8, "cell": 0, "has_bias": 1, "has_addend": 1,
                        "dtype": BF16},
     (32, 48, 12, 12, 12), 2 * 6 * 8 + 2 * 6 + 6),
    ("recurrence", {"steps": 5, "m": 2, "units": 3, "cell": 2, "has_bias": 1, "dtype": BF16},
     (240, 72, 48, 12, 12, 60, 12), 5 * 2 * 12 * (2 * 3 + 2) + 5 * 9 * 6),
    ("token_mixing", {"batch": 2, "m": 3, "n": 5, "k": 8, "has_bias": 1, "residual": 1, "act": 1,
                      "x_dtype": BF16, "w_dtype": BF16, "y_dtype": BF16, "r_dtype": BF16},
     (160, 48, 12, 60, 60), 2 * 30 * 8 + 3 * 30),
    ("linear_before_norm", {"m": 20, "n": 8, "k": 16, "rows": (8, 0, 0, 0), "segments": 1,
                            "slots": 2, "x_dtype": BF16, "w_dtype": BF16, "y_dtype": BF16},
     (640, 256, 16, 320, 320, 160), 2 * 20 * 8 * 16 + 3 * 160),
    ("linear_behind_norm", {"m": 20, "n": 4, "k": 8, "rows": (8, 0, 0, 0), "segments": 1,
                            "gated": 1, "slots": 2, "x_dtype": BF16, "w_dtype": BF16,
                            "y_dtype": BF16},
     (320, 128, 160, 160), 2 * 20 * 8 * 8 + 80 + 20 * (2 + 2 * 4)),
    ("linear_rope_append", {"m": 3, "n": 32, "k": 8, "rows": (16, 8, 8, 0), "segments": 3,
                            "has_bias": 1, "slots": 2, "norm_eps": 1e-6, "x_dtype": BF16,
                            "w_dtype": BF16, "y_dtype": BF16, "heads": 2, "kv_heads": 1,
                            "length": 3, "head_dim": 8, "pages": 1, "page_tokens": 2,
                            "requests": 2, "table_length": 4, "cs_strides": (8, 8),
                            "dtype": BF16, "cs_dtype": BF16},
     (48, 256, 128, 128, 24, 128, 48, 48, 24, 24, 64, 96, 2 * 16, 2 * 16),
     2 * 3 * 32 * 8 + 96 + 3 * (2 + 32) + 3 * 3 * 8 * 3),
    ("quantize", {"rows": 4, "k": 32, "format": 1}, (512, 512 + 64 + 64), 2 * 128),
    ("quantized_linear", {"m": 2, "n": 4, "k": 32, "rows": (4, 0, 0, 0), "segments": 1,
                          "format": 3, "group": 32},
     (256, 256 + 64 + 64 + 64, 32), 2 * 2 * 4 * 32),
    ("normed_quantized_linear", {"m": 1, "n": 4, "k": 32, "rows": (4, 0, 0, 0), "segments": 1,
                                 "format": 1, "x_dtype": BF16, "y_dtype": BF16},
     (64, 512 + 64 + 64, 64, 8), 2 * 4 * 32 + 4 * 32),
    ("pack_int8", {"groups": 1, "n": 5, "taps": 3, "channels": 3}, (45, 16 * (12 + 4)), 0),
    ("pack_int8", {"groups": 1, "n": 5, "taps": 9, "channels": 1, "depthwise": 1},
     (45, 64 * (12 + 4)), 0),
    ("conv_int8", {"batch": 1, "in_channels": 4, "out_channels": 6, "in_size": (1, 5, 5),
                   "out_size": (1, 3, 3), "kernel": (1, 3, 3), "groups": 1, "x_dtype": U8,
                   "y_dtype": I8, "r_dtype": I8, "has_x_zero": 1, "w_zeros": 1, "scales": 6,
                   "has_sum_bias": 1, "has_bias": 1, "residual": 1, "has_y_zero": 1, "act": 1},
     (100, 16 * (36 + 4), 1, 1, 24, 24, 24, 54, 20, 1, 54), 54 * (2 * 36 + 5 + 1 + 1)),
    ("pool", {"batch": 1, "in_channels": 2, "out_channels": 2, "in_size": (1, 4, 4),
              "out_size": (1, 2, 2), "kernel": (1, 3, 3), "has_indices": 1},
     (128, 32, 64), 8 * 9),
    ("pool", {"batch": 1, "in_channels": 2, "out_channels": 2, "in_size": (1, 4, 4),
              "out_size": (1, 2, 2), "kernel": (1, 3, 3), "adaptive": 1}, (128, 32), 32),
    ("index", {"element_size": 2, "n": 1, "idx_dtype": I64, "shape": SHAPE,
               "idx_strides": (1, *[0] * 47)}, (24, 3 * 8, 24), 0),
    *(("scatter", {"mode": mode, "dtype": F32, "n": 1, "idx_dtype": I32, "shape": SHAPE,
                   "src_strides": (4, 1, *[0] * 6), "idx_strides": (1, *[0] * 47),
                   "y_strides": (0, 1, *[0] * 6), "k_size": (rows, *[0] * 5)},
       (48, 3 * 4, min(rows, 3) * 16), operations)
      for mode, rows, operations in ((1, 5, 12), (0, 5, 0), (1, 2, 12))),  # 3 items in 5 rows or 2
    *(("resize", {"batch": 1, "channels": 2, "in_size": (1, 2, 2), "out_size": (1, 4, 4),
                  "mode": mode}, (32, 128), 2 * 32 * taps)
      for mode, taps in ((0, 0), (1, 8), (2, 16), (3, 0))),
    ("scan", {"outer": 2, "size": 3, "inner": 5}, (120, 120), 30),
    ("sort", {"outer": 2, "size": 9, "inner": 1, "k": 3}, (72, 24, 48), 18 * 4),
    ("sort", {"outer": 2, "size": 1, "inner": 3, "k": 1}, (24, 24, 48), 0),
    ("sample", {"size": 100, "dtype": F16, "capacity": 7}, (200, 40, 8, 8, 8, 56, 8), 100),
    ("all_gather", {"bytes": 24, "ranks": 3}, (24, 72), 0),
    ("all_reduce", {"elements": 6, "dtype": F16, "ranks": 3, "residual": 1}, (12, 12, 12), 18),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "given", "moved", "operations"), BY_HAND)
def test_costs_are_those_counted_by_hand(
    stem: str, given: Params, moved: tuple[int, ...], operations: int
) -> None:
    cost = kernel_cost(stem, fields(stem, **given))
    assert cost.operand_bytes == moved
    assert cost.operations == operations


def test_every_kernel_was_counted() -> None:
    assert {stem for stem, *_ in BY_HAND} == set(KERNELS)


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


@pytest.mark.parametrize("stem", ["copy", "fill"])
@pytest.mark.parametrize("behind", [0, 1])
def test_sizes_behind_the_rank_do_not_count(stem: str, behind: int) -> None:
    """Transposes that other kernels ask for leave zeros there; they move all of their elements."""
    strides = {f"{name}_strides": (136, 1, *[0] * 6) for name in "xy"}
    given = {"element_size": 2, "rank": 2, "shape": (196, 136, *[behind] * 6), **strides}
    params = {k: v for k, v in given.items() if stem == "copy" or k != "x_strides"}
    assert set(kernel_cost(stem, fields(stem, **params)).operand_bytes) == {2 * 196 * 136}
