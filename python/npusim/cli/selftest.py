"""`npusim selftest`: proof on this machine's device, and one report of it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, table
from npusim.cli.progress import progress
from npusim.errors import Error
from npusim.files import write_atomic
from npusim.targets import TargetConfig

SECTIONS = ("conformance", "models", "decoder", "timings")
_SHOWN = 20  # failures that are printed; the report has all


@click.command(cls=Verb)
@click.option("--device", default="cpu", show_default=True, help="What to prove, such as metal.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The report, JSON.")
@click.option(
    "--only",
    "sections",
    multiple=True,
    type=click.Choice(SECTIONS),
    help="Repeatable. Default: all.",
)
@click.option("--match", default="*", metavar="PATTERN", help="Conformance: ops by name.")
@click.option("--quick", is_flag=True, help="Conformance: one case of each op and dtype.")
def selftest(
    device: str, output: Path | None, sections: tuple[str, ...], match: str, quick: bool
) -> Answer:
    """Compare a device with PyTorch and the CPU: every kernel, small models, and times.

    The answer is no when anything differs. Needs PyTorch.
    """
    return proved(device, output, sections or SECTIONS, match, quick=quick)


@click.command(cls=Verb, name="metal-selftest")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("npusim-metal.json"),
    show_default=True,
    help="The report, JSON.",
)
@click.option("--quick", is_flag=True, help="One case of each op and dtype.")
@click.option(
    "--indirect-commands",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="The device's option: methods in indirect command buffers.",
)
def metal_selftest(output: Path, quick: bool, indirect_commands: str) -> Answer:
    """Prove npusim on this Mac's GPU: `selftest --device metal`, with a report to send."""
    return proved("metal", output, SECTIONS, "*", quick=quick, indirect_commands=indirect_commands)


def proved(
    name: str,
    output: Path | None,
    sections: tuple[str, ...],
    match: str,
    *,
    quick: bool,
    indirect_commands: str | None = None,
) -> Answer:
    """Runs sections of the proof on a device; writes the report where one is wanted."""
    try:
        import torch
    except ImportError:
        raise Error(
            "The selftest compares with PyTorch.", hint="pip install 'npusim[torch]'"
        ) from None
    device = npusim.Device(name, indirect_commands=indirect_commands)
    target = TargetConfig.named(name)
    facts: dict[str, Any] = {
        "npusim": npusim.__version__,
        "device": device.name,
        "description": device.description,
        "indirect_commands": indirect_commands,
        "platform": platform.platform(),
        "macos": platform.mac_ver()[0],
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "target": target.name,
        "arch": target.arch,
    }
    with progress("Testing") as report:
        for section in sections:
            facts[section] = _section(section, target, device, match, quick, report)
    failures = list(_failures(facts))
    facts["failures"] = len(failures)
    if output is not None:
        write_atomic(output, (json.dumps(facts, indent=2) + "\n").encode())
    rows = [("device", f"{device.name}: {device.description}"), *_rows(facts)]
    told = [f"  {failure}" for failure in failures[:_SHOWN]]
    if len(failures) > _SHOWN:
        told.append(f"  and {len(failures) - _SHOWN} more, all in the report")
    verdict = "Nothing differs." if not failures else f"{len(failures)} failures:"
    return Answer(facts, [table(rows), "", verdict, *told], ok=not failures)


def _section(
    name: str, target: TargetConfig, device: Any, match: str, quick: bool, report: Any
) -> dict[str, object]:
    # Imported here: each brings PyTorch.
    if name == "conformance":
        from npusim.selftest.conformance import run_cases

        return run_cases(target, device, match, quick=quick, report=report).data
    if name == "models":
        from npusim.selftest.models import run_models

        return run_models(target, device, report)
    if name == "decoder":
        from npusim.selftest.decoder import run_decoder

        report("decoder")
        return run_decoder(target, device)
    from npusim.selftest.timings import run_timings

    return run_timings(target, device, report)


def _failures(facts: Mapping[str, Any]) -> list[str]:
    found = list(facts.get("conformance", {}).get("failures", ()))
    for section in ("models", "timings"):
        for name, row in facts.get(section, {}).items():
            if "failure" in row:
                found.append(f"{name}: {row['failure']}")
    decoder = facts.get("decoder", {})
    return [*found, *([f"decoder: {decoder['failure']}"] if "failure" in decoder else [])]


def _rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if (cases := facts.get("conformance")) is not None:
        refused = sum(cases["refused"].values())
        text = f"{cases['passed']} agree with PyTorch, {len(cases['failures'])} do not"
        rows.append(("cases", text + (f", {refused} have no kernel" if refused else "")))
    if (models := facts.get("models")) is not None:
        well = sum("failure" not in row for row in models.values())
        rows.append(("models", f"{well} of {len(models)} agree with PyTorch"))
    if (decoder := facts.get("decoder")) is not None:
        said = decoder.get("left_out") or decoder.get("failure")
        rows.append(
            ("decoder", said or f"{decoder['tokens']} tokens as the CPU's, forked, rewound")
        )
    for name, row in facts.get("timings", {}).items():
        if "failure" not in row:
            speed = (
                f"{row['bytes_per_s'] / 1e9:.3g} GB/s, {row['operations_per_s'] / 1e9:.3g} GFLOP/s"
            )
            rows.append((name, f"{row['median_s'] * 1e3:.4g} ms, {speed}"))
    return rows
