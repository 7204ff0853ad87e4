"""Signals that stop a verb: at once, but for extension modules that are being loaded."""

from __future__ import annotations

import os
import signal
import time
from importlib.machinery import ExtensionFileLoader, ModuleSpec

import pytest

from npusim.cli.stopping import Stopped, stopped_by_signals

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="signals of POSIX")


def _wait() -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:  # in Python, where handlers run
        time.sleep(0.001)
    pytest.fail("nothing stopped")


def test_a_signal_stops_at_once() -> None:
    with pytest.raises(Stopped) as stopped, stopped_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        _wait()
    assert stopped.value.signal == signal.SIGTERM


@pytest.mark.parametrize("step", ["create_module", "exec_module"])
def test_an_extension_is_loaded_first(step: str) -> None:
    loaded = []

    def load(self: ExtensionFileLoader, spec: ModuleSpec) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100):  # longer than a stop waits until it tries again
            time.sleep(0.001)
        loaded.append(step)

    namespace: dict[str, object] = {"load": load}
    exec(f"def {step}(self, spec):\n    load(self, spec)", namespace)
    kind = type("Loader", (ExtensionFileLoader,), {step: namespace[step]})
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), stopped_by_signals():
        getattr(kind("made", "made.so"), step)(None)
        _wait()
    assert loaded == [step]
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGTERM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
