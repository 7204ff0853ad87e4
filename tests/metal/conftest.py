"""A Metal device in its ordinary settings; nothing of it may be alive when a test has ended."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import npusim
from npusim import _runtime
from tests.softmetal import metal
from tests.softmetal.conftest import EVERY, ORDINARY, leave_cases_out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out half of whole models' dtypes, and of decoders; `make metal` has them."""
    here = [item for item in items if item.path.parent.name == "metal"]
    whole = ("test_small_models", "_resnet18_", "test_a_decoder_")
    models = [item for item in here if any(name in item.name for name in whole)]
    leave_cases_out(config, items, models, min(EVERY, 2))


@pytest.fixture
def indirect() -> str:
    """The device's option indirect_commands."""
    return "auto"


@pytest.fixture
def device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indirect: str
) -> Iterator[npusim.Device]:
    if "metal" not in _runtime.device_names():
        pytest.skip("the runtime has Metal with --device metal")
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "cache"))
    made = npusim.Device("metal", indirect_commands=indirect)
    before = alive()
    yield made
    for name, value in ORDINARY.items():
        metal.set_option(name, value)
    assert alive() == before, "objects are alive that nobody owns"


def alive() -> int:
    """How many objects of the software device there are, once all that nobody owns is gone."""
    metal.runtime(Path(os.environ["NPUSIM_SOFTMETAL"]))
    gc.collect()
    return metal.alive()
