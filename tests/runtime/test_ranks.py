"""Programs of several ranks on the CPU: compiled, saved, loaded from a whole checkpoint, and run;
equal to the program of one rank, with any number of threads."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import npusim
from npusim.errors import (
    DeviceError,
    Error,
    ProgramFormatError,
    TargetConstraintError,
    WeightMismatchError,
)
from npusim.ir.graph import Graph
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.program.program import CompiledProgram, WeightPart
from npusim.targets.target_config import TargetConfig

CPU = TargetConfig.named("cpu")
Arrays = dict[str, np.ndarray]


def mlp(widths: tuple[int, ...] = (24, 48, 24), rows: int = 3, dtype: str = "float32") -> Graph:
    b = GraphBuilder("mlp")
    y = b.input("x", TensorType(dtype, (rows, widths[0])))
    for index, (k, n) in enumerate(pairwise(widths)):
        weight = b.weight(f"w{index}", TensorType(dtype, (n, k)))
        bias = b.weight(f"b{index}", TensorType(dtype, (n,)))
        type = TensorType(dtype, (rows, n))
        y = b.node("aten.linear.default", (y, weight, bias), type)
        if index + 2 < len(widths):
            y = b.node("aten.relu.default", (y,), type)
    b.output("output", y)
    return b.build()


def integers(graph: Graph, seed: int = 0) -> Arrays:
    chance = np.random.default_rng(seed)
    return {w.key: chance.integers(-2, 3, w.type.shape).astype(np.float32) for w in graph.weights}


def given(graph: Graph, seed: int = 1) -> np.ndarray:
    chance = np.random.default_rng(seed)
    return chance.integers(-2, 3, graph.inputs[0].type.shape).astype(np.float32)


def output(program: Any, weights: Any, x: np.ndarray, **options: Any) -> np.ndarray:
    (y,) = npusim.load(program, weights=weights, **options)(x)
    return y


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_integers_are_exact(ranks: int, threads: int) -> None:
    graph = mlp()
    weights, x = integers(graph), given(graph)
    program = npusim.compile(graph, tensor_parallel=ranks)
    assert program.ranks == ranks
    wanted = output(npusim.compile(graph), weights, x)
    session = npusim.load(program, weights=weights, threads=threads)
    for _ in range(3):
        assert np.array_equal(session(x)[0], wanted)


def test_a_file_and_its_checkpoint(tmp_path: Path) -> None:
    graph = mlp()
    weights, x = integers(graph), given(graph)
    save_file(weights, tmp_path / "w.safetensors")
    npusim.compile(graph, tensor_parallel=2).save(tmp_path / "p.npubin")
    wanted = output(npusim.compile(graph), weights, x)
    got = output(tmp_path / "p.npubin", tmp_path / "w.safetensors", x)
    assert np.array_equal(got, wanted)
    read = CompiledProgram.from_bytes((tmp_path / "p.npubin").read_bytes())
    assert read.ranks == 2
    assert {w.keys[0]: w.part for w in read.weights} == {
        "w0": WeightPart(0, 2), "b0": WeightPart(0, 2), "w1": WeightPart(1, 2), "b1": None,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_within_the_rounding_of_parts(dtype: str) -> None:
    graph = mlp(dtype=dtype)
    weights, x = integers(graph), given(graph)
    whole = npusim.load(npusim.compile(graph), weights=weights)
    parts = npusim.load(npusim.compile(graph, tensor_parallel=2), weights=weights)
    x = x.astype(np.float16) if dtype == "float16" else x
    a, b = (np.asarray(s(x)[0], np.float32) for s in (whole, parts))
    np.testing.assert_allclose(a, b, rtol=3 * 2.0**-8, atol=2.0**-7 * np.abs(a).max())


def test_what_each_rank_multiplies_is_a_part() -> None:
    graph = mlp((64, 256, 64))
    one, two = (npusim.compile(graph, tensor_parallel=n) for n in (1, 2))
    held = [sum(p.buffers[w.buffer].bytes for w in p.weights) for p in (one, two)]
    assert held[1] < 0.51 * held[0]


def test_calls_may_bring_torch_tensors_and_buffers() -> None:
    import torch

    graph = mlp()
    weights, x = integers(graph), given(graph)
    session = npusim.load(npusim.compile(graph, tensor_parallel=2), weights=weights)
    wanted = output(npusim.compile(graph), weights, x)
    assert np.array_equal(session(torch.from_numpy(x))[0].numpy(), wanted)
    assert np.array_equal(session(x.T.copy().T)[0], wanted)


def test_the_device_is_one_for_all_of_a_program() -> None:
    graph = mlp()
    weights, x = integers(graph), given(graph)
    device = npusim.Device("cpu", threads=2)
    program = npusim.compile(graph, tensor_parallel=2)
    loaded = npusim.load_weights(weights, program, device)
    wanted = output(npusim.compile(graph), weights, x, device=device)
    for _ in range(2):
        (y,) = npusim.load(program, weights=loaded, device=device)(x)
        assert np.array_equal(y, wanted)


# What is refused


def test_ranks_that_cannot_be() -> None:
    for ranks in (0, -2, 65):
        with pytest.raises(TargetConstraintError, match="cannot be split among"):
            npusim.compile(mlp(), tensor_parallel=ranks)
    with pytest.raises(TargetConstraintError, match="all_gather"):
        npusim.compile(mlp(), "metal", tensor_parallel=2)


def test_a_checkpoint_without_a_tensor_or_of_another_shape() -> None:
    graph = mlp()
    weights = integers(graph)
    program = npusim.compile(graph, tensor_parallel=2)
    del weights["w1"]
    weights["w0"] = weights["w0"][:24]  # what one rank needs: no whole tensor
    with pytest.raises(WeightMismatchError) as refused:
        npusim.load(program, weights=weights)
    assert "missing: w1" in str(refused.value)
    assert "w0 is [24, 24], the program needs [48, 24]" in str(refused.value)


def test_a_device_whose_ranks_cannot_exchange() -> None:
    program = npusim.compile(mlp(), "null", tensor_parallel=2)
    with pytest.raises(DeviceError, match="ranks on the device null cannot exchange values"):
        npusim.load(program, weights=integers(mlp()), device="null")


def test_memory_counts_for_each_rank() -> None:
    program = npusim.compile(mlp(), tensor_parallel=4)
    with pytest.raises(Error, match="max_memory"):
        npusim.load(program, weights=integers(mlp()), max_memory=20_000)


def test_machines_are_of_one_rank() -> None:
    with pytest.raises(TargetConstraintError, match="machines here are of one"):
        npusim.simulate(npusim.compile(mlp(), tensor_parallel=2))


def test_work_is_not_counted_over_ranks() -> None:
    program = npusim.compile(mlp(), tensor_parallel=2)
    with pytest.raises(Error, match="max_work is counted for one rank"):
        npusim.load(program, weights=integers(mlp()), max_work=10**9)


@pytest.mark.parametrize("ranks", [0, 1, 65, 2.5, True, "2"])
@pytest.mark.parametrize("op", ["npu.all_reduce", "npu.all_gather", "npu.rank_part"])
def test_graphs_that_say_other_ranks(op: str, ranks: Any) -> None:
    b = GraphBuilder("wrong")
    x, w = b.input("x", TensorType("float32", (4,))), b.weight("w", TensorType("float32", (4,)))
    attrs = {"npu.all_gather": {"axis": 0}, "npu.rank_part": {"axis": 0, "parts": 2}}.get(op, {})
    of = w if op == "npu.rank_part" else x
    y = b.node(op, (of,), TensorType("float32", (4,)), {**attrs, "ranks": ranks})
    b.output("y", b.node("aten.add.Tensor", (y, x), TensorType("float32", (4,)), {"alpha": 1}))
    with pytest.raises(Error, match="ranks"):
        npusim.compile(b.build())


def test_graphs_of_two_numbers_of_ranks() -> None:
    b = GraphBuilder("mixed")
    type = TensorType("float32", (4,))
    y = b.node("npu.all_reduce", (b.input("x", type),), type, {"ranks": 2})
    b.output("y", b.node("npu.all_reduce", (y,), type, {"ranks": 3}))
    with pytest.raises(Error, match="of 2 ranks, and of 3"):
        npusim.compile(b.build())


def picks(ranks: int = 2) -> CompiledProgram:
    """Each rank reads rows of x that its own part of a weight names, and all are added up."""
    b = GraphBuilder("picks")
    x = b.input("x", TensorType("float32", (4, 2)))
    rows = b.weight("rows", TensorType("int64", (2 * ranks,)))
    part, picked = TensorType("int64", (2,)), TensorType("float32", (2, 2))
    own = b.node("npu.rank_part", (rows,), part, {"axis": 0, "parts": ranks, "ranks": ranks})
    y = b.node("aten.index.Tensor", (x, own), picked, {"indices": 1})
    b.output("y", b.node("npu.all_reduce", (y,), picked, {"ranks": ranks}))
    return assemble(b.build(), CPU)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_rank_that_fails_ends_the_run_for_all(wrong: int) -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    rows = np.zeros(6, np.int64)
    rows[2 * wrong] = 9
    session = npusim.load(picks(3), weights={"rows": rows}, threads=3)
    for _ in range(3):
        with pytest.raises(Error, match="9, limit 4"):
            session(x)
    rows[2 * wrong] = 1
    (y,) = npusim.load(picks(3), weights={"rows": rows}, threads=3)(x)
    wanted = sum(x[rows[2 * rank : 2 * rank + 2]] for rank in range(3))
    assert np.array_equal(y, wanted)


def test_a_forked_child_runs_all_ranks_by_itself() -> None:
    graph = mlp()
    weights, x = integers(graph), given(graph)
    session = npusim.load(npusim.compile(graph, tensor_parallel=2), weights=weights, threads=2)
    wanted = session(x)[0].copy()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(session(x)[0], wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_parts_that_do_not_fit_are_refused_by_both_readers() -> None:
    program = npusim.compile(mlp(), tensor_parallel=2)
    index = next(i for i, w in enumerate(program.weights) if w.part is not None)
    for part in (WeightPart(2, 2), WeightPart(0, 3), WeightPart(0, 0)):
        weights = list(program.weights)
        weights[index] = replace(weights[index], part=part)
        with pytest.raises(ProgramFormatError):
            replace(program, weights=tuple(weights)).to_bytes()
    image = bytearray(program.to_bytes())
    assert image[10] == 4  # the minor version
    old = npusim.compile(mlp()).to_bytes()
    assert old[10] == 0


def test_operands_of_an_exchange_are_checked() -> None:
    program = npusim.compile(mlp(), tensor_parallel=2)
    (method,) = program.methods
    stem = next(i for i, k in enumerate(program.kernels) if k.name == "all_gather")
    at = next(i for i, c in enumerate(method.commands) if c.kernel == stem)
    command = method.commands[at]
    size, ranks = (int.from_bytes(command.params[i : i + 8], "little") for i in (0, 8))
    packed = lambda *n: b"".join(v.to_bytes(8, "little", signed=True) for v in n)  # noqa: E731
    for params, why in (
        (packed(size + 4, ranks), "passes the end"),
        (packed(-1, ranks), "passes the end"),
        (packed(size, 3), "of 3 ranks"),
        (packed(size), "parameters"),
    ):
        commands = list(method.commands)
        commands[at] = replace(command, params=params)
        changed = replace(program, methods=(replace(method, commands=tuple(commands)),))
        with pytest.raises(Error, match=why):
            npusim.load(changed, weights=integers(mlp()))
