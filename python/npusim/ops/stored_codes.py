"""`npu.pack_codes` and `npu.stored_weight`: weights that a checkpoint stores as codes.

* `npu.pack_codes(codes, scales, zeros?)` gives uint8[bytes], a weight as `npu.quantize` would write
  it (`abi/quantization.py`): of int8 and fp8, codes int8[rows, k] and uint8[rows, k] with scales
  float32[rows, 1]; of int4,
  codes uint8[rows, k / 2] whose words lie as they are to, scales float16[rows, groups] and, with
  zero points, these as uint8[rows, groups] in sixteenths.
* `npu.stored_weight(w[rows, k], packed)` is w, whose elements the packed codes stand for, but that
  they may be rounded to w's type. `passes/quantize_weights.py` takes one form or the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npusim.abi.quantization import LINE, Quantization, quantized_bytes, sections
from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType, row_major
from npusim.lowering.context import Lowering

if TYPE_CHECKING:
    from torch import Tensor

PACK_CODES, STORED_WEIGHT = "npu.pack_codes", "npu.stored_weight"
_DTYPES = {
    "int8": ("int8", "float32"),
    "fp8": ("uint8", "float32"),
    "int4": ("uint8", "float16"),
    "int4-asymmetric": ("uint8", "float16", "uint8"),
}


def infer_pack_codes(*parts: TensorType | None, format: str, group: int, k: int) -> TensorType:
    """Returns the type of `npu.pack_codes`; ShapeError when the parts are of no such layout."""
    given = [part for part in parts if part is not None]
    how = Quantization(format, group)
    rows = given[0].shape[0] if given and given[0].rank == 2 else -1
    columns = (k if how.bytes_a_code else k // 2, how.groups(k), how.groups(k))
    wanted = [
        TensorType(dtype, (rows, count))
        for dtype, count in zip(_DTYPES.get(format, ()), columns, strict=False)
    ]
    if rows < 0 or [(x.dtype, x.shape) for x in given] != [(x.dtype, x.shape) for x in wanted]:
        raise ShapeError(
            f"{PACK_CODES}: {', '.join(map(str, given))} are not {format} of k {k}; expected "
            f"{', '.join(map(str, wanted))}."
        )
    return TensorType("uint8", (quantized_bytes(how, rows, k),))


def reference_pack_codes(*parts: Tensor | None, format: str, group: int, k: int) -> Tensor:
    """Computes `npu.pack_codes`."""
    import torch
    from torch.nn import functional as F

    how, given = Quantization(format, group), [part for part in parts if part is not None]
    rows = given[0].shape[0]
    made = []
    for part, size in zip(given, sections(how, rows, k), strict=False):
        flat = part.contiguous().view(torch.uint8).reshape(rows, -1)
        flat = F.pad(flat, (0, size // max(rows, 1) - flat.shape[1])).reshape(-1)
        made.append(F.pad(flat, (0, -flat.numel() % LINE)))
    return torch.cat([*made, torch.zeros(LINE, dtype=torch.uint8)])


def _lower_pack_codes(node: Node, low: Lowering) -> None:
    parts = [part for part in low.inputs(node) if part is not None]
    y = low.result(node.output)
    format, group, k = (node.attrs[name] for name in ("format", "group", "k"))
    assert isinstance(format, str) and isinstance(group, int) and isinstance(k, int)
    rows, offset = parts[0].shape[0], y.offset
    low.fill(y, 0)
    for part, size in zip(parts, sections(Quantization(format, group), rows, k), strict=False):
        line = size // max(rows, 1) // part.element_size
        strides = (line, 1) if line else row_major(part.shape)
        low.copy(
            part,
            replace(y, offset=offset, dtype=part.dtype, shape=part.shape, strides=strides),
        )
        offset += -(-size // LINE) * LINE


def infer_stored_weight(
    w: TensorType, packed: TensorType, /, *, format: str, group: int
) -> TensorType:
    """Returns the type of `npu.stored_weight`; ShapeError when the forms are not of one weight."""
    size = quantized_bytes(Quantization(format, group), *w.shape) if w.rank == 2 else -1
    if (packed.dtype, packed.shape) != ("uint8", (size,)):
        raise ShapeError(f"{STORED_WEIGHT}: {packed} is not {w} as {format}.")
    return w


def reference_stored_weight(w: Tensor, packed: Tensor, /, *, format: str, group: int) -> Tensor:
    """Computes `npu.stored_weight`."""
    return w


def _lower_stored_weight(node: Node, low: Lowering) -> None:
    w, _ = low.inputs(node)
    assert w is not None
    low.define(node.output, w)


def _case(how: Quantization, rows: int, k: int, *, id: str) -> Case:
    """Returns a packing of constant codes."""
    codes, scales, zeros = sections(how, rows, k)
    if how.bytes_a_code:
        least, dtype = (-128, "int8") if how.format == "int8" else (0, "uint8")
        values = tuple((at * 37 + 11) % 256 + least for at in range(rows * k))
        given = (((rows, k), (dtype, *values)), (rows, 1))
        attrs = {"format": how.format, "group": 0, "k": k}
        return Case(given, attrs, id)
    words = tuple((at * 41 + 5) % 256 for at in range(codes))
    groups = how.groups(k)
    parts: list[Any] = [
        ((rows, k // 2), ("uint8", *words)),
        ((rows, groups), ("float16", *((at % 5) * 0.25 for at in range(scales // 2)))),
    ]
    if zeros:
        parts.append(((rows, groups), ("uint8", *((at * 16) % 256 for at in range(zeros)))))
    return Case(tuple(parts), {"format": how.format, "group": how.group, "k": k}, id)


register(
    OpDef(
        PACK_CODES,
        lower=_lower_pack_codes,
        reference=reference_pack_codes,
        infer=infer_pack_codes,
        cases=(
            _case(Quantization("int8"), 5, 40, id="int8"),
            _case(Quantization("fp8"), 5, 40, id="fp8"),
            _case(Quantization("int4", 32), 3, 128, id="int4"),
            _case(Quantization("int4-asymmetric", 64), 2, 256, id="int4-asymmetric"),
        ),
        dtypes=("float32",),
    )
)
register(
    OpDef(
        STORED_WEIGHT,
        lower=_lower_stored_weight,
        reference=reference_stored_weight,
        infer=infer_stored_weight,
    )
)
