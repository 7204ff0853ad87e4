"""How many files a new kernel touches: one is added to a copy of the tree, on the CPU and on CUDA.

What is added here is what CONTRIBUTING.md lists, and all that a real one needs but for its docs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# File of the tree: (the line that the text is put in front of, the text); no line: a new file.
ADDED: dict[str, tuple[str, str]] = {
    "python/npusim/abi/kernels.py": (
        "        # Inclusive scan along the middle",
        '        # y = -x, of n float32 side by side.\n        _def("negate", "x, y", "n:i64"),\n',
    ),
    "python/npusim/abi/kernel_cost.py": (
        '    "scan": _scan,',
        '    "negate": lambda p, _: ([4 * p["n"], 4 * p["n"]], p["n"]),\n',
    ),
    "tests/ops/test_kernel_cost.py": (
        '    ("scan", {"outer"',
        '    ("negate", {"n": 5}, (20, 20), 5),\n',
    ),
    "python/npusim/ops/reduction.py": (
        "_DIMS = (",
        """
def _negate(node: Node, low: Lowering) -> None:
    x = low.inputs(node)[0]
    assert x is not None
    low.emit("negate", {"n": node.type.numel}, [low.dense(x)], [low.result(node.output)])


register(
    OpDef(
        "npu.negate",
        lower=_negate,
        reference=lambda x: -x,
        infer=lambda x: x,
        cases=(Case(((3, 5),)),),
        dtypes=("float32",),
    )
)

""",
    ),
    "python/npusim/codegen/cuda/rows.py": (
        "    **_ROWS.rules,",
        """\
    "negate": lambda p: LaunchConfig(
        (Launch(((p["n"] + 255) // 256, 1, 1), (256, 1, 1)),) if p["n"] else (),
        defines={"BLOCK": 256},
    ),
""",
    ),
    "kernels/cpu/table.cpp": ("  X(norm)  ", "  X(negate)               \\\n"),
    "kernels/cpu/negate.cpp": (
        "",
        """\
// y = -x, of dense float32.
#include "kernels/cpu/check.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::NegateParams;

void run(const KernelCall& call) {
  const int64_t n = static_cast<const Params*>(call.params)->n;
  const auto* x = static_cast<const float*>(call.operands[0]);
  auto* y = static_cast<float*>(call.operands[1]);
  for (int64_t i = 0; i < n; ++i) y[i] = -x[i];
}

const char* check(const KernelCheck& c) {
  const int64_t n = static_cast<const Params*>(c.params)->n;
  if (const char* why = operand_count(c, 2)) return why;
  if (n < 0) return "a size is negative";
  if (const char* why = Region().dim(n, 1).reads(c, 0, 4)) return why;
  return Region().dim(n, 1).writes(c, 1, 4);
}

int64_t count_tasks(const void*, int64_t) {
  return 1;
}

int64_t scratch(const void*) {
  return 0;
}

}  // namespace

extern const KernelEntry negate_kernel;
const KernelEntry negate_kernel = {"negate", Params::kSchema, sizeof(Params), run,
                                   check,    count_tasks,     scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
""",
    ),
    "kernels/cuda/rows/negate.cu": (
        "",
        """\
// y = -x, of dense float32.
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const float* x, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  if (i < npusim::params.n) y[i] = -x[i];
}
""",
    ),
}
WRITTEN_BY_COMMANDS = ("kernels/shared/abi.h", "tests/fuzz/corpus/run/negate")

# Run in the copy, whose runtime has no such kernel: it says all that comes before one.
SCRIPT = """
import sys
from pathlib import Path
from npusim.abi.header import header
Path("kernels/shared/abi.h").write_text(header(), encoding="utf-8")
import npusim
from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS
from npusim.ir.opdef import find
from npusim.lowering.assemble import assemble
from npusim.targets import TargetConfig
from npusim.selftest.single_op import graph_of, tensors_for
from tests.fuzz import make_corpus
from tests.ops import test_kernel_cost

op = find("npu.negate")
graph = graph_of(op, op.cases[0], tensors_for(op.cases[0], "float32", ""), "float32")
for name in ("cpu", "cuda:sm_90a"):
    assert "negate" in TargetConfig.named(name).kernels, name
    assert npusim.check(graph, name).coverage == 1
    assert [k.name for k in assemble(graph, TargetConfig.named(name)).kernels] == ["negate"]
if sys.platform == "linux":
    assert b"npusim_kernel" in npusim.compile(graph, "cuda:sm_90a").to_bytes()
test_kernel_cost.test_every_kernel_was_counted()
(row,) = [row for row in test_kernel_cost.BY_HAND if row[0] == "negate"]
test_kernel_cost.test_costs_are_those_counted_by_hand(*row)
make_corpus._cases = lambda: iter([graph])
make_corpus.chosen = lambda: iter(())
assert [name for name, _ in make_corpus.runs()] == ["negate"]
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with the kernel in it."""
    root = tmp_path_factory.mktemp("tree")
    without = shutil.ignore_patterns("__pycache__", "*.so", "corpus", "golden", "zoo")
    for part in ("python", "kernels", "tests"):
        shutil.copytree(ROOT / part, root / part, ignore=without)
    import npusim._runtime

    module = Path(str(npusim._runtime.__file__))
    for part in (module, module.parent / "lib"):  # a wheel's module has its library there
        if part.exists():
            (root / "python/npusim" / part.name).symlink_to(part)
    for name, (before, text) in ADDED.items():
        path = root / name
        if before:
            found = path.read_text("utf-8")
            assert found.count(f"\n{before}") == 1, (name, before)
            text = found.replace(f"\n{before}", f"\n{text}{before}")
        path.write_text(text, encoding="utf-8")
    paths = os.pathsep.join((str(root / "python"), str(root), *sys.path))
    env = {**os.environ, "PYTHONPATH": paths, "NPUSIM_CACHE_DIR": str(root / "cache")}
    # -S: an editable install's finder would find the package in the tree that was copied.
    command = [sys.executable, "-P", "-S", "-c", SCRIPT]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return root


def test_a_kernel_is_added_by_eight_files_at_most(tree: Path) -> None:
    """By hand for both backends, beside what commands write; CONTRIBUTING.md has the list."""
    assert len(ADDED) <= 8
    listed = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Add a kernel")[1]
    listed = listed.split("\n## ")[0]
    for name in (*ADDED, *WRITTEN_BY_COMMANDS):
        shown = name.replace("negate", "<stem>").replace("python/npusim/", "")
        shown = re.sub(r"(ops|codegen/cuda)/(reduction|rows)\.py", r"\1/<family>.py", shown)
        shown = shown.replace("cuda/rows/", "cuda/<family>/")
        assert f"`{shown}`" in listed, shown


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_table_of_the_cpu_has_it(tree: Path) -> None:
    for name in ("table", "negate"):
        source, made = f"kernels/cpu/{name}.cpp", tree / f"{name}.o"
        command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I.", "-c", source]
        done = subprocess.run([*command, "-o", str(made)], cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert b"negate_kernel" in made.read_bytes()
