"""Who may import whom: the tree is the pipeline, and importing npusim stays cheap."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "npusim"

# Part of the package -> the parts (or single files of them) it may import, wherever in a file the
# import stands. Imports for type checkers alone do not count: they run never.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "module_tensors": set(),
    "version": set(),
    "files": {"errors"},
    "binding": {"_runtime", "errors"},
    "ir": {"errors", "files", "version"},
    "targets": {"abi.kernels", "abi.scalar", "errors", "ir.types", "version"},
    "abi": {"errors", "ir"},
    "program": {"errors", "files", "ir", "version"},
    "lowering": {"abi", "errors", "ir", "program", "targets", "version"},
    # Each op's definition, with what it lowers to.
    "ops": {"abi", "errors", "ir", "lowering", "program"},
    # The package itself: for its path, to skip in traces.
    # The tensors of a checkpoint are looked at as loading reads them. What a step over pages is
    # made of is proved as the passes prove it.
    "frontends": {
        *("", "abi", "errors", "files", "ir", "module_tensors", "ops", "runtime.gguf"),
        *("analysis", "passes", "runtime.safetensors_files", "targets"),
    },
    # Weights are read as PyTorch's side of a partitioned model reads them.
    "exporters": {"abi", "errors", "files", "ir", "ops", "partition.host_weights"},
    "analysis": {"abi", "errors", "ir", "lowering.view", "ops"},
    "passes": {
        *("abi", "analysis", "errors", "files", "ir", "lowering.pointwise_kernel", "ops"),
        *("lowering.view", "targets"),
    },
    "runtime": {"_runtime", "errors", "files", "ir", "module_tensors", "program"},
    "language_model": {"_runtime", "errors", "runtime"},
    # The package itself: for its path and version.
    "serve": {"", "_runtime", "errors", "files", "language_model", "runtime", "version"},
    "partition": {
        *("_runtime", "abi", "analysis", "compile", "errors", "files", "ir", "lowering", "ops"),
        *("passes", "program", "runtime", "targets", "version"),
    },
    "codegen": {"abi", "binding", "errors", "files", "ir", "program", "targets"},
    "onnx_backend": {"", "errors", "frontends", "partition", "runtime"},
    "compile": {
        *("codegen", "errors", "frontends", "ir", "lowering", "passes", "program", "schedule"),
        "targets",
    },
    # Other runtimes, and npusim as its users load it.
    "peers": {
        *("", "errors", "exporters", "files", "ir", "ops", "partition", "profile.memory"),
        "runtime",
    },
    "profile": {"_runtime", "abi", "errors", "files", "ir.types", "pictures", "program", "runtime"},
    "quantize": {
        *("analysis", "compile", "errors", "ir", "ops", "passes", "runtime", "targets"),
    },
    "schedule": {"_runtime", "abi", "errors", "ir.types", "program", "targets"},
    "simulate": {
        *("_runtime", "abi", "codegen.cuda", "errors", "files", "ir", "partition"),
        *("pictures", "profile", "program", "schedule", "targets", "version"),
    },
    "tune": {"abi", "codegen", "errors", "program", "runtime", "targets"},
    "verify": {
        *("abi", "analysis", "compile", "errors", "files", "frontends", "ir", "lowering", "ops"),
        *("partition", "passes", "program", "runtime", "targets", "version"),
    },
    "verify_precision": {"analysis", "errors", "ir", "ops", "passes", "targets", "verify"},
    "verify_quantization": {"abi", "errors", "ir", "ops", "passes", "targets", "verify"},
    "pictures": {"errors", "ir"},
    "upgrade": {
        *("abi.kernels", "compile", "errors", "ir", "partition.plan_file", "program", "schedule")
    },
    "selftest": {
        *("codegen", "compile", "errors", "frontends", "ir", "language_model", "lowering", "ops"),
        *("program", "runtime", "targets"),
    },
    "demo": {"errors"},
}

# Heavy or optional packages -> the parts that may import them, and then only when called.
OPTIONAL: dict[str, set[str]] = {
    "torch": {
        *("abi", "exporters", "frontends", "ops", "partition", "peers", "runtime", "verify"),
        "verify_precision",
        "verify_quantization",
        *("demo", "cli", "module_tensors", "selftest"),
    },
    "onnx": {"exporters", "frontends", "onnx_backend"},
    "google": {"frontends"},
    "ml_dtypes": {"frontends"},
    "onnxruntime": {"peers"},
    "openvino": {"peers"},
    "tinygrad": {"frontends"},
    "safetensors": {"cli", "frontends", "partition"},
    "gguf": {"frontends", "runtime"},
    "tokenizers": {"language_model"},
    "jinja2": {"language_model"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "httptools": {"serve"},
    "httpx": {"serve"},
    "prometheus_client": {"serve"},
    "llguidance": {"serve"},
    "ray": {"serve"},
    "sklearn": {"demo"},
    "scipy": {"simulate"},
    "tomli_w": {"simulate"},
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


def test_the_native_module_is_imported_where_its_version_is_compared() -> None:
    """Only `from npusim import _runtime` asks npusim.binding, which compares."""
    past = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in _files()
        for name in _imports(ast.parse(path.read_text("utf-8")))
        if name.startswith("npusim._runtime.")
    ]
    assert past == []


def test_the_table_names_every_part() -> None:
    parts = {_part(path) for path in _files()} - {"__init__", "__main__", "cli", "_runtime"}
    assert parts == set(ALLOWED)


def test_the_table_has_no_circle() -> None:
    graph = {
        part: {name.partition(".")[0] for name in allowed} - {"", "_runtime"}
        for part, allowed in ALLOWED.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names one


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("npusim", *parts)).removesuffix(".__init__")


def _run_at_import(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields the imports outside functions, and outside what type checkers alone read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        yield from _run_at_import(node)


def _loads(module: str, path: Path, modules: set[str]) -> set[str]:
    """Returns the modules that must be whole before a module is: what it imports, and the packages
    these lie in, but for packages it lies in itself, which began before it."""
    loaded: set[str] = set()
    for node in _run_at_import(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            children = {f"{node.module}.{alias.name}" for alias in node.names}
            whole = children - modules  # names of the module itself, not files of a package
            names = [*(children & modules), *([str(node.module)] if whole else [])]
        for name in names:
            loaded.add(name)
            parents = (name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1))
            loaded.update(p for p in parents if not f"{module}.".startswith(f"{p}."))
    return loaded & modules


def test_every_module_can_be_the_first_that_is_imported() -> None:
    """No module waits, over others, for itself: then the order of imports does not matter."""
    paths = {_module(path): path for path in _files()}
    graph = {name: _loads(name, path, set(paths)) for name, path in paths.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names one


def test_a_circle_of_modules_is_found(tmp_path: Path) -> None:
    """As it was between lowering and ops: through the `__init__` of a package."""
    texts = {
        "npusim.low": "from npusim.ops.registry import find",
        "npusim.ops": "from npusim.ops import family",
        "npusim.ops.family": "from npusim.low import Lowering",
        "npusim.ops.registry": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    graph = {name: _loads(name, tmp_path / name, set(texts)) for name in texts}
    with pytest.raises(CycleError):
        list(TopologicalSorter(graph).static_order())
    (tmp_path / "npusim.low").write_text("def later():\n    from npusim.ops import registry")
    graph["npusim.low"] = _loads("npusim.low", tmp_path / "npusim.low", set(texts))
    list(TopologicalSorter(graph).static_order())


# In a process that has loaded what is heavy and nothing of npusim, a child for each module.
_EACH_ALONE = """
import importlib, os, sys
for heavy in ("numpy", "sympy", "torch._dynamo", "torch.export", "onnx", "click", "rich"):
    try:
        importlib.import_module(heavy)
    except ImportError:
        pass
assert not any(m.partition(".")[0] == "npusim" for m in sys.modules)
for name in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        print(name)
"""


def test_parts_can_be_imported_first() -> None:
    """Tries it with the first module, by name, of every part."""
    first = {_part(path): _module(path) for path in reversed(_files())}
    names = sorted({*first.values(), "npusim.lowering.context", "npusim.passes.run"})
    result = subprocess.run(
        [sys.executable, "-c", _EACH_ALONE, *names], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [], result.stderr[-2000:]


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
print("npusim.codegen.cuda.rules" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split("\n")[:2] == ["[]", "True"]


def test_importing_the_package_loads_neither_numpy_nor_parts() -> None:
    code = (
        "import sys, npusim\n"
        "print(*sorted(m for m in sys.modules if m == 'numpy' or m.startswith('npusim.')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["npusim.errors", "npusim.version"]


@pytest.mark.parametrize("name", ["compile", "partition", "simulate"])
def test_functions_named_as_parts_stay_functions(name: str) -> None:
    code = (
        f"import npusim, npusim.{name}, inspect\n"
        f"assert inspect.isfunction(npusim.{name})\n"
        f"from npusim import {name}\n"
        f"assert {name} is npusim.{name}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "text",
    [
        "import npusim.simulate.sweep as part",
        "import npusim; npusim.simulate; import npusim.simulate.sweep as part",
        "import npusim.simulate.run, npusim.simulate.sweep as part",
        "from npusim.simulate import sweep as part; import npusim",
        "import npusim.partition.report as part",
    ],
)
def test_parts_of_functions_can_be_named(text: str) -> None:
    code = f"import types; {text}; assert isinstance(part, types.ModuleType), part; import npusim; "
    code += "assert isinstance(npusim.simulate, types.FunctionType); "
    code += "assert npusim.partition.__module__ == 'npusim.partition'"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_all_public_names_are_there() -> None:
    code = "import npusim\nfor name in npusim.__all__: getattr(npusim, name)"
    subprocess.run([sys.executable, "-c", code], check=True)
