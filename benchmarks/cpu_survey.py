"""Many models on one thread, a few seconds each: which does npusim run slower than its peers?

    chrt -f 1 python benchmarks/cpu_survey.py timm/starnet_s050 mlp_784:8 …
        [--seconds 4] [--precision float32|bfloat16|int8|dynamic] [--json FILE]

For a first look. All runtimes are in one process and take turns call by call; counted is the
processor time that a call takes, so other work beside matters little. ONNX Runtime and OpenVINO
read what PyTorch's older exporter makes, the quicker one, or where that fails what the newer one
does. Names are those of `benchmarks/architectures.py`, with a batch behind a colon. In bfloat16
OpenVINO computes in it, too, and PyTorch's model is converted; in int8 NNCF quantizes for OpenVINO
and ONNX Runtime for itself, all from the timed input; "dynamic" is int8 without calibration. What
is close, or is to be quoted, is for `cpu_models.py`.

Printed per model: the median and the least time of each, the ratio of npusim's to the best of the
others', the largest differences from float32 of torch eager relative to the largest output, and
the commands that take longest beyond what bytes and operations of this kind of processor take.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import npusim
from benchmarks.architectures import build
from benchmarks.peers import onnx_inputs
from npusim.peers.runtimes import Call, load_onnxruntime, load_openvino, load_torch
from npusim.peers.turns import relative_difference
from npusim.profile import CommandProfile
from npusim.profile.measure import profile_program
from npusim.verify import all_weights

_Load = Callable[[Path, Sequence[np.ndarray], int], Call]
_BYTES_A_SECOND, _OPERATIONS_A_SECOND = 30e9, 85e9  # of one thread, roughly


def survey(named: str, seconds: float, precision: str) -> dict[str, Any]:
    """Returns a model's row."""
    name, _, batch = named.partition(":")
    model, args = build(name, int(batch or 1))
    arrays = [x.numpy() for x in args]
    program, weights, inputs = _compiled(model, args, precision)
    session = npusim.load(program, weights=weights, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[str, Call] = {"npusim": lambda: session(*arrays)}
        wanted = _first(model(*args))
        calls |= _peers(model, args, Path(folder), precision)
        times = _turns(calls, seconds)
    profile = profile_program(
        program, weights, inputs=dict(zip(inputs, arrays, strict=True)), threads=1, seconds=1.0
    )
    row: dict[str, Any] = {"model": named, "precision": precision, "calls": len(times["npusim"])}
    for kind, of in (("median", statistics.median), ("least", min)):
        row[f"{kind}_ms"] = {peer: of(taken) * 1e3 for peer, taken in times.items()}
        others = [of(taken) for peer, taken in times.items() if peer != "npusim"]
        row[f"{kind}_ratio"] = of(times["npusim"]) / min(others)
    row["errors"] = {name: relative_difference(_first(c()), wanted) for name, c in calls.items()}
    longest = sorted(profile.commands, key=_excess, reverse=True)[:6]
    row["longest"] = [(c.kernel, c.node, c.seconds * 1e6, _excess(c) * 1e6) for c in longest]
    return row


def _first(outputs: Any) -> np.ndarray:
    while not hasattr(outputs, "shape"):
        outputs = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs[0]
    return np.asarray(outputs.float() if isinstance(outputs, torch.Tensor) else outputs)


def _compiled(
    model: torch.nn.Module, args: tuple[torch.Tensor, ...], precision: str
) -> tuple[npusim.CompiledProgram, dict[str, Any], list[str]]:
    """Returns a program, its weights, and the names of its inputs."""
    graph = npusim.extract_ir(model, args)
    names = [value.name for value in graph.inputs]
    weights = all_weights(graph, model.state_dict(), model)
    if precision in ("float32", "bfloat16"):
        return npusim.compile(graph, precision=precision), weights, names
    data = [dict(zip(names, [x.numpy() for x in args], strict=True))]
    mode = "dynamic" if precision == "dynamic" else "static"
    made = npusim.quantize(graph, weights, data, mode=mode)
    return npusim.compile(made.graph), made.weights, names


def _peers(
    model: torch.nn.Module, args: tuple[torch.Tensor, ...], folder: Path, precision: str
) -> dict[str, Call]:
    """Returns what runs the model in a precision of its own making, by the peers' names."""
    found: dict[str, Call] = {}
    arrays = [x.numpy() for x in args]
    loads: dict[str, _Load] = {"openvino": load_openvino, "onnxruntime": load_onnxruntime}
    if precision == "bfloat16":
        loads = {"openvino": partial(load_openvino, precision="bf16"), "torch": _torch(model, args)}
    elif precision == "float32":
        loads["torch"] = lambda file, inputs, threads: load_torch(model, inputs, threads)
    else:
        loads = {"openvino": _openvino_int8, "onnxruntime": partial(_onnxruntime_int8, precision)}
    file = folder / "model.onnx"
    if not any(_exported(model, args, file, dynamo) for dynamo in (False, True)):
        loads.pop("openvino"), loads.pop("onnxruntime", None)
    for peer, load in loads.items():
        try:
            found[peer] = load(file, arrays, 1)
            found[peer]()
        except Exception as error:  # a peer may not run a model, or not be installed
            print(f"{peer}: {str(error)[:200]}", file=sys.stderr)
            found.pop(peer, None)
    return found


def _torch(model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> _Load:
    """PyTorch's model in bfloat16, inputs included."""

    def load(file: Path, inputs: Sequence[np.ndarray], threads: int) -> Call:
        half = copy.deepcopy(model).bfloat16()
        given = [x.bfloat16() if x.is_floating_point() else x for x in args]
        return lambda: half(*given)  # type: ignore[no-any-return]

    return load


def _openvino_int8(file: Path, inputs: Sequence[np.ndarray], threads: int) -> Call:
    import nncf
    import openvino as ov

    made = nncf.quantize(ov.Core().read_model(file), nncf.Dataset([list(inputs)]), subset_size=1)
    path = file.with_suffix(".xml")
    ov.save_model(made, path, compress_to_fp16=False)
    return load_openvino(path, inputs, threads)


def _onnxruntime_int8(
    precision: str, file: Path, inputs: Sequence[np.ndarray], threads: int
) -> Call:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready, made = file.with_name("ready.onnx"), file.with_name("int8.onnx")
    quant_pre_process(file, ready)
    if precision == "dynamic":
        quantization.quantize_dynamic(ready, made, per_channel=True)
        return load_onnxruntime(made, inputs, threads)
    names = [value.name for value in onnx_inputs(ready)]

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        calls = iter([dict(zip(names, inputs, strict=True))])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.calls, None)

    form = quantization.QuantFormat.QDQ
    quantization.quantize_static(ready, made, Reader(), quant_format=form, per_channel=True)
    return load_onnxruntime(made, inputs, threads)


def _exported(
    model: torch.nn.Module, args: tuple[torch.Tensor, ...], file: Path, dynamo: bool
) -> bool:
    version = 18 if dynamo else 17
    try:
        torch.onnx.export(model, args, str(file), dynamo=dynamo, opset_version=version)
    except Exception as error:  # of an exporter that is any code
        print(f"not exported: {str(error)[:200]}", file=sys.stderr)
        return False
    return True


def _turns(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Returns the processor time of calls, of which each gets one in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["npusim"]) < 4:
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return times


def _excess(command: CommandProfile) -> float:
    """Returns the seconds that a command takes beyond its bytes and operations."""
    moved = (command.bytes_read + command.bytes_written) / _BYTES_A_SECOND
    return command.seconds - max(moved, command.operations / _OPERATIONS_A_SECOND)


def main() -> None:
    """Parses the command line and prints a line a model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--seconds", type=float, default=4.0, help="of turns, for each model")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--json", type=Path, help="also append the rows here, a line each")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for name in args.models:
        try:
            row = survey(name, args.seconds, args.precision)
        except Exception as error:  # the other models go on
            row = {"model": name, "precision": args.precision, "failed": str(error)[:400]}
        if args.json:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
