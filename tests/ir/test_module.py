"""Modules: what methods share must agree, and files are hostile until read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npusim import IR, GraphError, Module
from npusim.ir.module import load_ir, verify_module
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph


def counter(step: float, shape: tuple[int, ...] = (2,)) -> IR:
    build = GraphBuilder("counter")
    kind = TensorType("float32", shape)
    state = build.state("count", kind)
    new = build.node("aten.add.Scalar", (state,), kind, {"other": step, "alpha": 1})
    build.update(state, new)
    build.output("count", new)
    return verify_graph(build.build())


def test_saves_and_loads(tmp_path: Path) -> None:
    module = Module("m", {"up": counter(1), "down": counter(-1)}, {"language_model": {"a": [1]}})
    module.save(tmp_path / "m.json")
    assert Module.load(tmp_path / "m.json") == module
    assert load_ir(tmp_path / "m.json") == module
    module.methods["up"].save(tmp_path / "g.json")
    assert load_ir(tmp_path / "g.json") == module.methods["up"]


def test_methods_share_states_of_one_type() -> None:
    with pytest.raises(GraphError, match=r"state 'count' is float32\[3\] in method 'down'"):
        verify_module(Module("m", {"up": counter(1), "down": counter(1, (3,))}))
    with pytest.raises(GraphError, match="no methods"):
        verify_module(Module("m", {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "npusim.ir"}, "not an npusim module"),
        ({"version": [2, 0]}, r"is of version 2\.0; .*reads version 1\.x"),
        ({"name": 3}, "name must be a string"),
        ({"methods": []}, "methods an object"),
        ({"facts": None}, "facts must be an object"),
        ({"methods": {"up": {}}}, "not an npusim graph"),
    ],
)
def test_refuses_what_is_no_module(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "m.json"
    Module("m", {"up": counter(1)}).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(GraphError, match=message):
        Module.load(path)


def test_an_update_is_of_a_state_and_of_its_type() -> None:
    def build(state: str, shape: tuple[int, ...]) -> IR:
        draft = GraphBuilder("g")
        draft.state("s", TensorType("float32", (2,)))
        value = draft.input("x", TensorType("float32", shape))
        draft.update(state, value)
        return draft.build()

    verify_graph(build("s", (2,)))
    with pytest.raises(GraphError, match="update of 't', which is not a state"):
        verify_graph(build("t", (2,)))
    with pytest.raises(GraphError, match=r"state 's' is float32\[2\], but its update is"):
        verify_graph(build("s", (3,)))
