"""ONNX files: reading, checking, and initialisers in external files.

A file is hostile until this module has let it pass: its names must be text, external data must lie
in the model's folder, and whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    checker,
    helper,
    numpy_helper,
    version_converter,
)
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from npusim.errors import ExportError
from npusim.files import printable_path, read_whole
from npusim.frontends.onnx.kinds import INTEGERS, Array

MIN_OPSET = 9
_LIMIT = (1 << 31) - 1  # bytes of a protobuf message
RUNTIME_DOMAIN = "com.microsoft"  # of ONNX Runtime

# Operators that ONNX Runtime has in ONNX's domain -> the opset that ONNX has them from, if any.
_RUNTIME_OPERATORS: dict[str, float] = {
    "LayerNormalization": 17,
    "SimplifiedLayerNormalization": math.inf,
}
_PACKED = frozenset(
    (*(kind for kind, (bits, _) in INTEGERS.items() if bits < 8), TensorProto.FLOAT4E2M1)
)


def read_model(source: str | Path | ModelProto) -> tuple[ModelProto, Path | None]:
    """Returns a checked model without its external data, and the folder that these lie in.

    Raises:
        ExportError: no ONNX model, one that breaks ONNX's rules, or of an opset not known here.
    """
    if isinstance(source, ModelProto):
        model, path = source, None
    else:
        path = Path(source)
        try:
            if path.stat().st_size > _LIMIT:
                raise ExportError(
                    f"{path} is larger than 2 GiB, which no ONNX file can be.",
                    hint="Larger models keep their weights in files beside them.",
                )
            model = onnx.load_from_string(read_whole(path))
        except (OSError, ValueError) as error:  # ValueError: a NUL character
            reason = getattr(error, "strerror", None) or str(error)
            raise ExportError(f"{printable_path(path)}: {reason}.") from None
        except DecodeError:
            raise ExportError(
                f"{path} is not an ONNX file, or only a part of one.", hint="Download it again."
            ) from None
    _refuse_names_that_are_no_text(model)
    if path is not None:
        for tensor in tensors_of(model):
            if uses_external_data(tensor):
                _locate(tensor, path.parent)
    model = _checked(model, path)
    return _of_known_opset(model), None if path is None else path.parent


def _checked(model: ModelProto, path: Path | None) -> ModelProto:
    if not model.HasField("graph") or not model.opset_import:
        raise ExportError(f"{path or 'The model'} is no ONNX model: it has no graph or no opset.")
    for opset in model.opset_import:
        newest = onnx.defs.onnx_opset_version()
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise ExportError(
                f"The model is of opset {opset.version}; the installed onnx {onnx.__version__} "
                f"knows up to {newest}.",
                hint="pip install -U onnx, or export the model for an older opset.",
            )
    given = _with_runtime_operators(model)
    try:
        checker.check_model(str(path) if path is not None and given is model else given)
    except (checker.ValidationError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ExportError(
            f"{path or 'The model'} breaks ONNX's rules: {text}",
            hint="Export it again, with a current version of the exporter.",
        ) from None
    return given


def _refuse_names_that_are_no_text(model: ModelProto) -> None:
    """Refuses bytes where ONNX's schema has text: protobuf hands them out as they are when they are
    no UTF-8, and whoever takes them for a `str` fails. Comments may hold any; nobody reads them."""
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        for field, content in message.ListFields():
            items = (content,) if isinstance(content, (str, bytes, Message)) else content
            if field.type == field.TYPE_MESSAGE:
                waiting.extend(items)
            elif field.type == field.TYPE_STRING and field.name != "doc_string":
                for text in items:
                    if not isinstance(text, str):
                        what = f"{message.DESCRIPTOR.name}.{field.name}"
                        raise ExportError(
                            f"The model holds {text[:40]!r} as a {what}, which is no UTF-8 text.",
                            hint="Export it again, with names of that encoding.",
                        )


def _with_runtime_operators(model: ModelProto) -> ModelProto:
    """Puts operators of ONNX Runtime that its optimizer leaves in ONNX's own domain into its own:
    in a copy, when there are any."""
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)

    def is_runtimes(node: NodeProto) -> bool:
        own = node.domain in ("", "ai.onnx")
        return own and version < _RUNTIME_OPERATORS.get(node.op_type, 0)

    if not any(map(is_runtimes, model.graph.node)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for node in filter(is_runtimes, copy.graph.node):
        node.domain = RUNTIME_DOMAIN
    if all(o.domain != RUNTIME_DOMAIN for o in copy.opset_import):
        copy.opset_import.append(helper.make_opsetid(RUNTIME_DOMAIN, 1))
    return copy


def _of_known_opset(model: ModelProto) -> ModelProto:
    version = next(
        (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), MIN_OPSET
    )
    if version >= MIN_OPSET:
        return model
    try:
        return version_converter.convert_version(model, MIN_OPSET)
    except Exception as error:  # the converter raises whatever its C++ code threw
        text = " ".join(str(error).split())
        raise ExportError(
            f"The model is of opset {version}, and cannot be converted to {MIN_OPSET}: {text}"
        ) from None


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Yields every tensor of a model that may have external data."""
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def array_of(tensor: TensorProto, folder: Path | None) -> Array:
    """Returns a tensor's elements; of an external file, mapped and not read."""
    if not uses_external_data(tensor):
        try:
            return numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise ExportError(f"The tensor {tensor.name} is malformed: {error}") from None
    if folder is None:
        raise ExportError(
            f"The tensor {tensor.name} is in an external file, and the model comes from memory.",
            hint="Import the model by its path.",
        )
    path, offset, length = _locate(tensor, folder)
    if tensor.data_type in _PACKED:
        whole = TensorProto()
        whole.CopyFrom(tensor)
        whole.ClearField("external_data")
        whole.data_location = TensorProto.DEFAULT
        whole.raw_data = np.memmap(path, np.uint8, "r", offset, (length,)).tobytes()
        return numpy_helper.to_array(whole)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if not length:
        return np.empty(tuple(tensor.dims), dtype)
    raw = np.memmap(path, np.uint8, "r", offset, (length,))
    return raw.view(dtype).reshape(tuple(tensor.dims))


def _locate(tensor: TensorProto, folder: Path) -> tuple[Path, int, int]:
    """Returns the file of a tensor's data, the offset and the length; checked."""
    what = f"The external data of {tensor.name}"
    try:
        info = ExternalDataInfo(tensor)
        offset = int(info.offset or 0)
        length = None if info.length is None else int(info.length)
    except (ValueError, TypeError) as error:
        raise ExportError(f"{what} is described wrongly: {error}") from None
    location = str(info.location or "")
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder.resolve()):
        raise ExportError(f"{what} is at {location!r}, outside the model's folder; refused.")
    if not path.is_file():
        raise ExportError(
            f"{what} is missing: there is no file {path}.",
            hint="Copy the data files next to the model.",
        )
    wanted = _nbytes(tensor)
    length = wanted if length is None else length
    if length != wanted:
        raise ExportError(f"{what} is {length} bytes, but its shape needs {wanted}.")
    size = path.stat().st_size
    if offset < 0 or offset + length > size:
        raise ExportError(
            f"{what} ends at byte {offset + length} of {path}, which has {size}.",
            hint="The file is truncated; download it again.",
        )
    return path, offset, length


def _nbytes(tensor: TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        if dim < 0:
            raise ExportError(f"The tensor {tensor.name} has the dimension {dim}.")
        count *= dim
    if tensor.data_type in _PACKED:
        bits = INTEGERS.get(tensor.data_type, (4, True))[0]
        return (count * bits + 7) // 8
    try:
        return count * np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    except KeyError:
        raise ExportError(f"The tensor {tensor.name} has no known type.") from None
