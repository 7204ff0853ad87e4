"""Long use within one process: calls, loading, sessions that fork and rewind, threads, pickles.

Each section does something many times, checks results on the way, and says by how much the memory
of the process grew from the first tenth to the end.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import npusim
from npusim import _runtime
from npusim.runtime.native import native_program
from tests.runtime import programs, toy_language_model
from tests.runtime.test_weights import write_safetensors

Work = Callable[[int], None]


def resident_kib() -> int:
    """Returns the memory of the process that is in use, in KiB."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # no Linux: the most that ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize() // 1024


def growth_kib(count: int, work: Work) -> int:
    """Does something `count` times; returns how much memory the last nine tenths of it kept."""
    warm = max(1, count // 10)
    for index in range(warm):
        work(index)
    before = resident_kib()
    for index in range(warm, count):
        work(index)
    return resident_kib() - before


def _expect(y: np.ndarray, expected: np.ndarray) -> None:
    if not np.array_equal(y, expected):
        raise AssertionError("a result is another than at first")


def calls() -> Work:
    """Calls of one session, with NumPy."""
    session = npusim.load(programs.mlp(), programs.mlp_weights())
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
    (expected,) = session(x)
    return lambda _: _expect(session(x)[0], expected)


def loads() -> Work:
    """A device, a checkpoint and a program opened from files, called, and let go."""
    folder = tempfile.TemporaryDirectory()
    path = write_safetensors(Path(folder.name) / "w.safetensors", programs.mlp_weights())
    program = Path(folder.name) / "p.npubin"
    programs.mlp().save(program)
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
    (expected,) = npusim.load(program, path)(x)

    def work(index: int) -> None:
        made = npusim.load(program, path, threads=1 + index % 4, copy=index % 2 == 0)
        _expect(made(x)[0], expected)
        assert folder is not None  # stays as long as the work

    return work


def language_sessions() -> Work:
    """A conversation forked, continued in the fork, and rewound."""
    model = npusim.LanguageModel.load(
        toy_language_model.program(), {"table": toy_language_model.weights()["table"]}
    )
    session = model.new_session()
    session.append([1, 2, 3, 4, 5])
    expected = session.logits

    def work(index: int) -> None:
        fork = session.fork()
        fork.append([index % toy_language_model.VOCABULARY, 7])
        fork.rewind(5)
        _expect(fork.logits, expected)
        session.append([index % toy_language_model.VOCABULARY])
        session.rewind(5)

    return work


def pickles() -> Work:
    """A session pickled and read again."""
    session = npusim.load(programs.mlp(), programs.mlp_weights(), threads=1)
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
    (expected,) = session(x)
    return lambda _: _expect(pickle.loads(pickle.dumps(session))(x)[0], expected)


def refusals() -> Work:
    """Calls that are refused, in turn."""
    session = npusim.load(programs.mlp(), programs.mlp_weights())
    wrong = [None, np.zeros(3, np.float32), np.zeros((1, 16)), "text"]

    def work(index: int) -> None:
        try:
            session(wrong[index % len(wrong)])
        except npusim.ShapeError:
            return
        raise AssertionError("a wrong input was taken")

    return work


def threads() -> Work:
    """Sixteen threads that make sessions of shared weights, call them and let them go."""
    device = npusim.Device(threads=2)
    program = programs.mlp()
    weights = npusim.load_weights(programs.mlp_weights(), program, device)
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
    (expected,) = npusim.load(program, weights, device)(x)
    failed: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(10):
                _expect(npusim.load(program, weights, device)(x)[0], expected)
        except BaseException as error:
            failed.append(error)

    def work(_: int) -> None:
        together = [threading.Thread(target=use) for _ in range(16)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        if failed:
            raise failed[0]

    return work


def children() -> Work:
    """Forks of a process whose other thread runs a session; each child calls one of its own."""
    program = programs.mlp(64, (64, 256, 64))
    state = programs.mlp_weights((64, 256, 64))
    busy, idle = (npusim.load(program, state, threads=2) for _ in range(2))
    x = np.ones((64, 64), np.float32)
    (expected,) = idle(x)

    def run() -> None:
        while True:
            busy(x)

    threading.Thread(target=run, daemon=True).start()

    def work(_: int) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(idle(x)[0], expected) else 1)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise AssertionError("a child failed")

    return work


def _engine() -> _runtime.Engine:
    """One after whose tokens comes their sum, modulo 48 (tests/serve/paged_model.py)."""
    program = Path(__file__).parents[1] / "cpp" / "programs" / "paged_sum.npubin"
    return _runtime.Engine(native_program(program), npusim.Device("cpu", threads=1), None)


def _ask(engine: _runtime.Engine, index: int, count: int) -> None:
    """Serves so many requests that differ in all they can; another one is cancelled."""
    asked: dict[int, tuple[int, list[int]]] = {}
    for i in range(count):
        prompt = [(index + 7 * n * i) % 48 for n in range(1 + (index + i) % 20)]
        options = {"max_tokens": 1 + i % 11, "ignore_eos": True, "logprobs": i % 3 - 1}
        asked[engine.submit(prompt, options)] = sum(prompt), []
    engine.cancel(engine.submit([1], {"max_tokens": 30}))
    open_requests = set(asked)
    while open_requests:
        for number, tokens, _, _, ending, error, _ in engine.poll(10):
            assert error is None
            asked[number][1].extend(tokens)
            if ending is not None:
                open_requests.remove(number)
    for total, made in asked.values():
        for token in made:
            assert token == total % 48, "an answer is another than it must be"
            total += token


def requests() -> Work:
    """Twenty short requests at a time to one engine."""
    engine = _engine()
    return lambda index: _ask(engine, index, 20)


def engines() -> Work:
    """An engine made, asked and closed, or dropped in the middle of what it does."""

    def work(index: int) -> None:
        engine = _engine()
        _ask(engine, index, 2)
        engine.submit([1], {"max_tokens": 30})
        if index % 2 == 0:
            engine.close()

    return work


SECTIONS: dict[str, tuple[int, Callable[[], Work]]] = {
    "calls": (1_000_000, calls),
    "refused calls": (100_000, refusals),
    "loads and unloads": (10_000, loads),
    "language sessions forked and rewound": (100_000, language_sessions),
    "sessions pickled": (10_000, pickles),
    "rounds of 16 threads, 10 sessions each": (1_000, threads),
    "children forked beside a running session": (1_000, children),
    "rounds of 20 requests to an engine": (5_000, requests),
    "engines made, asked and dropped": (1_000, engines),
}


def run(scale: float, wanted: str) -> Iterator[tuple[str, int, int]]:
    """Yields what was done, how often, and by how many KiB the memory grew meanwhile."""
    for name, (count, make) in SECTIONS.items():
        if wanted in name:
            scaled = max(20, int(count * scale))
            yield name, scaled, growth_kib(scaled, make())
