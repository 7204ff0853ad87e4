"""Profiles: every command with its time, origin, bytes and operations; traces; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.profile.inputs import sample
from npusim.program.program import TensorSpec
from tests.runtime import programs, toy_language_model


def profile(repeats: int = 2) -> npusim.Profile:
    program, state = programs.mlp(3), programs.mlp_weights()
    return npusim.profile_program(program, state, threads=1, repeats=repeats)


def test_every_command_has_a_time_and_a_cost() -> None:
    program = programs.mlp(3)
    found = profile()
    assert len(found.commands) == len(program.method().commands)
    assert found.repeats == 2 and found.run_seconds > 0
    assert found.commands_seconds == sum(command.seconds for command in found.commands)
    for index, command in enumerate(found.commands):
        assert command.index == index and command.seconds > 0 and command.library == ""
        assert command.kernel == program.kernels[program.method().commands[index].kernel].name
    assert sum(command.operations for command in found.commands) >= 3 * 2 * 3 * 16 * 16
    assert found.commands[0].bytes_written == 3 * 16 * 4


def test_groups_hold_every_command_once_the_slowest_first() -> None:
    found = profile()
    for by in ("op", "kernel", "command", "module"):
        groups = found.groups(by)
        assert sum(group.count for group in groups) == len(found.commands)
        assert [g.seconds for g in groups] == sorted((g.seconds for g in groups), reverse=True)
        assert sum(group.seconds for group in groups) == pytest.approx(found.commands_seconds)
    assert len(found.groups("command")) == len(found.commands)
    with pytest.raises(ValueError, match="'colour' is none of op, kernel"):
        found.groups("colour")


def test_layers_of_a_model_fall_together() -> None:
    from dataclasses import replace

    commands = tuple(
        replace(command, module=f"model.layers.{i}.mlp.fc{i}")
        for i, command in enumerate(profile().commands)
    )
    groups = replace(profile(), commands=commands).groups("module")
    assert {group.name for group in groups} == {f"model.layers.*.mlp.fc{i}" for i in range(3)}


def test_the_trace_has_one_event_a_command(tmp_path: Path) -> None:
    found = profile()
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    *commands, whole = spans
    assert len(commands) == len(found.commands)
    assert whole["tid"] != commands[0]["tid"] and whole["dur"] == 1e6 * found.run_seconds
    end = 0.0
    for event, command in zip(commands, found.commands, strict=True):
        assert event["ts"] == pytest.approx(end) and event["name"] == command.op
        end = event["ts"] + event["dur"]
        moved = command.bytes_read + command.bytes_written
        assert event["args"]["GB/s"] == pytest.approx(1e-9 * moved / command.seconds, abs=1e-3)
    with pytest.raises(npusim.Error, match="nowhere"):
        found.save_trace(tmp_path / "nowhere" / "trace.json")


def test_a_language_model_is_profiled_at_a_context() -> None:
    program, weights = toy_language_model.program(), toy_language_model.weights()
    kept = npusim.profile_program(program, weights, method="decode", context=20, repeats=5)
    assert kept.method == "decode" and kept.context == 20  # five runs, and the position stays
    assert npusim.profile_program(program, weights, repeats=1).method == "prefill"
    with pytest.raises(npusim.Error, match=r"A context of 24 tokens does not fit.*0 … 23"):
        npusim.profile_program(program, weights, method="decode", context=24)
    with pytest.raises(npusim.Error, match=r"no method 'encode'.*prefill, decode"):
        npusim.profile_program(program, weights, method="encode")
    with pytest.raises(npusim.Error, match="no language model"):
        npusim.profile_program(programs.mlp(), programs.mlp_weights(), context=5)


def test_inputs_are_the_callers_or_samples() -> None:
    assert sample(TensorSpec("x", 0, "bfloat16", (2,), (2,))).dtype == np.float32
    assert not sample(TensorSpec("x", 0, "int64", (2,), (2,))).any()
    program, state = programs.mlp(3), programs.mlp_weights()
    with pytest.raises(npusim.ShapeError):
        npusim.profile_program(program, state, inputs={"x": np.zeros((2, 2), np.float32)})
