"""Predicted beside measured: who meets whom, errors with their signs, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.errors import Error
from npusim.profile.profile import Profile
from npusim.profile.saved import profile_facts
from npusim.simulate.compare import compare

from .nets import Net, net
from .test_page import report
from .test_roofline import DEVICE, profiled


def measured(nodes: list[tuple[str, float]]) -> Profile:
    """Returns a profile with such times of nodes."""
    profile = profiled(DEVICE, len(nodes), 1)
    commands = tuple(
        replace(command, index=i, node=node, seconds=seconds)
        for i, (command, (node, seconds)) in enumerate(zip(profile.commands, nodes, strict=True))
    )
    return replace(profile, commands=commands, run_seconds=10e-6)


def test_commands_meet_by_their_node() -> None:
    """What is predicted takes 1, 2, 3 … µs; the second is half of what is measured."""
    found = compare(
        report(commands=4), measured([("net_1", 4e-6), ("net_0", 1e-6), ("other", 7e-6)])
    )
    assert [(p.index, p.node, p.measured) for p in found.pairs] == [
        (0, "net_0", 1e-6),
        (1, "net_1", 4e-6),
    ]
    assert [p.error for p in found.pairs] == pytest.approx([0, -0.5])
    assert [p.kind for p in found.pairs] == ["linear_loose", "linear_loose"]
    assert [node for node, _ in found.only_predicted] == ["net_2", "net_3"]
    assert found.only_measured == (("other", 7e-6),)
    (group,) = found.groups
    assert (group.name, group.count) == ("linear_loose", 2)
    assert group.error == pytest.approx(-0.4) and found.all.error == group.error
    assert (group.mean, group.median, group.worst) == pytest.approx((0.25, 0.25, 0.5))
    assert found.error == pytest.approx(0, abs=1e-9) and found.measured == 1e-5


def test_commands_of_one_node_meet_in_order() -> None:
    data = report(commands=3)
    for layer in data["layers"]:
        layer["node"] = "same"
    found = compare(data, measured([("same", 3e-6), ("same", 1e-6)]))
    assert [(p.predicted, p.measured) for p in found.pairs] == [(1e-6, 3e-6), (2e-6, 1e-6)]
    assert len(found.only_predicted) == 1


def test_no_time_has_no_error() -> None:
    found = compare(report(commands=2), measured([("net_0", 0.0), ("net_1", 2e-6)]))
    assert [p.error for p in found.pairs] == [None, 0] and found.all.mean == 0
    none = compare(report(commands=1), measured([("net_0", 0.0)]))
    assert none.all.error is none.all.mean is none.all.worst is None
    still = replace(measured([("net_0", 0.0)]), run_seconds=0.0)
    assert compare(report(commands=1), still).error is None


def test_two_simulations_compare() -> None:
    loose, tight = (npusim.simulate(net(), mode=mode).report for mode in ("loose", "tight"))
    found = compare(loose, tight)
    assert len(found.pairs) == len(loose["layers"]) and not found.only_measured
    assert found.error is not None and found.error > 0
    assert {group.name for group in found.groups} >= {"linear", "depthwise", "attention", "softmax"}
    assert sum(group.count for group in found.groups) == len(found.pairs)
    assert compare(tight, tight).all.worst == 0


def test_a_profile_of_this_machine_compares(tmp_path: Path) -> None:
    program = net("cpu")
    weights = {k: v.numpy() for k, v in Net().state_dict().items()}
    profile = npusim.profile_program(program, weights, repeats=1)
    file, ours = tmp_path / "measured.json", tmp_path / "report.json"
    file.write_text(json.dumps(profile_facts(profile)))
    ours.write_text(json.dumps(npusim.simulate(program).report))
    found = compare(ours, file)
    assert len(found.pairs) == len(profile.commands) and not found.only_predicted
    assert found.measured == profile.run_seconds


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "npusim-simulation/9"}', "[]"])
def test_what_is_neither_is_refused(tmp_path: Path, text: str) -> None:
    file, good = tmp_path / "x.json", tmp_path / "report.json"
    file.write_text(text)
    good.write_text(json.dumps(report()))
    with pytest.raises(Error, match=r"x\.json"):
        compare(good, file)
    with pytest.raises(Error, match=r"x\.json"):
        compare(file, good)
    with pytest.raises(Error, match="Cannot read"):
        compare(good, tmp_path / "missing")


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(Error, match="No command"):
        compare(report(), measured([("other", 1e-6)]))
    empty: dict[str, Any] = report(commands=0)
    with pytest.raises(Error, match="No command"):
        compare(empty, measured([("other", 1e-6)]))
