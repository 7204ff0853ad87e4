"""An engine's throughput and latency on a GPU, and a server's beside it.

`report` is a part of benchmarks/llm_batches.py: tokens a second of requests with ShareGPT's mean
lengths, all there at once; the time to the first token of a short prompt when nothing else runs;
the gaps between tokens of requests while a prompt of 8,000 tokens arrives each second. Prompts
share no beginnings. As a program, it serves a model over HTTP and asks it:

    PYTHONPATH=python:. python -m benchmarks.llm_serving FOLDER [--model 1.5b] [--graphs FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

PROMPT, ANSWER = 161, 338  # ShareGPT's mean lengths
ASKED = 1536  # requests of a throughput
AT_A_TIME = 512  # of a server's clients: twice as many as run, so that some always wait
STEP = 0.5  # of an engine of npusim.serve
PORT = 8765


def report(engine: Any, requests: int = ASKED) -> None:
    """Prints the figures of an engine that keeps no prefixes."""
    rate, took = offline(engine, requests)
    print(f"offline: {requests} requests of {PROMPT} in, {ANSWER} out: {rate:.0f} tokens a second, "
          f"{took:.1f} s", flush=True)  # fmt: skip
    first = [1e3 * first_token(engine, 128) for _ in range(12)][2:]
    print(f"first token of 128: {np.median(first):.2f} ms ({min(first):.2f} - {max(first):.2f})")
    for running in (16, 64):
        gaps, starts = beside_prompts(engine, running)
        middle, late = np.percentile(gaps, [50, 99])
        print(f"{running} requests, a prompt of 8,000 each second: between tokens median "
              f"{middle:.2f} ms, 99 % {late:.2f} ms, ratio {late / middle:.2f}; first token of the "
              f"prompts {np.median(starts):.0f} ms", flush=True)  # fmt: skip


def _prompt(chance: np.random.Generator, length: int) -> list[int]:
    return list(map(int, chance.integers(10, 30000, length)))


def _asked(count: int) -> dict[str, Any]:
    return {"max_tokens": count, "ignore_eos": True, "temperature": 0.0}


def offline(engine: Any, requests: int) -> tuple[float, float]:
    """Returns generated tokens a second, and seconds."""
    chance = np.random.default_rng(2)
    prompts = [_prompt(chance, PROMPT) for _ in range(requests)]
    start = time.perf_counter()
    for prompt in prompts:
        engine.submit(prompt, _asked(ANSWER))
    ended = 0
    while ended < requests:
        for _, _, _, _, ending, error, _ in engine.poll(10):
            assert error is None, error
            ended += ending is not None
    took = time.perf_counter() - start
    return requests * ANSWER / took, took


def first_token(engine: Any, length: int) -> float:
    """Returns seconds from a request to its only token."""
    prompt = _prompt(np.random.default_rng(time.perf_counter_ns()), length)
    start = time.perf_counter()
    engine.submit(prompt, _asked(1))
    while True:
        for _, _, _, _, ending, error, _ in engine.poll(10):
            assert error is None, error
            if ending is not None:
                return time.perf_counter() - start


def beside_prompts(
    engine: Any, running: int, seconds: float = 5, length: int = 8000
) -> tuple[list[float], list[float]]:
    """Returns milliseconds between the tokens of requests that run, and to prompts' first ones."""
    chance = np.random.default_rng(3)
    prompts = [_prompt(chance, length) for _ in range(int(seconds))]
    last: dict[int, float] = {}
    for _ in range(running):
        last[engine.submit(_prompt(chance, 512), _asked(8000))] = 0.0
    asked: dict[int, float] = {}
    gaps, firsts = [], []
    begin = None
    while begin is None or time.perf_counter() < begin + seconds:
        now = time.perf_counter()
        if begin is not None and len(asked) < len(prompts) and now > begin + len(asked):
            asked[engine.submit(prompts[len(asked)], _asked(1))] = now
        for number, tokens, _, _, _, error, _ in engine.poll(0.002):
            assert error is None, error
            now = time.perf_counter()
            if number in asked:
                firsts.append(1e3 * (now - asked[number]))
            elif tokens:
                if begin is not None:
                    gaps += [1e3 * (now - last[number]) / len(tokens)] * len(tokens)
                last[number] = now
        if begin is None and all(last.values()):
            begin = time.perf_counter()
    for number in last:
        engine.cancel(number)
    time.sleep(0.1)
    engine.poll(0.1)
    return gaps, firsts


def serve(
    folder: Path, name: str, graphs: Path | None, requests: int, frontends: list[int], clients: int
) -> None:
    """Prints when servers are ready, and what a load test finds."""
    from safetensors.torch import save_file

    from benchmarks.served_models import compiled, configuration, seeded_weights, timed

    program, weights = folder / "model.npubin", folder / "model.safetensors"
    compiled(name, graphs, program)
    if not weights.exists():
        config = configuration(name)
        config.save_pretrained(folder)
        save_tokenizer(folder, config.vocab_size)
        state = seeded_weights(config)
        timed("weights written", lambda: save_file(state, weights))
    for count in frontends:
        serve_with(folder, program, requests, count, clients)


def serve_with(folder: Path, program: Path, requests: int, frontends: int, clients: int) -> None:
    """Prints it of a server with so many front ends, asked by so many processes."""
    server = [sys.executable, "-m", "npusim", "serve", str(program), "--weights", str(folder)]
    log = (folder / f"server_{frontends}.log").open("w")
    start = time.perf_counter()
    with subprocess.Popen([*server, "--device", "cuda", "--port", str(PORT), "--frontends",
                           str(frontends)], stderr=log, stdout=log) as process:  # fmt: skip
        url = f"http://127.0.0.1:{PORT}"
        wait_until_ready(process, url)
        print(f"{frontends} front ends: ready in {time.perf_counter() - start:.2f} s (imports of "
              "Python included)")  # fmt: skip
        found = loaded(url, requests, clients, AT_A_TIME, ANSWER)
        print("processor seconds:", processor_seconds(process.pid), flush=True)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            print("the server does not end")
            process.kill()
    names = ("output_throughput", "request_throughput", "median_ttft_ms", "median_tpot_ms",
             "median_itl_ms", "p99_itl_ms", "duration", "completed", "failed")  # fmt: skip
    events = sum(1 + len(gaps) for gaps in found["itls"])
    print("server:", ", ".join(f"{n} {found[n]:.1f}" for n in names if found.get(n) is not None),
          f", {events / found['duration']:.0f} events a second", flush=True)  # fmt: skip


def wait_until_ready(process: subprocess.Popen[Any], url: str) -> None:
    """Returns when a server answers."""
    while not _is_ready(url):
        assert process.poll() is None, "the server has ended"
        time.sleep(0.02)


def loaded(url: str, requests: int, clients: int, streams: int, answer: int) -> dict[str, Any]:
    """Returns what a load test of ShareGPT's lengths by so many processes finds."""
    client = [sys.executable, "-m", "npusim", "bench", "--json", "--serve", url,
              "--num-prompts", str(requests), "--input-len", str(PROMPT), "--output-len",
              str(answer), "--max-concurrency", str(streams),
              "--clients", str(clients)]  # fmt: skip
    done = subprocess.run(client, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"load test failed: {done.stdout[-300:]} {done.stderr[-700:]}"
    found = json.loads(re.search(r"\{.*\}", done.stdout, re.DOTALL).group())  # type: ignore[union-attr]
    return dict(found.get("result", found))


def processor_seconds(parent: int) -> dict[str, float]:
    """Returns what a process and each of its children have taken so far (Linux)."""
    found = {}
    tick = os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(stat.parent.name)
        if parent in (number, int(fields[1])):
            name = "engine" if number == parent else f"child {number}"
            found[name] = (int(fields[11]) + int(fields[12])) / tick
    return found


def save_tokenizer(folder: Path, size: int) -> None:
    """Writes a tokenizer of so many words, numbers most of them."""
    import tokenizers

    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    words = [*sorted(alphabet), *(f"\u0120{i}" for i in range(size - len(alphabet)))]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={word: number for number, word in enumerate(words)}, merges=[]))  # fmt: skip
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}", "utf-8")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main() -> None:
    """Parses the command line and asks a server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=("0.5b", "1.5b", "8b"), default="1.5b")
    parser.add_argument("--graphs", type=Path)
    parser.add_argument("--requests", type=int, default=ASKED)
    parser.add_argument("--frontends", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--clients", type=int, default=4)
    args = parser.parse_args()
    serve(args.folder, args.model, args.graphs, args.requests, args.frontends, args.clients)


if __name__ == "__main__":
    main()
