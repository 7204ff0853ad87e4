"""The soak of docs/reliability.md, small: see tests/soak."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak import inside, verbs
from tests.soak.__main__ import FLAT_KIB

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize("name", [name for name in inside.SECTIONS if "forked beside" not in name])
def test_memory_stays_flat(name: str) -> None:
    for _, count, growth in inside.run(0.002, name):
        assert count >= 20
        assert growth < FLAT_KIB


def test_growth_is_seen() -> None:
    kept: list[bytes] = []
    assert inside.growth_kib(20, lambda _: kept.append(bytes(range(256)) * 4096)) > FLAT_KIB


def test_a_verb_without_room_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    found = {}
    for condition in ("as it should be", "no room"):
        for name, count, problems in verbs.run(0, condition, tmp_path):
            found[name] = (count, problems)
    assert found == {"as it should be": (2, []), "no room for a file": (2, [])}
