"""The conformance suite on a GPU: the one of `tests/conformance`, with another target."""

from __future__ import annotations

import pytest

from npusim.targets import TargetConfig
from tests.conformance.test_ops import devices, test_op
from tests.gpu.device import require_gpu

require_gpu()

__all__ = ["devices", "test_op"]


@pytest.fixture(scope="session")
def target() -> TargetConfig:
    """What the suite compiles for and runs on."""
    return TargetConfig.named("cuda")
