"""Without PyTorch: what is native runs, and what is not is said to need it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import npusim

from .models import EAGER_DEVICE, Function, stray

CODE = """
import sys
sys.modules["torch"] = None  # importing it fails
import numpy as np
import npusim

native, mixed, plan = sys.argv[1:]
report = npusim.check(native)
assert report.coverage == 1
executor = npusim.DAGExecutor(npusim.partition(native))
x = np.linspace(-1, 1, 6, dtype=np.float32)
assert np.array_equal(executor(x)[0], np.maximum(x, 0) + 1)
(node,) = npusim.check(mixed).others
assert node.status == "unsupported", node
assert "PyTorch, which would run it, is not installed" in node.reason
for attempt in (lambda: npusim.partition(mixed),
                lambda: npusim.DAGExecutor(npusim.PartitionPlan.load(plan))):
    try:
        attempt()
    except npusim.Error as error:
        assert "not installed" in str(error), error
    else:
        raise AssertionError("no error")
"""


def test_native_plans_need_no_torch(tmp_path: Path) -> None:
    x = torch.zeros(6)
    paths = [tmp_path / name for name in ("native.json", "mixed.json", "mixed.npuplan")]
    npusim.extract_ir(Function(lambda x: x.relu() + 1).eval(), x).save(paths[0])
    mixed = npusim.extract_ir(Function(lambda x: stray(x.relu())).eval(), x)
    mixed.save(paths[1])
    npusim.partition(mixed, costs=EAGER_DEVICE).save(paths[2])
    result = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
