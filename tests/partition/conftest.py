"""The device that tests of running plans use: `pytest tests/partition --device cuda` for a GPU."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The name of a device, and of its target."""
    return str(request.config.getoption("--device"))
