"""`npusim check`: what a target would run of a model, and what not."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import npusim
from npusim.cli.answer import Answer, Verb, amount, duration, printable
from npusim.cli.factory import FACTORY_HELP, make
from npusim.cli.finite import Finite
from npusim.cli.onnx_model import open_model
from npusim.cli.progress import progress
from npusim.ir.graph import Graph
from npusim.ir.module import Module
from npusim.partition.report import NodeSupport, SupportReport

_NARROWEST = 80  # columns; a pipe has none


@click.command(cls=Verb, epilog=FACTORY_HELP)
@click.argument("model", metavar="GRAPH|MODULE:FACTORY")
@click.option("--target", default="cpu", show_default=True, help="A target's name or .toml file.")
@click.option(
    "--require",
    type=Finite(0, 1),
    metavar="SHARE",
    help="The answer is no when less than this share of the nodes (0 … 1) is native.",
)
@click.option("--all", "everything", is_flag=True, help="List the native nodes as well.")
def check(model: str, target: str, require: float | None, everything: bool) -> Answer:
    """Tell what a target runs of a model natively, and for the rest why not.

    Without --require, the answer is no when neither the target nor PyTorch can run a node.
    """
    with progress("Checking") as report:
        report("reading the model")
        ir = _load(model)
        report("asking the target")
        found = npusim.check(ir, target)
    unsupported = found.counts.get("unsupported", 0)
    ok = found.coverage >= require if require is not None else not unsupported
    lines = [*_listed(found, everything), _summary(found)]
    if require is not None:
        lines.append(f"required: {require:.1%}; {'met' if ok else 'not met'}")
    return Answer({"required": require, **found.to_json()}, lines, ok=ok)


def _load(model: str) -> Graph | Module:
    path = Path(model)
    if ":" not in model or path.exists():
        return open_model(path)
    made = make(model)
    return npusim.extract_ir(made.model, made.args, made.kwargs or None, model_name=made.name)


def _summary(found: SupportReport) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(found.counts.items()))
    line = f"{found.model} on {found.target}: {found.coverage:.1%} native ({counts or 'no nodes'})"
    if not found.others:
        return line
    noun = "partition" if found.partitions == 1 else "partitions"
    crossing = amount(found.crossing_bytes)
    return f"{line}; {found.partitions} {noun}, {crossing} cross at each call"


def _listed(found: SupportReport, everything: bool) -> list[str]:
    nodes = found.nodes if everything else found.others
    if not nodes:
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    longest = max(len(node.op) for node in nodes)
    for name in ("status", "operator", "reason", "from"):
        table.add_column(name, overflow="fold", min_width=longest if name == "operator" else None)
    for name in ("estimate", "crosses"):
        table.add_column(name, justify="right", no_wrap=True)
    for cells in map(_cells, nodes):
        table.add_row(*map(Text, cells))
    width = max(shutil.get_terminal_size((120, 24)).columns, _NARROWEST)
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, highlight=False).print(table)
    return [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]


def _cells(node: NodeSupport) -> Iterable[str]:
    where = f"{node.constraint}: {node.reason}" if node.constraint else ""
    method = f"{node.method}: " if node.method else ""
    crosses = amount(node.crossing_bytes) if node.crossing_bytes else ""
    texts = (node.status, f"{node.op}\n({node.types})", where, f"{method}{node.place}")
    return (*map(printable, texts), duration(node.seconds), crosses)
