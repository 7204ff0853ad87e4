"""One mutated file at a time: read, compiled and run, or refused with a sentence.

Owns what a target of the fuzzer does with a file, and the verdict: "refused" (an `npusim.Error`),
"ran", or a Finding with the file. A file that asks for more memory or work than a trial may take is
read, and not run.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

import npusim
from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.ir.module import load_ir
from npusim.ir.opdef import REGISTRY
from npusim.ir.specialize import at_shapes
from npusim.ops.reference import run_graph
from npusim.partition.plan import PartitionPlan
from tests.fuzz import seeds
from tests.fuzz.arguments import arguments, run_arguments
from tests.fuzz.mutation import mutated_bytes, mutated_tree
from tests.properties.agreement import data_for

SECONDS = 120  # that one file may take
_MAX_BYTES = 1 << 22  # of all values of a graph that is run

# Of some of these ones' elements, or their order, PyTorch says nothing.
_UNDEFINED = ("topk", "empty", "new_empty", "_grouped_mm")

REFUSED, RAN, READ = "refused", "ran", "read"


class Finding(Exception):
    """A file that was neither refused with an `npusim.Error` nor run as PyTorch runs it."""


class _Slow(BaseException):
    """Raised by the alarm."""


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Attributes:
        make: returns the content of a mutated file.
        run: reads a file at a path and does with it what a user would; returns a verdict.
        suffix: of the file's name.
    """

    make: Callable[[Random], bytes]
    run: Callable[[Path], str]
    suffix: str


def trial(target: Target, seed: int) -> str:
    """Runs one mutated file; returns its verdict.

    Raises:
        Finding: something else than an `npusim.Error` came out, it took too long, or its results
            are not PyTorch's.
    """
    data = target.make(Random(seed))
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"m{target.suffix}"
        path.write_bytes(data)
        try:
            with _alarm():
                return target.run(path)
        except Error:
            return REFUSED
        except _Slow:
            raise Finding(f"seed {seed}: took more than {SECONDS} s") from None
        except Finding as finding:
            raise Finding(f"seed {seed}: {finding}") from None
        except Exception as error:
            raise Finding(f"seed {seed}: {type(error).__name__}: {error}") from error


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _Slow

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@cache
def _device() -> npusim.Device:
    return npusim.Device("cpu", threads=1)


def _run_ir(path: Path) -> str:
    ir = load_ir(path)
    for graph in [ir] if isinstance(ir, Graph) else ir.methods.values():
        if _too_large(graph):
            return READ
    program = npusim.compile(ir, target="cpu")
    return _compare(ir, program) if isinstance(ir, Graph) else RAN


def _too_large(graph: Graph) -> bool:
    return sum(type.greatest_bytes for type in graph.types.values()) > _MAX_BYTES


def _compare(graph: Graph, program: npusim.CompiledProgram) -> str:
    """Runs a program at the sizes of its data, and compares it with PyTorch where that can."""
    fixed = at_shapes(graph, [_least(v.type.shape) for v in graph.inputs])
    tensors = data_for(fixed, 0)
    weights = {w.key: tensors[w.name] for w in fixed.weights}
    session = npusim.load(program, weights, device=_device())
    # Indices below zero are refused by most that take them.
    inputs = [
        t.abs() if t.dtype == torch.int64 else t for t in (tensors[v.name] for v in fixed.inputs)
    ]
    results = [torch.as_tensor(result) for result in session(*inputs)]
    if any(node.op.partition(".")[2].startswith(_UNDEFINED) for node in graph.nodes):
        return RAN
    try:
        expected = run_graph(fixed, inputs, weights)
    except Error:  # PyTorch's kernels have limits of their own: indices outside, dtypes
        return RAN
    for output, ours, truth in zip(fixed.outputs, results, expected, strict=True):
        if ours.shape != truth.shape or ours.dtype != truth.dtype:
            raise Finding(
                f"{output.name} is {ours.dtype}{list(ours.shape)}, not {truth.dtype}"
                f"{list(truth.shape)}"
            )
        if not _close(ours, truth):
            raise Finding(f"{output.name} is {ours.flatten()[:4]}, not {truth.flatten()[:4]}")
    return RAN


def _least(shape: tuple[int, ...]) -> tuple[int, ...]:
    from npusim.ir.symbolic import substituted, symbols_of

    sizes = {s.name: min(s.high, max(s.low, 3)) for s in symbols_of(shape)}
    result: tuple[int, ...] = substituted(shape, sizes)
    return result


def _close(ours: torch.Tensor, truth: torch.Tensor) -> bool:
    a, b = ours.double(), truth.double()
    scale = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 0.0
    same = (a == b) | (a.isnan() & b.isnan()) | ~b.isfinite()
    return bool((same | ((a - b).abs() <= 0.05 * scale + 0.05)).all())


def _run_plan(path: Path) -> str:
    plan = PartitionPlan.load(path)
    executor = npusim.DAGExecutor(plan, "cpu")
    if _too_large(plan.graph):
        return READ
    graph = plan.graph
    if graph.symbols:
        return READ
    tensors = data_for(graph, 0)
    executor.load_weights({w.key: tensors[w.name] for w in graph.weights})
    executor.execute(inputs={v.name: tensors[v.name] for v in graph.inputs})
    return RAN


def _run_onnx(path: Path) -> str:
    from npusim.frontends.onnx import from_onnx

    graph = from_onnx(path).graph
    if _too_large(graph):
        return READ
    npusim.compile(graph, target="cpu")
    return RAN


def _tree_bytes(trees: Callable[[], tuple[Any, ...]]) -> Callable[[Random], bytes]:
    words = tuple(REGISTRY)

    def make(chance: Random) -> bytes:
        tree = mutated_tree(chance.choice(trees()), chance, words)
        return json.dumps(tree).encode()

    return make


def _module_bytes(chance: Random) -> bytes:
    graph = mutated_tree(chance.choice(seeds.graphs()), chance, tuple(REGISTRY))
    tree = {"format": "npusim.module", "version": [1, 0], "name": "m", "facts": {"a": 1}}
    tree["methods"] = {"forward": graph, "again": chance.choice(seeds.graphs())}
    return json.dumps(mutated_tree(tree, chance) if chance.random() < 0.5 else tree).encode()


def _bytes_of(files: Callable[[], tuple[bytes, ...]]) -> Callable[[Random], bytes]:
    return lambda chance: mutated_bytes(chance.choice(files()), chance)


def _plan_bytes(chance: Random) -> bytes:
    """A plan whose manifest, or a program of it, is changed and put together again."""
    from npusim.partition.plan_file import LAYOUT, PlanSection
    from npusim.program.container import pack_container, unpack_sections

    data = chance.choice(seeds.plans())
    if chance.random() < 0.15:
        return mutated_bytes(data, chance)
    sections = {
        kind: bytes(chunk.data) for kind, chunk in unpack_sections(memoryview(data), LAYOUT).items()
    }
    if chance.random() < 0.8:
        tree = mutated_tree(json.loads(sections[PlanSection.MANIFEST]), chance, tuple(REGISTRY))
        sections[PlanSection.MANIFEST] = json.dumps(tree).encode()
    else:
        kind = chance.choice(list(PlanSection))
        sections[kind] = mutated_bytes(sections[kind], chance)
    return pack_container(sections, LAYOUT)


def _onnx_bytes(chance: Random) -> bytes:
    """A model of which a field is changed by its meaning, or its bytes are."""
    import onnx
    from google.protobuf.message import DecodeError

    data = chance.choice(seeds.onnx_models())
    if chance.random() < 0.2:
        return mutated_bytes(data, chance)
    from google.protobuf import json_format

    model = onnx.load_from_string(data)
    tree = json_format.MessageToDict(model)
    changed = mutated_tree(tree, chance, ("Add", "Reshape", "Conv", "Gather", "If", "Loop"))
    message = onnx.ModelProto()
    try:
        json_format.ParseDict(changed, message, ignore_unknown_fields=True)
        return message.SerializeToString()
    except (json_format.ParseError, DecodeError, ValueError, TypeError, AttributeError):
        return mutated_bytes(data, chance)


TARGETS: dict[str, Target] = {
    "graph": Target(_tree_bytes(seeds.graphs), _run_ir, ".json"),
    "module": Target(_module_bytes, _run_ir, ".json"),
    "text": Target(
        _bytes_of(lambda: tuple(json.dumps(t).encode() for t in seeds.graphs()[:60])),
        _run_ir,
        ".json",
    ),
    "pytorch-ir": Target(_tree_bytes(seeds.foreign), _run_ir, ".json"),
    "plan": Target(_plan_bytes, _run_plan, ".nplan"),
    "arguments": Target(arguments, run_arguments, ".argv"),
    "onnx": Target(_onnx_bytes, _run_onnx, ".onnx"),
}
