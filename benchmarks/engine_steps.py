"""What a step of the engine costs on the host: the thread that plans it and takes in its tokens.

    python benchmarks/engine_steps.py

Requests of 1,024 tokens generate, each a token a step, over a runner that computes nothing. `plan`
is all but the choice of tokens (a vocabulary of two): schedule, page tables, the plan that a runner
is given, events. `greedy` and `drawn` add the choice on the host among as many tokens as Qwen2.5
has, for runners that do not choose themselves; scores are drawn evenly, so that a draw finds all
tokens probable, which is the most work. Microseconds: the median and the 99th percentile.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 151_936
COLUMNS = {"plan": (2, 0.0, 2000), "greedy": (VOCABULARY, 0.0, 50), "drawn": (VOCABULARY, 0.8, 20)}
MOST_CHOICES = 8  # requests, where tokens are chosen: the time grows with them


def build(folder: str) -> str:
    """Returns the path of the program, compiled."""
    program = f"{folder}/engine_steps"
    runtime = [ROOT / "cpp/runtime/sampler.cpp", *(ROOT / "cpp/serve").glob("*.cpp")]
    sources = [
        ROOT / "benchmarks/engine_steps.cpp",
        ROOT / "cpp/platform/posix/forks.cpp",
        *runtime,
    ]
    flags = ["-O3", "-std=c++20", "-pthread", f"-I{ROOT}"]
    subprocess.run(["c++", *flags, *map(str, sources), "-o", program], check=True)
    return program


def measure(program: str, requests: int, column: str) -> tuple[float, float]:
    """Returns the median and the 99th percentile, in microseconds."""
    command = [program, str(requests), *map(str, COLUMNS[column])]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if answer["running"] != requests:
        raise SystemExit(f"{answer['running']} of {requests} requests run")
    return answer["median_us"], answer["p99_us"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        print("requests " + "".join(f"{column:>22}" for column in COLUMNS))
        for requests in (1, 8, 32, 64, 128, 256):
            columns = list(COLUMNS)[: None if requests <= MOST_CHOICES else 1]
            cells = [measure(program, requests, column) for column in columns]
            print(f"{requests:8} " + "".join(f"{m:12.1f} ({p:7.1f})" for m, p in cells), flush=True)


if __name__ == "__main__":
    main()
