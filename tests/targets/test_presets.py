"""Installed machines: their peaks are those that were published, and numbers have sources."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import npusim
from npusim.targets import Npu, TargetConfig, target_names

DATA = Path(npusim.__file__).parent / "targets/data"
NAMED = (
    *("npu-edge-32x32", "scale-32-ws", "scale-32-os", "scale-32-is", "gemmini-8"),
    *("ethos-u55-256", "tpu-v3", "tpu-v6e", "a100", "h200", "cpu", "ane-m1"),
)


def npu(name: str) -> Npu:
    hardware = TargetConfig.named(name).hardware
    assert hardware is not None
    assert hardware.npu is not None
    return hardware.npu


def test_all_are_there() -> None:
    described = {name for name in target_names() if TargetConfig.named(name).hardware is not None}
    assert described == set(NAMED)


@pytest.mark.parametrize(
    ("name", "dtype", "operations"),
    [
        ("tpu-v3", "bfloat16", 123e12),
        ("tpu-v6e", "bfloat16", 918e12),
        ("tpu-v6e", "int8", 1836e12),
        ("ethos-u55-256", "int8", 2 * 256 * 500e6),
        ("ethos-u55-256", "int16", 2 * 128 * 500e6),
        ("gemmini-8", "int8", 2 * 64 * 800e6),
        ("scale-32-os", "float32", 2 * 1024 * 1e9),
        ("scale-32-ws", "int8", 2 * 1024 * 1e9),
        ("npu-edge-32x32", "int8", 2 * 1024 * 1e9),
    ],
)
def test_peaks_are_those_that_were_published(name: str, dtype: str, operations: float) -> None:
    assert npu(name).peak_ops_per_second(dtype) == pytest.approx(operations, rel=2e-3)
    assert npu(name).peak_ops_per_second("float64") == 0


def test_scale_targets_differ_in_what_stays_alone() -> None:
    machines = [npu(f"scale-32-{flow}") for flow in ("ws", "os", "is")]
    assert [machine.mxu.dataflow for machine in machines] == ["ws", "os", "is"]
    alike = [replace(one, mxu=replace(one.mxu, dataflow="ws")) for one in machines]
    assert alike[1:] == alike[:-1]


@pytest.mark.parametrize("name", NAMED)
def test_every_number_has_a_source(name: str) -> None:
    """In its line, in that of its table, or at the head of the file; brackets name one."""
    text = (DATA / f"{name}.toml").read_text("utf-8")
    head, body = re.split(r"\n(?=\[)", text, maxsplit=1)
    sources = set(re.findall(r"\[(\w+)\]:", head))
    said = set(re.findall(r"# .*?\[(\w+)\]", body))
    assert said - {"unverified"} <= sources, name
    hardware = TargetConfig.named(name).hardware
    if "are chosen" in head or hardware is None or hardware.npu is None:
        return  # what is known of a roofline is fitted, and its peaks are rows of a list
    table_says = False
    for line in body.splitlines():
        if line.startswith("["):
            table_says = "#" in line
        if line.startswith("#"):
            table_says = True
        if re.match(r"\w+ = [\d{]", line):
            assert table_says or "#" in line, f"{name}: {line}"
