"""Sessions in children of a process: forked while other threads run, spawned, and pickled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import npusim
from tests.runtime import programs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SIZES = (64, 256, 64)
X = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def session(threads: int = 4) -> npusim.Session:
    program = programs.mlp(64, SIZES)
    return npusim.load(program, programs.mlp_weights(SIZES), threads=threads)


def expected() -> np.ndarray:
    return programs.mlp_reference(programs.mlp_weights(SIZES), X)


def is_right(made: npusim.Session) -> bool:
    return bool(np.abs(made(X)[0] - expected()).max() < 1e-3)


def in_child(check: Callable[[], bool]) -> int:
    """Returns the exit code of a forked child: 0 when the check holds there."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)  # ends a child that hangs
            code = 0 if check() else 2
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def running(*sessions: npusim.Session) -> Iterator[None]:
    """Runs each session on a thread of its own meanwhile."""
    stop = threading.Event()

    def run(made: npusim.Session) -> None:
        while not stop.is_set():
            made(X)

    threads = [threading.Thread(target=run, args=(made,)) for made in sessions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_children_of_a_process_whose_threads_run() -> None:
    device = npusim.Device(threads=4)
    program, state = programs.mlp(64, SIZES), programs.mlp_weights(SIZES)
    weights = npusim.load_weights(state, program, device)
    busy, idle = (npusim.load(program, weights, device) for _ in range(2))

    def check() -> bool:
        fresh = npusim.load(program, weights, device)
        if not (is_right(idle) and is_right(fresh) and is_right(session())):
            return False
        try:
            return is_right(busy)
        except npusim.DeviceError as error:
            return "forked" in str(error)

    with running(busy):
        for _ in range(20):
            time.sleep(0.002)
            assert in_child(check) == 0
    assert is_right(busy)


def test_a_child_may_run_threads_and_drop_what_it_inherits() -> None:
    inherited = [session() for _ in range(3)]

    def check() -> bool:
        right: list[bool] = []
        threads = [
            threading.Thread(target=lambda made=made: right.append(is_right(made)))
            for made in inherited
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        inherited.clear()
        return right == [True] * 3

    with running(session()):
        assert [in_child(check) for _ in range(5)] == [0] * 5


def test_a_grandchild() -> None:
    made = session()
    with running(session()):
        assert in_child(lambda: is_right(made) and in_child(lambda: is_right(made)) == 0) == 0


METHODS = [
    m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.skipif(
    sys.platform == "darwin", reason="pools of forked workers hang in its libraries"
)
def test_workers_get_sessions(method: str) -> None:
    made = session(threads=2)
    context = multiprocessing.get_context(method)
    with running(session(threads=2)), context.Pool(2) as pool:
        assert pool.map_async(is_right, [made] * 4).get(timeout=120) == [True] * 4
