"""How far back operands were used last: against a list of all places that are used, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import npusim
from npusim.errors import Error
from npusim.profile.commands import method_facts
from npusim.profile.profile import CommandProfile, Profile
from npusim.profile.reuse import method_reuse
from npusim.profile.saved import profile_facts, read_profile
from npusim.program.program import BufferKind, CompiledProgram
from npusim.simulate.roofline import Work, command_time

from .nets import net
from .test_roofline import DEVICE, LINEAR, OTHER, cost, linear, replace, work_of


def layers(count: int, width: int = 64) -> CompiledProgram:
    """Returns products one after another, each with weights of its own."""
    parts = [m for _ in range(count) for m in (nn.Linear(width, width), nn.Softmax(-1))]
    return npusim.compile((nn.Sequential(*parts).eval(), (torch.zeros(8, width),)), "cpu")


def whole(program: CompiledProgram) -> list[list[int]]:
    """Returns all bytes of all operands of the first method's commands."""
    commands = program.methods[0].commands
    return [[program.buffers[o.buffer].bytes for o in c.operands] for c in commands]


def listed(program: CompiledProgram, touched: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yields the reach of each operand, byte by byte of what was used since, of second runs."""
    used: list[tuple[Any, int]] = []  # the last use last: where, and 16 bytes from it

    def places(buffer: int) -> list[tuple[Any, int]]:
        one = program.buffers[buffer]
        base = ("arena", 0) if one.kind == BufferKind.TEMP else (one.name, buffer)
        low = one.offset if one.kind == BufferKind.TEMP else 0
        return [(base, at) for at in range(low, low + one.bytes, 16)]

    for run in range(2):
        for command in program.methods[0].commands:
            if run:
                reach = []
                for operand in command.operands:
                    firsts = [used.index(p) for p in places(operand.buffer) if p in used]
                    reach.append(16 * (len(used) - min(firsts)) if firsts else 0)
                yield reach
            for operand in command.operands:
                mine = places(operand.buffer)
                gone = set(mine)
                used[:] = [p for p in used if p not in gone] + mine


def test_reaches_are_those_of_a_list_of_all_places() -> None:
    program = layers(3)
    touched = whole(program)
    found = method_reuse(program, program.methods[0], touched)
    expected = list(listed(program, touched))
    assert len(found) == len(expected) == len(program.methods[0].commands) > 4
    for reuse, reach in zip(found, expected, strict=True):
        assert [n for _, n in reuse.operands] == reach


def test_weights_have_the_reach_of_a_run_and_results_that_of_a_command() -> None:
    program = layers(4, 128)
    (method,) = program.methods
    facts = method_facts(program, method, {}, None)
    all_weights = 4 * 128 * 128 * 4
    products = [f for f in facts if f.kernel in ("gemm", "linear")]
    assert len(products) == 4
    for command in products:
        assert command.reuse is not None
        reaches = dict(command.reuse.operands)
        assert reaches[128 * 128 * 4] >= all_weights
    read = [c.reuse.operands[0][1] for c in products[1:] if c.reuse is not None]  # made just before
    assert len(read) == 3 and max(read) < 3 * 8 * 128 * 4
    # A kernel that the command before has run, too, is at hand; the others' wait for a turn.
    assert {f.reuse.code for f in facts if f.reuse is not None} != {0}
    alone = method_facts(layers(1), layers(1).methods[0], {}, None)
    assert all(f.reuse is not None for f in alone)


def test_rows_of_a_table_do_not_bring_the_table() -> None:
    """An embedding reads few rows of what the last product of a decoder reads whole."""
    table = nn.Embedding(512, 64)
    head = nn.Linear(64, 512, bias=False)
    head.weight = table.weight
    wide = nn.Linear(64, 64)
    model = nn.Sequential(table, wide, nn.Softmax(-1), head).eval()
    program = npusim.compile((model, (torch.zeros(1, 4, dtype=torch.int64),)), "cuda")
    (method,) = program.methods
    facts = {f.op: f for f in method_facts(program, method, {}, None)}
    last = max(facts.values(), key=lambda f: f.bytes_read)
    read = dict(last.reuse.operands) if last.reuse is not None else {}
    size = 512 * 64 * 4
    # All that a run touches: the table itself, and the other weights at least.
    assert read[size] >= size + 64 * 64 * 4


def test_what_a_library_wants_besides_is_touched_no_more() -> None:
    """A bias in the dtype of the result, behind the operands of the kernel."""
    layer = nn.Linear(385, 768).half().eval()
    program = npusim.compile((layer, (torch.zeros(824, 385).half(),)), "cuda")
    (method,) = program.methods
    (command,) = (c for c in method.commands if program.kernels[c.kernel].name == "linear")
    assert program.buffers[command.operands[-1].buffer].bytes == 768 * 2
    (facts,) = (f for f in method_facts(program, method, {}, None) if f.kernel == "linear")
    assert facts.bytes_read == (824 + 768) * 385 * 2 + 768 * 4
    assert facts.reuse is not None and len(facts.reuse.operands) == len(command.operands) == 5


def test_what_is_in_no_cache_comes_from_farther_away() -> None:
    params = linear(16, 64, 64)
    work = work_of("linear", params, *cost("linear", params))
    cached = replace(work, reuse=((1000, 1 << 20), (500, 1000)))
    assert command_time(cached, "linear", DEVICE).memory == pytest.approx(1500 / 80e9)
    far = replace(work, reuse=((1000, (1 << 20) + 1), (500, 1000)))
    time = command_time(far, "linear", DEVICE)
    assert time.memory == pytest.approx(1000 / 8e9 + 500 / 80e9) and time.level == "dram"
    unknown = replace(work, nbytes=(1 << 20) + 1)
    assert command_time(unknown, "linear", DEVICE).level == "dram"


def test_what_starts_cold_and_goes_on_step_by_step() -> None:
    kind = replace(LINEAR, cold_us=3.0, step_ns=100.0, item_us=0.0)
    device = replace(DEVICE, classes=(kind, OTHER))
    work = Work(1000, 1000, "float32", 1, 32, 128, depth=50)

    def start(code: int, units: int = 1) -> float:
        classes = (replace(kind, units=units), OTHER)
        one = replace(device, classes=classes)
        return 1e6 * command_time(replace(work, code=code), "linear", one).start

    assert start(1 << 20) == pytest.approx(2.0 + 5.0)
    assert start((1 << 20) + 1) == pytest.approx(2.0 + 5.0 + 3.0)
    # 2 by 2 tiles of 16 by 64 on three units take two rounds, on four one.
    assert [start(0, n) for n in (2, 3, 4, 132)] == pytest.approx([12.0, 12.0, 7.0, 7.0])


def test_profiles_keep_what_commands_find(tmp_path: Path) -> None:
    program = net("cpu")
    (method,) = program.methods
    facts = method_facts(program, method, {}, None)
    rows = tuple(
        CommandProfile(i, f.kernel, "", f.node, f.op, "", "", 1, 1, 1, 1e-6, {}, f.reuse)
        for i, f in enumerate(facts)
    )
    profile = Profile("net", "forward", "cpu", "device", 0, 1, rows, 1e-3)
    file = tmp_path / "profile.json"
    data = profile_facts(profile)
    file.write_text(json.dumps(data))
    assert read_profile(file) == profile
    data["commands"][0]["reuse"] = None  # of an earlier version
    file.write_text(json.dumps(data))
    assert read_profile(file).commands[0].reuse is None
    for bad in (1, [], {}, {"operands": [[1]], "code": 0}, {"operands": [[2, 1]], "code": 0},
                {"operands": [[-1, 1]], "code": 0}, {"operands": [], "code": -1},
                {"operands": [[1.0, 2]], "code": 0}):  # fmt: skip
        data["commands"][0]["reuse"] = bad
        file.write_text(json.dumps(data))
        with pytest.raises(Error, match=r"is no profile: .*commands\[0\].reuse"):
            read_profile(file)
