"""What the folder of a model says about how its weights are stored.

Owns the choice of the scheme, by `quantization_config` of the configuration, and the reading of
the checkpoint's headers: which tensors there are, of what types. No weight is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from npusim.errors import Error, ExportError, first_line
from npusim.frontends.checkpoints.awq import Awq
from npusim.frontends.checkpoints.bits_and_bytes import BitsAndBytes
from npusim.frontends.checkpoints.compressed_tensors import CompressedTensors
from npusim.frontends.checkpoints.expansion import Rewritten, Stored, expanded
from npusim.frontends.checkpoints.float8 import Fp8
from npusim.frontends.checkpoints.gptq import Gptq
from npusim.ir.graph import Graph, Weight
from npusim.ir.types import TensorType

_METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq")

# safetensors' names of dtypes -> ours
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "U16": "uint16", "U32": "uint32",
    "U64": "uint64",
}  # fmt: skip


class Scheme(Protocol):
    """One way of storing weights."""

    def stored(
        self, key: str, type: TensorType, tensors: Mapping[str, TensorType]
    ) -> Stored | None:
        """Returns what a checkpoint holds for a weight; None: the weight itself.

        Args:
            key: of the weight, `<module>.weight`.
            type: of the weight as the graph reads it.
            tensors: what the checkpoint has.
        """
        ...


def stored_in_folder(config: Any, source: object) -> Rewritten | None:
    """Returns what makes graphs read a quantized checkpoint; None: its weights are floats.

    Args:
        config: the model's, of transformers.
        source: where the model came from; a folder holds the checkpoint.

    Raises:
        ExportError: the way of storing is not known, or there are no tensors to look at. What is
            returned raises it where they do not make the weights.
    """
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    as_dict = quantization if isinstance(quantization, Mapping) else quantization.to_dict()
    if not isinstance(source, (str, Path)) or not Path(source).is_dir():
        raise ExportError(
            f"The model's weights are quantized ({_method(as_dict)}), and its tensors tell how.",
            hint="Pass the folder that holds config.json and the checkpoint.",
        )
    files = _Files(Path(source))
    scheme = scheme_of(as_dict, files.state)

    def rewritten(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
        weights = {weight.key: weight for graph in graphs.values() for weight in graph.weights}
        stored = _all_stored(scheme, weights.values(), files.tensors)
        return {name: expanded(graph, stored) for name, graph in graphs.items()}

    return rewritten


def _method(config: Mapping[str, Any]) -> str:
    return str(config.get("quant_method", "")).rpartition(".")[2].lower().replace("_", "-")


def scheme_of(config: Mapping[str, Any], state: Callable[[str], Mapping[str, Any]]) -> Scheme:
    """Returns the scheme that a `quantization_config` names.

    Args:
        config: it.
        state: reads a JSON object that lies in a tensor of bytes, by the tensor's key.

    Raises:
        ExportError: the method, or what it says of itself, is not known.
    """
    method = _method(config)
    if method == "awq":
        return Awq(config)
    if method == "gptq":
        return Gptq(config)
    if method == "compressed-tensors":
        return CompressedTensors(config)
    if method == "fp8":
        return Fp8(config)
    if method == "bitsandbytes":
        return BitsAndBytes(config, state)
    raise ExportError(
        f"The model's weights are quantized by {method or 'an unnamed method'!r}.",
        hint=f"Read are {', '.join(_METHODS)}, GGUF files, and weights as floats.",
    )


def _all_stored(
    scheme: Scheme, weights: Iterable[Weight], tensors: Mapping[str, TensorType]
) -> dict[str, Stored]:
    found, missing = {}, []
    for weight in weights:
        keys = (weight.key, *weight.aliases)
        for key in keys:
            stored = scheme.stored(key, weight.type, tensors)
            if stored is not None:
                found[weight.key] = stored
                break
        else:
            if weight.persistent and not any(key in tensors for key in keys):
                missing.append(weight.key)
    if missing:
        more = f", and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ExportError(
            f"The checkpoint holds nothing for {', '.join(missing[:3])}{more}.",
            hint="Its tensors are stored in a way that is not known here.",
        )
    return found


class _Files:
    """The safetensors of a folder, by their headers.

    Attributes:
        tensors: key -> type.
    """

    def __init__(self, folder: Path) -> None:
        from npusim.runtime.safetensors_files import safetensors_files

        self.tensors: dict[str, TensorType] = {}
        self._holders: dict[str, Path] = {}
        try:
            for file in safetensors_files(folder):
                self._add(file)
        except Error as error:
            raise ExportError(
                f"{folder} holds a quantized model without its tensors: {error}"
            ) from error
        except Exception as error:  # a damaged file, in the library's own words
            raise ExportError(f"{folder} cannot be read: {first_line(error)}") from error

    def _add(self, file: Path) -> None:
        from safetensors import safe_open

        with safe_open(str(file), framework="numpy") as opened:
            for key in opened.keys():  # noqa: SIM118 (no mapping)
                part = opened.get_slice(key)
                dtype = _DTYPES.get(part.get_dtype(), part.get_dtype())
                self.tensors[key] = TensorType(dtype, tuple(part.get_shape()))
                self._holders[key] = file

    def state(self, key: str) -> Mapping[str, Any]:
        """Returns the JSON object in a tensor of bytes."""
        from safetensors import safe_open

        try:
            with safe_open(str(self._holders[key]), framework="numpy") as opened:
                found = json.loads(bytes(opened.get_tensor(key)))
        except ValueError as error:
            raise ExportError(f"{key} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ExportError(f"{key} is no JSON object.")
        return found
