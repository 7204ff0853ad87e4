"""ONNX's own backend tests, run through `npusim.onnx_backend`, and what came of each.

`python -m tests.frontends.onnx.suite` runs all and writes the counts where the documentation shows
them (`counts.py`).
"""

from __future__ import annotations

import sys
import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from onnx.backend.test.runner import Runner

from npusim.onnx_backend import NpusimBackend, Prepared
from tests.frontends.onnx import counts
from tests.frontends.onnx.exclusions import EXCLUDED

KINDS = {
    "node": "OnnxBackendNodeModelTest",
    "simple": "OnnxBackendSimpleModelTest",
    "pytorch-converted": "OnnxBackendPyTorchConvertedModelTest",
    "pytorch-operator": "OnnxBackendPyTorchOperatorModelTest",
    "real": "OnnxBackendRealModelTest",
}


@dataclass(frozen=True)
class Outcome:
    """What came of a test.

    Attributes:
        ran: "native", "pytorch" or "imported" (see `npusim.onnx_backend.Prepared`) when it passed,
            "excluded", or "failed".
        problem: what it failed with.
    """

    kind: str
    name: str
    ran: str
    problem: str = ""

    @property
    def is_direct(self) -> bool:
        """Whether it tests an operator itself, not the function that ONNX defines it by."""
        return self.kind == "node" and "_expanded" not in self.name


class _Recording(NpusimBackend):
    """The backend, and the model it prepared last."""

    last: Prepared | None = None

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        cls.last = super().prepare(model, device, **kwargs)
        return cls.last


def outcomes(kinds: tuple[str, ...]) -> Iterator[Outcome]:
    """Runs tests and yields what came of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = Runner(_Recording, __name__)
    for kind in kinds:
        for name, item in sorted(_items(runner, kind).items()):
            reason = EXCLUDED.get(name)
            if reason is None and (whole := name.split("_expanded")[0]) in EXCLUDED:
                reason = EXCLUDED[whole]
            yield Outcome(kind, name, "excluded") if reason else _outcome(kind, name, item)


def _items(runner: Runner, kind: str) -> dict[str, Any]:
    for category, items in runner._test_items.items():
        if KINDS[kind] == f"OnnxBackend{category}Test":
            return {name.removesuffix("_cpu"): item for name, item in items.items()
                    if not name.endswith("_cuda")}  # fmt: skip
    raise KeyError(kind)


def _outcome(kind: str, name: str, item: Any) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            item.func(unittest.TestCase())
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Outcome(kind, name, "failed", text[:300])
    assert _Recording.last is not None
    return Outcome(kind, name, _Recording.last.ran)


def main() -> None:
    """Runs everything, prints what failed, and writes the counts into the documentation."""
    kinds = tuple(sys.argv[1:]) or tuple(KINDS)
    found = list(outcomes(kinds))
    for outcome in found:
        if outcome.ran == "failed":
            print(f"{outcome.name}: {outcome.problem}")
    found_counts = counts.counts_of(found, kinds)
    if len(kinds) == len(KINDS) and not any(o.ran == "failed" for o in found):
        counts.write(found_counts)
    for title, part in found_counts.items():
        print(title, part)


if __name__ == "__main__":
    main()
