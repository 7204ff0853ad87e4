"""Many requests to a model that ranks share: steps over pages of which each rank has its heads.

Nothing of an answer may depend on what is in a step beside it, as with one rank (test_step_method),
and answers are those of the program of one rank.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import _runtime
from npusim.errors import Error
from npusim.ir.graph import Node, Output, Value, Weight
from npusim.ir.module import Module, load_ir
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.program.program import CompiledProgram
from npusim.runtime.native import native_program
from npusim.targets.target_config import TargetConfig
from tests.cli.conftest import Cli, cli  # noqa: F401

from . import model, paged_model

PAGES = 8  # for the longest request and a page


@cache
def steps(folder: Path, ranks: int, pages: int = PAGES, **options: Any) -> CompiledProgram:
    """Compiles the method `step` alone, over few pages."""
    made = load_ir(folder / "paged.json")
    assert isinstance(made, Module)
    return npusim.compile(with_pages(made, pages), tensor_parallel=ranks, **options)


def with_pages(made: Module, pages: int) -> Module:
    """Returns a module of `step` alone, whose pools have so many pages."""
    graph = made.methods["step"]
    pools = {state.name for state in graph.states}
    pools |= {update.value for update in graph.updates}

    def fewer(value: Value) -> Value:
        shape = (pages, *value.type.shape[1:])
        return value if value.name not in pools else Value(value.name, TensorType("float32", shape))

    nodes = tuple(replace(n, outputs=tuple(map(fewer, n.outputs))) for n in graph.nodes)
    graph = replace(graph, nodes=nodes, states=tuple(map(fewer, graph.states)))
    return replace(made, methods={"step": graph})


def engine_of(program: CompiledProgram, weights: Any, **options: Any) -> _runtime.Engine:
    device = npusim.Device("cpu", threads=2)
    loaded = npusim.load_weights(weights, program, device)
    return _runtime.Engine(native_program(program), device, loaded, **options)


def checkpoint(folder: Path) -> Path:
    return folder / "random" / "model.safetensors"


def text(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


def answered(
    engine: _runtime.Engine, prompts: dict[int, list[int]], length: int = 12, **asked: Any
) -> dict[int, Any]:
    """Serves prompts beside each other; returns tokens, log-probabilities and error of each."""
    options = {"max_tokens": length, "ignore_eos": True, **asked}
    numbers = {engine.submit(tokens, options | {"seed": at}): at for at, tokens in prompts.items()}
    made: dict[int, Any] = {at: ([], [], []) for at in prompts}
    waiting = set(numbers)
    for _ in range(10_000):
        for number, tokens, logprobs, _, ending, error, _ in engine.poll(10):
            made[numbers[number]][0].extend(tokens)
            made[numbers[number]][1].extend(logprobs or [])
            if error is not None:
                made[numbers[number]][2].append(error)
            waiting -= {number} if ending or error is not None else set()
        if not waiting:
            return made
    raise AssertionError("requests do not end")


@pytest.mark.parametrize("ranks", [2, 4])
def test_answers_are_those_of_one_rank(folder: Path, ranks: int) -> None:
    prompts = {seed: text(seed, 20 + 7 * seed) for seed in range(5)}
    whole, split = (
        answered(engine_of(steps(folder, n), checkpoint(folder)), prompts, logprobs=2)
        for n in (1, ranks)
    )
    for at in prompts:
        (tokens, own, _), (expected, known, _) = split[at], whole[at]
        assert tokens == expected and len(tokens) == 12
        assert np.abs([a[1] - b[1] for a, b in zip(own, known, strict=True)]).max() < 1e-4


def test_each_rank_has_its_heads_of_every_page(folder: Path) -> None:
    for ranks, heads in ((2, 1), (4, 1)):  # of four ranks, two have the same one
        program = steps(folder, ranks)
        shapes = {tuple(state["shape"]) for state in program.metadata["states"]}
        assert shapes == {(PAGES, heads, model.PAGE, 72)}
        facts: Any = program.metadata["tensor_parallel"]
        assert not facts["whole"] and facts["split"]["lm_head.weight"] == "rows, gathered"


KINDS: dict[str, tuple[int, dict[str, str]]] = {
    "float32": (2, {}),
    "int8": (4, {"quantize": "int8"}),
    "int4": (2, {"quantize": "int4-g32"}),
    "bfloat16": (4, {"precision": "bfloat16"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_chunks_and_lost_pages_show_nowhere(folder: Path, kind: str) -> None:
    ranks, options = KINDS[kind]
    program = steps(folder, ranks, **options)
    drawn: dict[str, Any] = {"temperature": 0.8, "logprobs": 2, "length": 60}
    prompts = {seed: text(9, 17) + text(seed, 1 + 5 * seed) for seed in range(4)}
    together = engine_of(program, checkpoint(folder))
    first = answered(together, prompts, **drawn)
    assert together.stats()["preemptions"] > 0, "there were pages for all"
    assert answered(together, prompts, **drawn) == first, "what the cache of prefixes holds shows"
    stats = together.stats()
    assert stats["prefix_hits"] > 0 and stats["free_pages"] == stats["pages"]
    lone = engine_of(program, checkpoint(folder), prefix_cache=False, max_step_tokens=5)
    for at, tokens in prompts.items():
        assert answered(lone, {at: tokens}, **drawn) == {at: first[at]}


@pytest.mark.parametrize(("ranks", "options"), [(1, {}), (2, {"quantize": "int8"}), (4, {})])
@pytest.mark.parametrize("length", [43, 32])  # within a page, and at the end of one
def test_a_page_of_a_prompt_is_copied(
    folder: Path, ranks: int, options: dict[str, str], length: int
) -> None:
    program = steps(folder, ranks, pages=32, **options)
    drawn: dict[str, Any] = {"temperature": 0.8, "logprobs": 2, "max_tokens": 3}
    prompt = text(9, length)
    engine = engine_of(program, checkpoint(folder))
    first = engine.submit(prompt, {"max_tokens": 1, "masked": True})
    made: dict[int, Any] = {
        engine.submit(prompt, {**drawn, "seed": seed, "follows": first}): ([], [])
        for seed in range(5)
    }
    engine.allow(first, np.ones(model.VOCABULARY, np.bool_))  # from here on all have come
    left = {first, *made}
    for _ in range(1000):
        for number, tokens, logprobs, _, ending, error, _ in engine.poll(10):
            assert error is None
            if number != first:
                made[number][0].extend(tokens)
                made[number][1].extend(logprobs)
            left -= {number} if ending else set()
        if not left:
            break
    assert engine.stats()["prompt_tokens"] == length + 5, "the last token alone is each one's own"
    alone = engine_of(program, checkpoint(folder), prefix_cache=False)
    for seed, own in enumerate(made.values()):
        asked = {**drawn, "length": drawn["max_tokens"]}
        del asked["max_tokens"]
        assert answered(alone, {seed: prompt}, **asked) == {seed: (*own, [])}


def test_from_compile_to_answers(folder: Path, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    made = tmp_path / "ranks.npubin"
    outcome = cli("compile", folder / "paged.json", "--tensor-parallel", 2, "-o", made)
    assert outcome.code == 0 and "2 ranks: matrices split" in outcome.out
    asked = {"prompt": "ab", "max_tokens": 5, "temperature": 0, "n": 2}
    rows = [{"custom_id": "r", "method": "POST", "url": "/v1/completions", "body": asked}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    told = []
    for program in (folder / "paged.npubin", made):
        out = tmp_path / f"{program.stem}.jsonl"
        command = ("batch", tmp_path / "rows.jsonl", program, "--weights", folder / "random")
        assert cli(*command, "-o", out).code == 0
        (answer,) = map(json.loads, out.read_text("utf-8").splitlines())
        told.append([choice["text"] for choice in answer["response"]["body"]["choices"]])
    assert told[0] == told[1] and len(told[0][0]) > 0


def test_memory_is_counted_for_each_rank(folder: Path) -> None:
    program = steps(folder, 2)
    total = _runtime.Engine.memory(native_program(program))["total"]
    npusim.load_weights(
        checkpoint(folder), program, npusim.Device("cpu", threads=2, max_memory=2 * total)
    )
    with pytest.raises(Error, match="max_memory"):
        npusim.load_weights(
            checkpoint(folder), program, npusim.Device("cpu", threads=2, max_memory=2 * total - 1)
        )


@cache
def fragile(ranks: int) -> CompiledProgram:
    """Says the sum of tokens (paged_model.PagedSum), and each rank looks up each token in its part
    of the weight `codes`: a number above 3 there ends the step on that rank alone."""
    made = paged_model.paged_module(paged_model.PagedSum().eval())
    graph = made.methods["step"]
    (logits,) = graph.outputs
    tokens, vocabulary = graph.inputs[0], paged_model.VOCAB
    rows, type = tokens.type.shape, graph.types[logits.value]

    def node(name: str, op: str, inputs: Any, of: TensorType, **attrs: Any) -> Node:
        return Node(name, op, inputs, (Value(name, of),), attrs)

    codes, zeros = TensorType("int64", (ranks * vocabulary,)), TensorType("float32", (4,))
    part = TensorType("int64", (vocabulary,))
    found, one = TensorType("float32", rows), TensorType("float32", ())
    nodes = (
        node("own", "npu.rank_part", ("codes",), part, axis=0, parts=ranks, ranks=ranks),
        node("code", "aten.index.Tensor", ("own", tokens.name), TensorType("int64", rows),
             indices=1),
        node("looked", "aten.index.Tensor", ("zeros", "code"), found, indices=1),
        node("added", "aten.sum.default", ("looked",), one),
        node("all", "npu.all_reduce", ("added",), one, ranks=ranks),
        node("scores", "aten.add.Tensor", (logits.value, "all"), type, alpha=1),
    )  # fmt: skip
    graph = replace(
        graph,
        nodes=(*graph.nodes, *nodes),
        weights=(*graph.weights, Weight("codes", "codes", codes), Weight("zeros", "zeros", zeros)),
        outputs=(Output(logits.name, "scores"),),
    )
    return assemble(replace(made, methods={"step": graph}), TargetConfig.named("cpu"))


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_rank_that_fails_ends_the_step_for_those_in_it(wrong: int) -> None:
    bad, vocabulary = 17, paged_model.VOCAB
    codes = np.zeros(3 * vocabulary, np.int64)
    codes[wrong * vocabulary + bad] = 9
    weights = {"codes": codes, "zeros": np.zeros(4, np.float32)}
    engine = engine_of(fragile(3), weights)
    good = {0: [1, 2, 3, 4, 5, 6], 1: [2, 2]}
    wanted = answered(engine, good, length=3)
    assert [made[0] for made in wanted.values()] == [[21, 42, 36], [4, 8, 16]]
    for _ in range(2):  # three in a row end the engine
        (_, _, errors) = answered(engine, {0: [1, 2, 3, 4, 5, bad]}, length=3)[0]
        assert len(errors) == 1 and "9, limit 4" in str(errors[0])
        stats = engine.stats()
        assert stats["free_pages"] == stats["pages"] and stats["kept_pages"] == 0
        assert answered(engine, good, length=3) == wanted
    assert engine.stats()["failed_steps"] == 2
