"""The text NVRTC is given: parameters as constants, headers in place, programs as straight code."""

from __future__ import annotations

import math
from collections.abc import Callable

from npusim.abi.kernels import KERNELS
from npusim.binding import kernel_root
from npusim.codegen.cuda import source
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.source import kernel_source, prologue
from npusim.codegen.metal import source as metal_source
from npusim.codegen.source import float_literal, inlined
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
    shared = sorted(kernel_root().glob("gpu/**/*.gpu"))
    for device, pattern in ((source, "cuda/**/*.cu"), (metal_source, "metal/**/*.metal")):
        files = [*shared, *kernel_root().glob(pattern)]
        stems = [path.stem for path in files]
        assert len(set(stems)) == len(stems)
        assert all(device.stem_source(path.stem) == path.read_text("utf-8") for path in files)
        assert device.stem_source("no_such_stem") is None


def test_a_shared_text_takes_each_devices_headers() -> None:
    text = '#include "kernels/device/entry.h"\n'
    for device, pointer in (("cuda", "void* const*"), ("metal", "device void* const thread*")):
        seen: set[str] = set()
        assert f"using Arguments = {pointer};" in inlined(text, seen, device)
        assert f"kernels/{device}/common/scalar.h" in seen


def test_entries_of_shared_texts_wait_for_the_launches_before() -> None:
    params = KERNELS["resize"].unpack(bytes(KERNELS["resize"].params_size))
    text = kernel_source("resize", params, source.stem_source("resize") or "")
    assert "NPUSIM_ENTRY {\n  npusim::launch_dependents();\n  npusim::wait_on" in text


def test_fields_of_parameters_are_no_words_of_msl() -> None:
    params = KERNELS["pool"].unpack(bytes(KERNELS["pool"].params_size))
    text = metal_source.kernel_source("pool", params, "int n = params.kernel[1];\n", {}, ())
    assert "int64_t kernel_size[3];" in text
    assert "int n = params.kernel_size[1];" in text
    words = {"vertex", "fragment", "device", "constant", "thread", "threadgroup", "half", "uint"}
    assert not words & {name for kernel in KERNELS.values() for name, _, _ in kernel.fields}
