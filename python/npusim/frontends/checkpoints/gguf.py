"""GGUF files: a language model from one file, its weights made of ggml's blocks.

Owns what a block of each type stands for, as PyTorch code over the fields that `runtime/gguf.py`
reads (float32, in the order of operations of ggml's own dequantization, so the values are the
same), the names of tensors, and what writers of such files change: the rotary halves of Llama's
queries and keys lie interleaved, Gemma's norms have one added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npusim.errors import ExportError
from npusim.frontends.checkpoints.codes import nibbles
from npusim.frontends.checkpoints.expansion import Rewritten, Stored, expanded
from npusim.frontends.checkpoints.gguf_settings import FREQUENCIES, check_settings
from npusim.frontends.checkpoints.packing import Codes, Packing, layout_of
from npusim.ir.graph import Graph, Weight
from npusim.ir.types import TensorType
from npusim.runtime.gguf import BLOCKS, FLOATS, GgufTensor, gguf_tensors

_INTERLEAVED = ("llama", "mistral")  # model types whose queries and keys are
_ADDED = ("gemma2", "gemma3_text")  # whose norms have one added
_PLAIN = ("qwen2", "qwen3", "phi3", "stablelm", "starcoder2")
_DTYPES = {"<f2": "float16", "u1": "uint8", "i1": "int8"}


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32).unsqueeze(-1)


def _halves(data: Tensor) -> Tensor:
    """Returns the low halves of a block's bytes, then the high ones."""
    return torch.cat(nibbles(data), -1)


def _fifth(high: Tensor) -> Tensor:
    """Returns bit i of four bytes for element i, as a sixteen."""
    shifts = torch.tensor(range(8), dtype=torch.int32)
    bits = (high.to(torch.int32).unsqueeze(-1) >> shifts) & 1
    return bits.flatten(-2) * 16


def _q4_0(d: Tensor, qs: Tensor) -> Tensor:
    return _wide(d) * (_halves(qs) - 8).to(torch.float32)


def _q4_1(d: Tensor, m: Tensor, qs: Tensor) -> Tensor:
    return _wide(d) * _halves(qs).to(torch.float32) + _wide(m)


def _q5_0(d: Tensor, qh: Tensor, qs: Tensor) -> Tensor:
    return _wide(d) * ((_halves(qs) | _fifth(qh)) - 16).to(torch.float32)


def _q5_1(d: Tensor, m: Tensor, qh: Tensor, qs: Tensor) -> Tensor:
    return _wide(d) * (_halves(qs) | _fifth(qh)).to(torch.float32) + _wide(m)


def _q8_0(d: Tensor, qs: Tensor) -> Tensor:
    return _wide(d) * qs.to(torch.float32)


def _shifted(data: Tensor, chunk: int, bits: int) -> Tensor:
    """Returns codes of some bits: chunks of bytes, the lowest bits of each first, then the next."""
    shifts = torch.tensor(range(0, 8, bits), dtype=torch.int32).unsqueeze(-1)
    chunks = data.to(torch.int32).unflatten(-1, (-1, 1, chunk))
    return ((chunks >> shifts) & ((1 << bits) - 1)).flatten(-3)


def _grouped(d: Tensor, scales: Tensor, codes: Tensor) -> Tensor:
    """Returns (d * scale) * code in groups."""
    factors = (_wide(d) * scales.to(torch.float32)).unsqueeze(-1)
    return factors * codes.unflatten(-1, (scales.shape[-1], -1)).to(torch.float32)


def _q2_k(scales: Tensor, qs: Tensor, d: Tensor, dmin: Tensor) -> Tensor:
    low, high = nibbles(scales)
    least = (_wide(dmin) * high.to(torch.float32)).unsqueeze(-1)
    return (_grouped(d, low, _shifted(qs, 32, 2)) - least).flatten(-2)


def _q3_k(hmask: Tensor, qs: Tensor, scales: Tensor, d: Tensor) -> Tensor:
    low = torch.cat(nibbles(scales[..., :8]), -1)
    factors = (low | (_shifted(scales[..., 8:], 4, 2) << 4)) - 32
    codes = _shifted(qs, 32, 2) - ((_shifted(hmask, 32, 1) ^ 1) << 2)
    return _grouped(d, factors, codes).flatten(-2)


def _six_bits(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the scales and the minima of eight groups, of six bits each, from twelve bytes."""
    first, second, third = scales.to(torch.int32).unflatten(-1, (3, 4)).unbind(-2)
    factors = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), -1)
    least = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), -1)
    return factors, least


def _q4_k(d: Tensor, dmin: Tensor, scales: Tensor, qs: Tensor) -> Tensor:
    factors, least = _six_bits(scales)
    low = (_wide(dmin) * least.to(torch.float32)).unsqueeze(-1)
    return (_grouped(d, factors, _shifted(qs, 32, 4)) - low).flatten(-2)


def _q5_k(d: Tensor, dmin: Tensor, scales: Tensor, qh: Tensor, qs: Tensor) -> Tensor:
    factors, least = _six_bits(scales)
    low = (_wide(dmin) * least.to(torch.float32)).unsqueeze(-1)
    codes = _shifted(qs, 32, 4) | (_shifted(qh, 32, 1) << 4)
    return (_grouped(d, factors, codes) - low).flatten(-2)


def _q6_k(ql: Tensor, qh: Tensor, scales: Tensor, d: Tensor) -> Tensor:
    codes = (_shifted(ql, 64, 4) | (_shifted(qh, 32, 2) << 4)) - 32
    return _grouped(d, scales, codes).flatten(-2)


_VALUES: dict[str, Callable[..., Tensor]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k,
    "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


@dataclass(frozen=True)
class _Expand:
    kind: str
    heads: int  # of the rotary rows that lie interleaved; 0: none do
    added: float

    def __call__(self, *fields: Tensor) -> Tensor:
        values = _VALUES[self.kind](*fields).flatten(-2) if self.kind in _VALUES else fields[0]
        values = _apart(values, self.heads)
        return values - self.added if self.added else values


@dataclass(frozen=True)
class _Codes:
    """The codes and scales of Q4_0, which are those of int4 in groups of 32."""

    heads: int

    def __call__(self, d: Tensor, qs: Tensor) -> Codes:
        return _apart(_halves(qs).flatten(-2), self.heads), _apart(d, self.heads), None


def _apart(rows: Tensor, heads: int) -> Tensor:
    """Returns rows with the halves of a rotated head one after the other; 0: as they are."""
    if not heads:
        return rows
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def gguf_dtype(path: Path) -> str:
    """Returns the dtype to compute in: of the floats that most bytes are, bfloat16 for blocks.

    Blocks are scaled by float16, and what comes out has its range, not more: bfloat16 holds what a
    model makes of it, whose largest values often pass float16.
    """
    bytes_of: Counter[str] = Counter()
    for tensor in gguf_tensors(path).values():
        bytes_of[tensor.kind] += tensor.data.nbytes
    (kind, _), *_ = bytes_of.most_common(1) or [("F32", 0)]
    return {"F32": "float32", "F64": "float32", "F16": "float16"}.get(kind, "bfloat16")


def stored_in_gguf(config: Any, path: Path) -> Rewritten:
    """Returns what makes graphs read the tensors of a GGUF file.

    Args:
        config: the model's, of transformers.
        path: the file.

    Raises:
        ExportError: an architecture or a type of blocks that is not read. What is returned raises
            it for a weight without a tensor, or with one of another shape.
    """
    kind = str(getattr(config, "model_type", ""))
    if kind not in (*_INTERLEAVED, *_ADDED, *_PLAIN):
        raise ExportError(
            f"GGUF files of {kind} are not read: their writer may change tensors on the way.",
            hint=f"Read are {', '.join(sorted((*_INTERLEAVED, *_ADDED, *_PLAIN)))}; "
            "other models from safetensors.",
        )
    tensors = gguf_tensors(path)
    for name, tensor in tensors.items():
        if tensor.kind not in FLOATS and tensor.kind not in BLOCKS:
            raise ExportError(
                f"The tensor {name} is of the type {tensor.kind}, which is not read.",
                hint=f"Read are {', '.join((*FLOATS, *BLOCKS))}.",
            )
    check_settings(config, path)
    names = _names(kind, int(config.num_hidden_layers))

    def rewritten(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
        weights = {weight.key: weight for graph in graphs.values() for weight in graph.weights}
        stored, missing, found_names = {}, [], set[str]()
        for key, weight in weights.items():
            named = map(names, (key, *weight.aliases))
            found = next((name for name in named if name in tensors), None)
            if found is not None:
                stored[key] = _stored(found, tensors[found], weight, config, kind)
                found_names.add(found)
            elif weight.persistent:
                missing.append(key)
        if missing:
            raise ExportError(f"{path} has no tensor for {', '.join(missing[:3])}.")
        used = {FREQUENCIES, *found_names}
        unused = [name for name in tensors if name not in used and "attn_rot_embd" not in name]
        if unused:
            raise ExportError(
                f"{path} has tensors that {kind} does not read: {', '.join(unused[:3])}.",
                hint="The file is of another model than its configuration says.",
            )
        return {name: expanded(graph, stored) for name, graph in graphs.items()}

    return rewritten


def _names(kind: str, layers: int) -> Any:
    """Returns what turns a key of transformers into the name of a tensor."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    known = {"mistral": "llama", "gemma3_text": "gemma3"}
    wanted = known.get(kind, kind)
    arch = next((arch for arch, name in MODEL_ARCH_NAMES.items() if name == wanted), None)
    if arch is None:
        raise ExportError(f"The package gguf does not know {wanted}.")
    table = get_tensor_name_map(arch, layers)

    def name(key: str) -> str:
        base, _, last = key.rpartition(".")
        return f"{table.get_name(base)}.{last}"

    return name


def _stored(name: str, tensor: GgufTensor, weight: Weight, config: Any, kind: str) -> Stored:
    if tensor.shape != weight.type.shape:
        raise ExportError(
            f"The tensor {name} is {list(tensor.shape)}, and {weight.key} is "
            f"{list(weight.type.shape)}."
        )
    heads = 0
    if kind in _INTERLEAVED and (".attn_q." in name or ".attn_k." in name):
        keys = ".attn_k." in name
        heads = int(config.num_key_value_heads if keys else config.num_attention_heads)
    added = 1.0 if kind in _ADDED and name.endswith("norm.weight") else 0.0
    if tensor.kind in FLOATS:
        held = {name: TensorType("float32", tensor.shape)}
    else:
        size, fields = BLOCKS[tensor.kind]
        shape = (*tensor.shape[:-1], tensor.shape[-1] // size)
        held = {
            f"{name}.{field}": TensorType(_DTYPES[dtype], shape if n == 1 else (*shape, n))
            for field, dtype, n in fields
        }
    packing = None
    if tensor.kind == "Q4_0" and not added and len(tensor.shape) == 2:
        how = layout_of(tensor.shape[1] // 32, tensor.shape[1], zeros=False)
        packing = Packing(how, _Codes(heads)) if how else None
    return Stored(held, _Expand(tensor.kind, heads, added), packing)
