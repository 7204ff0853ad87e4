"""Builds the software Metal device, or skips with the names of what is missing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.softmetal import metal
from tests.softmetal.build import CannotBuild, build_device

_KERNELS = ("test_npusim", "test_attention", "test_matmul", "test_conv", "test_quantized")
# What tests change.
ORDINARY: dict[str, object] = {
    "ORDER": "forward",
    "SEED": 1,
    "FAMILY": 9,
    "MATRIX_LAYOUT": 0,
    "DELAY_US": 0,
}
ORDINARY |= {
    "PERFORMANCE_SHADERS": 1,
    "TIMEOUT_S": 120,
    "MAX_MEMORY": 1 << 34,
    "INDIRECT_COMMANDS": 1 << 20,
    "OS": "Version 15.0 (Build 24A335)",
}


# Of the cases of a kernel's test, every so many are run; `make metal` runs all.
EVERY = int(os.environ.get("NPUSIM_METAL_EVERY", "4"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of kernels; what shows that the device finds faults is kept whole."""
    seen: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        is_kernel = item.path.parent.name == "softmetal" and "seeded_fault" not in item.keywords
        skipped = is_kernel and item.path.name.startswith(_KERNELS) and seen[test] % EVERY
        (left if skipped else kept).append(item)
        seen[test] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session")
def softmetal_build() -> Path:
    """The folder of libsoftmetal.so, which is built when something of it changed."""
    given = os.environ.get("NPUSIM_SOFTMETAL")
    if given:
        return Path(given)
    try:
        return build_device()
    except CannotBuild as missing:
        pytest.skip(str(missing))


@pytest.fixture
def device(softmetal_build: Path) -> Iterator[metal.Device]:
    """A device in its ordinary settings; nothing may be alive when the test has ended."""
    metal.runtime(softmetal_build)
    before = metal.alive()
    with metal.Device() as made:
        yield made
    for name, value in ORDINARY.items():
        metal.set_option(name, value)
    assert metal.alive() == before, "objects are alive that nobody owns"
