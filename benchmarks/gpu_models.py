"""Vision models and a small network on a GPU: npusim beside PyTorch, same dtype, in one run.

    PYTHONPATH=python:. python -m benchmarks.gpu_models [--models resnet50 vit_b_16:1,8 …]
        [--batches 1 64] [--peers eager graph] [--compile [SECONDS]] [--mode reduce-overhead]
        [--commands] [--json FILE]

Models have seeded random weights and are converted by `model.half()`. npusim goes the whole way:
extract_ir, compile ahead, a `.npubin` and a checkpoint on disk, load, call. Calls get a tensor that
is on the GPU and leave their result there; each is timed from the caller's side until the device is
done, everybody taking turns in short bursts. Printed: median and 10th to 90th percentile, the ratio
to npusim, the largest difference from float32 relative to its largest output, whether the five
largest are PyTorch's, and what loading took; at the end all medians as a table. `--compile` adds
torch.compile with frozen weights, for as many cases as begin to compile in so many seconds:
max-autotune takes a minute or more each, `--mode reduce-overhead` less. `--commands` adds the time
of each command.
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
from safetensors.torch import save_file
from torch import Tensor, nn

import npusim
from benchmarks.architectures import build
from npusim.profile.commands import CommandFacts, command_facts

BURST, ROUNDS = 20, 12
Call = Callable[[Tensor], Tensor]


def row(what: str, value: str) -> None:
    print(f"{what:44} {value}", flush=True)


# ---- npusim


class Compiled:
    """A model on disk as npusim deploys it, and loaded."""

    def __init__(self, model: nn.Module, x: Tensor, folder: Path, device: npusim.Device) -> None:
        self.device = device
        self.program = npusim.compile(npusim.extract_ir(model, (x,)), target="cuda")
        self.paths = folder / "model.npubin", folder / "model.safetensors"
        self.program.save(self.paths[0])
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, self.paths[1])
        self.session, self.ready = self._load(x)

    def _load(self, x: Tensor) -> tuple[npusim.Session, list[float]]:
        """Returns a session, and seconds until it has answered once, of several loads."""
        given, seconds = x.cuda(), []
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            session = npusim.load(*self.paths, device=self.device)
            session(given)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return session, seconds

    def weights(self) -> tuple[float, int]:
        """Returns seconds and bytes of bringing the checkpoint to the device and preparing it."""
        size = self.paths[1].stat().st_size
        best = 1e9
        for _ in range(3):
            start = time.perf_counter()
            weights = npusim.load_weights(self.paths[1], self.program, self.device)
            best = min(best, time.perf_counter() - start)
            del weights
        return best, size

    def __call__(self, x: Tensor) -> Tensor:
        return self.session(x)[0]  # type: ignore[no-any-return]

    def commands(self, x: Tensor) -> list[tuple[str, float, float]]:
        """Returns name, best seconds and the floor of each command, run one at a time."""
        executor = self.session.executor
        (spec,) = executor.inputs()
        buffers = {spec.name: npusim.DeviceBuffer.from_dlpack(x.cuda(), self.device)}
        runs = [executor.time(buffers, self.session.weights) for _ in range(6)]
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
        what = f"{p['in_channels']} {size} -> {p['out_channels']} k{p['kernel'][1]}"
    elif "k" in p and "n" in p:
        what = "x".join(str(p[d]) for d in ("m", "n", "k") if d in p)
    else:
        what = f"{(facts.bytes_read + facts.bytes_written) / 1e6:.1f} MB"
    return f"{facts.kernel} {what}"


# ---- PyTorch


def eager(model: nn.Module, x: Tensor) -> Call:
    """Channels last, as PyTorch wants it for convolutions."""
    last = model.to(memory_format=torch.channels_last) if x.dim() == 4 else model
    given = _channels_last(x)
    return lambda _: last(given)  # type: ignore[no-any-return]


def graph(model: nn.Module, x: Tensor) -> Call:
    """The same, captured once."""
    call, side = eager(model, x), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call(x)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = call(x)

    def replay(_: Tensor) -> Tensor:
        captured.replay()
        return y

    return replay


def compiled(model: nn.Module, x: Tensor, mode: str) -> Call:
    """torch.compile, weights frozen and so batch norms folded."""
    import torch._inductor.config

    torch._inductor.config.freezing = True
    torch._dynamo.reset()
    start = time.perf_counter()
    last = model.to(memory_format=torch.channels_last) if x.dim() == 4 else model
    fast, given = torch.compile(last, mode=mode, dynamic=False), _channels_last(x)
    for _ in range(3):
        fast(given)
    torch.cuda.synchronize()
    row("    torch.compile took", f"{time.perf_counter() - start:.1f} s")
    return lambda _: fast(given)  # type: ignore[no-any-return]


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


PEERS: dict[str, Callable[[nn.Module, Tensor], Call]] = {
    "eager": eager,
    "graph": graph,
    "max-autotune": partial(compiled, mode="max-autotune"),
    "reduce-overhead": partial(compiled, mode="reduce-overhead"),
}


# ---- measuring


def take_turns(calls: dict[str, Call], x: Tensor) -> dict[str, list[float]]:
    """Returns the seconds of every call; the first burst of each does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            for _ in range(BURST):
                torch.cuda.synchronize()
                start = time.perf_counter()
                call(x)
                torch.cuda.synchronize()
                if turn:
                    times[name].append(time.perf_counter() - start)
    return times


def agreement(got: Tensor, model: nn.Module, x: Tensor) -> tuple[float, float, bool]:
    """Returns the errors of npusim and of PyTorch against float32, and whether the top 5 agree."""
    theirs = model(x).float()
    want = model.float()(x.float())
    model.half()
    errors = [float((y.float() - want).abs().max() / want.abs().max()) for y in (got, theirs)]
    count = min(5, want[0].numel())
    ours, top = (y.float().flatten(1).topk(count, 1).indices for y in (got, theirs))
    return errors[0], errors[1], bool((ours.sort(1).values == top.sort(1).values).all())


class Case:
    """One model for one batch, on the GPU twice: ours and PyTorch's."""

    def __init__(self, name: str, batch: int) -> None:
        self.title = f"{name} batch {batch}"
        network, inputs = build(name, batch)
        model, x = network.half(), inputs[0].half()
        with tempfile.TemporaryDirectory() as folder:
            self.ours = Compiled(model, x, Path(folder), npusim.Device("cuda"))
            seconds, size = self.ours.weights()
        self.x, self.model = x.cuda(), model.cuda()
        self.facts: dict[str, Any] = {
            "ready_ms": 1e3 * statistics.median(self.ours.ready), "weights_ms": 1e3 * seconds,
        }  # fmt: skip
        row(f"{self.title}: ready in", f"{self.facts['ready_ms']:.1f} ms")
        row(
            f"{self.title}: weights",
            f"{size / 1e6:.1f} MB up and prepared in {1e3 * seconds:.1f} ms",
        )

    def check(self) -> None:
        """Compares with PyTorch in float32, and call with call."""
        mine, theirs, same = agreement(self.ours(self.x), self.model, self.x)
        again = all(torch.equal(self.ours(self.x), self.ours(self.x)) for _ in range(3))
        row(f"{self.title}: error against float32", f"{mine:.1e} (torch float16 {theirs:.1e})")
        row(f"{self.title}: top 5 as torch; bit for bit again", f"{same}; {again}")
        self.facts |= {"error": mine, "torch_error": theirs, "top5": same}

    def time(self, peers: Sequence[str]) -> list[dict[str, Any]]:
        """Times npusim and the peers, taking turns; one row each."""
        calls: dict[str, Call] = {"npusim": self.ours}
        calls |= {f"torch {peer}": PEERS[peer](self.model, self.x) for peer in peers}
        times, rows = take_turns(calls, self.x), []
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
        found = self.ours.commands(self.x)
        for index, (command, took, floor) in enumerate(found):
            print(f"    {index:3} {command:40} {1e6 * took:8.1f} us, floor {1e6 * floor:6.1f}")
        stems: dict[str, tuple[float, float]] = {}
        for command, took, floor in found:
            sums = stems.get(command.split()[0], (0.0, 0.0))
            stems[command.split()[0]] = sums[0] + took, sums[1] + floor
        for stem, (took, floor) in sorted(stems.items(), key=lambda s: -s[1][0]):
            print(f"    all {stem:40} {1e6 * took:8.1f} us, floor {1e6 * floor:6.1f}", flush=True)


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


def _named(model: str, batches: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Returns the model and the batches of "resnet50", or of "resnet50:1,8"."""
    name, _, own = model.partition(":")
    return name, [int(b) for b in own.split(",")] if own else [1] if name == "mlp" else batches


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet18", "mlp"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--peers", nargs="*", default=["eager", "graph"], choices=list(PEERS))
    parser.add_argument("--compile", type=float, nargs="?", const=3600.0, default=0.0)
    modes = ["max-autotune", "reduce-overhead"]
    parser.add_argument("--mode", choices=modes, default=modes[0], help="of --compile")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False  # what errors are measured against is float32
    row("device", f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows: list[dict[str, Any]] = []
    start = time.perf_counter()

    def keep(more: list[dict[str, Any]]) -> None:
        rows.extend(more)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")

    for name, batches in (_named(m, args.batches) for m in args.models):
        for batch in batches:
            case = Case(name, batch)
            case.check()
            late = time.perf_counter() - start >= args.compile
            keep(case.time([*args.peers, *([] if late else [args.mode])]))
            if args.commands:
                case.print_commands()
    table(rows)


if __name__ == "__main__":
    main()
