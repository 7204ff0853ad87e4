"""ONNX's own backend tests: all pass but those excluded by name, and most of them natively."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

import onnx

from tests.frontends.onnx import counts
from tests.frontends.onnx.exclusions import EXCLUDED
from tests.frontends.onnx.suite import Outcome, outcomes

# Served by PyTorch; whatever else needs it would be a loss.
MOST_WITH_PYTORCH = 12


def _failures(found: list[Outcome]) -> list[str]:
    return [f"{o.name}: {o.problem}" for o in found if o.ran == "failed"]


@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator", "real"])
def test_models(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))  # where the suite puts copies of its models
    found = list(outcomes((kind,)))
    assert not _failures(found)
    assert all(o.ran in ("native", "excluded") for o in found)


def test_nodes() -> None:
    found = list(outcomes(("node",)))
    assert not _failures(found)
    direct = [o for o in found if o.is_direct]
    assert sum(o.ran in ("native", "pytorch", "imported") for o in direct) >= 0.95 * len(direct)
    assert sum(o.ran == "pytorch" for o in found) <= MOST_WITH_PYTORCH

    version, kept = counts.read()
    if version == onnx.__version__:
        ran = counts.counts_of(found, ())
        for suite in ("node, direct", "node, expanded"):
            assert ran[suite] == kept[suite], "run python -m tests.frontends.onnx.suite"


def test_the_pages_show_the_counts() -> None:
    for page, text in counts.pages().items():
        assert page.read_text("utf-8") == text, "run python -m tests.frontends.onnx.suite"


def test_every_exclusion_gives_a_reason() -> None:
    assert all(len(reason) > 10 for reason in EXCLUDED.values())
