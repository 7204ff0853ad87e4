"""Qwen2.5 on the CPU: decode and prefill beside the peers, on the same weights, in the same run.

    python benchmarks/llm_cpu.py FOLDER [--size 1.5b] [--peers …] [--threads 2] [--json rows.json]

FOLDER receives the model (seeded random weights in the real architecture) and what each peer makes
of it; a second run finds it there. Each peer runs in a process of its own, and they take turns.
The floor of a decode is the bytes of weights a token reads by the bandwidth that
`read_bandwidth.cpp` measures at the beginning and at the end. The error is the largest difference
of a logit from those computed in float32, relative to the largest.
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.llm_peers import CHUNK, PEERS, SIZES, VOCAB, serve  # noqa: E402
from npusim.errors import Error  # noqa: E402
from npusim.peers.process import Process  # noqa: E402


def read_bandwidth(threads: int) -> float:
    """Returns GB/s that `threads` threads read."""
    source = ROOT / "benchmarks/read_bandwidth.cpp"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/read_bandwidth"
        flags = ["-O3", "-march=native", "-std=c++20", "-pthread"]
        subprocess.run(["c++", *flags, str(source), "-o", program], check=True)
        answer = subprocess.run([program, str(threads)], check=True, capture_output=True)
    return float(json.loads(answer.stdout)["all_threads"])


def weight_bytes(size: str, peer: str) -> float:
    """Bytes of weights that a decoded token reads, by the peer's format."""
    hidden, intermediate, layers, heads, kv_heads = SIZES[size]
    head = hidden // heads
    layer = hidden * (2 * hidden + 2 * kv_heads * head + 3 * intermediate)
    body, output = layers * layer, VOCAB * hidden
    if peer.endswith("int8"):
        return body + output
    if peer.endswith("Q8_0"):
        return (body + output) * 34 / 32
    if peer.endswith("int4-g32"):
        return body * 18 / 32 + output
    if peer.endswith("Q4_0"):
        return body * 18 / 32 + output * 34 / 32
    return 2.0 * (body + output)


def prepare(folder: Path, size: str, peers: list[str]) -> None:
    """Writes the model and the peers' files that are missing, each in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in ("model", "expected", *peers):
        done = folder / f".{step.replace(' ', '-')}"
        if not done.exists():
            command = [sys.executable, __file__, str(folder), "--size", size, "--prepare", step]
            subprocess.run(command, check=True, stdout=sys.stderr)
            done.touch()


def prepare_step(folder: Path, size: str, step: str) -> None:
    """Writes one of the files."""
    from benchmarks import llm_peers

    if step == "model":
        llm_peers.write_model(size, folder)
    elif step == "expected":
        llm_peers.write_expected(folder)
    elif (write := PEERS[step].prepare) is not None:
        write(folder)


def measure(folder: Path, peers: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Lets the peers take turns and returns one row a peer."""
    workers = []
    for peer in peers:
        command = [sys.executable, __file__, str(folder), "--serve", peer, "--steps"]
        command += [str(args.steps), "--threads", str(args.threads), "--contexts"]
        try:
            workers.append(Process(peer, [*command, *map(str, args.contexts)]))
        except Error as error:
            print(error, file=sys.stderr)
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(args.rounds + 1):
        for worker in workers:
            requests = ["prefill"]
            if PEERS[worker.name].decodes:
                requests += [f"decode {context}" for context in args.contexts]
            for request in requests:
                seconds = worker.ask(request)["seconds"]
                if turn:  # the first round warms up
                    times.setdefault((worker.name, request), []).extend(seconds)
    rows = []
    for worker in workers:
        row = {"peer": worker.name, **worker.facts, **worker.ask("memory")}
        for (name, request), seconds in times.items():
            if name == worker.name:
                tenths = statistics.quantiles(seconds, n=10)
                spread = [statistics.median(seconds), tenths[0], tenths[-1]]
                row[request] = [1e3 * s for s in spread]
        rows.append(row)
        worker.end()
    return rows


def table(rows: list[dict[str, Any]], size: str, bandwidth: float, contexts: list[int]) -> str:
    """Returns the rows as a Markdown table; times in ms, with their 10th to 90th percentile."""
    decodes = [f"decode {context}" for context in contexts]
    heads = [f"prefill {CHUNK}", *decodes, "of the bandwidth", "first logits s", "peak MB", "error"]
    lines = ["| peer | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for row in rows:
        cells = []
        for key in ("prefill", *decodes):
            cell = "–"
            if key in row:
                cell = "{:.1f} ({:.1f} – {:.1f})".format(*row[key])
            cells.append(cell)
        share = "–"
        if decodes[0] in row:
            rate = weight_bytes(size, row["peer"]) / row[decodes[0]][0] / 1e6
            share = f"{rate / bandwidth:.0%}"
        error = "–" if row["max_rel_err"] is None else f"{row['max_rel_err']:.1e}"
        cells += [share, f"{row['first_logits_s']:.1f}", f"{row['peak_mb']:.0f}", error]
        lines.append(f"| {row['peer']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1.5b")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="tokens decoded in a turn")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128])
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.prepare:
        prepare_step(args.folder, args.size, args.prepare)
    elif args.serve:
        serve(args.serve, args.folder, args.threads, args.contexts, args.steps)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Prepares, measures and prints."""
    peers = [p for p in args.peers if importlib.util.find_spec(PEERS[p].package)]
    for peer in (p for p in args.peers if p not in peers):
        print(f"{peer}: not installed, left out", file=sys.stderr)
    prepare(args.folder, args.size, peers)
    before = read_bandwidth(args.threads)
    rows = measure(args.folder, peers, args)
    bandwidth = max(before, read_bandwidth(args.threads))
    print(f"Qwen2.5-{args.size}, {args.threads} threads, {bandwidth:.1f} GB/s read bandwidth\n")
    print(table(rows, args.size, bandwidth, args.contexts))
    if args.json:
        facts = {"size": args.size, "threads": args.threads, "read_gb_s": bandwidth, "rows": rows}
        args.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
