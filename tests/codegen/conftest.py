"""Fixtures of the code generation's tests: the compiler, and a cache folder of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from npusim.codegen.cuda import nvrtc


@pytest.fixture
def compiler() -> nvrtc.Nvrtc:
    """NVRTC; on Linux requirements-dev.txt has it, so a test that does not find it has failed."""
    if sys.platform != "linux":
        pytest.skip("NVRTC is there on Linux alone")
    return nvrtc.load()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of compiled kernels."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(folder))
    return folder
