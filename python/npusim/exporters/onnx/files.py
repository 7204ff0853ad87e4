"""Writing ONNX models: one file, or one a method, with the weights inside or beside it.

Weights are read from a mapped checkpoint and written once. A model that would come near the two
gigabytes that a file of ONNX may have gets its weights into a file beside it (external data).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto, StringStringEntryProto, TensorProto

from npusim.errors import Error, UnsupportedOpError, WeightMismatchError
from npusim.exporters.onnx.builder import bytes_of, kind_of, tensor_proto
from npusim.exporters.onnx.model import DEFAULT_OPSET, Exported, to_onnx
from npusim.files import write_atomic, write_parts
from npusim.ir.graph import Graph, Weight
from npusim.ir.module import Module
from npusim.partition.host_weights import host_tensors

# Weights of more bytes than this go into a file of their own.
EXTERNAL_BYTES = 1 << 30
_LIMIT = (1 << 31) - 1  # of a protobuf message
_PAGE = 4096  # so that readers can map each tensor


def export_onnx(
    ir: Graph | Module,
    path: str | Path,
    weights: Any = None,
    *,
    opset: int = DEFAULT_OPSET,
    external: bool | None = None,
    graph_only: bool = False,
    methods: Sequence[str] | None = None,
) -> tuple[Path, ...]:
    """Writes a graph as an ONNX model, or each method of a module as one.

    Args:
        ir: the graph, or the module: `model.onnx` becomes `model.METHOD.onnx` for each method.
        path: of the model.
        weights: as `npusim.load_weights` takes them. Needed when the graph has any.
        opset: the version of ONNX's operators; 18 to the installed onnx's newest.
        external: whether the weights go into `<path>.data` beside the model, which all methods
            share; by default, those of more than a gigabyte.
        graph_only: leave the weights out; each becomes an input named by its key.
        methods: of a module, those to write. By default all that have a form in ONNX; a method
            that chooses tokens on the device has none.

    Returns:
        The files written, models first.

    Raises:
        UnsupportedOpError: operators have no form in standard ONNX; all of them are listed.
        WeightMismatchError: weights are missing or do not fit; all are listed.
        Error: no weights were given, or a file cannot be written.
    """
    path = Path(path)
    exported = _exported(ir, path, opset, methods)
    held = {} if graph_only else _tensors(exported.values(), weights)
    if graph_only:
        _write(exported)
        return tuple(exported)
    total = sum(t.numel() * t.element_size() for t in held.values())
    if external is None:
        external = total > EXTERNAL_BYTES
    if not external:
        if total > _LIMIT:
            raise Error(
                f"The weights take {total} bytes, and a file of ONNX holds 2 GiB.",
                hint="Write them beside the model: external=True (`--external`).",
            )
        for one in exported.values():
            _place(one, lambda name, key: tensor_proto(name, held[key]))
        _write(exported)
        return tuple(exported)
    data = path.with_name(path.name + ".data")
    offsets = _offsets(held)
    write_parts(data, _parts(held, offsets))
    for one in exported.values():
        _place(one, lambda name, key: _reference(name, held[key], data.name, offsets[key]))
    _write(exported)
    return (*exported, data)


def _exported(
    ir: Graph | Module, path: Path, opset: int, methods: Sequence[str] | None
) -> dict[Path, Exported]:
    """Returns the models by their paths."""
    if isinstance(ir, Graph):
        return {path: to_onnx(ir, opset)}
    for name in methods or ():
        if name not in ir.methods:
            raise Error(f"{ir.name} has no method {name}; it has {', '.join(ir.methods)}.")
    found, refused = {}, None
    for name in ir.methods if methods is None else methods:
        place = path.with_name(f"{path.stem}.{name}{path.suffix}")
        try:
            found[place] = to_onnx(ir.methods[name], opset)
        except UnsupportedOpError as error:
            if methods is not None:
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    return found


def _tensors(models: Any, source: Any) -> dict[str, Any]:
    """Returns the weights of all models as tensors on the CPU, by key."""
    wanted: dict[str, Weight] = {}
    for one in models:
        wanted.update((w.key, replace(w, name=w.key)) for w in one.weights.values())
    if wanted and source is None:
        raise WeightMismatchError(
            f"The model has {len(wanted)} weights, and none were given.",
            hint="Give a checkpoint (`--weights FILE`), or leave them out as inputs of the model: "
            "graph_only=True (`--graph-only`).",
        )
    return host_tensors(source, wanted.values())


def _place(exported: Exported, make: Any) -> None:
    """Turns a model's inputs that are weights into initialisers."""
    graph = exported.model.graph
    kept = [info for info in graph.input if info.name not in exported.weights]
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(make(name, w.key) for name, w in exported.weights.items())


def _write(exported: Mapping[Path, Exported]) -> None:
    for place, one in exported.items():
        model: ModelProto = one.model
        write_atomic(place, model.SerializeToString())


# ---- external data ----


def _offsets(held: Mapping[str, Any]) -> dict[str, int]:
    offsets, end = {}, 0
    for key, tensor in held.items():
        offsets[key] = end = -(-end // _PAGE) * _PAGE
        end += tensor.numel() * tensor.element_size()
    return offsets


def _parts(held: Mapping[str, Any], offsets: Mapping[str, int]) -> Iterator[bytes | memoryview]:
    end = 0
    for key, tensor in held.items():
        yield bytes(offsets[key] - end)
        part = bytes_of(tensor)
        yield part
        end = offsets[key] + part.nbytes


def _reference(name: str, tensor: Any, location: str, offset: int) -> TensorProto:
    dtype = str(tensor.dtype).removeprefix("torch.")
    entries = {
        "location": location,
        "offset": str(offset),
        "length": str(tensor.numel() * tensor.element_size()),
    }
    return TensorProto(
        name=name,
        data_type=kind_of(dtype),
        dims=list(tensor.shape),
        data_location=TensorProto.EXTERNAL,
        external_data=[StringStringEntryProto(key=k, value=v) for k, v in entries.items()],
    )
