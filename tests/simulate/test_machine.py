"""A machine that nobody measured a target of: what it tells, and the roofline that follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npusim.errors import Error
from npusim.simulate.machine import Machine, caches_of, described, machine_of
from npusim.targets.roofline import MemoryLevel, Peak, Roofline, RooflineClass

PANELS = RooflineClass(
    *("panels", ("gemm",), 1.0, 0.9, 0.8, 2.0, 0.4, 1, 16, True),
    grid="panels",
    item_rows=6,
    item_columns=64,
)
VECTORS = replace(PANELS, name="vectors", stems=("matmul",), grid="blocks", item_columns=16)
OTHER = RooflineClass("other", (), 1.0, 0.5, 0.5, 2.0, 0.3, 1, 1, False)
BASE = Roofline(
    0.0,
    (Peak("float32", 0.2, 0.1), Peak("bfloat16", 0.4, 0.1), Peak("int8", 0.8, 0.1)),
    (
        *(MemoryLevel("l2", 2048, 180.0), MemoryLevel("l3", 16384, 160.0)),
        *(MemoryLevel("shared", 32768, 80.0), MemoryLevel("dram", 0, 35.0)),
    ),
    (PANELS, VECTORS, OTHER),
    cores=2,
    threads=1,
)
RATES = {"read": 50e9, "float32": 0.8e12, "int8": 1.6e12}


def test_it_is_what_a_machine_tells() -> None:
    told = machine_of("A processor, of some kind, avx2, 8 threads", RATES, [])
    assert (told.threads, told.lanes, told.caches) == (8, 8, ())
    assert machine_of("X, avx512bf16, 1 thread", RATES, []).lanes == 16
    assert machine_of("X, neon, 4 threads", RATES, []).lanes == 4
    # Two second caches for four threads of two cores each, and the last one, which all share.
    caches = [(1, 32, 1), (2, 1024, 2), (2, 1024, 2), (3, 8192, 16)]
    assert machine_of("X, avx2, 4 threads", RATES, caches).caches == (2048, 8192)


@pytest.mark.parametrize(
    ("description", "rates", "said"),
    [
        ("X", RATES, "no instruction set"),
        ("X, avx2, 0 threads", RATES, "no instruction set"),
        ("X, avx2, 2 threads", {"read": 1.0}, "lack float32"),
        ("X, avx2, 2 threads", {"read": 0.0, "float32": float("nan")}, "lack read and float32"),
    ],
)
def test_what_tells_too_little_is_refused(
    description: str, rates: dict[str, float], said: str
) -> None:
    with pytest.raises(Error, match=said):
        machine_of(description, rates, [])


def test_peaks_are_its_rates_and_caches_its_own() -> None:
    machine = Machine("X, avx2, 8 threads", 8, 8, RATES, (4096, 65536))
    found = described(BASE, machine)
    products = {p.dtype: p.product_tera_ops_per_second for p in found.peaks}
    assert products == pytest.approx({"float32": 0.8, "bfloat16": 1.6, "int8": 1.6})
    assert all(p.vector_tera_ops_per_second == pytest.approx(0.4) for p in found.peaks)
    assert (found.cores, found.threads, found.lanes) == (8, 0, 8)
    sizes = [(level.kib, level.giga_bytes_per_second) for level in found.memory]
    assert sizes == [(4096, 720.0), (32768, 640.0), (65536, 320.0), (0, 50.0)]
    panels, vectors, other = found.classes
    # Tiles of 6 by 64 are of 6 by 16, and what takes a vector at a time takes half as much.
    assert (panels.item_columns, panels.item_us) == (16, pytest.approx(0.1))
    assert (vectors.item_columns, vectors.item_us) == (8, pytest.approx(0.2))
    assert other == OTHER


def test_the_same_machine_is_the_same_target() -> None:
    rates = {"read": 35e9, "float32": 0.2e12, "bfloat16": 0.4e12, "int8": 0.8e12}
    for caches in ((), (2048, 32768)):
        machine = Machine("X, avx512, 2 threads", 2, 16, rates, caches)
        assert described(BASE, machine) == replace(BASE, threads=0)


def test_caches_that_hold_no_more_than_the_one_before_are_none() -> None:
    machine = Machine("X, avx2, 1 thread", 1, 8, RATES, (2048, 2048))
    assert [level.name for level in described(BASE, machine).memory] == ["l2", "dram"]
    # Memory is never slower than it was seen to be, and no cache slower than memory.
    slow = described(BASE, replace(machine, rates={**RATES, "read": 500e9}, caches=()))
    assert min(level.giga_bytes_per_second for level in slow.memory) == 500.0


def test_caches_are_read_where_linux_has_them(tmp_path: Path) -> None:
    def cache(cpu: int, index: int, *said: str) -> None:
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), said, strict=False):
            (folder / name).write_text(f"{text}\n")

    for cpu in (0, 1):
        cache(cpu, 0, "1", "Data", "32K", str(cpu))
        cache(cpu, 1, "1", "Instruction", "32K", str(cpu))
        cache(cpu, 2, "2", "Unified", "1024K", str(cpu))
        cache(cpu, 3, "3", "Unified", "32M", "0-1,4")
    cache(2, 0, "2", "Unified")  # tells no size
    cache(2, 1, "2", "Unified", "lots", "2")
    (tmp_path / "cpufreq").mkdir()
    assert sorted(caches_of(tmp_path)) == [
        *((1, 32, 1), (1, 32, 1), (2, 1024, 1), (2, 1024, 1), (3, 32768, 3)),
    ]
    assert caches_of(tmp_path / "nowhere") == []
