"""Numbers of the presets: each names its source, and none contradicts a data sheet."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from npusim.targets import TargetConfig
from npusim.targets.hardware import Hardware

PRESETS = (
    *("npu-edge-32x32", "scale-32-ws", "scale-32-os", "scale-32-is", "gemmini-8", "ethos-u55-256"),
    *("tpu-v3", "tpu-v6e", "a100", "h200", "cpu", "ane-m1"),
)
_TABLE = re.compile(r"\[+([a-z]+)[\].]")
_NUMBER = re.compile(r"^\s*[\w{].*[=\s]-?\d")
# Of the CPU's file only what describes its speed is a machine's; the rest is what its kernels take.
_DESCRIBES = {"cpu": ("roofline",)}
_ALL_CHOSEN = "All numbers are chosen"


def lines(name: str) -> list[str]:
    return (files("npusim.targets") / "data" / f"{name}.toml").read_text("utf-8").splitlines()


def without_source(name: str, text: list[str]) -> list[str]:
    """Returns numbers without a comment on their line, above it, or at their table's head."""
    if any(_ALL_CHOSEN in line for line in text):
        return []
    bare, table, said, before = [], "", False, ""
    for line in text:
        if head := _TABLE.match(line):
            table = head[1]
            said = "#" in line or before.startswith("#")
        elif table == "calibration" or table not in _DESCRIBES.get(name, (table,)):
            continue
        elif _NUMBER.match(line) and not said and "#" not in line:
            listed = line.startswith("  ") and before == "listed"
            if not before.startswith("#") and not listed:
                bare.append(line)
        opens = line.endswith("[") and (before.startswith("#") or "#" in line)
        inside = line.startswith("  ") and before == "listed"
        before = "listed" if opens or inside else line
    return bare


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_has_a_source(name: str) -> None:
    assert without_source(name, lines(name)) == []


def test_a_number_without_a_source_is_found() -> None:
    text = lines("tpu-v3")
    at = next(i for i, line in enumerate(text) if line.startswith("core_mhz"))
    text[at] = "core_mhz = 940"
    assert without_source("tpu-v3", text) == ["core_mhz = 940"]


def hardware(name: str) -> Hardware:
    found = TargetConfig.named(name).hardware
    assert found is not None
    return found


# Bytes a second: transfers of a channel times its width, or a clock times a port's bytes.
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("npu-edge-32x32", 4 * 6400e6 * 4),
        ("gemmini-8", 2400e6 * 8),
        ("ethos-u55-256", 0.125 * 500e6 * 8),
        ("scale-32-os", 10 * 1e9),
    ],
)
def test_channels_and_widths_make_the_rate(name: str, rate: float) -> None:
    npu = hardware(name).npu
    assert npu is not None and 1e9 * npu.dram.gb_per_s == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "dtype", "tera", "giga_bytes"),
    [
        ("a100", "bfloat16", 312, 1555),
        ("h200", "bfloat16", 989, 4800),
        ("ane-m1", "float16", 12, 85.1),
    ],
)
def test_rooflines_are_the_sheets(name: str, dtype: str, tera: float, giga_bytes: float) -> None:
    device = hardware(name).roofline
    assert device is not None
    assert device.peak(dtype).product_tera_ops_per_second == tera
    assert device.memory[-1].giga_bytes_per_second == giga_bytes


@pytest.mark.parametrize("name", PRESETS)
def test_a_calibration_is_of_its_own_machine(name: str) -> None:
    """Targets that are like another one do not inherit what that was fitted to."""
    fitted = {"cpu": "EPYC", "h200": "H200", "a100": "A100", "tpu-v6e": "TPU v6e"}
    assert fitted.get(name, "") in hardware(name).calibration.source
    assert bool(hardware(name).calibration.source) == (name in fitted)
