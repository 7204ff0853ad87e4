"""SIGTERM and SIGHUP stop a verb as Ctrl-C does: nothing half-written stays, the cursor is back.

An extension module that is being loaded runs Python code of its own, and few expect an exception
there: the process may end by SIGSEGV. So the stop waits until it is loaded.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from types import FrameType

_AGAIN = 0.02  # seconds until a stop that has to wait is tried again


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

    can_wait = bool(before) and hasattr(signal, "setitimer")  # not on Windows
    alarmed = signal.getsignal(signal.SIGALRM) if can_wait else None

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if not can_wait or not _loads_an_extension(frame):
            raise Stopped(number)
        signal.signal(signal.SIGALRM, lambda _, now: stop(number, now))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        if can_wait:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarmed)
        for number, handler in before.items():
            signal.signal(number, handler)


def _loads_an_extension(frame: FrameType | None) -> bool:
    """Tells whether a frame runs because a compiled module is being loaded."""
    while frame is not None:
        if frame.f_code.co_name in ("create_module", "exec_module") and isinstance(
            frame.f_locals.get("self"), ExtensionFileLoader
        ):
            return True
        frame = frame.f_back
    return False
