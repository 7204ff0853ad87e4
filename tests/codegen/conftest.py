"""Fixtures of the code generation's tests: the compiler, and a cache folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.codegen.cuda import nvrtc
from npusim.errors import Error


@pytest.fixture
def compiler() -> nvrtc.Nvrtc:
    """NVRTC; without it a test has nothing to compile with."""
    try:
        return nvrtc.load()
    except Error as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of compiled kernels."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(folder))
    return folder
