"""What torch.export refuses, said so that a person can act on it.

Owns the wording of ExportErrors: one sentence, the line of the user's code, and what to change.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch.fx import proxy as fx_proxy
from torch.fx.experimental import proxy_tensor

import npusim
from npusim.errors import ExportError

_LIBRARIES = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(npusim.__file__).parent}{os.sep}",
    f"{sysconfig.get_paths()['stdlib']}{os.sep}contextlib",
)

# What npusim brings to try it with is written as a user's own.
_EXAMPLES = f"{Path(npusim.__file__).parent / 'demo'}{os.sep}"

_DATA_DEPENDENT = "Compute both sides and choose with torch.where, or decide outside the model."

# A pattern in the error's type and text -> what it means, and what to do about it.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"GuardOnDataDependent|data-dependent|Cannot branch|DynamicOutputShape",
        "the model's control flow depends on the values of tensors",
        _DATA_DEPENDENT,
    ),
    (
        r"Constraints violated|ConstraintViolationError|not in range \[|inconsistent min",
        "the model, or its example arguments, fix a size that dynamic_shapes leaves open",
        "Give examples of at least 2 and at most max there, and say what the model needs: a "
        "multiple (4 * dim), a min, or a fixed size.",
    ),
    (
        r"\.numpy\(\)|numpy\(\) is not supported|Can't call numpy",
        "the model leaves PyTorch for NumPy, which cannot be traced",
        "Use the PyTorch function of the same name.",
    ),
    (
        r"known type|pytree|flattenable",
        "the model takes or returns an object that is not a tensor, tuple, list or dict",
        "Return a dict, tuple or dataclass of tensors; leave out caches (use_cache=False).",
    ),
    (
        r"SpecViolationError",
        "torch.export gives a program that it does not accept itself, as where a buffer is "
        "assigned another one",
        "To a buffer, assign a copy (self.a = self.b.clone()).",
    ),
    (
        r"fake impl|fake tensor|meta kernel|Meta' backend|FakeTensor",
        "an operator does not say which shapes it gives",
        "Register it with npusim.register_op, or give it a fake implementation "
        "(torch.library.register_fake).",
    ),
)


_CLASS = re.compile(r"<class '([\w.<>]+)'>")


def is_users(file: str) -> bool:
    """Tells whether a source file is the user's rather than PyTorch's or npusim's."""
    return file.startswith(_EXAMPLES) or not file.startswith(("<", *_LIBRARIES))


def explain(error: Exception, model: str) -> ExportError:
    """Returns the ExportError that says why a model could not be traced, and where."""
    frame = _users_frame(error.__traceback__)
    text = f"{type(error).__name__}: {error}"
    first = str(error).strip().split("\n")[0].rstrip(".")
    for pattern, meaning, hint in _MEANINGS:
        if re.search(pattern, text):
            named = _CLASS.search(text)
            found = f" ({named.group(1)})" if named else _violations(text)
            return ExportError(
                f"{model} cannot be extracted: {meaning}{found}{_place(frame)}.", hint=hint
            )
    if frame is None or (isinstance(error, TypeError) and "argument" in first):
        return ExportError(
            f"{model} cannot be called with the example arguments: {first}{_place(frame)}.",
            hint="Check the number, shapes and dtypes of args and kwargs.",
        )
    return ExportError(
        f"{model} cannot be extracted: {type(error).__name__}: {first}{_place(frame)}."
    )


def _violations(text: str) -> str:
    """Returns what torch.export says of sizes that a model fixes: one line each."""
    lines = [line.strip(" -.") for line in text.split("\n") if line.startswith("  - ")]
    return "".join(f"\n  {line}" for line in lines)


def _users_frame(trace: TracebackType | None) -> traceback.FrameSummary | None:
    frames = [f for f in traceback.extract_tb(trace) if is_users(f.filename)]
    return frames[-1] if frames else None


def _place(frame: traceback.FrameSummary | None) -> str:
    if frame is None:
        return ""
    code = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f", at {frame.filename}:{frame.lineno}" + (f" ({code})" if code else "")


@contextlib.contextmanager
def users_frames() -> Iterator[None]:
    """Has torch.export record every frame of the user's code, not those named `forward` alone.

    And nothing but these: to name all of the hundred frames around a call, with their lines, takes
    an eighth of a trace's time. Process-wide while it lasts, and without effect where PyTorch has
    no such hooks.
    """
    hooks = (
        (proxy_tensor.PythonKeyTracer, "_filter_traceback_frames", lambda self, stack: stack),
        (fx_proxy, "CapturedTraceback", _UsersFrames),
    )
    if not all(hasattr(owner, name) for owner, name, _ in hooks):
        yield
        return
    with contextlib.ExitStack() as undo:
        for owner, name, hook in hooks:
            inherited = vars(owner).get(name)
            if inherited is None:
                undo.callback(delattr, owner, name)
            else:
                undo.callback(setattr, owner, name, inherited)
            setattr(owner, name, hook)
        yield


class _UsersFrames:
    """Stands for PyTorch's captured traceback: the user's frames from the first `forward` on."""

    def __init__(self, frame: FrameType | None) -> None:
        self._places: list[tuple[CodeType, int]] = []  # innermost first
        known = 0
        while frame is not None:
            if _is_users_code(frame.f_code):
                self._places.append((frame.f_code, frame.f_lineno))
            if frame.f_code.co_name == "forward":
                known = len(self._places)
            frame = frame.f_back
        del self._places[known:]

    @classmethod
    def extract(cls, **_: Any) -> _UsersFrames:
        return cls(sys._getframe(1))

    def summary(self) -> _UsersFrames:
        return self

    def __bool__(self) -> bool:
        return bool(self._places)

    def format(self) -> list[str]:
        """Returns what `source_line` reads, outermost first."""
        return [
            f'  File "{code.co_filename}", line {line}, in {code.co_name}\n'
            for code, line in reversed(self._places)
        ]


@functools.lru_cache(maxsize=4096)
def _is_users_code(code: CodeType) -> bool:
    return is_users(code.co_filename)


_FRAME = re.compile(r'File "(.+?)", line (\d+)')


def source_line(stack_trace: str | None) -> tuple[str, int]:
    """Returns file and line of the innermost frame of a recorded trace that is the user's."""
    frames = _FRAME.findall(stack_trace or "")
    for file, line in reversed(frames):
        if is_users(file):
            return file, int(line)
    return "", 0
