"""The Metal Shading Language as generated kernels are written in it."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.codegen.elementwise import Operand, gpu_language, indented
from npusim.codegen.metal.source import float_literal, integer_literal

METAL = gpu_language(
    name="Metal",
    types=("float", "", "int64_t"),
    float32=float_literal,
    float64=float_literal,
    int64=lambda value: integer_literal(value, 64),
    unsigned="UL",
)


class MetalDialect:
    """`codegen.elementwise.Dialect` says what each member is."""

    language = METAL
    group, thread = "group", "thread_of_group"
    barrier = "threadgroup_barrier(metal::mem_flags::mem_threadgroup);"

    def tile(self, type: str, rows: int, columns: int) -> str:
        """Returns the declaration of `tile`."""
        return f"threadgroup {type} tile[{rows}][{columns}];"

    def pointer(self, operand: Operand, writes: bool) -> str:
        """Returns the statement that points an operand's name into its memory."""
        name, const = operand.name, "" if writes else "const "
        return f"device {const}{operand.type}* {name} = {name}_memory + {name}_at;"

    def entry(self, y: Operand, xs: Sequence[Operand], lines: Sequence[str], failure: bool) -> str:
        """Returns the text of a kernel."""
        names = [f"device const {x.type}* {x.name}_memory" for x in xs]
        names.append(f"device {y.type}* {y.name}_memory")
        if failure:
            names.append("device Failure* failure")
        arguments = [f"{name} [[buffer({i})]]" for i, name in enumerate(names)]
        arguments += [
            "uint group [[threadgroup_position_in_grid]]",
            "uint thread_of_group [[thread_position_in_threadgroup]]",
        ]
        joined = ",\n    ".join(arguments)
        return (
            '#include "kernels/metal/common/scalar_ops.h"\n'
            "using namespace npusim;\n"
            f"kernel void npusim_kernel(\n    {joined}) {{\n{indented(lines)}\n}}\n"
        )


DIALECT = MetalDialect()
