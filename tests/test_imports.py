"""Who may import whom: the tree is the pipeline, and importing npusim stays cheap."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "npusim"

# Part of the package -> the parts (or single files of them) it may import, wherever in a file the
# import stands. Imports for type checkers alone do not count: they run never.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "files": {"errors"},
    "ir": {"errors", "files"},
    "targets": {"errors", "ir.types"},
    # An op's lowering emits commands, and lowering asks the op: the two know each other.
    "ops": {"errors", "ir", "program"},
    "program": {"errors", "files", "ir", "ops", "targets", "version"},
    # The package itself: for its path, to skip in traces.
    "frontends": {"", "errors", "files", "ir", "ops"},
    # Weights are read as PyTorch's side of a partitioned model reads them.
    "exporters": {"errors", "files", "ir", "ops", "partition.host_weights"},
    "analysis": {"errors", "ir", "ops", "program.view"},
    "passes": {"analysis", "errors", "ir", "ops", "program.view", "targets"},
    "runtime": {"_runtime", "errors", "ir", "program"},
    "language_model": {"_runtime", "errors", "runtime"},
    "partition": {
        *("_runtime", "analysis", "compile", "errors", "files", "ir", "ops", "passes", "program"),
        *("runtime", "targets", "version"),
    },
    "codegen": {"errors", "files", "ir", "ops", "program", "targets"},
    "onnx_backend": {"", "errors", "frontends", "partition", "runtime"},
    "compile": {"codegen", "errors", "frontends", "ir", "passes", "program", "targets"},
    "profile": {"_runtime", "errors", "files", "ops", "program", "runtime"},
    "tune": {"codegen", "errors", "ops", "program", "runtime", "targets"},
    "verify": {
        *("analysis", "compile", "errors", "files", "frontends", "ir", "ops", "partition"),
        *("passes", "program", "runtime", "targets", "version"),
    },
    "verify_quantization": {"errors", "ir", "ops", "passes", "targets", "verify"},
    "pictures": {"errors", "ir"},
    "demo": {"errors"},
}

# Heavy or optional packages -> the parts that may import them, and then only when called.
OPTIONAL: dict[str, set[str]] = {
    "torch": {
        *("exporters", "frontends", "ops", "partition", "runtime", "verify"),
        "verify_quantization",
        *("demo", "cli"),
    },
    "onnx": {"exporters", "frontends", "onnx_backend"},
    "google": {"frontends"},
    "ml_dtypes": {"frontends"},
    "tinygrad": {"frontends"},
    "safetensors": {"cli", "partition"},
    "tokenizers": {"language_model"},
    "jinja2": {"language_model"},
    "sklearn": {"demo"},
    "matplotlib": {"cli", "pictures"},
    "resvg_py": {"pictures"},
    "click": {"cli"},
    "rich": {"cli"},
}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "npusim imports its parts by their full names"
            # `from npusim import verify` names a part; `from npusim.ir import json` its file.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _imports(node)


def _files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_part_may(path: Path) -> None:
    part = _part(path)
    everything = part in ("__init__", "__main__", "cli")  # the two public faces
    for name in _imports(ast.parse(path.read_text("utf-8"))):
        root, *rest = name.split(".")
        if root == "npusim":
            names = {".".join(rest[:depth]) for depth in (1, 2)}
            allowed = everything or part in names or names & ALLOWED[part]
            assert allowed, f"npusim.{part} must not import {name} ({path.name})"
        elif root in OPTIONAL:
            assert part in OPTIONAL[root], f"npusim.{part} must not import {root} ({path.name})"


def test_the_table_names_every_part() -> None:
    parts = {_part(path) for path in _files()} - {"__init__", "__main__", "cli", "_runtime"}
    assert parts == set(ALLOWED)


def test_importing_npusim_imports_nothing_heavy(
    record_property: Callable[[str, object], None],
) -> None:
    code = (
        "import json, sys, time; start = time.perf_counter(); import npusim; "
        "print(json.dumps([time.perf_counter() - start, sorted(sys.modules)]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    seconds, modules = json.loads(result.stdout)
    record_property("import_seconds", seconds)
    assert set(OPTIONAL) & {name.split(".")[0] for name in modules} == set()


def test_a_target_without_device_code_imports_no_code_generator() -> None:
    """Compiling for the CPU imports `codegen`, and of its folders none; for CUDA its own."""
    code = """
import sys, npusim
from npusim.codegen.generator import generator_of
from npusim.ir.graph import Graph, Output, Value
from npusim.ir.types import TensorType
x = Value("x", TensorType("float32", (2,)))
npusim.compile(Graph("same", (x,), (Output("y", "x"),), (), (), ()), target="cpu")
assert "npusim.codegen.generate" in sys.modules
print([name for name in sys.modules if name.startswith("npusim.codegen.cuda")])
generator_of(npusim.TargetConfig.named("cuda:sm_80"))
print("npusim.codegen.cuda.launch" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split("\n")[:2] == ["[]", "True"]
