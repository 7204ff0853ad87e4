"""Cycles that others publish of systolic arrays, with npusim's beside them, misses included."""

from __future__ import annotations

import pytest

from npusim.simulate.tiles import array_cycles
from npusim.targets import Npu, TargetConfig, override


def machine(name: str, *settings: str) -> Npu:
    hardware = override(TargetConfig.named(name), settings).hardware
    assert hardware is not None and hardware.npu is not None
    return hardware.npu


# github.com/scalesim-project/SCALE-Sim, test/general: golden_trace_user_*/COMPUTE_REPORT.csv,
# total cycles less stalls, of M 256, N 128, K 256; it prints the number of the last cycle, from 0.
@pytest.mark.parametrize(
    ("dataflow", "published"), [("os", 10_175), ("ws", 11_199), ("is", 14_207)]
)
def test_scale_sim(dataflow: str, published: int) -> None:
    npu = machine(f"scale-32-{dataflow}")
    assert array_cycles(npu, 256, 256, 128, "int8") == published + 1


# github.com/PrincetonUniversity/LLMCompass, systolic_array_model/look_up_table_*.csv, stationary
# sums: M, K, N, rows and columns, cycles, counted likewise.
@pytest.mark.parametrize(
    ("m", "n", "k", "array", "published"),
    [
        (16, 16, 4, 8, 71),
        (8, 32, 64, 8, 311),
        (16, 32, 4, 8, 143),
        (4, 64, 32, 8, 367),
        (32, 16, 256, 16, 571),
        (16, 16, 512, 16, 541),
        (32, 32, 128, 16, 631),
        (8, 32, 256, 16, 571),
        (32, 16, 1024, 32, 1085),
        (32, 32, 512, 32, 573),
        (8, 16, 128, 64, 253),
        (64, 32, 2048, 128, 2301),
        (256, 256, 192, 128, 1783),
        (1, 256, 192, 128, 891),
    ],
)
def test_llmcompass(m: int, n: int, k: int, array: int, published: int) -> None:
    npu = machine("scale-32-os", f"mxu.rows={array}", f"mxu.cols={array}", "acc.kib=64")
    assert array_cycles(npu, m, k, n, "int8") == published + 1


# github.com/PSAL-POSTECH/ONNXim, tests/operatons/GemmWSTest.cc: cycles of Gemmini's RTL, 8x8.
@pytest.mark.parametrize(
    ("m", "k", "n", "published"),
    [
        (512, 512, 1024, 4_227_300),
        (512, 1024, 512, 4_228_207),
        (512, 1024, 1024, 8_458_619),
        (512, 1024, 3072, 25_390_266),
        (512, 1024, 4096, 33_912_072),
        (512, 4096, 1024, 33_912_533),
        (512, 512, 768, 3_171_978),
        (512, 768, 512, 3_170_315),
        (512, 768, 768, 4_756_894),
        (512, 768, 2304, 14_266_861),
    ],
)
def test_gemmini(m: int, k: int, n: int, published: int) -> None:
    found = array_cycles(machine("gemmini-8"), m, k, n, "int8")
    assert found == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("m", "k", "n", "published", "off"),
    [
        (1, 512, 1000, 66_360, -0.0353),
        (1, 2048, 1000, 270_431, -0.0533),
        (512, 1024, 2, 67_553, -0.0295),
    ],
)
def test_gemmini_misses(m: int, k: int, n: int, published: int, off: float) -> None:
    """Above 2 % off: one row, or two columns, where what passes between tiles weighs more."""
    found = array_cycles(machine("gemmini-8"), m, k, n, "int8")
    assert found / published - 1 == pytest.approx(off, abs=0.0005)


# …/ConvWSTest.cc: pixels of the output, channels in and out, taps.
@pytest.mark.parametrize(
    ("pixels", "k", "n", "taps", "published"),
    [
        (112 * 112, 3, 64, 49, 5_887_961),
        (56 * 56, 64, 64, 9, 2_133_641),
        (28 * 28, 64, 128, 9, 1_052_613),
        (28 * 28, 64, 128, 1, 118_304),
        (28 * 28, 128, 128, 9, 2_103_568),
        (14 * 14, 128, 256, 9, 914_287),
        (14 * 14, 256, 256, 9, 1_828_936),
        (14 * 14, 128, 256, 1, 101_763),
        (7 * 7, 256, 512, 9, 1_040_621),
        (7 * 7, 256, 512, 1, 102_703),
        (7 * 7, 512, 512, 9, 2_051_216),
    ],
)
def test_gemmini_convolutions(pixels: int, k: int, n: int, taps: int, published: int) -> None:
    npu = machine("gemmini-8")
    rows = -(-pixels // npu.mxu.rows) * npu.mxu.rows
    found = array_cycles(npu, rows, k, n, "int8", taps)
    assert found == pytest.approx(published, rel=0.25)
