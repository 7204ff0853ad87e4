"""Small programs that ask for much."""

from __future__ import annotations

from npusim.abi.kernels import KERNELS
from npusim.program.program import (
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Kernel,
    Method,
    NodeInfo,
    Operand,
    TensorSpec,
)


def endless_sum(sums: int, count: int) -> CompiledProgram:
    """Returns a program of `sums` sums, each over one element, `count` times."""
    reduce = KERNELS["reduce"]
    params = reduce.pack(
        {
            **dict.fromkeys((name for name, _, _ in reduce.fields), 0),
            "rank": 1,
            "reduced_rank": 1,
            "shape": [sums],
            "y_strides": [1],
            "x_strides": [0],
            "reduced": [count],
            "reduced_strides": [0],
        }
    )
    buffers = (Buffer(BufferKind.INPUT, 4, 0, "x"), Buffer(BufferKind.OUTPUT, 4 * sums, 0, "y"))
    operands = (Operand(0, 0, Access.READ), Operand(1, 0, Access.WRITE))
    x = TensorSpec("x", 0, "float32", (1,), (1,))
    y = TensorSpec("y", 1, "float32", (sums,), (sums,))
    method = Method("forward", (Command(0, 0, params, operands),), (x,), (y,), 0)
    return CompiledProgram(
        target="cpu",
        kernels=(Kernel("reduce", reduce.schema),),
        buffers=buffers,
        methods=(method,),
        init=Method("init", (), (), (), 0),
        weights=(),
        nodes=(NodeInfo("sum", "aten.sum.dim_IntList", "net.py:3"),),
        constants=b"",
        persistent_bytes=0,
        state_bytes=0,
    )
