"""Whole models on the CPU: npusim beside its peers, same machine, same threads, same dtype.

    python benchmarks/cpu_models.py [--models resnet18 …] [--peers npusim torch …] [--threads 2]
        [--folder FOLDER] [--clock wall|processor] [--batch 1]

"npusim bfloat16" and "openvino bf16" compute the float32 model in bfloat16; name them among the
peers (`--peers "npusim bfloat16" "openvino bf16"`), as by default all are of float32.
FOLDER keeps what the peers load, and what is there is not made again. `--clock processor` times
what a process was given of its processor: for one thread where other work runs beside it.
"npusim int8", "onnxruntime int8" and "openvino int8" are quantized from it, each by its own static
quantizer with the same seeded data; weights are seeded too, so these say how fast int8 is, not how
accurate.

Each peer runs in a process of its own, so that idle thread pools disturb nobody and peak memory is
its own; the parent lets them take turns (one short burst each, many rounds), which spreads the
drift of a shared machine evenly. Printed per model: median and 10th to 90th percentile of a call,
ratio to the best peer, load time, peak resident memory, and the largest difference from torch
eager relative to its largest output.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.peers import CLOCKS, FLOAT32_PEERS, PEERS  # noqa: E402
from npusim.errors import Error  # noqa: E402
from npusim.peers.process import Process  # noqa: E402
from npusim.peers.turns import take_turns  # noqa: E402

MODELS = ("resnet18", "resnet50", "bert_base", "vit_b_16", "mlp")


def prepare(model: str, folder: Path, peers: list[str], batch: int) -> None:
    """Builds a model and writes what the peers load: weights, inputs, compiled files."""
    done = {peer: folder / f".{peer.replace(' ', '-')}" for peer in peers}
    missing = [peer for peer in peers if not done[peer].exists()]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--prepare", model, str(batch), str(folder), *missing]
    subprocess.run(command, check=True, stdout=sys.stderr)
    for peer in missing:
        done[peer].touch()


def start(peer: str, model: str, folder: Path, threads: int, clock: str) -> Process:
    """Starts a peer's process."""
    command = [sys.executable, __file__, "--worker", peer, model, str(folder), str(threads), clock]
    return Process(peer, command)


def compare(
    model: str, folder: Path, peers: list[str], threads: int, rounds: int, clock: str, batch: int
) -> list[dict]:
    """Runs all peers in turns and returns one row a peer."""
    prepare(model, folder, peers, batch)
    workers = []
    for peer in peers:
        try:
            workers.append(start(peer, model, folder, threads, clock))
        except Error as error:
            print(f"{model}: {error}", file=sys.stderr)
    turns = take_turns(workers, rounds)
    times = {name: [s for burst in bursts for s in burst] for name, bursts in turns.items()}
    rows = []
    best = min(map(statistics.median, times.values()))
    for worker in workers:
        memory = worker.ask("memory")["peak_bytes"] / 2**20
        median = statistics.median(times[worker.name])
        tenths = statistics.quantiles(times[worker.name], n=10)
        rows.append(
            {
                "model": model,
                "peer": worker.name,
                "threads": threads,
                "batch": batch,
                "clock": clock,
                "median_ms": median * 1e3,
                "least_ms": min(times[worker.name]) * 1e3,
                "p10_ms": tenths[0] * 1e3,
                "p90_ms": tenths[-1] * 1e3,
                "ratio": median / best,
                "load_s": worker.facts["load_s"],
                "peak_mb": memory,
                "max_rel_err": worker.facts["max_rel_err"],
                "calls": len(times[worker.name]),
            }
        )
        worker.end()
    return rows


def table(rows: list[dict]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [
        "| model | peer | median ms | p10 – p90 | ratio to best | load s | peak MB | max rel err |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        lines.append(
            f"| {r['model']} | {r['peer']} | {r['median_ms']:.4g} | {r['p10_ms']:.4g} – "
            f"{r['p90_ms']:.4g} | {r['ratio']:.2f} | {r['load_s']:.3f} | {r['peak_mb']:.0f} | "
            f"{r['max_rel_err']:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--peers", nargs="+", default=FLOAT32_PEERS, choices=list(PEERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep what peers load here, by model")
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args = parser.parse_args()
    installed = [p for p in args.peers if importlib.util.find_spec(PEERS[p].package)]
    for peer in sorted(set(args.peers) - set(installed)):
        print(f"{peer}: not installed, left out", file=sys.stderr)
    rows = []
    for model in args.models:
        with tempfile.TemporaryDirectory() as made:
            name = f"{model}-{args.batch}" if args.batch > 1 else model
            folder = args.folder / name if args.folder else Path(made)
            rows += compare(
                model, folder, installed, args.threads, args.rounds, args.clock, args.batch
            )
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--prepare":
        from benchmarks.peers import prepare_artifacts

        prepare_artifacts(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
    elif len(sys.argv) > 1 and sys.argv[1] == "--worker":
        from benchmarks.peers import serve

        serve(sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        main()
