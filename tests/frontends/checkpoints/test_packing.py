"""Codes of checkpoints that stay codes: where a layout of npusim's has the same arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import npusim
from npusim.frontends.checkpoints.expansion import Stored, expanded
from npusim.frontends.checkpoints.folder import scheme_of
from npusim.ir.types import TensorType
from tests.frontends.checkpoints import models

KEY, N, K = "m.weight", 16, 256


def types(**shapes: tuple[str, tuple[int, ...]]) -> dict[str, TensorType]:
    return {f"m.{name}": TensorType(*type) for name, type in shapes.items()}


def awq(k: int = K, group: int = 64, scales: str = "float16") -> dict[str, TensorType]:
    return types(
        qweight=("int32", (k, N // 8)),
        qzeros=("int32", (k // group, N // 8)),
        scales=(scales, (k // group, N)),
    )


def gptq(**more: tuple[str, tuple[int, ...]]) -> dict[str, TensorType]:
    return types(
        qweight=("int32", (K // 8, N)), qzeros=("int32", (2, N // 8)), scales=("float16", (2, N)),
        **more,
    )  # fmt: skip


def packed(groups: int, **more: tuple[str, tuple[int, ...]]) -> dict[str, TensorType]:
    scale = ("float16", (N, groups))
    return types(weight_packed=("int32", (N, K // 8)), weight_scale=scale, **more)


def bytes_with(
    scale: tuple[int, ...], **more: tuple[str, tuple[int, ...]]
) -> dict[str, TensorType]:
    return types(weight=("int8", (N, K)), weight_scale=("bfloat16", scale), **more)


def floats_with(scale: tuple[int, ...], name: str = "weight_scale") -> dict[str, TensorType]:
    return types(weight=("float8_e4m3fn", (N, K)), **{name: ("float32", scale)})


_FLOATS = {"quant_method": "compressed-tensors", "format": "float-quantized"}
_PACK = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
_BYTES = {"quant_method": "compressed-tensors", "format": "int-quantized"}
_GPTQ = {"quant_method": "gptq", "bits": 4}


def stored(config: dict[str, Any], tensors: dict[str, TensorType], k: int = K) -> Stored:
    scheme = scheme_of(config, lambda key: {})
    found = scheme.stored(KEY, TensorType("float32", (N, k)), tensors)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "tensors", "layout"),
    [
        ({"quant_method": "awq"}, awq(), ("int4-asymmetric", 64)),
        ({"quant_method": "awq"}, awq(group=256), ("int4-asymmetric", 128)),
        ({"quant_method": "awq"}, awq(scales="bfloat16"), None),
        ({"quant_method": "awq"}, awq(group=16), None),
        ({**_GPTQ, "checkpoint_format": "gptq_v2"}, gptq(), ("int4-asymmetric", 128)),
        (_GPTQ, gptq(), None),  # zero points up to 16
        ({**_GPTQ, "checkpoint_format": "gptq_v2"}, gptq(g_idx=("int32", (K,))), None),
        (_PACK, packed(8), ("int4", 32)),
        (_PACK, packed(1), ("int4", 128)),
        (_PACK, packed(8, weight_zero_point=("int32", (N // 8, 8))), ("int4-asymmetric", 32)),
        (_PACK, packed(8, weight_g_idx=("int32", (K,))), None),
        (_BYTES, bytes_with((N, 1)), ("int8", 0)),
        (_BYTES, bytes_with((1,)), ("int8", 0)),
        (_BYTES, bytes_with((N, 2)), None),
        (_FLOATS, floats_with((N, 1)), ("fp8", 0)),
        (_FLOATS, floats_with((1,)), ("fp8", 0)),
        (_FLOATS, floats_with((N, 2)), None),
        ({"quant_method": "fp8"}, floats_with((1,), "weight_scale_inv"), ("fp8", 0)),
        (
            {"quant_method": "fp8", "weight_block_size": [8, 128]},
            floats_with((2, 2), "weight_scale_inv"),
            None,
        ),
        (_BYTES, bytes_with((N, 1), weight_zero_point=("int8", (N, 1))), None),
    ],
)
def test_layouts_of_the_same_arithmetic(
    config: dict[str, Any], tensors: dict[str, TensorType], layout: tuple[str, int] | None
) -> None:
    packing = stored(config, tensors).packing
    assert (None if packing is None else (packing.how.format, packing.how.group)) == layout


def drawn(tensors: dict[str, TensorType]) -> dict[str, torch.Tensor]:
    """Returns random words and bytes, and scales near 1/100."""
    torch.manual_seed(0)
    made = {}
    for key, type in tensors.items():
        dtype = getattr(torch, type.dtype)
        if type.dtype == "float8_e4m3fn":
            drawn_bytes = torch.randint(0, 256, type.shape).to(torch.uint8)
            drawn_bytes[drawn_bytes % 128 == 127] = 128  # the negative zero in place of NaN
            made[key] = drawn_bytes.view(dtype)
        elif dtype.is_floating_point:
            made[key] = (0.01 + 0.01 * torch.rand(type.shape)).to(dtype)
        else:
            low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
            made[key] = torch.randint(low, high + 1, type.shape).to(dtype)
    return made


def elements(found: Stored, data: dict[str, torch.Tensor]) -> npt.NDArray[np.float32]:
    """Returns the weight that tensors of a checkpoint stand for."""
    given = (data[key] for key in found.tensors)
    as_read = (x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x for x in given)
    return found.expand(*as_read).to(torch.float32).numpy()


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"quant_method": "awq"}, awq()),
        ({**_GPTQ, "checkpoint_format": "gptq_v2"}, gptq()),
        (_PACK, packed(1, weight_zero_point=("int32", (N // 8, 1)))),
        (_BYTES, bytes_with((N, 1))),  # -128 among the codes
        (_BYTES, bytes_with((1,))),
        (_FLOATS, floats_with((N, 1))),
        ({"quant_method": "fp8"}, floats_with((1,), "weight_scale_inv")),
    ],
)
def test_products_multiply_the_codes_themselves(
    config: dict[str, Any], tensors: dict[str, TensorType]
) -> None:
    found, data = stored(config, tensors), drawn(tensors)
    program = npusim.compile(expanded(models.linear(KEY, N, K), {KEY: found}))
    assert "quantized_linear" in {kernel.name for kernel in program.kernels}
    wanted = elements(found, data)
    session = npusim.load(program, data)
    (y,) = session(np.eye(K, dtype=np.float32))
    np.testing.assert_allclose(y.T, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_a_float_code_that_is_no_number_is_none_in_its_row(byte: int) -> None:
    found = stored(_FLOATS, floats_with((1,)))
    data = drawn(dict(found.tensors) | floats_with((1,)))
    data["m.weight"].view(torch.uint8)[3, 200] = byte
    (y,) = npusim.load(npusim.compile(expanded(models.linear(KEY, N, K), {KEY: found})), data)(
        np.eye(K, dtype=np.float32)
    )
    wanted = elements(found, data)
    assert np.isnan(wanted).sum() == 1 and np.isnan(y.T[3]).all()
    others = np.arange(N) != 3
    most = np.abs(wanted[others]).max()
    np.testing.assert_allclose(y.T[others], wanted[others], rtol=0, atol=1e-6 * most)


def test_other_users_get_the_elements() -> None:
    tensors = awq()
    found, data = stored({"quant_method": "awq"}, tensors), drawn(tensors)

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.m = torch.nn.Linear(K, N, bias=False, device="meta")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.m.weight.sum(0)

    graph = npusim.extract_ir(Sum().eval(), torch.empty(2, K))
    program = npusim.compile(expanded(graph, {KEY: found}))
    assert "quantized_linear" not in {kernel.name for kernel in program.kernels}
    (y,) = npusim.load(program, data)(np.zeros((2, K), np.float32))
    wanted = found.expand(*(data[key] for key in found.tensors)).sum(0).numpy()
    np.testing.assert_allclose(y[0], wanted, rtol=0, atol=1e-5)
