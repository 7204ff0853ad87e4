"""What streams cost a server: over an engine that makes tokens in time and computes nothing.

    PYTHONPATH=python:. python -m benchmarks.served_streams [--frontends 1 2 4] [--clients 2]

Prints events and tokens a second, and microseconds of processor an event: of the engine's process
and of all front ends. A server of one process has no front ends.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llm_serving import loaded, processor_seconds, save_tokenizer, wait_until_ready

PORT, VOCABULARY, ANSWER = 8766, 4096, 338


class PacedEngine:
    """As `_runtime.Engine`: every request has a token in each step, and a step takes its time.

    Args:
        seconds: of a step.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock, self._latest = threading.Condition(), 0
        self._made: dict[int, dict[int, list[int]]] = {}  # tokens left and untold, by reader
        self._tokens = 0
        threading.Thread(target=self._step, daemon=True).start()

    def _step(self) -> None:
        due = time.perf_counter()
        while True:
            due = max(due + self._seconds, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
            with self._lock:
                for requests in self._made.values():
                    for state in requests.values():
                        if state[0] > 0:
                            state[0] -= 1
                            state[1] += 1
                            self._tokens += 1
                self._lock.notify_all()

    def submit(self, tokens: Sequence[int], options: dict[str, Any], reader: int = 0) -> int:
        """Takes a request."""
        with self._lock:
            self._latest += 1
            self._made.setdefault(reader, {})[self._latest] = [options["max_tokens"], 0]
            return self._latest

    def _news(self, timeout: float, reader: int) -> list[tuple[int, int, bool]]:
        with self._lock:
            self._lock.wait(timeout)
            requests = self._made.get(reader, {})
            news = [(n, state[1], state[0] == 0) for n, state in requests.items() if state[1]]
            for number, _, ends in news:
                requests[number][1] = 0
                if ends:
                    del requests[number]
            return news

    def poll(self, timeout: float) -> list[Any]:
        """Tells the first reader of its requests."""
        return [
            (n, [300] * count, None, None, "length" if ends else None, None, 0)
            for n, count, ends in self._news(timeout, 0)
        ]

    def poll_packed(self, timeout: float, reader: int) -> bytes:
        """Tells a reader of its requests."""
        news = self._news(timeout, reader)
        plain = [(n, count) for n, count, ends in news if not ends]
        tokens = sum(count for _, count in plain)
        packed = np.array([len(plain), tokens], np.uint32).tobytes()
        packed += array("Q", (n for n, _ in plain)).tobytes()
        packed += array("I", (count for _, count in plain)).tobytes()
        packed += np.full(tokens, 300, np.int32).tobytes()
        for number, count, ends in news:
            if ends:
                head = number.to_bytes(8, "little") + count.to_bytes(4, "little") + b"\2"
                packed += head + np.full(count, 300, np.int32).tobytes()
        return packed if news else b""

    def cancel(self, request: int) -> None:
        """Forgets a request."""
        with self._lock:
            for requests in self._made.values():
                requests.pop(request, None)

    def leave(self, reader: int) -> None:
        """Forgets a reader."""
        with self._lock:
            self._made.pop(reader, None)

    def stats(self) -> dict[str, float]:
        """Counts."""
        running = sum(map(len, self._made.values()))
        return {"running": running, "waiting": 0, "prompt_tokens": self._tokens}

    def facts(self) -> dict[str, Any]:
        """Sizes."""
        sizes = {"vocab_size": VOCABULARY, "max_context": 4096, "max_requests": 512}
        return {**sizes, "eos_token_ids": []}

    def failure(self) -> str:
        """Never fails."""
        return ""

    def drain(self, seconds: float) -> bool:
        """Lets nobody wait."""
        return True

    def close(self) -> None:
        """Has nothing."""


def serve(frontends: int, folder: Path, seconds: float) -> None:
    """Serves until SIGTERM."""
    from types import SimpleNamespace

    from npusim.language_model import Tokenizer
    from npusim.serve import engine as engines
    from npusim.serve.frontend import Served
    from npusim.serve.frontends import serve_with
    from npusim.serve.paged import PagedBackend
    from npusim.serve.process import logged_as_json, take_port

    path = folder / "tokenizer.json"
    model = SimpleNamespace(
        vocab_size=VOCABULARY, eos_token_ids=(), has_tokenizer=True, tokenizer_path=path,
        tokenizer=Tokenizer(path), native=SimpleNamespace(has_step=True),
    )  # fmt: skip
    engines.LanguageModel.load = lambda *_, **__: model  # type: ignore[method-assign,assignment]
    engines.make_backend = lambda *_: PagedBackend(PacedEngine(seconds))  # type: ignore[assignment,arg-type]
    with logged_as_json():
        serve_with(
            frontends, Served("m"), lambda: engines.Engine(""), take_port("127.0.0.1", PORT), 5
        )


def measure(frontends: int, clients: int, streams: int, seconds: float, requests: int) -> None:
    """Prints what a server of so many front ends takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tokenizer(folder, VOCABULARY)
        command = [sys.executable, "-m", "benchmarks.served_streams", "--serve", str(folder)]
        command += ["--frontends", str(frontends), "--ms", str(1e3 * seconds)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            url = f"http://127.0.0.1:{PORT}"
            wait_until_ready(process, url)
            time.sleep(0.5)
            before = processor_seconds(process.pid)
            found = loaded(url, requests, clients, streams, ANSWER)
            after = processor_seconds(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    events = sum(1 + len(gaps) for gaps in found["itls"])
    took = {name: 1e6 * (value - before.get(name, 0)) / events for name, value in after.items()}
    fronts = sum(value for name, value in took.items() if name != "engine")
    gap = (found["median_itl_ms"], found["p99_itl_ms"])
    print(f"{frontends} front ends, {streams} streams: {found['output_throughput']:.0f} tokens and "
          f"{events / found['duration']:.0f} events a second (at most {streams / seconds:.0f}); "
          f"us an event: engine {took['engine']:.1f}, front ends {fronts:.1f}; between events "
          f"median {gap[0]:.1f} ms, 99 % {gap[1]:.1f}; failed {found['failed']}",
          flush=True)  # fmt: skip


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--frontends", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--ms", type=float, default=5)
    args = parser.parse_args()
    if args.serve:
        serve(args.frontends[0], args.serve, args.ms / 1e3)
        return
    for count in args.frontends:
        measure(count, args.clients, args.streams, args.ms / 1e3, args.requests)


if __name__ == "__main__":
    main()
