"""`npusim partition`: a graph becomes a plan of what the target runs and what PyTorch does."""

from __future__ import annotations

from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import beside
from npusim.cli.onnx_model import open_to_compile, weights_of_onnx_option
from npusim.cli.precision import precision_option, quantize_option
from npusim.cli.progress import progress
from npusim.cli.sizes import combinations, prepared_line, sizes_option
from npusim.cli.summary import plan_facts
from npusim.errors import Error


@click.command(cls=Verb)
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: GRAPH's .npuplan.")
@click.option("--target", default="cpu", show_default=True, help="A target's name or .toml file.")
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="PATH=EXECUTOR",
    help="Keep a submodule on `native` or `pytorch`. Repeat it for several.",
)
@quantize_option
@precision_option
@weights_of_onnx_option
@sizes_option
@click.option(
    "--fallback",
    type=click.Choice(["cpu", "error"]),
    default="cpu",
    show_default=True,
    help="`error` refuses a model of which PyTorch would run a part.",
)
def partition(
    graph: Path,
    output: Path | None,
    target: str,
    pins: tuple[str, ...],
    quantize: str | None,
    precision: str | None,
    weights_out: Path | None,
    sizes: tuple[str, ...],
    fallback: str,
) -> Answer:
    """Cut a model into programs of the target and parts that PyTorch runs: one file."""
    output = output or beside(graph, ".npuplan")
    with progress("Partitioning") as report:
        report("reading the graph")
        ir, told = open_to_compile(graph, weights_out, "partition")
        plan = npusim.partition(
            ir,
            target=target,
            pin=_pins(pins),
            fallback=fallback,
            quantize=quantize,
            precision=precision,
            sizes=combinations(sizes),
            progress=report,
        )
        report("writing")
        plan.save(output)
    facts, size = plan_facts(plan), output.stat().st_size
    lines = [
        f"{output} ({amount(size)}) for {plan.target}: {plan.summary()}",
        f"partitions: {len(plan.partitions)}; {amount(plan.crossing_bytes)} cross at each call",
    ]
    for part in facts["partitions"]:
        lines += [f"partition {part['index']}: {line}" for line in prepared_line(part)]
    lines += told
    return Answer({"output": str(output), "bytes": size, "plan": facts}, lines)


def _pins(items: tuple[str, ...]) -> dict[str, str]:
    pins: dict[str, str] = {}
    for item in items:
        path, equals, executor = item.rpartition("=")
        if not equals or not path:
            raise Error(f"--pin {item!r} is not PATH=EXECUTOR.", hint="For example head=pytorch.")
        if pins.setdefault(path, executor) != executor:
            raise Error(f"--pin names {path!r} twice, for different executors.")
    return pins
