"""How long bursts of requests take by servers that are up, in turns.

    PYTHONPATH=python:. python -m benchmarks.served_bursts before=8771 after=8773 [--seconds 45]

A burst is so many requests at once over /v1/completions, prompts of 32 drawn tokens, greedy, no end
token: milliseconds from the first request to the last answer, median (least - greatest).
`served_llama --only-prepare` makes a folder that both `npusim serve` and llama.cpp's server serve;
the model is to be called `model`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PROMPT = 32
BURSTS = ((1, 1), (1, 4), (4, 4), (8, 4))  # requests, tokens each


def ask(port: int, prompt: list[int], tokens: int) -> None:
    """Sends one request and reads its answer; ends the program for another one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True}  # fmt: skip
    header = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), header)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    if answer.get("usage", {}).get("completion_tokens") != tokens:
        raise SystemExit(str(answer)[:500])


def milliseconds(port: int, requests: int, tokens: int, chance: np.random.Generator) -> float:
    """Returns how long a burst takes."""
    prompts = [chance.integers(1000, 30_000, PROMPT).tolist() for _ in range(requests)]
    with ThreadPoolExecutor(requests) as pool:
        start = time.perf_counter()
        list(pool.map(lambda prompt: ask(port, prompt, tokens), prompts))
        return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Parses the command line and prints a line for each kind of burst and server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("servers", nargs="+", help="NAME=PORT")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    ports = {name: int(port) for name, port in (each.split("=") for each in args.servers)}
    chance = np.random.default_rng(args.seed)
    found: dict[tuple[int, int, str], list[float]] = {}
    until = time.monotonic() + args.seconds
    order = list(ports)
    while time.monotonic() < until:
        order.reverse()
        for requests, tokens in BURSTS:
            for name in order:
                took = milliseconds(ports[name], requests, tokens, chance)
                found.setdefault((requests, tokens, name), []).append(took)
    for (requests, tokens, name), took in sorted(found.items()):
        spread = f"{statistics.median(took):.0f} ({min(took):.0f} - {max(took):.0f})"
        print(f"{requests} x {tokens} tokens, {name}: {spread} ms, {len(took)} bursts")


if __name__ == "__main__":
    main()
