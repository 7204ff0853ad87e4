"""What running kernels finds: each check has a kernel that makes it fire, and the device goes on.

Also what SIMD groups and quads tell each other, which the order of threads must not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.softmetal import metal

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SIGNATURE = """kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
  uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]],
  uint lane [[thread_index_in_simdgroup]], uint group [[threadgroup_position_in_grid]])"""
PAGE_FAULT, TIMEOUT, STACK_OVERFLOW, INTERNAL = 3, 2, 12, 1


def run(device: metal.Device, statements: str, count: int = 64, threads: int = 64) -> Any:
    """y of `count` floats behind the kernel, x being 0, 1, 2 …"""
    pipeline = device.kernel(f"{HEAD}{SIGNATURE} {{\n{statements}\n}}", "k")
    x = device.buffer(np.arange(count, dtype=np.float32))
    y = device.buffer(np.full(count, -5, np.float32))
    device.run(pipeline, [x, y], [count], [threads])
    return y.array(np.float32)


# Statements in line 6 of the text: the error's code and a part of its message.
FAULTS = {
    "read behind": ("y[i] = x[i + 1];", PAGE_FAULT, "touched byte 256 of buffer(0) 'x'"),
    "write behind": ("y[i + 1] = x[i];", PAGE_FAULT, "thread (63,0,0) of threadgroup (0,0,0)"),
    "read in front": (
        "y[i] = x[static_cast<long>(i) - 5000];",
        PAGE_FAULT,
        "touched byte -20000 of buffer(0) 'x', a buffer of 256 bytes",
    ),
    "write just in front": ("y[static_cast<long>(i) - 1] = 1;", PAGE_FAULT, "byte -4 was written"),
    "far away": ("y[i + (1ul << 40)] = 1;", PAGE_FAULT, "belongs to no buffer"),
    "threadgroup memory overrun": (
        "threadgroup float a[8]; threadgroup float b[8]; a[0] = b[0] = 0;"
        " threadgroup float* p = a; if (i == 0) p[8] = 1; y[i] = a[0] + b[0];",
        PAGE_FAULT,
        "of variable 0",
    ),
    "threadgroup memory far behind": (
        "threadgroup float a[8]; threadgroup float* p = a; p[i * 4096] = 1; y[i] = a[0];",
        PAGE_FAULT,
        "threadgroup memory beyond its end",
    ),
    "a threadgroup's array": (
        "threadgroup float a[8]; y[i] = a[i];",
        PAGE_FAULT,
        "thread (8,0,0) of threadgroup (0,0,0) used an index outside of an array",
    ),
    "a thread's array": (
        "float a[4] = {x[0], 1, 2, 3}; y[i] = a[i % 5];",
        PAGE_FAULT,
        "thread (4,0,0) of threadgroup (0,0,0) used an index outside of an array",
    ),
    "a shift": ("y[i] = 1 << (static_cast<int>(i) + 1);", PAGE_FAULT, "shifted by the width"),
    "division by zero": (
        "const int d = static_cast<int>(x[0]); y[i] = static_cast<int>(i) / d;",
        INTERNAL,
        "divided an integer by zero",
    ),
    "endless": ("while (y[i] < 0) y[i] -= 1e-30f;", TIMEOUT, "ran longer than"),
    "full stack": (
        "float big[40000]; for (uint j = 0; j < 40000; ++j) big[j] = x[j % 64] + y[i];"
        " y[i] = big[i];",
        STACK_OVERFLOW,
        "more than its stack",
    ),
    "barrier after return": (
        "if (i == 3) return; threadgroup_barrier(mem_flags::mem_none); y[i] = 1;",
        INTERNAL,
        "of line 6, but thread (3,0,0) of threadgroup (0,0,0) returned",
    ),
    "two barriers": (
        "if (i < 32) threadgroup_barrier(mem_flags::mem_none);\n"
        "else threadgroup_barrier(mem_flags::mem_none);",
        INTERNAL,
        "of line 6, but thread (32,0,0) of threadgroup (0,0,0) waits in threadgroup_barrier of"
        " line 7",
    ),
    "two sums": (
        "y[i] = lane < 7 ? simd_sum(1.0f) :\n simd_max(2.0f);",
        INTERNAL,
        "waits in simd_sum of line 6, but thread (7,0,0) of threadgroup (0,0,0) waits in simd_max",
    ),
    "sum and barrier": (
        "if (lane == 0) threadgroup_barrier(mem_flags::mem_none); else y[i] = simd_sum(1.0f);",
        INTERNAL,
        "threads part at a meeting point",
    ),
}


@pytest.mark.seeded_fault
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_errors_of_the_command_buffer(device: metal.Device, name: str) -> None:
    statements, code, message = FAULTS[name]
    metal.set_option("TIMEOUT_S", 0.3 if code == TIMEOUT else 120)
    with pytest.raises(metal.MetalError, match="kernel k: ") as failed:
        run(device, statements)
    assert message in str(failed.value)
    assert failed.value.code == code
    assert run(device, "y[i] = x[i];").tolist() == list(range(64))


def orders(
    device: metal.Device, statements: str, names: Sequence[str] = metal.ORDERS, **sizes: int
) -> Iterator[Any]:
    for order in names:
        metal.set_option("ORDER", order)
        yield run(device, statements, **sizes).copy()


@pytest.mark.seeded_fault
def test_missing_barrier_changes_with_the_order(device: metal.Device) -> None:
    """The poison of threadgroup memory shows, and the barrier mends it."""
    exchange = "threadgroup float s[64]; s[t] = x[i]; {} y[i] = s[63 - t];"
    wrong = list(orders(device, exchange.format(""), metal.ALIKE))
    assert np.isnan(wrong[0]).sum() == 32
    assert len({result.tobytes() for result in wrong}) == 3
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    for result in orders(device, exchange.format(barrier)):
        assert result.tolist() == list(range(63, -1, -1))


@pytest.mark.seeded_fault
@pytest.mark.parametrize("fault", ["read too early", "written too early"])
def test_a_simd_group_that_runs_ahead_finds_a_missing_barrier(
    device: metal.Device, fault: str
) -> None:
    """Where SIMD operations keep all SIMD groups in step, no other order shows the fault."""
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    exchange = """threadgroup float s[64];
s[t] = x[i] / simd_sum(1.0f) * 32;
{}
const float other = s[63 - t] / simd_sum(1.0f) * 32;
{}
s[t] = -1;
y[i] = other;"""
    right = list(range(63, -1, -1))
    for result in orders(device, exchange.format(barrier, barrier)):
        assert result.tolist() == right
    early = fault == "read too early"
    faulty = exchange.format("simd_sum(1.0f);" if early else barrier, barrier if early else "")
    for result in orders(device, faulty, metal.ALIKE):
        assert result.tolist() == right, "this order alone would have found it"
    for result, ahead in zip(orders(device, faulty, metal.EAGER), (0, 32), strict=True):
        wrong = np.isnan(result) if early else result == -1
        first = ahead if early else 32 - ahead
        assert wrong[first:][:32].all() and wrong.sum() == 32
        assert result[~wrong].tolist() == right[32 - first :][:32]


@pytest.mark.seeded_fault
def test_threadgroup_memory_is_poisoned_for_every_threadgroup(device: metal.Device) -> None:
    statements = "threadgroup float s[1]; y[i] = s[0]; s[0] = 1;"
    assert np.isnan(run(device, statements, count=4, threads=1)).all()


def test_threadgroup_variables_may_follow_what_the_preprocessor_left_out(
    device: metal.Device,
) -> None:
    left_out = "#if 0\n" + "// nothing\n" * 20 + "#endif\n"
    statements = left_out + "threadgroup float a[64];\na[t] = x[i];\ny[i] = a[t];"
    assert (run(device, statements) == np.arange(64)).all()


@pytest.mark.seeded_fault
def test_locals_without_a_value_are_poison(device: metal.Device) -> None:
    assert np.isnan(run(device, "float z[2]; if (x[i] > 100) z[0] = 1; y[i] = z[0];")).all()


@pytest.mark.seeded_fault
def test_matrices_need_whole_simdgroups(device: metal.Device) -> None:
    """Lanes beyond the grid's edge would leave holes in a matrix: it is poison."""
    load = "simdgroup_float8x8 m; simdgroup_load(m, x); simdgroup_store(m, y);"
    assert run(device, load, threads=32).tolist() == list(range(64))
    assert np.isnan(run(device, f"if (lane < 30) {{ {load} }}", threads=32)[:8]).all()


@pytest.mark.seeded_fault
def test_places_of_matrix_elements_are_not_to_be_relied_on(device: metal.Device) -> None:
    """A kernel that writes elements where one layout has them is wrong in the other."""
    statements = (
        "simdgroup_float8x8 m; simdgroup_load(m, x);"
        " const uint row = (lane / 4 & 4) + lane / 2 % 4;"
        " const uint column = (lane / 4 & 2) * 2 + lane % 2 * 2;"
        " y[row * 8 + column] = m.thread_elements()[0];"
        " y[row * 8 + column + 1] = m.thread_elements()[1];"
    )
    results = []
    for layout in (0, 1):
        metal.set_option("MATRIX_LAYOUT", layout)
        results.append(run(device, statements, threads=32).tolist())
    assert results[0] == list(range(64))
    assert sorted(results[1]) == results[0] != results[1]


def test_threadgroups_come_in_any_order(device: metal.Device) -> None:
    """A sum that depends on which threadgroup comes first is not the same in all orders."""
    statements = "y[0] = y[0] * 2.0f + x[i];"
    results = {r.tobytes() for r in orders(device, statements, count=6, threads=1)}
    assert len(results) == 3


LANES = np.arange(64) % 32
X = np.arange(64.0)
SIMD = {
    "simd_sum(x[i])": np.repeat([X[:32].sum(), X[32:].sum()], 32),
    "simd_max(x[i])": np.repeat([31.0, 63.0], 32),
    "simd_min(x[i])": np.repeat([0.0, 32.0], 32),
    "simd_product(x[i] == 3 ? 5.0f : 1.0f)": np.repeat([5.0, 1.0], 32),
    "simd_and(i | 32u)": np.repeat([32.0, 32.0], 32),
    "simd_or(lane)": np.full(64, 31.0),
    "simd_xor(i)": np.zeros(64),
    "simd_shuffle(x[i], 5)": np.repeat([5.0, 37.0], 32),
    "simd_broadcast(x[i], 31)": np.repeat([31.0, 63.0], 32),
    "simd_broadcast_first(x[i])": np.repeat([0.0, 32.0], 32),
    "simd_shuffle_xor(x[i], 3)": (np.arange(64) ^ 3) * 1.0,
    "simd_shuffle_down(x[i], 8)": np.where(LANES < 24, X + 8, X),
    "simd_shuffle_up(x[i], 8)": np.where(LANES >= 8, X - 8, X),
    "simd_prefix_inclusive_sum(1.0f)": LANES + 1.0,
    "simd_prefix_exclusive_sum(1.0f)": LANES * 1.0,
    "simd_prefix_inclusive_product(lane == 4 ? 3.0f : 1.0f)": np.where(LANES >= 4, 3.0, 1.0),
    "static_cast<ulong>(simd_ballot(lane < 2)) + 0": np.full(64, 3.0),
    "simd_all(lane < 32) ? 1 : 0": np.ones(64),
    "simd_any(i == 40) ? 1 : 0": np.repeat([0.0, 1.0], 32),
    "simd_is_first() ? 1 : 0": (LANES == 0) * 1.0,
    "quad_sum(x[i])": X.reshape(-1, 4).sum(1).repeat(4),
    "quad_broadcast(x[i], 2)": X.reshape(-1, 4)[:, 2].repeat(4),
    "quad_shuffle_xor(x[i], 1)": (np.arange(64) ^ 1) * 1.0,
    "static_cast<float>(simd_sum(static_cast<half>(0.5h)))": np.full(64, 16.0),
    "simd_sum(float2(x[i], 1)).y": np.full(64, 32.0),
}


def test_simd_operations(device: metal.Device) -> None:
    """One text, a kernel an operation: compiling it is what takes time."""
    text = HEAD + "".join(
        f"{SIGNATURE.replace('void k(', f'void k{n}(')} {{ y[i] = {e}; }}\n"
        for n, e in enumerate(SIMD)
    )
    library = device.library(text)
    x = device.buffer(np.arange(64, dtype=np.float32))
    for n, (expression, expected) in enumerate(SIMD.items()):
        pipeline = device.pipeline(device.function(library, f"k{n}"))
        for order in ("forward", "reverse", "shuffle"):
            metal.set_option("ORDER", order)
            y = device.buffer(256)
            device.run(pipeline, [x, y], [64], [64])
            np.testing.assert_array_equal(y.array(np.float32), expected, expression)


def test_lanes_that_are_not_there(device: metal.Device) -> None:
    """Beyond the grid's edge and behind a return: sums leave them out, shuffles give poison."""
    assert run(device, "y[i] = simd_sum(1.0f);", count=40).tolist() == [32.0] * 32 + [8.0] * 8
    assert np.isnan(run(device, "y[i] = simd_shuffle(x[i], 20);", count=40)[32:]).all()
    returned = run(device, "if (lane >= 20) return; y[i] = simd_sum(1.0f);", count=32)
    assert returned.tolist() == [20.0] * 20 + [-5.0] * 12


def test_built_in_arguments(device: metal.Device) -> None:
    """In a grid of 5×3 with threadgroups of 4×2: those at the edge are smaller."""
    pipeline = device.kernel(
        f"""{HEAD}kernel void k(device uint* y [[buffer(0)]], uint2 i [[thread_position_in_grid]],
        uint2 t [[thread_position_in_threadgroup]], uint2 g [[threadgroup_position_in_grid]],
        uint2 n [[threads_per_threadgroup]], uint2 gs [[threadgroups_per_grid]],
        uint2 grid [[threads_per_grid]], uint index [[thread_index_in_threadgroup]],
        uint2 full [[dispatch_threads_per_threadgroup]], ushort width [[threads_per_simdgroup]],
        uint simdgroups [[simdgroups_per_threadgroup]]) {{
        device uint* to = y + (i.y * 5 + i.x) * 14;
        to[0] = t.x; to[1] = t.y; to[2] = g.x; to[3] = g.y; to[4] = n.x; to[5] = n.y;
        to[6] = gs.x; to[7] = gs.y; to[8] = grid.x; to[9] = grid.y; to[10] = index;
        to[11] = full.x * 10 + full.y; to[12] = width; to[13] = simdgroups; }}""",
        "k",
    )
    y = device.buffer(15 * 14 * 4)
    device.run(pipeline, [y], [5, 3], [4, 2])
    for row in range(3):
        for column in range(5):
            t, g = (column % 4, row % 2), (column // 4, row // 2)
            n = (4 if g[0] == 0 else 1, 2 if g[1] == 0 else 1)
            expected = [*t, *g, *n, 2, 2, 5, 3, t[1] * n[0] + t[0], 42, 32, 1]
            assert y.array(np.uint32, (3, 5, 14))[row, column].tolist() == expected


def test_arithmetic_rounds_after_every_operation(device: metal.Device) -> None:
    """Types are what they say: no contraction, no wider intermediate, no double constants."""
    cases = {
        "static_cast<float>((1.0h + 0x1p-11h) - 1.0h)".replace("0x1p-11h", "4.8828125e-4h"): 0.0,
        "static_cast<float>(static_cast<bfloat>(256.0f) + static_cast<bfloat>(1.0f))": 256.0,
        "x[1] * 16777217.0": 16777216.0,
        "(x[1] + 1e-8f) * 3.0f - 3.0f": 0.0,
        "float(half(65520.0f))": np.inf,
        "as_type<float>(0x3f800000u)": 1.0,
        "float(uchar(300u))": 44.0,
        "float(popcount(0xF0u) + clz(1u) + ctz(8))": 38.0,
        "float(mulhi(0x80000000u, 6u) + abs(-3))": 6.0,
        "float(rotate(0x80000001u, 1u))": 3.0,
        "fmin(NAN, 2.0f) + rint(2.5f) + round(2.5f) + sign(-3.0f) + trunc(-1.5f)": 5.0,
        "float(isnan(NAN)) + float(isinf(INFINITY))": 2.0,
        "clamp(5.0f, 0.0f, 1.0f) + fract(-0.25f)": 1.75,
        "select(1.0f, 2.0f, i == i) + mix(1.0f, 3.0f, 0.5f) + step(2.0f, 1.0f)": 4.0,
        "dot(float4(1, 2, 3, 4), float4(uint4(2u))) + length(float2(3, 4))": 25.0,
        "any(float2(1, 2) < 2.0f) && !all(float2(1, 2) < 2.0f) ? 1.0f : 0.0f": 1.0,
        "float(half4(1.5f).w) + vec<float, 2>(7).y": 8.5,
        "fma(3.0f, 5.0f, 1.0f) + ldexp(1.0f, 3) + fmod(7.0f, 4.0f)": 27.0,
        "float(max(3, 4) + min(3u, 4u) + clamp(9, 1, 5))": 12.0,
    }
    statements = "\n".join(f"y[{k}] = {e};" for k, e in enumerate(cases))
    np.testing.assert_array_equal(
        run(device, statements, count=32, threads=1)[: len(cases)], list(cases.values())
    )


@pytest.mark.seeded_fault
def test_newer_families_are_needed(device: metal.Device) -> None:
    """A pipeline of an older family than its kernel's features is refused, with both named."""
    texts = {"y[i] = simd_sum(x[i]);": 7, "y[i] = simd_shuffle(x[i], 1);": 6, "y[i] = x[i];": 2}
    texts["simdgroup_float8x8 m; simdgroup_load(m, x); simdgroup_store(m, y);"] = 7
    for statements, family in texts.items():
        function = device.function(device.library(f"{HEAD}{SIGNATURE} {{ {statements} }}"), "k")
        metal.set_option("FAMILY", family)
        device.pipeline(function)
        metal.set_option("FAMILY", family - 1)
        with pytest.raises(metal.MetalError, match=f"Apple{family} .* Apple{family - 1}"):
            device.pipeline(function)
