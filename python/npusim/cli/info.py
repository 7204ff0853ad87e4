"""`npusim info`: what is in a graph, a program or a plan; `--report` writes it down as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from npusim.cli.answer import Answer, Verb, amount, table
from npusim.cli.artifact import open_artifact
from npusim.cli.onnx_model import as_it_is, is_onnx
from npusim.cli.report import markdown
from npusim.cli.schedules import schedule_facts, schedule_lines
from npusim.cli.summary import graph_facts, plan_facts, program_facts
from npusim.files import write_atomic
from npusim.ir.graph import Graph
from npusim.partition.plan import PartitionPlan


@click.command(cls=Verb)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Write statistics and the graph (mermaid) as Markdown.",
)
def info(file: Path, report: Path | None) -> Answer:
    """Describe a graph, an ONNX model, a program or a plan."""
    artifact = as_it_is(file).graph if is_onnx(file) else open_artifact(file)
    if isinstance(artifact, Graph):
        facts: dict[str, Any] = graph_facts(artifact)
        graph: Graph | None = artifact
    elif isinstance(artifact, PartitionPlan):
        facts, graph = plan_facts(artifact), artifact.graph
    else:
        facts, graph = program_facts(artifact) | schedule_facts(artifact), artifact.graph
    text = _describe(facts)
    if isinstance(artifact, PartitionPlan):
        for part in artifact.partitions:
            lines = [] if part.program is None else schedule_lines(part.program)
            text += ["", f"partition {part.index}", *lines] if lines else []
    elif not isinstance(artifact, Graph):
        text += schedule_lines(artifact)
    if report is not None:
        write_atomic(report, markdown(facts, graph).encode())
        text.append(f"\nreport: {report}")
    return Answer(facts, text)


def _describe(facts: dict[str, Any]) -> list[str]:
    parameters = facts["parameters"]
    head = [
        ("kind", facts["kind"]),
        ("name", facts["name"]),
        (
            "parameters",
            f"{parameters['elements']:,} in {parameters['tensors']} tensors, "
            f"{amount(parameters['bytes'])}",
        ),
    ]
    parts: list[str] = []
    if facts["kind"] == "graph":
        head += [("nodes", f"{facts['nodes']:,}"), *_tensors(facts)]
        parts = [table(head)]
    elif facts["kind"] == "plan":
        head += [("target", facts["target"]), ("nodes", facts["summary"]), *_tensors(facts)]
        parts = [table(head), "", *_partitions(facts)]
    else:
        parts = [table([*head, ("target", facts["target"])]), *_program(facts)]
    return [*parts, "", table(facts["ops"].items(), "op", "count")]


def _partitions(facts: dict[str, Any]) -> list[str]:
    rows = [
        (
            p["index"],
            p["executor"] + (" at load" if p["at_load"] else ""),
            sum(p["ops"].values()),
            p["commands"],
        )
        for p in facts["partitions"]
    ]
    crossing = f"{amount(facts['crossing_bytes'])} cross at each call"
    return [table(rows, "partition", "executor", "nodes", "commands"), crossing]


def _program(facts: dict[str, Any]) -> list[str]:
    parts: list[str] = []
    for method in facts["methods"]:
        rows = [
            ("commands", f"{method['commands']:,}"),
            ("work", _steps(method["work"])),
            *_tensors(method),
        ]
        parts += ["", f"method {method['name']}", table(rows)]
    memory = [(name, amount(size)) for name, size in facts["memory"].items()]
    buffers = [(k, b["count"], amount(b["bytes"])) for k, b in facts["buffers"].items()]
    return [
        *parts,
        "",
        f"init method: {facts['init_commands']:,} commands, {_steps(facts['init_work'])}",
        "",
        table(memory, "memory", "size"),
        "",
        table(buffers, "buffers", "count", "size"),
        "",
        table(facts["kernels"].items(), "kernel", "commands"),
    ]


def _steps(work: dict[str, Any]) -> str:
    text = f"{work['steps']:,} steps at most"
    return text + (f" and {work['uncounted']} uncounted commands" if work["uncounted"] else "")


def _tensors(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (label, f"{t['name']}: {t['dtype']}[{', '.join(map(str, t['shape']))}]")
        for label, key in (("input", "inputs"), ("output", "outputs"))
        for t in facts[key]
    ]
