"""`npusim quantize`: a float32 model becomes a graph and a checkpoint in int8."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import npusim
from npusim.cli.answer import Answer, Verb, amount, printable
from npusim.cli.artifact import readable
from npusim.cli.finite import Finite
from npusim.cli.onnx_model import as_it_is, is_onnx
from npusim.cli.progress import progress
from npusim.cli.weights import Weights, weights_options
from npusim.errors import Error
from npusim.files import write_atomic
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir
from npusim.quantize import ATTENTION, MODES, QuantizedModel
from npusim.quantize.metrics import METRICS
from npusim.quantize.parameters import LIMITS
from npusim.quantize.ranges import METHODS
from npusim.quantize.report import HEADER, QuantizationReport

_NARROWEST = 80  # columns; a pipe has none
_PATH = click.Path(path_type=Path)


@click.command("quantize", cls=Verb)
@click.argument("model", type=_PATH)
@weights_options()
@click.option("--data", type=_PATH, help="Calibration data: an .npz of arrays by input.")
@click.option("-o", "--output", type=_PATH, required=True, help="The graph in int8, JSON.")
@click.option(
    "--save-weights", type=_PATH, help="The checkpoint in int8. Default: -o's .safetensors."
)
@click.option("--mode", type=click.Choice(MODES), default="static", show_default=True)
@click.option("--ranges", type=click.Choice(METHODS), default="minmax", show_default=True)
@click.option("--percentile", type=Finite(50, 100), default=99.99, show_default=True)
@click.option(
    "--activations",
    type=click.Choice(tuple(LIMITS)),
    help="Default: uint8, but int8 where the --target's array does not multiply that.",
)
@click.option(
    "--attention",
    type=click.Choice(ATTENTION),
    help="What attention multiplies. Default: bfloat16, float32 where --target is a machine.",
)
@click.option("--target", metavar="NAME|FILE", help="That the model is for.")
@click.option("--skip", multiple=True, metavar="LAYER", help="Stays float32; repeatable.")
@click.option("--sensitivity", is_flag=True, help="Measure each layer alone in bytes.")
@click.option("--bound", type=Finite(), help="Leave layers out until --metric is at least this.")
@click.option("--metric", type=click.Choice(tuple(METRICS)), default="sqnr", show_default=True)
@click.option("--evaluate", type=_PATH, help="An .npz to measure on. Default: --data.")
@click.option("--report", type=_PATH, help="Every layer's numbers, as .json or .csv.")
@click.option("--threads", type=click.IntRange(min=1))
def quantize(
    model: Path,
    weights: Weights,
    data: Path | None,
    output: Path,
    save_weights: Path | None,
    mode: str,
    ranges: str,
    percentile: float,
    activations: str | None,
    attention: str | None,
    target: str | None,
    skip: tuple[str, ...],
    sensitivity: bool,
    bound: float | None,
    metric: str,
    evaluate: Path | None,
    report: Path | None,
    threads: int | None,
) -> Answer:
    """Turn a float32 model into one that multiplies bytes.

    MODEL is a graph, with its checkpoint as --weights, or an ONNX model. The answer is no when the
    bound leaves no layer in bytes.
    """
    if report is not None and report.suffix not in (".json", ".csv"):
        raise Error(f"{report}: a report is a .json or a .csv file.")
    with progress("Quantizing") as tell:
        tell("reading the model")
        source, checkpoint = _opened(model, weights)
        made = npusim.quantize(
            source,
            checkpoint,
            data and readable(data),
            mode=mode,
            ranges=ranges,
            percentile=percentile,
            activations=activations,
            attention=attention,
            target=target,
            skip=skip,
            sensitivity=sensitivity,
            bound=bound,
            metric=metric,
            evaluation=evaluate and readable(evaluate),
            threads=threads,
            progress=tell,
        )
        tell("writing")
        stored = save_weights or output.with_suffix(".safetensors")
        size = made.save(output, stored)
        if report is not None:
            _write(made.report, report)
    return _answer(made, output, stored, size, report)


def _opened(model: Path, weights: Weights) -> tuple[Graph | Module, Any]:
    """Returns a model, and the weights given or, of an ONNX model, its own."""
    if not is_onnx(model):
        return load_ir(readable(model)), weights
    if weights is not None:
        raise Error(f"{model} is an ONNX model, which has its weights in it.")
    found = as_it_is(model)
    return found.graph, found.weights


def _answer(
    made: QuantizedModel, output: Path, stored: Path, size: int, report: Path | None
) -> Answer:
    files = {"output": str(output), "weights": {"path": str(stored), "bytes": size}}
    lines = [*_table(made.report), made.report.summary, f"{output}, {stored}: {amount(size)}"]
    if report is not None:
        lines.append(f"report: {report}")
    data = {**files, "report": made.report.to_json()}
    return Answer(data, lines, ok=made.report.quantized > 0)


def _write(found: QuantizationReport, path: Path) -> None:
    text = found.to_csv() if path.suffix == ".csv" else _json(found)
    write_atomic(path, text.encode())


def _json(found: QuantizationReport) -> str:
    """Returns the report as JSON, which has no infinities: they become null."""
    plain = json.dumps(found.to_json(), allow_nan=True)
    return json.dumps(json.loads(plain, parse_constant=lambda _: None), indent=2) + "\n"


def _table(found: QuantizationReport) -> list[str]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEADER:
        table.add_column(name, justify="right" if name in HEADER[2:] else "left", overflow="fold")
    for row in found.rows():
        table.add_row(*(Text(printable(cell)) for cell in row))
    width = max(shutil.get_terminal_size((120, 24)).columns, _NARROWEST)
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, highlight=False).print(table)
    return [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
