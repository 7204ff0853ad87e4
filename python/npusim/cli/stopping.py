"""SIGTERM and SIGHUP stop a verb as Ctrl-C does: nothing half-written stays, the cursor is back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal asked the process to end; its handlers clean up after this exception.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise Stopped; a second one ends the process.

    A signal that the process was started to ignore (`nohup`) stays ignored. Threads other than the
    main one cannot set handlers: there, nothing changes.
    """
    names = ("SIGTERM", "SIGHUP")
    wanted = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        wanted = []
    before = {s: signal.getsignal(s) for s in wanted if signal.getsignal(s) is signal.SIG_DFL}

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Stopped(number)

    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
