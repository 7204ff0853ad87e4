"""A server for a long time: short requests, clients that go away, a long queue.

The server is a process of its own, over a model whose answers are known: after a digit comes the
next one (tests/serve/model.py), by steps over pages. Each section checks every answer that it
takes, that no page, no request and no descriptor is left, and says by how much the server's memory
grew.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from npusim.frontends.step_method import StepSizes
from tests.serve.model import make, successors

SIZES = StepSizes(page_tokens=16, max_step_tokens=64, max_requests=16, pages=48)
NEXT = successors()
_CLIENTS = 8  # at a time
_QUEUE = 10_000
_AT_REST = 3  # seconds in which a server that does nothing has given memory back
_LINGER = struct.pack("ii", 1, 0)  # a connection that is closed is reset


class Server:
    """`npusim serve` in a process of its own."""

    def __init__(self, folder: Path, *options: object) -> None:
        command = [sys.executable, "-m", "npusim.cli", "serve", folder / "model.npubin"]
        command += ["--weights", folder / "spoken", "--port", 0, "--threads", 1, *options]
        self.process = subprocess.Popen(
            [str(part) for part in command], stderr=subprocess.PIPE, text=True
        )
        listening = self._wait_for("listening")
        self.address = ("127.0.0.1", int(listening["url"].rpartition(":")[2]))
        self._processes = [self.process.pid, *listening.get("frontends", ())]
        self._wait_for("ready")
        pool = ThreadPoolExecutor(1)  # the log must be read on
        pool.submit(lambda: [None for _ in self.process.stderr or ()])
        pool.shutdown(wait=False)

    def _wait_for(self, event: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            told: dict[str, Any] = json.loads(line)
            if told["event"] == event:
                return told
        raise AssertionError("the server ended")

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(map(float, re.findall(rf"^npusim:{name}\{{.*\}} (.*)$", text, re.MULTILINE)))

    def resident_kib(self) -> int:
        """Returns the memory that its processes have in use, when they do nothing."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        until = time.monotonic() + 60
        while left := {name: n for name in names if (n := self.metric(name))}:
            if time.monotonic() > until:
                raise AssertionError(f"something is left: {left}")
            time.sleep(0.05)
        time.sleep(_AT_REST)
        parts = [Path(f"/proc/{pid}/statm").read_text("ascii") for pid in self._processes]
        pages = sum(int(part.split()[1]) for part in parts)
        return pages * resource.getpagesize() // 1024

    def descriptors(self) -> int:
        """Returns how many files and connections its processes have open."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self._processes)

    def stop(self) -> None:
        """Ends the process; AssertionError if it does not end well."""
        self.process.terminate()
        if self.process.wait(60) != 0:
            raise AssertionError("the server did not end well")


def _prompt(index: int) -> list[int]:
    return [ord("0") + (index + 7 * n) % 10 for n in range(1 + index % 40)]


def _asked(index: int, tokens: int, **more: Any) -> bytes:
    body = {"prompt": _prompt(index), "max_tokens": tokens, "ignore_eos": True, **more}
    return json.dumps({"model": "model", "return_token_ids": True, **body}).encode()


def _expect(index: int, made: list[int]) -> None:
    last = _prompt(index)[-1]
    for token in made:
        if token != NEXT[last]:
            raise AssertionError("an answer is another than it must be")
        last = token


def short_requests(server: Server, first: int, count: int) -> None:
    """Requests of one to eleven tokens, over connections that stay."""

    def client(start: int) -> None:
        connection = http.client.HTTPConnection(*server.address, timeout=120)
        for index in range(start, first + count, _CLIENTS):
            tokens = 1 + index % 11
            connection.request("POST", "/v1/completions", _asked(index, tokens))
            answer = connection.getresponse()
            content = json.loads(answer.read())
            if answer.status != 200:
                raise AssertionError(content)
            (choice,) = content["choices"]
            assert len(choice["token_ids"]) == tokens
            _expect(index, choice["token_ids"])
        connection.close()

    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(client, range(first, first + _CLIENTS)))


def vanishing_clients(server: Server, first: int, count: int) -> None:
    """Streams whose clients reset the connection: before, in and after the first events."""
    for index in range(first, first + count):
        body = _asked(index, 20, stream=True)
        with socket.create_connection(server.address, timeout=60) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
            client.sendall(head.encode() + b"\r\n\r\n" + body[: None if index % 5 else 10])
            if index % 3:
                client.settimeout(0.002 * (index % 4) or None if index % 5 else 0.001)
                with contextlib.suppress(TimeoutError):
                    client.recv(1 << (index % 9))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)


def long_queue(server: Server, first: int, count: int) -> None:
    """Many answers to one request each, which all wait at once."""
    share = 100
    del first

    def client(part: int) -> None:
        connection = http.client.HTTPConnection(*server.address, timeout=600)
        prompts = [_prompt(part * share + i) for i in range(min(share, count))]
        body = {"model": "model", "prompt": prompts, "max_tokens": 2, "ignore_eos": True}
        connection.request(
            "POST", "/v1/completions", json.dumps({**body, "return_token_ids": True})
        )
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        for choice in content["choices"]:
            _expect(part * share + choice["index"], choice["token_ids"])
        connection.close()

    parts = max(1, count // share)
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(client, range(parts)))


Section = Callable[[Server, int, int], None]
_FRONTS = ("--frontends", 2)
SECTIONS: dict[str, tuple[int, Section, tuple[object, ...]]] = {
    "short requests of a server": (100_000, short_requests, ()),
    "short requests of two front ends": (100_000, short_requests, _FRONTS),
    "clients of a server that vanish": (1_000, vanishing_clients, ()),
    "clients of two front ends that vanish": (1_000, vanishing_clients, _FRONTS),
    "requests that wait at once": (_QUEUE, long_queue, ()),
}


def run(scale: float, wanted: str) -> Iterator[tuple[str, int, int]]:
    """Yields what was done, how often, and by how many KiB the server's memory grew meanwhile."""
    chosen = {name: section for name, section in SECTIONS.items() if wanted in name}
    if not chosen:
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), serve=SIZES)
        for name, (count, work, options) in chosen.items():
            scaled = max(20, int(count * scale))
            server = Server(Path(folder), "--max-waiting", _QUEUE, *options)
            try:
                warm = max(_CLIENTS, scaled // 10) if work is not long_queue else scaled
                work(server, 0, warm)
                before, had = server.resident_kib(), server.descriptors()
                work(server, warm, scaled - warm if work is not long_queue else scaled)
                grew = server.resident_kib() - before
                if (has := server.descriptors()) > had:
                    raise AssertionError(f"{has - had} descriptors are left")
                yield name, scaled, grew
                server.stop()
            finally:
                server.process.kill()
