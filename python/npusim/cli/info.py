"""`npusim info`: what is in a graph or a program; `--report` writes it down as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from npusim.cli.answer import Answer, Verb, amount, table
from npusim.cli.artifact import open_artifact
from npusim.cli.report import markdown
from npusim.cli.summary import graph_facts, program_facts
from npusim.files import write_atomic
from npusim.ir.graph import Graph


@click.command(cls=Verb)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Write statistics and the graph (mermaid) as Markdown.",
)
def info(file: Path, report: Path | None) -> Answer:
    """Describe a graph or a program."""
    artifact = open_artifact(file)
    if isinstance(artifact, Graph):
        facts: dict[str, Any] = graph_facts(artifact)
        graph: Graph | None = artifact
    else:
        facts, graph = program_facts(artifact), artifact.graph
    text = _describe(facts)
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
    else:
        parts = [table([*head, ("target", facts["target"])]), *_program(facts)]
    return [*parts, "", table(facts["ops"].items(), "op", "count")]


def _program(facts: dict[str, Any]) -> list[str]:
    parts: list[str] = []
    for method in facts["methods"]:
        rows = [("commands", f"{method['commands']:,}"), *_tensors(method)]
        parts += ["", f"method {method['name']}", table(rows)]
    memory = [(name, amount(size)) for name, size in facts["memory"].items()]
    buffers = [(k, b["count"], amount(b["bytes"])) for k, b in facts["buffers"].items()]
    return [
        *parts,
        "",
        f"init method: {facts['init_commands']:,} commands",
        "",
        table(memory, "memory", "size"),
        "",
        table(buffers, "buffers", "count", "size"),
        "",
        table(facts["kernels"].items(), "kernel", "commands"),
    ]


def _tensors(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (label, f"{t['name']}: {t['dtype']}[{', '.join(map(str, t['shape']))}]")
        for label, key in (("input", "inputs"), ("output", "outputs"))
        for t in facts[key]
    ]
