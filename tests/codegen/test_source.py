"""The text NVRTC is given: parameters as constants, headers in place, programs as straight code."""

from __future__ import annotations

import math
from collections.abc import Callable

from npusim.abi.kernels import KERNELS
from npusim.binding import kernel_root
from npusim.codegen.cuda import source
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.source import kernel_source, prologue
from npusim.codegen.source import float_literal
from tests.codegen.cases import examples


def test_prologue(golden: Callable[[str], None]) -> None:
    params = {
        "batch": 2,
        "channels": 3,
        "in_size": (1, 4, 5),
        "out_size": (1, 8, -1),
        "x_strides": (60, 1, 0, 15, 3),
        "y_strides": (-(2**63), 0, 0, 0, 0),
        "scale": (1.0, 0.1, -0.0),
        "mode": 1,
        "align_corners": 0,
        "x_dtype": 0,
        "y_dtype": -(2**31),
    }
    golden(prologue(KERNELS["resize"], params))


def test_generated_pointwise(golden: Callable[[str], None]) -> None:
    """A fused chain that broadcasts, converts and divides."""
    example = next(e for e in examples("aten.div.Tensor_mode") if e.dtype == "bfloat16")
    command = example.program.methods[0].commands[0]
    source, _, _ = specialise("pointwise", command.params)
    golden(source[source.index('extern "C"') :])


def test_floats_are_exact_and_may_be_infinite() -> None:
    assert float.fromhex(float_literal(0.1, "f64")) == 0.1
    assert float_literal(math.inf, "f32") == "__builtin_bit_cast(float, 0x7f800000u)"
    assert float_literal(-math.inf, "f64") == "__builtin_bit_cast(double, 0xfff0000000000000ull)"
    assert "0x7fc00000u" in float_literal(math.nan, "f32")


def test_every_header_is_included_once() -> None:
    params = KERNELS["softmax"].unpack(bytes(KERNELS["softmax"].params_size))
    body = '#include "kernels/cuda/common/scalar.h"\n#include "kernels/cuda/common/scalar_ops.h"\n'
    source = kernel_source("softmax", params, body)
    assert source.count("struct StorageOf<0>") == 1
    assert '#include "kernels' not in source


def test_parameters_unpack_to_what_was_packed() -> None:
    kernel = KERNELS["fill"]
    params = {"element_size": 4, "rank": 2, "shape": (3, 5), "y_strides": (5, 1), "value": -7}
    unpacked = kernel.unpack(kernel.pack(params))
    assert unpacked["shape"] == (3, 5, 0, 0, 0, 0, 0, 0)
    assert unpacked["value"] == -7


def test_a_stem_has_one_source_in_whichever_folder() -> None:
    files = sorted(kernel_root().glob("cuda/**/*.cu"))
    stems = [path.stem for path in files]
    assert len(set(stems)) == len(stems)
    assert all(source.stem_source(path.stem) == path.read_text("utf-8") for path in files)
    assert source.stem_source("no_such_stem") is None
