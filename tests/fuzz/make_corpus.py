"""Writes the seeds of the fuzzers to tests/fuzz/corpus: small and valid.

PYTHONPATH=python:. python tests/fuzz/make_corpus.py
"""

from __future__ import annotations

import dataclasses
import json
import random
import runpy
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import npusim
from npusim.abi.quantization import FORMATS, Quantization, quantized_bytes
from npusim.ir.graph import Attr, Graph, Node, Output, Value, Weight
from npusim.ir.opdef import REGISTRY, Case
from npusim.ir.symbolic import symbol
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.paged import PAGED_APPEND, PAGED_ATTENTION
from npusim.ops.quantized_linear import QUANTIZE, QUANTIZED_LINEAR
from npusim.program.program import BufferKind, CompiledProgram, Method
from npusim.selftest.single_op import graph_of, tensors_for
from npusim.targets import TargetConfig
from tests.runtime import toy_language_model

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "format" / "golden" / "make_golden.py"
SYMBOLIC = HERE.parent / "format" / "symbolic_program.py"


def programs() -> Iterator[tuple[str, CompiledProgram]]:
    """Yields the golden program and what is left of it when parts are taken away."""
    whole: CompiledProgram = runpy.run_path(str(GOLDEN))["golden_program"]()
    yield "whole", whole
    no_init = dataclasses.replace(whole.init, commands=())
    kept = tuple(dataclasses.replace(k, image=b"") for k in whole.kernels)
    without_constants = tuple(
        dataclasses.replace(b, kind=BufferKind.STATE) if b.kind is BufferKind.CONSTANT else b
        for b in whole.buffers
    )
    small = dataclasses.replace(
        whole, kernels=kept, buffers=without_constants, constants=b"", metadata={}
    )
    yield "small", small
    yield "no_init", dataclasses.replace(small, init=no_init)
    yield "one_method", dataclasses.replace(small, methods=whole.methods[:1])
    weights = (whole.weights[0], dataclasses.replace(whole.weights[1], shape=(0, 2**38)))
    yield "large_shape", dataclasses.replace(small, weights=weights)
    held = [i for i, b in enumerate(small.buffers) if b.kind is BufferKind.STATE]
    states = [
        {"name": f"s{i}", "buffer": i, "dtype": "uint8", "shape": [small.buffers[i].bytes]}
        for i in held
    ]
    facts = {"max_context": 9, "eos_token_ids": [1], "caches": [{"state": "s", "axis": 0}]}
    metadata = {"states": states, "language_model": facts}
    yield "states", dataclasses.replace(small, metadata=metadata)
    for name in ("symbolic", "specialized"):
        yield name, runpy.run_path(str(SYMBOLIC))[f"{name}_program"]()
    empty = Method("forward", (), (), (), 0)
    yield (
        "smallest",
        CompiledProgram("null", (), (), (empty,), no_init, (), (), b"", 0, 0),
    )


def safetensors(header: object, data: bytes, padding: int = 0) -> bytes:
    """Returns a safetensors image."""
    text = json.dumps(header).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + data


def checkpoints() -> Iterator[tuple[str, bytes]]:
    """Yields images of checkpoints."""

    def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    yield "empty", safetensors({}, b"")
    yield "metadata", safetensors({"__metadata__": {"format": "pt", "ü": '\\"\n'}}, b"", 6)
    yield "one", safetensors({"w": tensor("F32", [2, 2], 0, 16)}, bytes(16))
    entries = {
        "scalar": tensor("I64", [], 0, 8),
        "empty": tensor("F16", [3, 0], 8, 8),
        "b": tensor("BF16", [3], 8, 14),
        "🙂": tensor("F8_E4M3", [2], 14, 16),
        "new": tensor("X1", [9], 16, 18),
    }
    yield "many", safetensors({"__metadata__": {}, **entries}, bytes(range(18)), 3)
    index = {"metadata": {"total_size": -1.5e3, "x": [True, None]}, "weight_map": {"w": "a"}}
    yield "index", json.dumps(index).encode()


def runs() -> Iterator[tuple[str, bytes]]:
    """Yields inputs of the run fuzzer: the smallest program of each kernel, all numbers small."""
    found: dict[str, bytes] = {}
    for graph in _cases():
        image, stems = _program(graph)
        for stem in stems:
            if stem not in found or len(image) < len(found[stem]):
                found[stem] = image
    found.update((name, _program(graph)[0]) for name, graph in chosen())
    for stem, image in sorted(found.items()):
        isa = crc32(stem.encode()) % 4  # the sets in turn, and a new stem changes no other's
        yield stem, bytes(9) + bytes([isa]) + bytes(6) + image


def _cases() -> Iterator[Graph]:
    for op in REGISTRY.values():
        for case in op.cases:
            for dtype in op.dtypes:
                yield graph_of(op, case, tensors_for(case, dtype, op.name), dtype)


def _program(graph: Graph) -> tuple[bytes, set[str]]:
    """Returns the file of a graph's program, and the kernels that it runs."""
    program = assemble(graph, TargetConfig.named("cpu"))
    commands = (*program.init.commands, *(c for m in program.methods for c in m.commands))
    stems = {program.kernels[command.kernel].name for command in commands}
    return dataclasses.replace(program, metadata={}).to_bytes(), stems


def chosen() -> Iterator[tuple[str, Graph]]:
    """Yields graphs of what no conformance case has, since passes choose it for large operands."""
    conv = REGISTRY["npu.conv"]
    for tile in (2, 4):
        attrs = {**conv.cases[0].attrs, "algorithm": f"winograd{tile}"}
        case = Case(((1, 3, 5, 6), (4, 3, 3, 3), (2, 4), None), attrs)
        tensors = tensors_for(case, "float32", conv.name)
        yield f"winograd{tile}", graph_of(conv, case, tensors, "float32")
    for name in FORMATS:
        yield f"quantized_{name.replace('-', '_')}", _quantized(name)
    yield "step", step()


def step() -> Graph:
    """Returns a step over the rows of many requests: what a row sees of its pages, behind the rows
    that are asked for. Positions, requests, tables and rows are whatever the fuzzer fills in."""
    count, requests = symbol("tokens", 1, 4), symbol("requests", 1, 3)
    pool, row = TensorType("float32", (4, 1, 2, 4)), (1, 1, count, 4)
    inputs = tuple(
        Value(name, TensorType("int64", shape))
        for name, shape in (
            *(("tokens", (1, 1, count)), ("positions", (count,)), ("requests", (count,))),
            *(("tables", (requests, 3)), ("rows", (requests,))),
        )
    )
    places = ("positions", "requests", "tables")

    def node(
        name: str, op: str, given: tuple[str | None, ...], result: TensorType, **attrs: Attr
    ) -> Node:
        return Node(name, op, given, (Value(name, result),), attrs)

    x = TensorType("float32", row)
    lookup: dict[str, Attr] = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
    attention: dict[str, Attr] = {"scale": 0.5, "softcap": 0.0, "window": 0}
    nodes = (
        node("x", "aten.embedding.default", ("w", "tokens"), x, **lookup),
        node("k", PAGED_APPEND, ("x", "keys", *places), pool),
        node("v", PAGED_APPEND, ("x", "values", *places), pool),
        node("seen", PAGED_ATTENTION, ("x", "k", "v", *places), x, **attention),
        node(
            "y",
            "aten.index.Tensor",
            ("seen", None, None, "rows"),
            TensorType("float32", (1, 1, requests, 4)),
            indices=3,
        ),
    )
    weights = (Weight("w", "w", TensorType("float32", (5, 4))),)
    states = (Value("keys", pool), Value("values", pool))
    updates = (Output("keys", "k"), Output("values", "v"))
    return Graph("step", inputs, (Output("y", "y"),), weights, (), nodes, states, updates)


def _quantized(format: str) -> Graph:
    """Returns the product of two rows of 40 elements and the three rows of a quantized weight."""
    how: dict[str, Attr] = {
        "format": format,
        "group": 0 if Quantization(format).bytes_a_code else 32,
    }
    w, x = TensorType("float32", (3, 40)), TensorType("float32", (2, 40))
    q = TensorType("uint8", (quantized_bytes(Quantization(format, 32), *w.shape),))
    attrs = {**how, **NO_EPILOGUE, "rows": (3,), "gated": False}
    nodes = (
        Node("q", QUANTIZE, ("w",), (Value("q", q),), how),
        Node(
            "y",
            QUANTIZED_LINEAR,
            ("x", "q", None, None),
            (Value("y", TensorType("float32", (2, 3))),),
            attrs,
        ),
    )
    weights = (Weight("w", "w", w),)
    return Graph(format, (Value("x", x),), (Output("y", "y"),), weights, (), nodes)


def sessions() -> Iterator[tuple[str, bytes]]:
    """Yields saved sessions of the model in tests/cpp/chain_language_model.h, `generates` set."""

    def tensor(dtype: str, count: int, begin: int, size: int) -> dict[str, object]:
        return {"dtype": dtype, "shape": [count], "data_offsets": [begin, begin + count * size]}

    for name, count, fed in (("fed", 3, 3), ("waiting", 4, 2), ("empty", 0, 0)):
        facts = {"format": "npusim session 1", "program": "c0ffee", "fed": str(fed)}
        entries = {"npusim.tokens": tensor("I64", count, 0, 8)}
        end = count * 8
        if count == fed and fed:
            entries["npusim.logits"] = tensor("F32", 100, end, 4)
            end += 400
        entries["seen"] = tensor("I64", fed, end, 8)
        yield name, safetensors({"__metadata__": facts, **entries}, bytes(end + 8 * fed))


def calls() -> Iterator[tuple[str, bytes]]:
    """Yields inputs of the step fuzzer: numbers that are calls, whatever they are."""
    for seed in range(12):
        first = (2, 1)[seed % 4 == 3]  # which of its two halves
        yield f"calls_{seed}", bytes([first]) + random.Random(seed).randbytes(400)
    yield "copied_pages", _followers([7, 1, 2, 30, 4, 11], 4)
    yield "copied_full_page", _followers([7, 1, 2, 30, 4, 11, 9, 9], 3)


def _followers(tokens: list[int], count: int) -> bytes:
    """Requests that follow the first of their prompt, as cpp/fuzz/step_fuzzer.cpp reads them."""

    def submit(prompt: list[int], follows: int) -> list[int]:
        given = [b for token in prompt for b in (0, token)]
        repeats, most, plain = not prompt, [0, 6], [0] * 2
        options = [*most, 0, 1, 0, *plain, 0, 0, 0, *[0, 0], 0, 0, 0]
        after = [1, 0, follows] if follows else [0]
        return [0, len(prompt), *given, int(repeats), *options, *after, *[0] * 6]

    batch = [4, 16, 0, 0]  # requests, tokens of a step, with prefixes, patience
    more = [b for _ in range(count) for b in submit([], 1)]
    return bytes([2, *batch, *submit(tokens, 0), *more, 5, 5, 5])


def c_api_programs() -> Iterator[tuple[str, CompiledProgram]]:
    """Yields what tests/cpp/test_c_api.cpp and the fuzzer of the C interface run."""
    import torch

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x + y).sum(1)

    n = torch.export.Dim("n", min=1, max=8)
    example = (torch.zeros(3, 4), torch.zeros(3, 4))
    shapes = {"x": {0: n}, "y": {0: n}}
    graph = npusim.extract_ir(Sum().eval(), example, dynamic_shapes=shapes)
    yield "sum", npusim.compile(graph)
    yield "language_model", toy_language_model.program()


def main() -> None:
    """Writes all seeds."""
    for name, program in c_api_programs():
        (HERE.parent / "cpp" / "programs" / f"{name}.npubin").write_bytes(program.to_bytes())
    for name, data in runs():
        (HERE / "corpus" / "run" / name).write_bytes(data)
    for name, data in calls():
        (HERE / "corpus" / "step" / name).write_bytes(data)
    for name, data in sessions():
        (HERE / "corpus" / "session" / f"{name}.safetensors").write_bytes(data)
    for name, program in programs():
        (HERE / "corpus" / "program" / f"{name}.npubin").write_bytes(program.to_bytes())
    for name, image in checkpoints():
        (HERE / "corpus" / "safetensors" / f"{name}.safetensors").write_bytes(image)


if __name__ == "__main__":
    main()
