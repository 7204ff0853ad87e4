"""`npusim demo`: the whole path on real data, from training to a native run, with its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, amount, duration, table
from npusim.cli.arrays import write_outputs
from npusim.cli.checkpoint import save_checkpoint
from npusim.cli.factory import require_torch
from npusim.cli.progress import Report, progress
from npusim.cli.timing import measure, spread
from npusim.files import make_folder
from npusim.program.program import CompiledProgram

if TYPE_CHECKING:
    from npusim.demo.digits import Digits

_EPOCHS = 15
_SECONDS = 1.0  # of timing, for each of the two


@dataclass(frozen=True)
class _Files:
    folder: Path

    @property
    def graph(self) -> Path:
        return self.folder / "digits.json"

    @property
    def weights(self) -> Path:
        return self.folder / "digits.safetensors"

    @property
    def program(self) -> Path:
        return self.folder / "digits.npubin"

    @property
    def image(self) -> Path:
        return self.folder / "x.npy"


@click.command(cls=Verb)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    metavar="DIR",
    help="Folder for the graph, the weights, the program and a sample input.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
def demo(out: Path, threads: int) -> Answer:
    """Train a small network on real digits, compile it, run it natively, and compare.

    The answer is no when npusim and PyTorch disagree on a single digit.
    """
    require_torch()
    from npusim.demo import digits

    with progress("Demo") as report:
        files = _folder(out)
        data = digits.load_digits()
        with _torch_threads(threads):
            model = digits.train(data, _EPOCHS, report)
        program = _build(model, files, data, report)
        report("running natively")
        session = npusim.load(files.program, weights=files.weights, device="cpu", threads=threads)
        results = _compare(model, session, data)
        report("timing")
        latency = _latencies(model, session, data, threads)
    facts = {**results, "threads": threads, "latency": latency, "files": _paths(files)}
    return Answer(facts, _told(facts, program), ok=results["disagreements"] == 0)


def _folder(out: Path) -> _Files:
    return _Files(make_folder(out))


def _build(model: Any, files: _Files, data: Digits, report: Report) -> CompiledProgram:
    """Extracts without weights, compiles from the file, and writes everything down."""
    import torch

    from npusim.demo.digits import DigitsNet

    report("extracting")
    with torch.device("meta"):
        skeleton = DigitsNet().eval()
        example = torch.empty(1, *data.test_images.shape[1:])
    graph = npusim.extract_ir(skeleton, (example,), model_name="digits")
    graph.save(files.graph)
    save_checkpoint(graph, model, files.weights)
    write_outputs(files.folder, {files.image.stem: data.test_images[:1]})
    report("compiling")
    program: CompiledProgram = npusim.compile(files.graph, target="cpu")
    program.save(files.program)
    return program


def _compare(model: Any, session: Any, data: Digits) -> dict[str, Any]:
    import torch

    with torch.inference_mode():
        theirs = model(torch.from_numpy(data.test_images)).numpy()
    ours = np.concatenate([session(image[None])[0] for image in data.test_images])
    labels = data.test_labels
    return {
        "images": len(labels),
        "accuracy": {
            "torch": float((theirs.argmax(1) == labels).mean()),
            "npusim": float((ours.argmax(1) == labels).mean()),
        },
        "disagreements": int((theirs.argmax(1) != ours.argmax(1)).sum()),
        "max_abs_difference": float(np.abs(theirs - ours).max()),
        "max_logit": float(np.abs(theirs).max()),
    }


def _latencies(model: Any, session: Any, data: Digits, threads: int) -> dict[str, Any]:
    """Times one image a call in both, with the same number of threads."""
    import torch

    image = np.ascontiguousarray(data.test_images[:1])
    tensor = torch.from_numpy(image)
    with _torch_threads(threads), torch.inference_mode():
        theirs = measure(lambda: model(tensor), 20, None, _SECONDS)
    ours = measure(lambda: session(image), 20, None, _SECONDS)
    return {"torch": spread(theirs), "npusim": spread(ours)}


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _paths(files: _Files) -> dict[str, str]:
    return {
        "graph": str(files.graph),
        "weights": str(files.weights),
        "program": str(files.program),
        "input": str(files.image),
    }


def _told(facts: dict[str, Any], program: CompiledProgram) -> list[str]:
    rows = [
        (
            name,
            f"{facts['accuracy'][name]:.2%}",
            duration(facts["latency"][name]["median_s"]),
        )
        for name in ("torch", "npusim")
    ]
    threads = facts["threads"]
    paths = facts["files"]
    files = [(what, path, amount(Path(path).stat().st_size)) for what, path in paths.items()]
    return [
        f"{facts['images']} held-out digits, one image a call, "
        f"{threads} thread{'s' if threads > 1 else ''}; the program has "
        f"{len(program.method().commands)} commands.",
        "",
        table(rows, "", "accuracy", "median latency"),
        "",
        f"Largest difference of a logit: {facts['max_abs_difference']:.2e} "
        f"(largest logit: {facts['max_logit']:.3g}). "
        f"Predictions that differ: {facts['disagreements']}.",
        "",
        table(files),
        "",
        f"Go on with: npusim info {paths['program']}",
        f"            npusim run {paths['program']} --weights {paths['weights']} "
        f"--input {paths['input']} -o {Path(paths['program']).parent}",
    ]
