"""The kernels a compiled program may call: their operands and parameter fields.

The single description of the boundary between compiler and kernels. `python -m
npusim.abi.header` writes it as C++ structs to `kernels/shared/abi.h` (a test keeps the two
equal); every backend implements the same stems over the same structs.

Conventions, unless a kernel says otherwise
* Strides and offsets count elements. Shapes and strides are padded with 1 and 0 to their length.
* `*_dtype` is a code of `npusim.ir.types.DTYPES`.
* Operands come inputs first, then outputs; an operand in [brackets] is present only when its flag
  field says so. Weights packed by an init command are opaque to everybody but their kernels.
* Compute is float32 for float32/float16/bfloat16 storage, float64 for float64.
* `act` is an opcode of `abi/scalar.py` applied to the result: "copy" for none, any unary float
  opcode, or "clamp" with (act_lo, act_hi).
* `residual`: 0 none, 1 added before the activation, 2 added after it; same shape as the output.
* `has_bias`: the vectors of the bias operand, 0 or 1; a convolution's may be followed by factors,
  which the sums are multiplied by (2), and offsets, which are added last of all (3):
  y = act(sum * factor + bias + residual) + offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from npusim.errors import TargetConstraintError
from npusim.ir.symbolic import is_symbolic, upper

PHASED = 2  # of conv's `transposed`
RANK = 8  # most dimensions a strided kernel iterates over (after collapsing)
POINTWISE_INPUTS = 12
POINTWISE_INSTRUCTIONS = 64
POINTWISE_REGISTERS = 16
INDEX_TENSORS = 6
LINEAR_SEGMENTS = 4
MOST_NORMED_CODES = 8192  # elements of a row of normed_quantized_linear
PAGED_STEMS = (  # over caches in pages
    *("paged_append", "paged_attention", "paged_rope_append"),
    "linear_rope_append",
)
SLOT_COLUMNS = 64  # of y, whose squares have at least one slot of linear_before_norm

Params: TypeAlias = dict[str, Any]  # the fields of a struct: int, float, or a tuple of them

_FORMATS = {"i32": ("i", 4), "i64": ("q", 8), "f32": ("f", 4), "f64": ("d", 8)}


@dataclass(frozen=True)
class KernelDef:
    """A kernel's name, operands and parameter struct.

    Attributes:
        name: the stem: `kernels/<backend>/` has the file, `abi.h` the struct.
        operands: one line for people.
        fields: (name, type) or (name, type, length) in declaration order; types i32 i64 f32 f64.
            The layout is C's: natural alignment, padded to a multiple of 8.
        generated_only: only generated device code computes it, which gets its struct with its
            parameters: `abi.h` has none.
        collective: what runs several ranks computes it, between kernels: `abi.h` has no struct, and
            no backend a kernel of its own (`cpp/runtime/ranks.h`).
        struct_of: the stem in `abi.h` whose struct it takes as its own; itself by default.
        in_place: the operands that the result may lie under, element on element, since the kernel
            reads each before it writes there. No other operand may share a byte with a result, and
            no result has two elements in one place, but for `scatter`: a backend refuses that.
    """

    name: str
    operands: str
    fields: tuple[tuple[str, str, int], ...]
    generated_only: bool = False
    struct_of: str = ""
    in_place: str = ""
    collective: bool = False

    @property
    def struct_name(self) -> str:
        """The C++ name of the parameter struct, in `npusim::abi`."""
        stem = self.struct_of or self.name
        return "".join(part.capitalize() for part in stem.split("_")) + "Params"

    @cached_property
    def schema(self) -> str:
        """The fields as text; a program carries it, and the runtime refuses another one."""
        return " ".join(f"{n}:{t}" + (f"[{c}]" if c > 1 else "") for n, t, c in self.fields)

    @cached_property
    def _layout(self) -> tuple[tuple[tuple[str, str, int, int], ...], int]:
        offset, rows = 0, []
        for name, kind, count in self.fields:
            size = _FORMATS[kind][1]
            offset = (offset + size - 1) // size * size
            rows.append((name, kind, count, offset))
            offset += size * count
        return tuple(rows), (offset + 7) // 8 * 8

    @property
    def params_size(self) -> int:
        """Bytes of the parameter struct."""
        return self._layout[1]

    def pack(self, params: Mapping[str, int | float | Sequence[int | float]]) -> bytes:
        """Returns the parameter struct as bytes.

        Symbolic sizes stand at their greatest value; see `symbolic_fields`.

        Args:
            params: a value for every scalar field; a sequence, at most as long as the field, for
                every array field. The rest of an array is zero (shapes: write all of it).

        Raises:
            KeyError: a field is missing. ValueError: an unknown field.
            TargetConstraintError: a sequence is too long, as of too many dimensions.
        """
        unknown = set(params) - {row[0] for row in self._layout[0]}
        if unknown:
            raise ValueError(f"kernel {self.name} has no parameter {sorted(unknown)}")
        out = bytearray(self.params_size)
        for name, kind, count, offset in self._layout[0]:
            given = params[name]
            values = [given] if isinstance(given, (int, float)) else list(given)
            if len(values) > count:
                raise TargetConstraintError(
                    f"The kernel {self.name} has room for {count} values of {name}; these are "
                    f"{len(values)}."
                )
            struct.pack_into(
                f"<{len(values)}{_FORMATS[kind][0]}", out, offset, *map(_greatest, values)
            )
        return bytes(out)

    def symbolic_fields(
        self, params: Mapping[str, int | float | Sequence[int | float]]
    ) -> Iterator[tuple[str, int, int]]:
        """Yields (type, byte in the struct, size) of every parameter that is a symbolic size."""
        for name, kind, count, offset in self._layout[0]:
            given = params[name]
            values = [given] if isinstance(given, (int, float)) else list(given)
            for index, value in enumerate(values[:count]):
                if is_symbolic(value):
                    yield kind, offset + index * _FORMATS[kind][1], value  # type: ignore[misc]

    def field_at(self, offset: int) -> str:
        """Returns the name of the field that byte `offset` of the parameter struct lies in."""
        return next(n for n, _, _, first in reversed(self._layout[0]) if first <= offset)

    def unpack(self, data: bytes) -> Params:
        """Returns the fields of a parameter struct: numbers, and a tuple for every array.

        Raises:
            ValueError: `data` has another length than the struct.
        """
        if len(data) != self.params_size:
            raise ValueError(f"kernel {self.name} has {self.params_size} bytes, not {len(data)}")
        fields: Params = {}
        for name, kind, count, offset in self._layout[0]:
            values = struct.unpack_from(f"<{count}{_FORMATS[kind][0]}", data, offset)
            fields[name] = values if count > 1 else values[0]
        return fields


def _greatest(value: Any) -> Any:
    """Returns the number that stands for a parameter: of a symbolic size the greatest value."""
    return upper(value) if is_symbolic(value) else value


def _def(
    name: str,
    operands: str,
    fields: str,
    *,
    generated_only: bool = False,
    struct_of: str = "",
    in_place: str = "",
    collective: bool = False,
) -> KernelDef:
    rows = []
    for item in fields.split():
        field, kind = item.split(":")
        count = 1
        if kind.endswith("]"):
            kind, length = kind[:-1].split("[")
            count = int(length)
        rows.append((field, kind, count))
    return KernelDef(name, operands, tuple(rows), generated_only, struct_of, in_place, collective)


_EPILOGUE = "has_bias:i32 residual:i32 act:i32 act_lo:f32 act_hi:f32"

# Geometry of a window kernel over up to three spatial dimensions (depth, height, width); 1-D and
# 2-D use width, or height and width, and have extent 1 elsewhere. `pad` is the front padding; the
# back padding follows from the output extent. Strides: batch, channel, depth, height, width.
_WINDOW = (
    "batch:i64 in_channels:i64 out_channels:i64 in_size:i64[3] out_size:i64[3] kernel:i64[3] "
    "stride:i64[3] pad:i64[3] dilation:i64[3] x_strides:i64[5] y_strides:i64[5]"
)

_LINEAR = (
    f"m:i64 n:i64 k:i64 ldx:i64 ldy:i64 ldr:i64 rows:i64[{LINEAR_SEGMENTS}] "
    f"ldw:i64[{LINEAR_SEGMENTS}] segments:i32 gated:i32 x_dtype:i32 w_dtype:i32 "
    f"y_dtype:i32 r_dtype:i32 {_EPILOGUE}"
)

_QUANTIZED_LINEAR = (
    f"m:i64 n:i64 k:i64 ldx:i64 ldy:i64 ldr:i64 group:i64 rows:i64[{LINEAR_SEGMENTS}] "
    f"segments:i32 gated:i32 format:i32 x_dtype:i32 y_dtype:i32 r_dtype:i32 {_EPILOGUE}"
)

_MATMUL = (
    "batch:i64[6] a_batch:i64[6] b_batch:i64[6] y_batch:i64[6] m:i64 n:i64 k:i64 "
    "a_m:i64 a_k:i64 b_k:i64 b_n:i64 y_m:i64 dtype:i32 alpha:f32"
)

KERNELS: dict[str, KernelDef] = {
    k.name: k
    for k in (
        # y[i] = program(x0[i], x1[i], …): one fused chain over a strided iteration space. Each
        # instruction is (opcode, dst, a, b, c, class) with class 0 "f", 1 "d", 2 "i"; a, b, c are
        # registers, or -1-k for constants[k]. The inputs are loaded to registers 0 … n_inputs-1
        # (x_class gives the class), the result is in register `result` of class result_class.
        _def(
            "pointwise",
            "x0 … x{n_inputs-1}, y",
            f"rank:i32 n_inputs:i32 n_instructions:i32 result:i32 result_class:i32 y_dtype:i32 "
            f"x_dtype:i32[{POINTWISE_INPUTS}] x_class:i32[{POINTWISE_INPUTS}] "
            f"shape:i64[{RANK}] y_strides:i64[{RANK}] x_strides:i64[{POINTWISE_INPUTS * RANK}] "
            f"code:i32[{POINTWISE_INSTRUCTIONS * 6}] constants:f64[{POINTWISE_INSTRUCTIONS}] "
            f"int_constants:i64[{POINTWISE_INSTRUCTIONS}]",
            in_place="x0 … x{n_inputs-1}",
        ),
        # y[i] = x[i], same dtype, any strides (0 broadcasts x; negative x strides flip: the
        # operand's offset points at element 0).
        _def(
            "copy",
            "x, y",
            f"element_size:i32 rank:i32 shape:i64[{RANK}] x_strides:i64[{RANK}] "
            f"y_strides:i64[{RANK}]",
        ),
        # y[i] = value (bits of the element in the low bytes of `value`).
        _def(
            "fill",
            "y",
            f"element_size:i32 rank:i32 shape:i64[{RANK}] y_strides:i64[{RANK}] value:i64",
        ),
        # y = reduce(x): out dimensions `shape` (with strides in x and y), reduced dimensions
        # `reduced` (with strides in x). op: 0 sum, 1 mean, 2 max, 3 min, 4 prod, 5 any, 6 all,
        # 7 argmax, 8 argmin, 9 var (divisor n - correction), 10 std, 11 sum of squares,
        # 12 l2 norm, 13 sum of absolutes, 14 logsumexp. argmax/argmin count positions in the
        # row-major order of `reduced`, the first wins, NaN wins.
        _def(
            "reduce",
            "x, y",
            f"op:i32 x_dtype:i32 y_dtype:i32 rank:i32 reduced_rank:i32 correction:f64 "
            f"shape:i64[{RANK}] x_strides:i64[{RANK}] y_strides:i64[{RANK}] "
            f"reduced:i64[{RANK}] reduced_strides:i64[{RANK}]",
        ),
        # softmax along the middle of a dense [outer, size, inner]; log: log_softmax.
        _def(
            "softmax",
            "x, y",
            "outer:i64 size:i64 inner:i64 log:i32 x_dtype:i32 y_dtype:i32",
            in_place="x",
        ),
        # Normalises each of `rows` rows of `size` contiguous elements. kind: 0 layer norm, 1 RMS
        # norm. weight, bias: [size] in w_dtype.
        _def(
            "norm",
            "x, [weight], [bias], y",
            "kind:i32 rows:i64 size:i64 x_row_stride:i64 y_row_stride:i64 eps:f64 "
            "has_weight:i32 has_bias:i32 x_dtype:i32 w_dtype:i32 y_dtype:i32",
            in_place="x",
        ),
        # Group norm; spatial dimensions collapsed to one. Strides: batch, channel, spatial.
        # weight, bias: [channels] in w_dtype.
        _def(
            "group_norm",
            "x, [weight], [bias], y",
            "batch:i64 channels:i64 spatial:i64 groups:i64 x_strides:i64[3] y_strides:i64[3] "
            "eps:f64 has_weight:i32 has_bias:i32 x_dtype:i32 w_dtype:i32 y_dtype:i32 act:i32",
        ),
        # Packs B for `gemm` and `conv`: source element (g, n, t, c) at g*g_stride + n*n_stride +
        # t*t_stride + c*c_stride becomes [groups][ceil(n/16)][taps*channels][16], zero-padded,
        # in y_dtype. k = tap * channels + channel.
        _def(
            "pack_b",
            "w, packed",
            "groups:i64 n:i64 taps:i64 channels:i64 g_stride:i64 n_stride:i64 t_stride:i64 "
            "c_stride:i64 x_dtype:i32 y_dtype:i32",
        ),
        # y[m, n] = act(x[m, k] · B + bias + residual): B packed by pack_b (groups 1); bias is
        # float32[n]; rows have stride ldx, ldy, ldr and contiguous elements.
        _def(
            "gemm",
            "x, packed B, [bias], [residual], y",
            "m:i64 n:i64 k:i64 ldx:i64 ldy:i64 ldr:i64 x_dtype:i32 b_dtype:i32 y_dtype:i32 "
            f"r_dtype:i32 {_EPILOGUE}",
            in_place="residual",
        ),
        # Convolution as an indirect GEMM. w packed by pack_b (taps = kd*kh*kw, channels =
        # in_channels/groups). The channel stride of y and of the residual is 1, x's may be
        # anything. bias float32[has_bias][out_channels]. transposed: the gradient form
        # (aten.conv_transpose), weight element (g, n, t, c) packed accordingly. PHASED: all phases
        # of that, each a plain convolution of step 1; kernel, out_size, y_strides and r_strides are
        # a phase's, w has the phases in place of groups, by their first taps, the last tap first.
        _def(
            "conv",
            "x, packed w, [bias], [residual], y",
            f"{_WINDOW} r_strides:i64[5] groups:i64 transposed:i32 x_dtype:i32 w_dtype:i32 "
            f"y_dtype:i32 r_dtype:i32 {_EPILOGUE}",
            in_place="residual",
        ),
        # Depthwise convolution (groups = in_channels = out_channels); w is dense [taps][channels]
        # in w_dtype; x, y and the residual have channel stride 1.
        _def(
            "conv_depthwise",
            "x, w, [bias], [residual], y",
            f"{_WINDOW} r_strides:i64[5] x_dtype:i32 w_dtype:i32 y_dtype:i32 r_dtype:i32 "
            f"{_EPILOGUE}",
            in_place="residual",
        ),
        # Transforms w[n, c, 3, 3] (strides in elements) for conv_winograd: packed float32
        # [(tile+2)^2][ceil(n/16)][c][16].
        _def(
            "winograd_weights",
            "w, packed",
            "n:i64 channels:i64 tile:i32 x_dtype:i32 n_stride:i64 c_stride:i64 h_stride:i64 "
            "w_stride:i64",
        ),
        # 3x3 stride-1 convolution, F(tile x tile, 3x3) (Lavin & Gray, arXiv:1509.09308); operands
        # and layout as conv with groups 1.
        _def(
            "conv_winograd",
            "x, packed w, [bias], [residual], y",
            f"{_WINDOW} r_strides:i64[5] tile:i32 x_dtype:i32 y_dtype:i32 r_dtype:i32 {_EPILOGUE}",
            in_place="residual",
        ),
        # y[…, m, n] = alpha * a[…, m, k] · b[…, k, n] over up to six batch dimensions (outermost
        # first; stride 0 broadcasts). Strides are free for a and b; y's n stride is 1. Any dtype,
        # the same one for a, b and y; integers accumulate in int64.
        _def("matmul", "a, b, y", _MATMUL),
        # The same of bfloat16 or float16, whose sums stay as they are: y is float32.
        _def("widening_matmul", "a, b, y", _MATMUL, struct_of="matmul"),
        # Products of consecutive groups of a's rows, each with a b of its own: batch[5] counts the
        # groups and b_batch[5] their matrices, every other batch is 1. Row r of a belongs to the
        # first group whose int32 in `offsets` is greater than r; a row after all of them is 0.
        _def("grouped_matmul", "a, b, offsets, y", _MATMUL, struct_of="matmul"),
        # y = softmax(cap(scale * q·kᵀ) + mask, causal) · v. Strides: batch, head, position; the
        # last dimension is contiguous. kv_heads divides heads. mask: bool (True: attend) or float
        # (added), strides batch, head, query, key. causal: query i sees keys <= i + offset, and
        # with window > 0 only the last `window` of these. offset is causal_offset, or with
        # has_position the int64 that the operand holds when the command runs: k and v are then a
        # cache of kv_len rows of which the first position + q_len are in use (more than kv_len is
        # an error of the run). softcap c > 0: cap(s) = c * tanh(s / c), else cap(s) = s. A row
        # that sees nothing is 0.
        _def(
            "attention",
            "q, k, v, [mask], [position], y",
            "batch:i64 heads:i64 kv_heads:i64 q_len:i64 kv_len:i64 head_dim:i64 v_dim:i64 "
            "q_strides:i64[3] k_strides:i64[3] v_strides:i64[3] y_strides:i64[3] "
            "mask_strides:i64[4] causal_offset:i64 window:i64 has_mask:i32 mask_dtype:i32 "
            "causal:i32 has_position:i32 dtype:i32 scale:f32 softcap:f32",
        ),
        # Attention over a cache in pages, for rows of many requests. Row t belongs to the request
        # requests[t] (int64; -1: nothing is computed, y is 0) and lies at positions[t] (int64): it
        # sees the keys 0 … positions[t], with window > 0 the last `window` of them. Key j lies in
        # row j % page_tokens of page tables[request][j / page_tokens] (int64). Strides: of q and y
        # head, row; of k and v page, head, row. What a row is depends on its keys and its position
        # alone. A request, a position or a page outside is an error of the run.
        _def(
            "paged_attention",
            "q, k, v, positions, requests, tables, y",
            "heads:i64 kv_heads:i64 length:i64 head_dim:i64 v_dim:i64 pages:i64 page_tokens:i64 "
            "requests:i64 table_length:i64 window:i64 q_strides:i64[2] k_strides:i64[3] "
            "v_strides:i64[3] y_strides:i64[2] dtype:i32 scale:f32 softcap:f32",
        ),
        # Rows x[heads, length, head_dim] to a cache in pages: row t to row positions[t] %
        # page_tokens of the page that the table of its request names (paged_attention); -1: to
        # none. The other rows of y are kept. Strides: of x head, row; of y page, head, row.
        _def(
            "paged_append",
            "x, positions, requests, tables, y",
            "heads:i64 length:i64 head_dim:i64 pages:i64 page_tokens:i64 requests:i64 "
            "table_length:i64 x_strides:i64[2] y_strides:i64[3] dtype:i32",
        ),
        # `rope` of q and k, and `paged_append` of the turned k and of v, in one: y is the turned q.
        # Strides: head, row; of pools page, head, row; of cos and sin row.
        _def(
            "paged_rope_append",
            "q, k, v, cos, sin, positions, requests, tables, y, k_pool, v_pool",
            "heads:i64 kv_heads:i64 length:i64 head_dim:i64 v_dim:i64 rotary_dim:i64 pages:i64 "
            "page_tokens:i64 requests:i64 table_length:i64 q_strides:i64[2] k_strides:i64[2] "
            "v_strides:i64[2] y_strides:i64[2] k_pool_strides:i64[3] v_pool_strides:i64[3] "
            "cs_strides:i64[2] interleaved:i32 dtype:i32 cs_dtype:i32",
            generated_only=True,
        ),
        # What `rope` and `attention` do for one new token of each batch item, in one: q and k are
        # rotated (as `rope` does, cos and sin of [batch, rotary_dim]), k and v go to row `position`
        # of the caches of `limit` rows, and q attends the rows up to there, with window > 0 the
        # last `window` of them. Strides: batch, head; those of the caches: batch, head, position.
        # A position outside is an error of the run.
        _def(
            "attention_step",
            "q, k, v, cos, sin, position, k_cache, v_cache, y",
            "batch:i64 heads:i64 kv_heads:i64 head_dim:i64 v_dim:i64 rotary_dim:i64 limit:i64 "
            "window:i64 q_strides:i64[2] k_strides:i64[2] v_strides:i64[2] k_cache_strides:i64[3] "
            "v_cache_strides:i64[3] y_strides:i64[2] cs_strides:i64[2] interleaved:i32 dtype:i32 "
            "cs_dtype:i32 scale:f32 softcap:f32",
            generated_only=True,
        ),
        # Rotary position embedding (Su et al., arXiv:2104.09864) of up to three tensors at once,
        # and the append to a cache. Part i: y_i[b, h, at + t, :] = rotate_i ? rope(x_i[b, h, t, :])
        # : x_i[b, h, t, :], with at = at_position_i ? position : 0. rope turns the first
        # rotary_dim elements, pairs (j, j + rotary_dim/2), or (2j, 2j+1) if interleaved:
        # a' = a*cos_a - b*sin_a, b' = b*cos_b + a*sin_b, with cos, sin of [batch, length,
        # rotary_dim] (strides batch, position) at the element's own place. Strides: batch, head,
        # position; the last dimension is contiguous. y_i with at_position_i has limit_i rows, of
        # which the others are kept; a position outside is an error of the run.
        _def(
            "rope",
            "x0 … x{parts-1}, cos, sin, [position], y0 … y{parts-1}",
            "batch:i64 length:i64 rotary_dim:i64 heads:i64[3] head_dim:i64[3] limit:i64[3] "
            "x_strides:i64[9] y_strides:i64[9] cs_strides:i64[4] rotate:i32[3] "
            "at_position:i32[3] parts:i32 has_position:i32 interleaved:i32 dtype:i32 cs_dtype:i32",
            in_place="x{i} under y{i}, without at_position_i",
        ),
        # y[m, n] = act(x[m, k] · Wᵀ + bias + residual) over weights as a checkpoint stores them:
        # row-major [rows_i][k] segments with row stride ldw_i, whose rows follow one another.
        # gated: W has 2n rows, y = act(x · W[:n]ᵀ + bias[:n]) * (x · W[n:]ᵀ + bias[n:]), no
        # residual. bias is float32. Products of bfloat16 accumulate in float32.
        _def(
            "linear",
            "x, w0 … w{segments-1}, [bias], [residual], y",
            _LINEAR,
            in_place="residual",
        ),
        # linear of the RMS norm of x, x / sqrt(mean(x²) + norm_eps) * norm[k] in float32; norm has
        # w_dtype.
        _def(
            "normed_linear",
            "x, w0 … w{segments-1}, norm, [bias], [residual], y",
            f"{_LINEAR} norm_eps:f32",
            generated_only=True,
            in_place="residual",
        ),
        # The same in two commands, of rows of bfloat16 that a product makes. The first is linear,
        # and leaves scaled = y * norm[n], rounded, and squares[slots][m] in float32: the squares of
        # a row of y add up to the sum of its slots, in an order of the kernel's. The second is
        # linear of x = scaled, whose rows of sums it multiplies by
        # 1 / sqrt(sum(squares) / k + norm_eps) before anything is added. slots is even.
        _def(
            "linear_before_norm",
            "x, w0 … w{segments-1}, norm, [bias], [residual], y, scaled, squares",
            f"{_LINEAR} slots:i64",
            generated_only=True,
            in_place="residual",
        ),
        _def(
            "linear_behind_norm",
            "scaled, w0 … w{segments-1}, squares, [bias], [residual], y",
            f"{_LINEAR} slots:i64 norm_eps:f32",
            generated_only=True,
            in_place="residual",
        ),
        # linear, or with slots linear_behind_norm, whose columns are the queries of `heads`, then
        # the keys and the values of `kv_heads` heads of 16-bit floats, each head_dim columns; and
        # paged_rope_append of them, rounded: y is the turned queries. Neither gated nor with a
        # residual or an activation. length is m.
        _def(
            "linear_rope_append",
            "x, w0 … w{segments-1}, [squares], [bias], cos, sin, positions, requests, tables, y, "
            "k_pool, v_pool",
            f"{_LINEAR} slots:i64 norm_eps:f32 heads:i64 kv_heads:i64 length:i64 head_dim:i64 "
            "pages:i64 page_tokens:i64 requests:i64 table_length:i64 y_strides:i64[2] "
            "k_pool_strides:i64[3] v_pool_strides:i64[3] cs_strides:i64[2] dtype:i32 cs_dtype:i32",
            generated_only=True,
        ),
        # A step of a recurrence (ops/recurrent_step.py), over W of `units` rows for each gate of
        # the cell: 0 plain, of one gate, 1 GRU, of reset, update and candidate, 2 LSTM, of input,
        # forget, cell and output; `gates` has their places in W. y is of x · Wᵀ + bias, the addend
        # and, but where plain, the last state; an LSTM's state is left in new. act: opcode, of
        # plain ones. bias is float32; all else has dtype. ld…: strides of rows.
        _def(
            "recurrent_step",
            "x, w, [bias], [addend], [state], y, [new]",
            "m:i64 units:i64 k:i64 ldx:i64 ldw:i64 lda:i64 lds:i64 ldy:i64 ld_new:i64 gates:i32[4] "
            "cell:i32 act:i32 has_bias:i32 has_addend:i32 dtype:i32",
            generated_only=True,
        ),
        # All steps of a recurrence of so many units (ops/recurrence.py), over W of `units` rows for
        # each gate: sums of what comes from outside, one after the other or in `reverse`, the rows
        # and an LSTM's cell before the first step, dense, the rows of all steps, and an LSTM's
        # last cell, dense. …_step, …_row: strides; the rest as recurrent_step has it.
        _def(
            "recurrence",
            "sums, w, [bias], hidden, [state], y, [new]",
            "steps:i64 m:i64 units:i64 ldw:i64 sums_step:i64 sums_row:i64 y_step:i64 y_row:i64 "
            "gates:i32[4] cell:i32 act:i32 reverse:i32 has_bias:i32 dtype:i32",
        ),
        # y[b] = act(w[m, k] · x[b][k, n] + bias[m] + residual[b]): a linear along x's last
        # dimension but one (ops/token_mixing.py). Columns are contiguous; ld…: strides of rows,
        # x_batch …: of items. Rows of w have zeros behind them up to ldw, where that is a multiple
        # of eight. bias is float32; all else has dtype.
        _def(
            "token_mixing",
            "x, w, [bias], [residual], y",
            "batch:i64 m:i64 n:i64 k:i64 ldx:i64 ldw:i64 ldy:i64 ldr:i64 x_batch:i64 y_batch:i64 "
            f"r_batch:i64 x_dtype:i32 w_dtype:i32 y_dtype:i32 r_dtype:i32 {_EPILOGUE}",
            generated_only=True,
            in_place="residual",
        ),
        # Weight-only quantization of w[rows, k]: the opaque operand of quantized_linear. format:
        # 1 int8 with one scale a row; 2 int4 symmetric, 3 int4 with zero points, both with one
        # scale for each `group` elements of a row. Sizes: abi/quantization.py.
        _def(
            "quantize",
            "w, quantized",
            "rows:i64 k:i64 ldw:i64 group:i64 format:i32 x_dtype:i32",
        ),
        # linear over segments written by `quantize`.
        _def(
            "quantized_linear",
            "x, q0 … q{segments-1}, [bias], [residual], y",
            _QUANTIZED_LINEAR,
            in_place="residual",
        ),
        # quantized_linear of the RMS norm of one row of x of 16-bit floats, as normed_linear is
        # linear's; norm has x_dtype. k is a multiple of 8 and at most MOST_NORMED_CODES.
        _def(
            "normed_quantized_linear",
            "x, q0 … q{segments-1}, norm, [bias], [residual], y",
            f"{_QUANTIZED_LINEAR} norm_eps:f32",
            generated_only=True,
            in_place="residual",
        ),
        # Packs 8-bit B for `conv_int8`: source element (g, n, t, c), as in pack_b, becomes the
        # signed byte e (uint8: minus 128) in [groups][ceil(n/16)][ceil(taps*channels/4)][16][4],
        # zero-padded, k = tap * channels + channel; int32[groups][ceil(n/16)][16] sums of e over k
        # follow. depthwise (groups 1, channels 1): [ceil(n/64)][ceil(taps/4)][64][4], columns of a
        # block in an order of the instruction set, then the sums of all blocks' columns, in theirs.
        _def(
            "pack_int8",
            "w, packed",
            "groups:i64 n:i64 taps:i64 channels:i64 g_stride:i64 n_stride:i64 t_stride:i64 "
            "c_stride:i64 x_dtype:i32 depthwise:i32",
        ),
        # Convolution of 8-bit integers, exact in int32 (sums wrap): with x_zero (one element of
        # x_dtype, what padding counts as, too) and w_zeros of w_dtype (0, 1 or out_channels),
        # s = Σ (x - x_zero)(w - w_zero) + sum_bias (int32[out_channels]). Then, as y_dtype says:
        # * int32: y = s.
        # * float: y = act(s * scale + bias + residual), with `scales` (1 or out_channels) float32.
        # * int8, uint8: v = s * scale + bias counts steps of y, y = saturate(round(v) + y_zero),
        #   rounding half to even; act is "copy", or "relu": y >= y_zero; or any other one, of
        #   v = act(s * scale + bias) * t0, which has one float32 term. A residual of r_dtype int8
        #   or uint8 is added with five float32 terms, the last of which has y_zero in it:
        #   y = saturate(round(round(clamp(v, t0, t1)) * t2 + residual * t3 + t4)).
        #   With requantization (a code of abi/requantization.py, which has the arithmetic) all that
        #   is done by integers; there is no bias then, and t4 is the zero point of the residual.
        # x and y of group g begin at g * x_group and g * y_group; the channel stride of y and of
        # the residual is 1. A product of matrices is a convolution of width m without taps.
        _def(
            "conv_int8",
            "x, packed w, [x_zero], [w_zeros], [scale], [sum_bias], [bias], [residual], [terms], "
            "[y_zero], y",
            f"{_WINDOW} r_strides:i64[5] groups:i64 x_group:i64 y_group:i64 w_zeros:i64 scales:i64 "
            "depthwise:i32 x_dtype:i32 w_dtype:i32 y_dtype:i32 r_dtype:i32 has_x_zero:i32 "
            f"has_sum_bias:i32 has_y_zero:i32 requantization:i32 {_EPILOGUE}",
            in_place="residual",
        ),
        # op: 0 max, 1 average. adaptive: window i is [floor(i*in/out), ceil((i+1)*in/out)) per
        # dimension, and kernel, stride, pad are ignored. Average divides by `divisor` if not 0, by
        # the window clipped to the padded input if count_include_pad, else by the valid elements.
        # out_channels equals in_channels. has_indices (max, int64): position in the row-major
        # input plane, NaN wins, the first wins; same strides as y.
        _def(
            "pool",
            "x, y, [indices]",
            f"{_WINDOW} op:i32 adaptive:i32 count_include_pad:i32 has_indices:i32 divisor:i64 "
            "x_dtype:i32 y_dtype:i32",
        ),
        # y[o] = x[Σ_d o_d·x_strides_d + Σ_k wrap(idx_k[Σ_d o_d·idx_strides_k_d])·k_stride_k]:
        # embedding, index, index_select, gather. An index is below |k_size|; a negative one
        # counts from the end where k_size is positive. One out of range is an error of the run.
        # Index dtype int64, int32 or uint8.
        _def(
            "index",
            "x, idx0 … idx{n-1}, y",
            f"element_size:i32 idx_dtype:i32 n:i32 rank:i32 shape:i64[{RANK}] "
            f"x_strides:i64[{RANK}] y_strides:i64[{RANK}] "
            f"idx_strides:i64[{INDEX_TENSORS * RANK}] k_size:i64[{INDEX_TENSORS}] "
            f"k_stride:i64[{INDEX_TENSORS}]",
        ),
        # The inverse: y[…] (op)= src[o], iterating o in row-major order. mode: 0 set, 1 add,
        # 2 mul, 3 max, 4 min. y holds the starting value already. Strides of y as x's above.
        _def(
            "scatter",
            "src, idx0 … idx{n-1}, y (read and written)",
            f"mode:i32 dtype:i32 idx_dtype:i32 n:i32 rank:i32 shape:i64[{RANK}] "
            f"src_strides:i64[{RANK}] y_strides:i64[{RANK}] "
            f"idx_strides:i64[{INDEX_TENSORS * RANK}] k_size:i64[{INDEX_TENSORS}] "
            f"k_stride:i64[{INDEX_TENSORS}]",
        ),
        # mode: 0 nearest, 1 linear (1-3 dimensions), 2 cubic (height and width), 3 nearest-exact.
        # scale is input/output per dimension as PyTorch computes it, for the mode at hand.
        # Strides as in _WINDOW.
        _def(
            "resize",
            "x, y",
            "batch:i64 channels:i64 in_size:i64[3] out_size:i64[3] x_strides:i64[5] "
            "y_strides:i64[5] scale:f64[3] mode:i32 align_corners:i32 x_dtype:i32 y_dtype:i32",
        ),
        # Inclusive scan along the middle of a dense [outer, size, inner]. op: 0 sum, 1 prod,
        # 2 max, 3 min, 4 logsumexp.
        _def("scan", "x, y", "outer:i64 size:i64 inner:i64 op:i32 x_dtype:i32 y_dtype:i32"),
        # The k first elements of a stable sort along the middle of a dense [outer, size, inner];
        # descending: 1 for the largest first. NaN counts as the largest. values keep x's dtype,
        # indices are int64, both dense [outer, k, inner].
        _def(
            "sort",
            "x, values, indices",
            "outer:i64 size:i64 inner:i64 k:i64 descending:i32 dtype:i32",
        ),
        # One step of generating: puts `token` into row length - 1 of `history`, and draws the next
        # token from the scores of `size` tokens, given the `length` tokens of the history, as
        # kernels/shared/sampling.h says. `options` are five float64: temperature, top k, top p,
        # min p, repetition penalty; `seed` (int64) belongs to length 0. `token` becomes the next
        # one (0 where there is none), `chosen` says it too, or -1. The history has `capacity` rows.
        _def(
            "sample",
            "logits, options, seed, length, token (read and written), history (same), chosen",
            "size:i64 capacity:i64 dtype:i32",
        ),
        # Of ranks that run one program: y[rank] = x of that rank, `bytes` each, on every rank.
        _def("all_gather", "x, y", "bytes:i64 ranks:i64", collective=True),
        # y = the sum of all ranks' x, added in the order of the ranks in float32 (float64, int64)
        # and rounded; then, if there is one, plus the residual, and rounded. Alike on every rank.
        _def(
            "all_reduce",
            "x, residual (if any), y",
            "elements:i64 ranks:i64 dtype:i32 residual:i32",
            collective=True,
        ),
    )
}
