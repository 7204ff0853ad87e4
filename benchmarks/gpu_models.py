"""Models of images, text and sound on a GPU: npusim beside PyTorch, same dtype, in one run.

    PYTHONPATH=python:. python -m benchmarks.gpu_models [--models resnet50 vit_b_16:1,8 …]
        [--batches 1 64] [--dtype float16] [--peers eager graph] [--compile [SECONDS]]
        [--mode reduce-overhead] [--seconds 3] [--commands [SHARE]] [--workers 8]
        [--prepared FOLDER] [--json FILE]

Models (`benchmarks/architectures.py`) have seeded random weights in the dtype. npusim goes the
whole way: extract_ir, compile ahead, a `.npubin` and a checkpoint on disk, load, call; other
processes prepare what follows meanwhile. Calls get tensors that are on the GPU and leave their
result there; each is timed from the caller's side until the device is done, everybody taking turns
in short bursts. Printed: median and 10th to 90th percentile, the ratio to npusim, the largest
difference from float32 relative to its largest output, whether the five largest are PyTorch's, and
what loading took; at the end all medians as a table. `--compile` adds torch.compile with frozen
weights, for as many cases as begin to compile in so many seconds: max-autotune takes a minute or
more each, `--mode reduce-overhead` less. `--commands` adds the commands that are furthest above
their floor, of models that take more than a share of the fastest peer's time. A model or peer that
fails is a line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import npusim
from benchmarks.gpu_preparation import Prepared, add_arguments, named, prepared
from npusim.profile.commands import CommandFacts, command_facts

BURST = 10  # calls of one before it is the next one's turn
LISTED = 14  # commands
Inputs = tuple[Tensor, ...]
Call = Callable[[], Tensor]


def row(what: str, value: str) -> None:
    print(f"{what:44} {value}", flush=True)


# ---- npusim


class Compiled:
    """A model on disk as npusim deploys it, loaded; called with the inputs that it was given."""

    def __init__(self, case: Prepared, inputs: Inputs, device: npusim.Device) -> None:
        self.device, self.inputs, self.paths = device, inputs, (case.program, case.weights)
        self.program = npusim.CompiledProgram.load(case.program)
        self.session, self.ready = self._load()

    def _load(self) -> tuple[npusim.Session, list[float]]:
        """Returns a session, and seconds until it has answered once, of several loads."""
        seconds = []
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            session = npusim.load(*self.paths, device=self.device)
            session(*self.inputs)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return session, seconds

    def __call__(self) -> Tensor:
        return self.session(*self.inputs)[0]  # type: ignore[no-any-return]

    def commands(self) -> list[tuple[str, float, float]]:
        """Returns name, best seconds and the floor of each command, run one at a time."""
        executor = self.session.executor
        buffers = {
            spec.name: npusim.DeviceBuffer.from_dlpack(x, self.device)
            for spec, x in zip(executor.inputs(), self.inputs, strict=True)
        }
        runs = [executor.time(buffers, self.session.weights) for _ in range(4)]
        best = map(min, zip(*runs, strict=True))
        facts = [command_facts(self.program, c, {}, None) for c in self.program.methods[0].commands]
        return [(_name(f), took, _floor(f)) for f, took in zip(facts, best, strict=True)]


def _floor(facts: CommandFacts) -> float:
    """Returns seconds below which an H200 cannot be: 4.3 TB/s and 790 TFLOP/s, as measured."""
    moved = facts.bytes_read + facts.bytes_written
    return max(moved / 4.3e12, facts.operations / 790e12)


def _name(facts: CommandFacts) -> str:
    p = facts.params
    if "in_channels" in p:
        size = "x".join(str(v) for v in p["in_size"][1:])
        groups = f" in {p['groups']}" if p.get("groups", 1) > 1 else ""
        what = f"{p['in_channels']} {size} -> {p['out_channels']} k{p['kernel'][1]}{groups}"
    elif "k" in p and "n" in p:
        what = "x".join(str(p[d]) for d in ("m", "n", "k") if d in p)
    else:
        what = f"{(facts.bytes_read + facts.bytes_written) / 1e6:.1f} MB"
    return f"{facts.kernel} {what}"


# ---- PyTorch


def eager(model: nn.Module, inputs: Inputs) -> Call:
    """Channels last, as PyTorch wants it for convolutions."""
    last, given = _channels_last(model, inputs)
    return lambda: last(*given)  # type: ignore[no-any-return]


def graph(model: nn.Module, inputs: Inputs) -> Call:
    """The same, captured once."""
    call, side = eager(model, inputs), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = call()

    def replay() -> Tensor:
        captured.replay()
        return y

    return replay


def compiled(model: nn.Module, inputs: Inputs, mode: str) -> Call:
    """torch.compile, weights frozen and so batch norms folded."""
    import torch._inductor.config

    torch._inductor.config.freezing = True
    torch._dynamo.reset()
    start = time.perf_counter()
    last, given = _channels_last(model, inputs)
    fast = torch.compile(last, mode=mode, dynamic=False)
    for _ in range(3):
        fast(*given)
    torch.cuda.synchronize()
    row("    torch.compile took", f"{time.perf_counter() - start:.1f} s")
    return lambda: fast(*given)  # type: ignore[no-any-return]


def _channels_last(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """Returns both as PyTorch's convolutions are fastest; inputs of other ranks as they are."""
    last = torch.channels_last
    if not any(x.dim() == 4 for x in inputs):
        return model, inputs
    model = model.to(memory_format=last)  # type: ignore[call-overload]
    return model, tuple(x.contiguous(memory_format=last) if x.dim() == 4 else x for x in inputs)


PEERS: dict[str, Callable[[nn.Module, Inputs], Call]] = {
    "eager": eager,
    "graph": graph,
    "max-autotune": partial(compiled, mode="max-autotune"),
    "reduce-overhead": partial(compiled, mode="reduce-overhead"),
}


# ---- measuring


def take_turns(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Returns the seconds of every call, in about so many; first bursts do not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    start, turn = time.perf_counter(), 0
    while turn < 3 or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            for _ in range(BURST):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                call()
                torch.cuda.synchronize()
                if turn:
                    times[name].append(time.perf_counter() - begin)
        turn += 1
    return times


def agreement(got: Tensor, model: nn.Module, inputs: Inputs) -> tuple[float, float, bool]:
    """Returns the errors of npusim and of PyTorch against float32, and whether the top 5 agree."""
    theirs, dtype = model(*inputs).float(), got.dtype
    want = model.float()(*(x.float() if x.is_floating_point() else x for x in inputs))
    model.to(dtype)
    errors = [float((y.float() - want).abs().max() / want.abs().max()) for y in (got, theirs)]
    count = min(5, want[0].numel())
    ours, top = (y.float().flatten(1).topk(count, 1).indices for y in (got, theirs))
    return errors[0], errors[1], bool((ours.sort(1).values == top.sort(1).values).all())


class Case:
    """One model for one batch, on the GPU twice: ours and PyTorch's."""

    def __init__(self, found: Prepared, device: npusim.Device) -> None:
        self.title = found.title
        model, inputs = found.network()
        self.inputs, self.model = tuple(x.cuda() for x in inputs), model.cuda()
        self.ours = Compiled(found, self.inputs, device)
        self.facts: dict[str, Any] = {"ready_ms": 1e3 * statistics.median(self.ours.ready)}

    def check(self) -> None:
        """Compares with PyTorch in float32, and call with call."""
        mine, theirs, same = agreement(self.ours(), self.model, self.inputs)
        again = all(torch.equal(self.ours(), self.ours()) for _ in range(3))
        row(
            f"{self.title}: error, top 5, again",
            f"{mine:.1e} (torch {theirs:.1e}), {same}, {again}; ready in "
            f"{self.facts['ready_ms']:.0f} ms",
        )
        self.facts |= {"error": mine, "torch_error": theirs, "top5": same}

    def time(self, peers: Sequence[str], seconds: float) -> list[dict[str, Any]]:
        """Times npusim and the peers, taking turns; one row each."""
        calls: dict[str, Call] = {"npusim": self.ours}
        for peer in peers:
            try:
                calls[f"torch {peer}"] = PEERS[peer](self.model, self.inputs)
            except Exception as error:  # what PyTorch cannot capture or compile
                row(f"{self.title}: torch {peer}", f"failed: {error!s:.120}")
        times, rows = take_turns(calls, seconds * len(calls)), []
        base = statistics.median(times["npusim"])
        for peer, found in times.items():
            tenths, middle = statistics.quantiles(found, n=10), statistics.median(found)
            row(
                f"{self.title}: {peer}",
                f"{1e3 * middle:8.4f} ms ({1e3 * tenths[0]:.4f} - {1e3 * tenths[-1]:.4f})"
                f"  {middle / base:.2f}",
            )
            rows.append(
                {
                    "case": self.title, "peer": peer, "median_ms": 1e3 * middle,
                    "p10_ms": 1e3 * tenths[0], "p90_ms": 1e3 * tenths[-1],
                    "ratio": middle / base, **self.facts,
                }
            )  # fmt: skip
        return rows

    def print_commands(self) -> None:
        """Prints a line a command, equal ones in one, those first that lose most; then stems."""
        names: dict[str, list[float]] = {}
        stems: dict[str, list[float]] = {}
        for command, took, floor in self.ours.commands():
            for table, key in ((names, command), (stems, f"all {command.split()[0]}")):
                sums = table.setdefault(key, [0, 0.0, 0.0])
                for i, more in enumerate((1, took, floor)):
                    sums[i] += more
        for table in (names, stems):
            for name, (count, took, floor) in _by_loss(table)[:LISTED]:
                times = f"{1e6 * took:8.1f} us, floor {1e6 * floor:6.1f}"
                print(f"    {count:3} x {name:40} {times}", flush=True)


def _by_loss(found: dict[str, list[float]]) -> list[tuple[str, list[float]]]:
    return sorted(found.items(), key=lambda item: item[1][2] - item[1][1])


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints medians in ms, and ratios to npusim of the same turns."""
    peers = list(dict.fromkeys(r["peer"] for r in rows))
    print(" | ".join(["", *peers]))
    for case in dict.fromkeys(r["case"] for r in rows):
        found = {r["peer"]: r for r in rows if r["case"] == case}
        cells = [
            f"{found[p]['median_ms']:.3f} ({found[p]['ratio']:.2f})" if p in found else "-"
            for p in peers
        ]
        print(" | ".join([case, *cells]), flush=True)


def _measure(found: Prepared, args: argparse.Namespace, late: bool) -> list[dict[str, Any]]:
    """Returns the rows of a case, and prints what is asked for."""
    case = Case(found, npusim.Device("cuda"))
    case.check()
    rows = case.time([*args.peers, *([] if late else [args.mode])], args.seconds)
    share = max((1 / r["ratio"] for r in rows[1:]), default=1.0)
    if args.commands is not None and share >= args.commands:
        case.print_commands()
    return rows


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_arguments(parser)
    parser.add_argument("--prepared", type=Path, help="a folder to keep what is prepared in")
    parser.add_argument("--peers", nargs="*", default=["eager", "graph"], choices=list(PEERS))
    parser.add_argument("--compile", type=float, nargs="?", const=3600.0, default=0.0)
    modes = ["max-autotune", "reduce-overhead"]
    parser.add_argument("--mode", choices=modes, default=modes[0], help="of --compile")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each who takes turns")
    parser.add_argument("--commands", type=float, nargs="?", const=0.0, metavar="SHARE")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False  # what errors are measured against is float32
    row("device", f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows: list[dict[str, Any]] = []
    start = time.perf_counter()
    cases = named(args.models, args.batches)
    with tempfile.TemporaryDirectory() as own:
        folder = args.prepared or Path(own)
        for title, found in prepared(cases, args.dtype, folder, args.workers):
            if isinstance(found, str):
                row(title, f"failed: {found}")
                continue
            try:
                late = time.perf_counter() - start >= args.compile
                rows.extend(_measure(found, args, late))
            except Exception as error:  # the others are worth having
                row(title, f"failed: {error!s:.200}")
            if not args.prepared:
                found.remove()
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1) + "\n")
    table(rows)


if __name__ == "__main__":
    main()
