"""What a program carries of its simulation: whole, believed only after it was read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import npusim
from npusim.errors import ProgramFormatError, TargetConstraintError
from npusim.schedule import schedule_program, schedules_of, target_of
from npusim.targets import TargetConfig, override

EDGE = TargetConfig.named("npu-edge-32x32")


def compiled(target: TargetConfig | str = EDGE) -> npusim.CompiledProgram:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)).eval()
    return npusim.compile(npusim.extract_ir(model, (torch.zeros(2, 64),)), target)


def weights_of(program: npusim.CompiledProgram) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {key: torch.randn(spec.shape) for spec in program.weights for key in spec.keys}


@pytest.fixture(scope="module")
def program() -> npusim.CompiledProgram:
    return compiled()


def test_a_file_has_the_target_and_the_schedules(
    program: npusim.CompiledProgram, tmp_path: Path
) -> None:
    program.save(tmp_path / "p.npubin")
    image = (tmp_path / "p.npubin").read_bytes()
    assert image[8:12] == bytes([1, 0, 3, 0])  # version 1.3
    loaded = npusim.CompiledProgram.load(tmp_path / "p.npubin")
    assert loaded == program
    assert target_of(loaded) == EDGE
    assert schedules_of(loaded) == schedule_program(program, EDGE)
    x = torch.randn(2, 64)
    weights = weights_of(program)
    (got,) = npusim.load(loaded, weights)(x)  # the other reader takes it, too
    (want,) = npusim.load(compiled("cpu"), weights)(x)
    assert torch.equal(torch.as_tensor(got), torch.as_tensor(want))


def test_a_users_own_machine_is_carried_whole() -> None:
    own = override(EDGE, ["mxu.rows=8", "sram.l1.kib=64", "name=mine"])
    assert target_of(compiled(own)) == own


def test_backends_carry_nothing() -> None:
    program = compiled("cpu")
    assert program.simulation == {} and schedules_of(program) == {}
    assert program.to_bytes()[10] == 0  # still 1.0
    assert target_of(program) == TargetConfig.named("cpu")
    roofline = compiled(override(TargetConfig.named("cpu"), ["name=mine"]))
    assert schedules_of(roofline) == {}
    assert target_of(roofline).hardware == replace(TargetConfig.named("cpu").hardware, name="mine")  # type: ignore[type-var]


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TargetConstraintError, match=r"Node '\w+' .*'l1', which has 3072"):
        compiled(override(EDGE, ["sram.l1.kib=3", "sram.l1.align_bytes=8"]))


def changed(program: npusim.CompiledProgram, *path: str | int, value: object) -> Any:
    facts = json.loads(json.dumps(program.simulation))
    inner = facts
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return replace(program, simulation=facts)


FIRST = ("schedules", "forward", 0)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), 2, "its schema is 2, not 1"),
        (("target",), [], "'target' is no object"),
        (("target", "mxu", "rows"), 0, "'mxu.rows': there is at least 1"),
        (("target", "mxu", "speed"), 0, "unknown key 'mxu.speed'"),
        (("schedules",), None, "'schedules' is no object"),
        (("schedules", "backward"), [], "its schedules are of .*'backward'"),
        (("schedules", "forward"), 3, "no list"),
        (FIRST, 3, "it holds 3, not a table"),
        ((*FIRST, "command"), 99, "is of no command"),
        ((*FIRST, "bytes"), 2**40, "bytes of 'l1'"),
        ((*FIRST, "memory"), "l7", "bytes of 'l7'"),
        ((*FIRST, "tile", "m"), 10**6, "a tile is no greater than the whole"),
        ((*FIRST, "taps"), 0, "there is at least 1"),
        ((*FIRST, "loops"), ["k", "m"], "innermost"),
        ((*FIRST, "operands", 0, "operand"), 17, "operand 17 in 'dram'"),
        ((*FIRST, "operands", 0, "source"), "l9", "'l9'|not moved"),
        ((*FIRST, "cycles"), "many", "not a number"),
        ((*FIRST, "unit"), "gpu", '"gpu", not "mxu"'),
        ((*FIRST, "dtype"), "x", "no dtype is called that"),
        ((*FIRST, "dtype"), "int64", "computes int64 on 'mxu', which has none"),
        ((*FIRST, "form"), "move", "has the array compute 'move'"),
        ((*FIRST, "vector"), {"sine": 1}, "no scalar operation"),
    ],
)
def test_damaged_ones_are_refused(
    program: npusim.CompiledProgram, path: tuple[str | int, ...], value: object, said: str
) -> None:
    bad = changed(program, *path, value=value)
    with pytest.raises(ProgramFormatError, match=rf"simulation is damaged: .*({said})"):
        target_of(bad)
        schedules_of(bad)
    npusim.load(bad, weights_of(bad))  # running reads none of it
