"""One command explained: what the report says of it, with operands and schedules."""

from __future__ import annotations

import re

import pytest

import npusim
from npusim.errors import Error, ShapeError
from npusim.simulate.explain import explain

from .nets import net, rows

_PART = re.compile(r"(?:(?P<count>[\d.,e+]+) )?[a-z ]+ (?P<each>[\d.e+-]+) (?P<unit>us|ns)")
_US = {"us": 1.0, "ns": 1e-3}


def test_each_command_is_explained_as_the_report_has_it() -> None:
    report = npusim.simulate(net(), mode="loose").report
    for index, layer in enumerate(report["layers"]):
        found = explain(net(), index, mode="loose")
        assert found.layer == layer and found.seconds == report["seconds"]
        assert found.schedules and all(s.command == index for s in found.schedules)
        assert len(found.operands) == len(net().methods[0].commands[index].operands)
        assert {"read", "write"} & {one.access for one in found.operands}
        lanes = {e["lane"] for e in report["timeline"] if e["layer"] == index}
        assert set(found.busy) == lanes


def test_commands_have_the_name_of_their_node() -> None:
    layers = npusim.simulate(net()).report["layers"]
    last = layers[-1]
    assert explain(net(), last["node"]).layer["index"] == last["index"]
    names = {one.name for layer in layers for one in explain(net(), layer["index"]).operands}
    assert {"x", "qkv.bias"} <= names


def test_a_device_of_a_roofline_has_no_schedules() -> None:
    found = explain(net("cpu"), 0)
    assert found.schedules == () and "start" in found.layer["formula"]


def test_what_a_start_consists_of_sums_to_it() -> None:
    program = net("cpu")
    for index in range(len(program.methods[0].commands)):
        formula = str(explain(program, index).layer["formula"])
        found = re.search(r"start ([\d.e+-]+) us \((.*?)\) \+ \(\(", formula)
        assert found is not None
        parts = (_PART.fullmatch(part) for part in found[2].split(" + "))
        sums = sum(
            float((p["count"] or "1").replace(",", "")) * float(p["each"]) * _US[p["unit"]]
            for p in parts
            if p is not None
        )
        assert sums == pytest.approx(float(found[1]), rel=2e-3)


def test_machines_and_sizes_are_those_that_are_asked() -> None:
    slow = explain(net(), 0, overrides=["dram.gb_per_s=0.5"])
    assert slow.layer["seconds"] > explain(net(), 0).layer["seconds"]
    few, many = (explain(rows(), 0, sizes={"batch": n}).layer["operations"] for n in (1, 512))
    assert 512 * few == many


@pytest.mark.parametrize("command", [-1, 99, "nothing", ""])
def test_commands_that_are_not_there_are_refused(command: int | str) -> None:
    with pytest.raises(Error, match="no command"):
        explain(net(), command)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ShapeError):
        explain(rows(), 0, sizes={"batch": 0})
