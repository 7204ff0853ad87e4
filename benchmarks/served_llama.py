"""Tokens a second of npusim's server and of llama.cpp's, by how many requests come at a time.

    PYTHONPATH=python:. python -m benchmarks.served_llama FOLDER --server llama-server
        [--size 0.5b] [--kind BF16|Q8_0] [--slots 1 4 8] [--rounds 3] [--threads 2]

Both serve the architecture of Qwen2.5 with the same seeded weights, which FOLDER keeps, and are
asked by the same client: so many requests at once over /v1/completions, prompts of 32 tokens,
greedy, no end token. `engine` is npusim's in this process, without a server. All are up from the
first to the last, and take turns by the number of requests, since a machine's memory is faster in
one minute than in another. `decode` is what 32 tokens more take, of all requests together: without
prompts, connections and first steps. A line a measurement (round, requests, who, both rates), then
the medians of the rounds (least to greatest).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks import llm_peers

PROMPT, SHORT, LONG = 32, 4, 36
MOST = 8  # requests at a time
PORTS = {"npusim": 8771, "llama.cpp": 8772}
ENGINE = "engine"
QUANTIZED = {"BF16": "none", "F16": "none", "Q8_0": "int8"}


def prepare(folder: Path, size: str, kind: str) -> None:
    """Writes weights, a tokenizer, a program and a GGUF file, where they are not there."""
    import npusim
    from benchmarks.llm_serving import save_tokenizer
    from npusim.frontends.step_method import StepSizes

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model.safetensors").exists():
        llm_peers.write_model(size, folder)
        save_tokenizer(folder, llm_peers.VOCAB)
    graphs = folder / "steps.json"
    if not graphs.exists():
        sizes = StepSizes(page_tokens=64, max_step_tokens=512, max_requests=MOST, pages=64)
        npusim.extract_llm(folder, max_context=1024, prefill_chunk=128, serve=sizes).save(graphs)
    if not _program(folder, kind).exists():
        npusim.compile(graphs, quantize=QUANTIZED[kind]).save(_program(folder, kind))
    if not llm_peers.gguf_path(folder, kind).exists():
        llm_peers.write_gguf(folder, kind, vocabulary=True)


def _program(folder: Path, kind: str) -> Path:
    return folder / f"steps-{QUANTIZED[kind]}.npubin"


class Served(Protocol):
    """What answers requests."""

    def seconds(self, requests: int, tokens: int, chance: np.random.Generator) -> float:
        """Returns how long so many requests of so many new tokens take, all at once."""


def prompts_of(requests: int, chance: np.random.Generator) -> list[list[int]]:
    """Returns drawn prompts."""
    return [chance.integers(1000, 30_000, PROMPT).tolist() for _ in range(requests)]


def check(made: list[int], requests: int, tokens: int) -> None:
    """Ends the program if requests have other numbers of tokens than they were to have."""
    if made != [tokens] * requests:
        raise SystemExit(f"asked for {tokens} tokens each, got {made}")


class Engine:
    """npusim's engine, in this process; leave it by `with`."""

    def __init__(self, folder: Path, kind: str, threads: int) -> None:
        import npusim
        from npusim import _runtime

        program = _program(folder, kind)
        model = npusim.LanguageModel.load(program, folder, None, "cpu", threads)
        self._native = _runtime.Engine.of_model(model.native, max_requests=MOST, step_seconds=0.5)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._native.close()

    def seconds(self, requests: int, tokens: int, chance: np.random.Generator) -> float:
        """As `Served`."""
        options = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        prompts = prompts_of(requests, chance)
        start = time.perf_counter()
        made = {self._native.submit(prompt, options): 0 for prompt in prompts}
        running = requests
        while running:
            for number, news, _, _, ending, error, _ in self._native.poll(10):
                if error is not None:
                    raise SystemExit(str(error))
                made[number] += len(news)
                running -= ending is not None
        took = time.perf_counter() - start
        check(list(made.values()), requests, tokens)
        return took


class Server:
    """A server as a process that listens at a port of 127.0.0.1; leave it by `with`."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.port = port
        with log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        while not self._is_ready():
            if self.process.poll() is not None:
                raise SystemExit(log.read_text()[-2000:])
            time.sleep(0.05)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def seconds(self, requests: int, tokens: int, chance: np.random.Generator) -> float:
        """Returns how long so many requests of so many new tokens take, all at once."""
        prompts = prompts_of(requests, chance)
        with ThreadPoolExecutor(requests) as pool:
            start = time.perf_counter()
            made = list(pool.map(lambda prompt: self._ask(prompt, tokens), prompts))
            took = time.perf_counter() - start
        check(made, requests, tokens)
        return took

    def _ask(self, prompt: list[int], tokens: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True}  # fmt: skip
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"content-type": "application/json"})  # fmt: skip
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if "usage" not in answer:
            raise SystemExit(str(answer)[:500])
        return int(answer["usage"]["completion_tokens"])


def start(name: str, folder: Path, kind: str, server: str, threads: int) -> Server:
    """Returns a server that is ready."""
    port = PORTS[name]
    if name == "npusim":
        command = [sys.executable, "-m", "npusim.cli", "serve", str(_program(folder, kind)),
                   "--weights", str(folder), "--name", "model", "--threads", str(threads),
                   "--port", str(port)]  # fmt: skip
    else:
        command = [server, "-m", str(llm_peers.gguf_path(folder, kind)), "-t", str(threads), "-tb",
                   str(threads), "-np", str(MOST), "-c", str(MOST * 1024), "--port", str(port),
                   "--no-webui", "--cache-ram", "0"]  # fmt: skip
    return Server(command, port, folder / f"{name}.log")


def measure(served: Served, count: int, seed: int) -> tuple[float, float]:
    """Returns tokens a second of so many requests at a time: of decoding, and of whole requests."""
    chance = np.random.default_rng(seed)
    short, long = (served.seconds(count, tokens, chance) for tokens in (SHORT, LONG))
    return count * (LONG - SHORT) / (long - short), count * LONG / long


def main() -> None:
    """Parses the command line and prints a line for each number of requests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", default="llama-server")
    parser.add_argument("--size", choices=tuple(llm_peers.SIZES), default="0.5b")
    parser.add_argument("--kind", choices=tuple(QUANTIZED), default="BF16")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-prepare", action="store_true")
    args = parser.parse_args()
    prepare(args.folder, args.size, args.kind)
    if args.only_prepare:
        return
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    with contextlib.ExitStack() as all_of_them:
        served: dict[str, Served] = {
            name: all_of_them.enter_context(
                start(name, args.folder, args.kind, args.server, args.threads)
            )
            for name in PORTS
        }
        served[ENGINE] = all_of_them.enter_context(Engine(args.folder, args.kind, args.threads))
        for each in served.values():
            each.seconds(1, SHORT, np.random.default_rng(0))
        for number in range(args.rounds):
            for count in args.slots:
                for name, each in served.items():
                    rates = measure(each, count, number)
                    found.setdefault((count, name), []).append(rates)
                    decode, whole = rates
                    print(f"{number} {count} {name} {decode:.1f} {whole:.1f}", flush=True)
    print(f"{args.size} {args.kind}, {args.threads} threads: tokens a second")
    for (count, name), rounds in found.items():
        medians = [spread([rates[part] for rates in rounds]) for part in range(2)]
        print(f"{count} at a time, {name:9}: decode {medians[0]}, whole {medians[1]}")


def spread(values: list[float]) -> str:
    """Returns median, least and greatest."""
    return f"{statistics.median(values):6.1f} ({min(values):.1f} - {max(values):.1f})"


if __name__ == "__main__":
    main()
