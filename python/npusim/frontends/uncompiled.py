"""Graphs of torch.fx that are interpreted and never run as Python.

Owns the time that writing and compiling their source takes: torch.export does so whenever it has
made or changed a graph, of which an extraction reads the nodes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule

_compile_now = GraphModule.recompile


@contextmanager
def compiled_when_called() -> Iterator[None]:
    """Has graph modules compile their source when they are called, or it is asked for.

    Saves a seventh of a trace's time. A graph that is changed between `recompile` and a call is
    compiled as it is then, which is what an interpreter would run.
    """
    GraphModule.recompile = _compile_later  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        GraphModule.recompile = _compile_now  # type: ignore[method-assign]


def _compile_later(module: Any) -> None:
    """Takes the place of `GraphModule.recompile`, whose result nobody reads."""
    information = getattr(module.graph._codegen, "pytree_info", None)
    if information is not None:
        module._in_spec, module._out_spec = information.in_spec, information.out_spec
    own = type(module)  # torch.fx gives each module a class of its own
    own.forward, own.code = _Compiled("forward"), _Compiled("code")


class _Compiled:
    """An attribute of a module that compiling makes. Signatures are asked of `forward`, too."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        if "code" in vars(owner):
            del owner.code  # type: ignore[attr-defined]  # the class of all has it
        _compile_now(module)
        return getattr(module, self._name)
