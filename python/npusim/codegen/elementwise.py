"""Kernels whose every output element is one expression: pointwise, copy and fill, as source text.

Owns what these kernels do; how a language writes an entry, a pointer or a barrier stands in its
`Dialect`. A pointwise command's scalar program becomes straight-line code. A thread computes one
pack of neighbours along y's innermost dimension, as wide as 16 bytes hold: operands that are
contiguous there are read, and y is written, in one access each; where a caller's memory turns out
not to be aligned for that, one by one. Strides and extents stand in the text as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from npusim.abi.kernels import RANK, Params
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, blocks, line
from npusim.codegen.pointwise_printer import Language, can_fail, statements
from npusim.ir.types import CODE_SIZES

_BLOCK = 256
_PACK_BYTES = 16
_TILE = 32  # rows and columns of a tile that a copy transposes
_MOST = 8  # elements of a pack, for the sake of registers


@dataclass(frozen=True)
class Operand:
    """A tensor the kernel reads or writes: its name and type in the text, element size, strides."""

    name: str
    type: str
    size: int
    strides: tuple[int, ...]

    @property
    def inner(self) -> int:
        """The stride of the innermost dimension."""
        return self.strides[-1]


def gpu_language(
    name: str,
    types: tuple[str, str, str],
    float32: Callable[[float], str],
    float64: Callable[[float], str],
    int64: Callable[[int], str],
    unsigned: str,
) -> Language:
    """Returns a language whose opcodes are the functions of kernels/shared/scalar_ops.h."""
    return Language(
        name=name,
        types=types,
        load="const {type} {name} = decode<{type}>({element});",
        bind="const auto {name} = {expression};",
        call="scalar::{op}({arguments})",
        failure="failure",
        powers={
            2.0: "{0} * {0}",
            3.0: "{0} * {0} * {0}",
            0.5: "scalar::sqrt({0})",
            -0.5: "scalar::rsqrt({0})",
            -1.0: "1 / {0}",
            -2.0: "1 / ({0} * {0})",
        },
        float32=float32,
        float64=float64,
        int64=int64,
        unsigned=unsigned,
    )


class Dialect(Protocol):
    """How a device's language writes what surrounds the expressions."""

    @property
    def language(self) -> Language:
        """How it writes scalar programs."""

    @property
    def group(self) -> str:
        """The number of a thread's block."""

    @property
    def thread(self) -> str:
        """A thread's number in its block."""

    @property
    def barrier(self) -> str:
        """The statement where the threads of a block meet."""

    def tile(self, type: str, rows: int, columns: int) -> str:
        """Returns the declaration of `tile`, in memory that a block shares."""

    def pointer(self, operand: Operand, writes: bool) -> str:
        """Returns the statement that points an operand's name `<name>_at` elements behind its
        argument.
        """

    def entry(self, y: Operand, xs: Sequence[Operand], lines: Sequence[str], failure: bool) -> str:
        """Returns the text of a kernel: entry, arguments and body.

        Args:
            failure: it has the argument through which it reports failures.
        """


@dataclass(frozen=True)
class _Space:
    """What a kernel iterates over: y comes first among the operands.

    Attributes:
        pack: elements of the innermost dimension that a thread computes.
    """

    shape: tuple[int, ...]
    y: Operand
    xs: tuple[Operand, ...]
    pack: int

    @property
    def packs(self) -> int:
        return prod(self.shape[:-1]) * blocks(self.shape[-1], self.pack)

    @property
    def has_tail(self) -> bool:
        """Whether the last pack of a row is shorter."""
        return self.shape[-1] % self.pack != 0

    @property
    def index(self) -> str:
        """The integer type that offsets fit into."""
        ends = [
            sum((n - 1) * abs(s) for n, s in zip(self.shape, operand.strides, strict=True))
            for operand in (self.y, *self.xs)
        ]
        return "int32_t" if max(*ends, prod(self.shape)) < 2**31 - _BLOCK * _MOST else "int64_t"


def _space(stem: str, p: Params) -> _Space:
    rank = max(p["rank"], 1)
    shape = tuple(p["shape"][:rank]) if p["rank"] else (1,)
    if stem == "pointwise":
        y = Operand(
            "y", f"Storage<{p['y_dtype']}>", CODE_SIZES[p["y_dtype"]], p["y_strides"][:rank]
        )
        xs = tuple(
            Operand(
                f"x{i}",
                f"Storage<{p['x_dtype'][i]}>",
                CODE_SIZES[p["x_dtype"][i]],
                p["x_strides"][i * RANK : i * RANK + rank],
            )
            for i in range(p["n_inputs"])
        )
    else:
        size = p["element_size"]
        bits = f"BitsOf<{size}>::type"
        y = Operand("y", bits, size, p["y_strides"][:rank])
        xs = (Operand("x0", bits, size, p["x_strides"][:rank]),) if stem == "copy" else ()
    return _Space(shape, y, xs, _pack(shape, y, xs))


def _pack(shape: tuple[int, ...], y: Operand, xs: Sequence[Operand]) -> int:
    """Returns the widest pack that every row, and every operand contiguous in it, divides into."""
    if y.inner != 1:
        return 1
    contiguous = [y, *(x for x in xs if x.inner == 1)]
    pack = min(_MOST, _PACK_BYTES // max(operand.size for operand in contiguous))
    rows = [s for operand in contiguous for s in operand.strides[:-1]]
    while pack > 1 and any(n % pack for n in (*rows, *(shape[-1:] if len(shape) > 1 else ()))):
        pack //= 2
    return pack


def _launch_config(stem: str) -> Rule:
    def rule(p: Params) -> LaunchConfig:
        if not all(p["shape"][: p["rank"]]):
            return LaunchConfig(())
        space = _space(stem, p)
        along = _transposed(stem, space)
        if along is not None:
            return LaunchConfig(
                (Launch((_tiles(space, along), 1, 1), (_BLOCK, 1, 1)),), defines={"BLOCK": _BLOCK}
            )
        plain = line(space.packs, _BLOCK)
        failure = stem == "pointwise" and can_fail(p)
        return LaunchConfig(plain.launches, failure=failure, defines=plain.defines)

    return rule


RULES = {stem: _launch_config(stem) for stem in ("pointwise", "copy", "fill")}


def generated_source(stem: str, p: Params, dialect: Dialect) -> str | None:
    """Returns the kernel's text after the prologue; None for a stem that has a file."""
    if stem not in RULES or not all(p["shape"][: p["rank"]]):
        return "" if stem in RULES else None
    space = _space(stem, p)
    along = _transposed(stem, space)
    if along is not None:
        return _transpose(space, along, dialect)
    if stem == "fill":
        raw = p["value"] & (2 ** (8 * space.y.size) - 1)
        value = [f"yv.at[v] = static_cast<{space.y.type}>({raw:#x}{dialect.language.unsigned});"]
    elif stem == "copy":
        value = [f"yv.at[v] = {_element(space.xs[0])};"]
    else:
        value, result = statements(p, [_element(x) for x in space.xs], dialect.language)
        value.append(f"yv.at[v] = encode<{space.y.type}>({result});")
    failure = RULES[stem](p).failure
    return _kernel(space, value, failure, dialect)


def _element(x: Operand) -> str:
    """Returns how element v of an operand's pack is written; broadcast ones have a single one."""
    return f"{x.name}v.at[{'0' if x.inner == 0 else 'v'}]"


# The loop around it


def _kernel(space: _Space, value: Sequence[str], failure: bool, dialect: Dialect) -> str:
    pack, packed = space.pack, space.pack > 1
    body = [
        f"const {space.index} item = static_cast<{space.index}>({dialect.group}) * NPUSIM_BLOCK"
        f" + {dialect.thread};",
        f"if (item >= {space.packs}) return;",
        *_offsets(space),
        dialect.pointer(space.y, writes=True),
        *(dialect.pointer(x, writes=False) for x in space.xs),
    ]
    if packed:
        checks = [f"is_packed<{pack}>({x.name})" for x in (space.y, *space.xs) if x.inner == 1]
        if space.has_tail:
            body.append(
                f"const int count = {space.shape[-1]} - inner < {pack} ? "
                f"static_cast<int>({space.shape[-1]} - inner) : {pack};"
            )
            checks.append(f"count == {pack}")
        body.append(f"const bool whole = {' && '.join(checks)};")
    for x in space.xs:
        body += _load(space, x)
    guard = "if (v < count) {" if packed and space.has_tail else "{"
    body += [
        f"Pack<{space.y.type}, {pack}> yv;",
        "#pragma unroll",
        f"for (int v = 0; v < {pack}; ++v) {guard}",
        *(f"  {line}" for line in value),
        "}",
        *_store(space),
    ]
    return dialect.entry(space.y, space.xs, body, failure)


def _offsets(space: _Space) -> list[str]:
    """Returns the statements that find a pack's place in every operand."""
    index, lines, rest = space.index, [], "item"
    last = len(space.shape) - 1
    for d in range(last, -1, -1):
        name = "inner" if d == last else f"i{d}"
        size = blocks(space.shape[d], space.pack) if d == last else space.shape[d]
        scale = f" * {space.pack}" if d == last and space.pack > 1 else ""
        if d == 0:
            lines.append(f"const {index} {name} = {rest}{scale};")
        else:
            lines.append(
                f"const {index} {name} = {rest} % {size}{scale}, rest{d} = {rest} / {size};"
            )
            rest = f"rest{d}"
    for operand in (space.y, *space.xs):
        terms = [
            f"{'inner' if d == last else f'i{d}'} * {stride}"
            for d, stride in enumerate(operand.strides)
            if stride != 0 and space.shape[d] != 1
        ]
        lines.append(f"const {index} {operand.name}_at = {' + '.join(terms) or '0'};")
    return lines


def _load(space: _Space, x: Operand) -> list[str]:
    v, pack = f"{x.name}v", space.pack
    if x.inner == 0:
        return [f"Pack<{x.type}, 1> {v};", f"{v}.at[0] = *{x.name};"]
    lines = [f"Pack<{x.type}, {pack}> {v}{'{}' if space.has_tail else ''};"]
    if pack == 1:
        return [*lines, f"{v}.at[0] = *{x.name};"]
    bound = "count" if space.has_tail else str(pack)
    one_by_one = (
        "#pragma unroll",
        f"for (int v = 0; v < {pack}; ++v) if (v < {bound}) {v}.at[v] = {x.name}[v * {x.inner}];",
    )
    if x.inner != 1:
        return [*lines, *one_by_one]
    return [*lines, f"if (whole) {v} = load_pack<{pack}>({x.name});", "else {", *one_by_one, "}"]


def _store(space: _Space) -> list[str]:
    if space.pack == 1:
        return ["*y = yv.at[0];"]
    bound = "count" if space.has_tail else str(space.pack)
    return [
        "if (whole) store_pack(y, yv);",
        "else {",
        "#pragma unroll",
        f"for (int v = 0; v < {space.pack}; ++v) if (v < {bound}) y[v] = yv.at[v];",
        "}",
    ]


# Copies that transpose


def _transposed(stem: str, space: _Space) -> int | None:
    """Returns the dimension x is contiguous along, where y is along the last: tiles serve both."""
    if stem != "copy" or space.y.inner != 1 or space.shape[-1] < _TILE // 2:
        return None
    x = space.xs[0]
    for d, (size, stride) in enumerate(zip(space.shape[:-1], x.strides[:-1], strict=True)):
        if stride == 1 and size >= _TILE // 2 and x.inner != 1:
            return d
    return None


def _tiles(space: _Space, along: int) -> int:
    others = prod(n for d, n in enumerate(space.shape[:-1]) if d != along)
    return blocks(space.shape[-1], _TILE) * blocks(space.shape[along], _TILE) * others


def _transpose(space: _Space, along: int, dialect: Dialect) -> str:
    """Returns a kernel that passes tiles through shared memory, reading and writing along rows."""
    x, y, size, last = space.xs[0], space.y, space.shape[along], space.shape[-1]
    lines = [
        dialect.tile(x.type, _TILE, _TILE + 1),
        f"const int64_t column = {dialect.group} % {blocks(last, _TILE)} * {_TILE};",
        f"int64_t item = {dialect.group} / {blocks(last, _TILE)};",
        f"const int64_t row = item % {blocks(size, _TILE)} * {_TILE};",
        f"item /= {blocks(size, _TILE)};",
        "int64_t x0_at = 0, y_at = 0;",
    ]
    for d in range(len(space.shape) - 2, -1, -1):
        if d != along:
            lines += [
                f"x0_at += item % {space.shape[d]} * {x.strides[d]};",
                f"y_at += item % {space.shape[d]} * {y.strides[d]};",
                f"item /= {space.shape[d]};",
            ]
    lines += [
        dialect.pointer(x, writes=False),
        dialect.pointer(y, writes=True),
        f"const int lane = {dialect.thread} % {_TILE}, first = {dialect.thread} / {_TILE};",
        "#pragma unroll",
        f"for (int i = first; i < {_TILE}; i += NPUSIM_BLOCK / {_TILE}) {{",
        f"  if (row + lane < {size} && column + i < {last})",
        f"    tile[i][lane] = x0[row + lane + (column + i) * {x.inner}];",
        "}",
        dialect.barrier,
        "#pragma unroll",
        f"for (int i = first; i < {_TILE}; i += NPUSIM_BLOCK / {_TILE}) {{",
        f"  if (row + i < {size} && column + lane < {last})",
        f"    y[(row + i) * {y.strides[along]} + column + lane] = tile[lane][i];",
        "}",
    ]
    return dialect.entry(y, space.xs, lines, failure=False)


def indented(lines: Sequence[str]) -> str:
    """Returns a body's text; directives stand at the margin."""
    return "\n".join(line if line.startswith("#") else f"  {line}" for line in lines)
