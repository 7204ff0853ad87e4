"""`npusim bench --against`: a program and other runtimes with the same model, in turns."""

from __future__ import annotations

import importlib.util
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from npusim.cli.answer import Answer, amount, duration, table
from npusim.cli.progress import Report
from npusim.cli.running import Running
from npusim.cli.timing import spread
from npusim.cli.weights import Weights
from npusim.errors import Error
from npusim.peers import Standing, compare
from npusim.peers.model_files import write_models
from npusim.peers.runtimes import RUNTIMES
from npusim.peers.worker import BURST_SECONDS

NPUSIM = "npusim"


class Peers(click.ParamType):
    """Names of runtimes, separated by commas."""

    name = "peers"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Returns the names; fails for anything that is none."""
        names = value if isinstance(value, tuple) else tuple(str(value).split(","))
        for name in names:
            if name not in RUNTIMES:
                self.fail(f"{name!r} is no runtime; there are {', '.join(RUNTIMES)}.", param, ctx)
        return tuple(dict.fromkeys(names))


def bench_against(
    program: Path,
    weights: Weights,
    arrays: Mapping[str, np.ndarray],
    running: Running,
    names: Sequence[str],
    model: Path | None,
    rounds: int,
    plan: bool,
    report: Report,
) -> Answer:
    """Lets the program and its peers take turns, and compares what they took and gave.

    Raises:
        Error: a package is missing, there is no model for the peers, or npusim does not run it.
    """
    _check(names, model, running)
    assert model is not None
    from npusim import _runtime  # a verb also has to say that it is missing

    threads = running.threads or _runtime.usable_cores()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        report("translating the model")
        forms = {RUNTIMES[name].form for name in names}
        shapes = [x.shape for x in arrays.values()]
        models = write_models(model, weights, shapes, forms, folder)
        common = {
            "inputs": _saved(arrays, folder),
            "threads": threads,
            "copy": running.copy_weights,
            "plan": plan,
            **_checkpoint(weights),
        }
        files = {NPUSIM: program.absolute()} | {n: models[RUNTIMES[n].form] for n in names}
        jobs = {}
        for index, (name, file) in enumerate(files.items()):
            outputs = folder / f"outputs{index}"
            outputs.mkdir()
            jobs[name] = {
                **common,
                "runtime": name,
                "model": str(file),
                "outputs": str(outputs),
            }
        found = compare(jobs, rounds, report)
    facts = {"threads": threads, "rounds": rounds, "runtimes": [_facts(s, found[0]) for s in found]}
    return Answer(facts, _lines(found, threads))


def rounds_in(seconds: float) -> int:
    """Returns how many bursts fit in the seconds that each runtime is given; three or more."""
    return max(3, math.ceil(seconds / BURST_SECONDS))


def _check(names: Sequence[str], model: Path | None, running: Running) -> None:
    if model is None:
        raise click.UsageError(
            "--against needs --model: the graph that PROGRAM was compiled from, or its .onnx."
        )
    if running.device not in (None, "cpu"):
        raise click.UsageError("--against compares on the CPU: leave --device out.")
    needed = {RUNTIMES[name].package for name in names}
    if model.suffix != ".onnx":
        # PyTorch runs the graph; who reads ONNX gets it exported.
        needed |= {"torch"} | ({"onnx"} if "onnx" in {RUNTIMES[n].form for n in names} else set())
    for package in sorted(needed):
        if importlib.util.find_spec(package) is None:
            raise Error(f"--against needs the package {package}.", hint=f"pip install {package}")
    if not model.exists():
        raise Error(f"There is no file {model}.")


def _saved(arrays: Mapping[str, np.ndarray], folder: Path) -> list[str]:
    paths = []
    for index, array in enumerate(arrays.values()):
        paths.append(str(folder / f"input{index}.npy"))
        np.save(paths[-1], array, allow_pickle=False)
    return paths


def _checkpoint(weights: Weights) -> dict[str, Any]:
    if weights is None:
        return {"weights": None, "names": []}
    if isinstance(weights, Path):
        return {"weights": str(weights.absolute()), "names": []}
    return {"weights": str(weights.source), "names": list(weights.rename.items())}


def _facts(one: Standing, first: Standing) -> dict[str, Any]:
    if one.error:
        return {"name": one.name, "error": one.error}
    ratios = one.ratios(first)
    slow, fast = np.percentile(ratios, [10, 90])
    return {
        "name": one.name,
        "load_s": one.load_s,
        **spread(one.calls),
        "ratio": statistics.median(ratios),
        "ratio_p10": float(slow),
        "ratio_p90": float(fast),
        "peak_rss_bytes": one.peak_bytes,
        "difference": None if math.isnan(one.difference) else one.difference,
    }


def _lines(found: Sequence[Standing], threads: int) -> list[str]:
    rows = []
    for one in found:
        if one.error:
            continue
        facts = _facts(one, found[0])
        rows.append(
            (
                one.name,
                duration(facts["median_s"]),
                f"{duration(facts['p10_s'])} … {duration(facts['p90_s'])}",
                f"{facts['ratio']:.2f}",
                f"{facts['ratio_p10']:.2f} … {facts['ratio_p90']:.2f}",
                duration(one.load_s),
                amount(one.peak_bytes),
                "not comparable" if math.isnan(one.difference) else f"{one.difference:.1e}",
            )
        )
    heads = ("", "median", "10 % … 90 %", "of npusim", "by round", "load", "memory", "difference")
    lines = [table(rows, *heads), f"On {threads} threads, in turns; ratios above 1 are slower."]
    return lines + [f"{one.name} did not run: {one.error}" for one in found if one.error]
