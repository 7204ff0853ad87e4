"""Builds the software Metal device, or skips with the names of what is missing."""

from __future__ import annotations

import os
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


# Of the cases of a kernel's test, one of so many is run; `make metal` runs all.
EVERY = int(os.environ.get("NPUSIM_METAL_EVERY", "4"))


def one_of_every(size: int, count: int, turn: int) -> list[int]:
    """Returns which of `count` cases are run: one of each block of `size`.

    Its place moves on by one from block to block, and with `turn` from test to test: else GPU
    families, dtypes and orders, whose lists have two or four entries, would always be the first.
    """
    blocks = [range(start, min(start + size, count)) for start in range(0, count, size)]
    return [block[(turn + place) % len(block)] for place, block in enumerate(blocks)]


def leave_cases_out(
    config: pytest.Config, items: list[pytest.Item], among: list[pytest.Item], size: int
) -> None:
    """Keeps one of every `size` cases of the tests `among` the items."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in among:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for turn, of_test in enumerate(cases.values()):
        kept = one_of_every(size, len(of_test), turn)
        left.update(item for place, item in enumerate(of_test) if place not in kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of kernels; what shows that the device finds faults is kept whole."""
    here = [item for item in items if item.path.parent.name == "softmetal"]
    kernels = [item for item in here if item.path.name.startswith(_KERNELS)]
    ordinary = [item for item in kernels if "seeded_fault" not in item.keywords]
    leave_cases_out(config, items, ordinary, EVERY)


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
