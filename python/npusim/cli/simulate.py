"""`npusim simulate`: how long a described machine takes, for a program or for one product."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount, duration, table
from npusim.cli.artifact import open_runnable
from npusim.cli.simulated import Simulated, simulated_options
from npusim.schedule import conv_work, npu_of, product_work
from npusim.schedule.work import Work
from npusim.targets import Npu, override

if TYPE_CHECKING:
    from npusim.simulate.simulation import Simulation
    from npusim.targets.roofline import Roofline

_WIDTH = 100  # columns of the chart; a pipe has none
_SHOWN = 10  # commands that take longest
_FLOATS = "float32", "float16", "bfloat16"
_LARGEST = 2**20  # size, whose cycles are whole numbers of 64 bits on any array


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path), required=False)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change a number.")
@simulated_options
@click.option("--product", metavar="M,K,N", help="No program: [M, K] times [K, N].")
@click.option(
    "--conv",
    metavar="C,H,W,K,R,S[,STRIDE[,PADDING]]",
    help="No program: an image of C channels, H x W, by K filters of R x S.",
)
@click.option("--dtype", help="Of --product and --conv. Default: the first that multiplies.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="A folder for the report's files."
)
def simulate(
    program: Path | None,
    settings: tuple[str, ...],
    simulated: Simulated,
    product: str | None,
    conv: str | None,
    dtype: str | None,
    output: Path | None,
) -> Answer:
    """Say how long a machine takes for a program or a plan, and what the time is due to.

    With -o a folder gets report.json, report.html, timeline.json (for ui.perfetto.dev), layers.csv,
    timeline.svg and roofline.svg. Of --product and --conv, 'cycles' are those
    of one array whose operands are there, as SCALE-Sim publishes them; 'simulated_cycles' those of
    the whole machine, with all copies from and to DRAM. A device that is known by a roofline has
    seconds alone, of the command that the product or convolution becomes there.
    """
    if sum(one is not None for one in (program, product, conv)) != 1:
        raise click.UsageError("Give a PROGRAM, --product or --conv.")
    if program is None:
        asked = simulated
        of_programs = (asked.method, asked.mode, asked.sizes, asked.context, output)
        if asked.target is None or any(value not in (None, ()) for value in of_programs):
            raise click.UsageError(
                "--product and --conv take --target, --set and --dtype, and no other option."
            )
        chosen = override(npusim.TargetConfig.named(asked.target), settings)
        if (device := chosen.hardware) is not None and device.roofline is not None:
            return _of_layer(asked.target, device.roofline, settings, product, conv, dtype)
        npu = npu_of(chosen)
        return _of_work(npu, product, conv, dtype or next(iter(npu.multiplied)))
    if dtype is not None:
        raise click.UsageError("--dtype is of --product and --conv.")
    opened = open_runnable(program)
    found = npusim.simulate(opened, overrides=settings, **simulated.arguments(opened))
    written = found.save(output) if output is not None else []
    return Answer(_facts(found, written), _lines(found, written))


def _facts(found: Simulation, written: list[Path]) -> dict[str, Any]:
    report = found.report
    keys = ("model", "method", "target", "mode", "seconds", "cycles", "stalls", "energy", "advice")
    return {**{key: report[key] for key in keys}, "files": [str(path) for path in written]}


def _lines(found: Simulation, written: list[Path]) -> list[str]:
    from npusim.simulate.gantt import to_gantt

    report, whole = found.report, found.seconds
    cycles = f", {found.cycles:,.0f} cycles" if found.cycles is not None else ""
    energy = f", {found.energy['total']:.3g} J" if found.energy is not None else ""
    causes = [
        (name, duration(seconds), _share(seconds, whole))
        for name, seconds in found.stalls.items()
        if seconds
    ]
    longest = sorted(report["layers"], key=lambda layer: -layer["seconds"])[:_SHOWN]
    rows = [
        (
            f"{layer['index']} {layer['node']}",
            layer["kernel"],
            duration(layer["seconds"]),
            _share(layer["seconds"], whole),
            layer["bound"],
            layer["advice"].rpartition("; ")[2],
        )
        for layer in longest
    ]
    width = max(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)
    return [
        f"{found.model or 'program'}, method {found.method}, on {found.target}, {found.mode}: "
        f"{duration(whole)}{cycles}{energy}",
        to_gantt(report, width),
        table(causes, "due to", "time", "share"),
        table(rows, "command", "kernel", "time", "share", "bound", "what would help"),
        *(f"written: {path}" for path in written),
    ]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole > 0 else 0:.1f} %"


def _of_work(npu: Npu, product: str | None, conv: str | None, dtype: str) -> Answer:
    """Answers for one product or convolution without a program."""
    from npusim.schedule import best_schedule
    from npusim.schedule.cost import TICKS
    from npusim.schedule.search import assess
    from npusim.simulate.tiles import array_cycles, walk

    work = _product(product, dtype) if product is not None else _conv(_conv_sizes(str(conv)), dtype)
    sizes = work.sizes
    schedule = best_schedule(npu, work)
    unit, cycles = "vector unit", round(assess(npu, work, schedule.tile)["vector_cycles"])
    if schedule.unit != "vpu":  # the array, which refuses what it does not multiply
        unit, cycles = "array", array_cycles(npu, sizes.m, sizes.k, sizes.n, dtype, work.taps)
    found = walk(npu, schedule)
    second = 1e6 * npu.clock.core_mhz
    causes = {name: ticks / TICKS for name, ticks in found.causes.items()}
    facts = {
        "unit": schedule.unit,
        "cycles": cycles,
        "simulated_cycles": found.cycles,
        "seconds": found.cycles / second,
        "dtype": dtype,
        "causes_cycles": causes,
        "dram_read_bytes": found.dram_read,
        "dram_written_bytes": found.dram_written,
        "tiles": found.tiles,
    }
    rows = [(name, f"{c:,.0f}", _share(c, found.cycles)) for name, c in causes.items()]
    moved = amount(found.dram_read + found.dram_written)
    taps = f", {work.taps} taps" if work.taps > 1 else ""
    lines = [
        f"{sizes.m}x{sizes.k}x{sizes.n}{taps} {dtype}: {cycles:,} cycles of one {unit} whose "
        "operands are there",
        f"with copies: {found.cycles:,.0f} cycles, {duration(found.cycles / second)}, "
        f"{found.tiles} tiles, {moved} from and to DRAM",
        table((row for row in rows if row[1] != "0"), "due to", "cycles", "share"),
    ]
    return Answer(facts, lines)


def _of_layer(
    target: str,
    device: Roofline,
    settings: tuple[str, ...],
    product: str | None,
    conv: str | None,
    dtype: str | None,
) -> Answer:
    """Answers for the program of one product or convolution, whose weights are there."""
    import torch
    from torch import nn

    dtypes = [name for name in device.dtypes or ("float32", *_FLOATS) if name in _FLOATS]
    if (named := dtype or dtypes[0]) not in dtypes:
        raise click.UsageError(f"--dtype of '{target}' is one of {', '.join(dtypes)}.")
    with torch.device("meta"):
        net: nn.Module
        shape: tuple[int, ...]
        if product is not None:
            m, k, n = _product_sizes(product)
            net, shape = nn.Linear(k, n, bias=False), (m, k)
        else:
            sizes = _conv_sizes(str(conv))
            _conv(sizes, named)  # refuses what is none
            c, h, w, k, r, s, stride, padding = sizes
            net, shape = nn.Conv2d(c, k, (r, s), stride, padding, bias=False), (1, c, h, w)
        kind = getattr(torch, named)
        graph = npusim.extract_ir(net.eval().to(kind), (torch.empty(shape, dtype=kind),))
    found = npusim.simulate(npusim.compile(graph, target), overrides=settings)
    layers = found.report["layers"]
    longest = max(layers, key=lambda layer: layer["seconds"])
    facts = {
        **{key: found.report[key] for key in ("cycles", "seconds", "stalls")},
        "dtype": named,
        "kernels": [layer["kernel"] for layer in layers],
        "formula": longest["formula"],
    }
    causes = [(name, duration(t), _share(t, found.seconds)) for name, t in found.stalls.items()]
    lines = [
        f"{product or conv} {named} on {target}: {duration(found.seconds)}, of a program's only "
        f"call of {', '.join(facts['kernels'])}",
        longest["formula"],
        table((row for row in causes if row[2] != "0.0 %"), "due to", "time", "share"),
    ]
    return Answer(facts, lines)


def _product_sizes(text: str) -> list[int]:
    """Returns M, K, N."""
    sizes = _numbers(text, "--product", "M,K,N", 3, 3)
    if min(sizes) < 1:
        raise click.UsageError(f"--product is three sizes of at least 1, M,K,N, not '{text}'.")
    return sizes


def _product(text: str, dtype: str) -> Work:
    m, k, n = _product_sizes(text)
    return product_work(m, n, k, dtype)


def _conv_sizes(text: str) -> list[int]:
    """Returns all eight."""
    sizes = _numbers(text, "--conv", "C,H,W,K,R,S[,STRIDE[,PADDING]]", 6, 8)
    return [*sizes, *(1, 0)[len(sizes) - 6 :]]


def _conv(sizes: list[int], dtype: str) -> Work:
    c, h, w, k, r, s, stride, padding = sizes
    try:
        work = conv_work((c, h, w), k, (r, s), dtype, stride, padding)
    except ValueError as error:
        raise click.UsageError(f"--conv: {error}.") from error
    if max(work.sizes.m, work.taps) > _LARGEST:
        raise click.UsageError("--conv: more than 2^20 pixels or taps.")
    return work


def _numbers(text: str, option: str, what: str, fewest: int, most: int) -> list[int]:
    """Returns the sizes that an option lists."""
    parts = text.split(",")
    if not fewest <= len(parts) <= most or not all(
        p.isascii() and p.isdigit() and len(p) < 9 for p in parts
    ):
        raise click.UsageError(f"{option} is {what}, sizes of at most 2^20, not '{text}'.")
    numbers = [int(part) for part in parts]
    if max(numbers) > _LARGEST:
        raise click.UsageError(f"{option}: no size is above 2^20.")
    return numbers
