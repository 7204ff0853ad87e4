"""`npusim targets`: what there is to compile for and to simulate, and what one file says."""

from __future__ import annotations

import io
import shutil
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.cli.answer import Answer, Verb, amount
from npusim.targets import Hardware, TargetConfig, override, target_names
from npusim.targets.data_file import to_toml
from npusim.targets.override import file_data

_NARROWEST = 100  # columns; a pipe has none


@click.command(cls=Verb)
@click.argument("name", metavar="[TARGET]", required=False)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change a number.")
def targets(name: str | None, settings: tuple[str, ...]) -> Answer:
    """List the targets, or print the whole file of one, a TOML file of one's own among them.

    What is printed of one is a target file again: 'npusim targets tpu-v3 > mine.toml'.
    """
    if name is None:
        if settings:
            raise click.UsageError("--set changes a number of one target: name it.")
        rows = [main_numbers(TargetConfig.named(known)) for known in target_names()]
        return Answer({"targets": rows}, _table(rows))
    target = override(TargetConfig.named(name), settings)
    data = file_data(target)
    return Answer({**main_numbers(target), "file": data}, to_toml(data).rstrip("\n").split("\n"))


def main_numbers(target: TargetConfig) -> dict[str, Any]:
    """Returns what tells targets apart; what a target does not describe is None.

    Rates are operations and bytes a second, a multiply-add being two operations.
    """
    machine = target.hardware
    return {
        "name": target.name,
        "kind": "backend" if machine is None else "npu" if machine.npu else "roofline",
        "device": target.device,
        "arch": target.arch,
        **(_described(machine) if machine is not None else _UNKNOWN),
    }


_UNKNOWN: dict[str, Any] = {
    "array": None,
    "clock_hz": None,
    "operations_per_second": {},
    "sram_bytes": None,
    "memory_bytes_per_second": None,
}


def _described(machine: Hardware) -> dict[str, Any]:
    if (npu := machine.npu) is not None:
        units = npu.cores.count * (npu.mxu.per_core if npu.has_array else 1)
        shape = f"{npu.mxu.rows}x{npu.mxu.cols} {npu.mxu.dataflow}"
        shape = shape if npu.has_array else f"{npu.vpu.lanes} lanes"
        private = sum(level.bytes for level in npu.sram if level.scope == "core")
        shared = sum(level.bytes for level in npu.sram if level.scope == "chip")
        return {
            "array": f"{units} x {shape}" if units > 1 else shape,
            "clock_hz": npu.clock.core_mhz * 1e6,
            "operations_per_second": {d: npu.peak_ops_per_second(d) for d in npu.multiplied},
            "sram_bytes": private * npu.cores.count + shared,
            "memory_bytes_per_second": npu.dram.gb_per_s * 1e9,
        }
    roofline = machine.roofline
    assert roofline is not None
    return {
        **_UNKNOWN,
        "operations_per_second": {
            peak.dtype: peak.product_tera_ops_per_second * 1e12 for peak in roofline.peaks
        },
        "sram_bytes": sum(1024 * level.kib for level in roofline.memory) or None,
        "memory_bytes_per_second": roofline.memory[-1].giga_bytes_per_second * 1e9,
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("target", "kind", "runs on", "array", "TOP/s", "on chip", "GB/s"):
        table.add_column(title, overflow="fold", justify="left")
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    width = max(shutil.get_terminal_size((120, 24)).columns, _NARROWEST)
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, highlight=False).print(table)
    return [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    rates = (f"{rate / 1e12:.4g} {d}" for d, rate in row["operations_per_second"].items())
    rate = row["memory_bytes_per_second"]
    return (
        row["name"],
        row["kind"],
        f"{row['device']} {row['arch']}".strip(),
        row["array"] or "",
        ", ".join(rates),
        amount(row["sram_bytes"]) if row["sram_bytes"] else "",
        f"{rate / 1e9:g}" if rate else "",
    )
