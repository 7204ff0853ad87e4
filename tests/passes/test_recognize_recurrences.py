"""recognize_recurrences: steps behind each other as one command, unless somebody looks between."""

import pytest

from npusim.ops.recurrent_step import GATES
from npusim.passes.recognize_recurrences import recognize_recurrences
from npusim.targets import TargetConfig

CUDA = TargetConfig.named("cuda:sm_90a")


def chain(draft, cell, change="", steps=3, units=8):
    """Returns the rows of each step, in the order of the tensor that is added, and the cells."""
    width = GATES[cell] * units
    added = draft.x(steps + (change == "longer"), 2, width, name="a")
    reverse = change in ("flipped", "backwards")
    source = draft.call("aten.flip.default", added, dims=(0,)) if change == "flipped" else added
    weight, bias = draft.w(width, units), draft.w(width)
    h, c = draft.x(1, 2, units, name="h"), draft.x(1, 2, units, name="c")
    rows, cells = [], []
    attrs = {"cell": cell, "gates": tuple(range(GATES[cell])), "act": "tanh"}
    order = range(steps)[::-1] if change == "backwards" else range(steps)
    for place in order:
        if change == "skipped" and place == 1:
            place = 0
        part = draft.call("aten.slice.Tensor", source, dim=0, start=place, end=place + 1, step=1)
        last = {"plain": None, "gru": h, "lstm": c}[cell]
        w = draft.w(width, units) if change == "weights" and place == 1 else weight
        found = draft.call("npu.recurrent_step", h, w, bias, part, last, **attrs)
        h, c = (found[0], found[1]) if cell == "lstm" else (found, c)
        rows.append(h)
        cells.append(c)
    return rows[::-1] if reverse else rows, cells


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("change", ["", "flipped", "backwards"])
def test_chains(draft, check_pass, cell, change):
    rows, cells = chain(draft, cell, change)
    whole = draft.call("aten.cat.default", *rows, tensors=len(rows), dim=0)
    last = [cells[-1]] if cell == "lstm" else []
    result = check_pass(recognize_recurrences, draft.graph(whole, rows[1], *last), CUDA)
    found = [n for n in result.nodes if n.op == "npu.recurrence"]
    assert [n.attrs["reverse"] for n in found] == [change != ""]
    assert not any(n.op in ("npu.recurrent_step", "aten.cat.default") for n in result.nodes)


@pytest.mark.parametrize("change", ["longer", "skipped", "weights"])
def test_other_chains_stay(draft, change):
    rows, _ = chain(draft, "gru", change)
    graph = draft.graph(rows[-1])
    assert recognize_recurrences(graph, CUDA) is graph


def test_a_cell_that_is_seen_ends_a_chain(draft):
    rows, cells = chain(draft, "lstm")
    graph = draft.graph(rows[-1], cells[0])
    assert recognize_recurrences(graph, CUDA) is graph


def test_more_units_than_are_held_stay_steps(draft):
    rows, _ = chain(draft, "gru", units=CUDA.recurrent.held_floats + 8)
    graph = draft.graph(rows[-1])
    assert recognize_recurrences(graph, CUDA) is graph
