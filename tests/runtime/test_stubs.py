"""`_runtime.pyi`, written by hand, says what pybind11-stubgen finds in the module that was built.

Types are mypy's and the reader's; names, parameters, their order, kinds and defaults are held here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import npusim
from npusim import _runtime

WRITTEN = Path(npusim.__file__).with_name("_runtime.pyi")
# The buffer protocol's pybind11 fills without a method that could be found; `_call_slow` is a
# subclass's in Python, and copies are added in Python (runtime/pickling.py).
_LEFT_OUT = {"__buffer__", "__release_buffer__", "_call_slow", "__copy__", "__deepcopy__"}

Surface = dict[str, object]


def _parameters(function: ast.FunctionDef) -> tuple[tuple[str, str, bool], ...]:
    """Returns (kind, name, whether it has a default) of each parameter but self."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    needed = len(positional) - len(a.defaults)
    rows = [("positional", p.arg.strip("_"), i >= needed) for i, p in enumerate(positional)]
    rows = [row for row in rows if row[1] not in ("self", "cls")]
    if a.vararg:
        rows.append(("rest", a.vararg.arg, False))
    pairs = zip(a.kwonlyargs, a.kw_defaults, strict=True)
    rows += [("keyword", p.arg, default is not None) for p, default in pairs]
    if a.kwarg:
        rows.append(("keywords", a.kwarg.arg, False))
    return tuple(rows)


def surface(text: str) -> Surface:
    """Returns what a stub declares: classes with their members, functions with their overloads."""
    found: Surface = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = "class"
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.AnnAssign) and prefix:
                found[prefix + ast.unparse(node.target)] = "property to be set"
            elif isinstance(node, ast.FunctionDef) and node.name not in _LEFT_OUT:
                decorators = {ast.unparse(d) for d in node.decorator_list}
                name = prefix + node.name
                if "property" in decorators:
                    found[name] = "property"
                elif any(d.endswith(".setter") for d in decorators):
                    found[name] = "property to be set"
                else:
                    rows = found.setdefault(name, set())
                    assert isinstance(rows, set), name
                    rows.add(_parameters(node))

    visit(ast.parse(text).body, "")
    return found


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the generator finds."""
    folder = tmp_path_factory.mktemp("stubs")
    pytest.importorskip("pybind11_stubgen", reason="pybind11-stubgen is not installed")
    subprocess.run(
        [sys.executable, "-m", "pybind11_stubgen", _runtime.__name__, "-o", str(folder)],
        check=True,
        capture_output=True,
    )
    return (folder / "npusim" / "_runtime.pyi").read_text("utf-8")


def test_the_stubs_declare_what_the_module_has(generated: str) -> None:
    written, built = surface(WRITTEN.read_text("utf-8")), surface(generated)
    assert written.keys() - built.keys() == set(), "declared, and not in the module"
    assert built.keys() - written.keys() == set(), "in the module, and not declared"
    different = {n: (written[n], built[n]) for n in written if written[n] != built[n]}
    assert different == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def f(a: int) -> int: ...", "f"),
        ("def f(a: int, *, b: int) -> int: ...", "f"),
        ("def f(a: int, b: int = 2) -> int: ...", "f"),
        ("def f(b: int, a: int) -> int: ...", "f"),
        ("class C:\n    def f(self, a: int) -> int: ...", "C.f"),
        ("class C:\n    @property\n    def f(self) -> int: ...", "C.f"),
    ],
)
def test_surfaces_tell_apart(text: str, name: str) -> None:
    other = surface("def f(a: int, b: int) -> int: ...\nclass C:\n    def f(self) -> int: ...")
    assert surface(text)[name] != other[name]
