"""CUDA C++ as generated kernels are written in it."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.codegen.elementwise import Operand, gpu_language, indented
from npusim.codegen.source import float_literal


def _integer(value: int) -> str:
    """Returns a constant expression of an int64_t; the least one has no literal."""
    return f"int64_t{{{value}LL}}" if value > -(2**63) else "kSmallest"


CUDA = gpu_language(
    name="CUDA",
    types=("float", "double", "int64_t"),
    float32=lambda value: float_literal(value, "f32"),
    float64=lambda value: float_literal(value, "f64"),
    int64=_integer,
    unsigned="ULL",
)


class CudaDialect:
    """`codegen.elementwise.Dialect` says what each member is."""

    language = CUDA
    group, thread, barrier = "blockIdx.x", "threadIdx.x", "__syncthreads();"

    def tile(self, type: str, rows: int, columns: int) -> str:
        """Returns the declaration of `tile`."""
        return f"__shared__ {type} tile[{rows}][{columns}];"

    def pointer(self, operand: Operand, writes: bool) -> str:
        """Returns the statement that points an operand's name into its memory."""
        name, const = operand.name, "" if writes else "const "
        return (
            f"{const}auto* {name} = static_cast<{const}{operand.type}*>({name}_memory) + {name}_at;"
        )

    def entry(self, y: Operand, xs: Sequence[Operand], lines: Sequence[str], failure: bool) -> str:
        """Returns the text of a kernel."""
        names = [*(f"const void* {x.name}_memory" for x in xs), f"void* {y.name}_memory"]
        if failure:
            names.append("Failure* failure")
        return (
            '#include "kernels/cuda/common/scalar_ops.h"\n'
            "using namespace npusim;\n"
            'extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)\n'
            f"npusim_kernel({', '.join(names)}) {{\n{indented(lines)}\n}}\n"
        )


DIALECT = CudaDialect()
