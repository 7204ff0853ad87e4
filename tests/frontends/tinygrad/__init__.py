"""Tests of the tinygrad frontend. Owns which device tinygrad computes its own results on."""

from __future__ import annotations

import os
import shutil

# tinygrad compiles its CPU kernels with clang. Where there is none, its interpreter runs them.
_CLANG = next(
    (c for c in ("clang", *(f"clang-{n}" for n in range(22, 13, -1))) if shutil.which(c)), None
)

os.environ.setdefault("DEV", "CPU" if _CLANG else "PYTHON")
HAS_COMPILER = os.environ["DEV"] != "PYTHON"
os.environ.setdefault("NOOPT", "1")  # compiling takes far longer than these kernels run
if _CLANG and _CLANG != "clang":
    os.environ.setdefault("CC", _CLANG)
