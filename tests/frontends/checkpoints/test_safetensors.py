"""Quantized checkpoints of safetensors, written here by the definitions of their formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

import npusim
from npusim.frontends.checkpoints.expansion import expanded
from npusim.frontends.checkpoints.folder import scheme_of
from npusim.ir.types import TensorType
from tests.frontends.checkpoints import models

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

Store: TypeAlias = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which code lies in each place of a word


def words(codes: np.ndarray, bits: int, axis: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Returns codes packed to int32 along an axis, by integer arithmetic of Python's own width."""
    count = 32 // bits
    moved = np.moveaxis(codes.astype(np.uint64), axis, -1)
    grouped = moved.reshape(*moved.shape[:-1], -1, count)
    packed = np.zeros(grouped.shape[:-1], np.uint64)
    for place in range(count):
        code = place if order is None else order[place]
        packed |= grouped[..., code] << np.uint64(place * bits)
    signed = packed.astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(signed, -1, axis)))


def codes_of(
    weight: Tensor, bits: int, group: int, *, symmetric: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns codes [n, k], zero points and float16 scales [n, k / group]; all codes are in use."""
    n, k = weight.shape
    top = (1 << bits) - 1
    x = weight.numpy().reshape(n, k // group, group)
    scale = ((x.max(-1) - x.min(-1)) / top).astype(np.float16)
    zero = np.round(-x.min(-1) / scale.astype(np.float32)).clip(0, top)
    if symmetric:
        zero[:] = (top + 1) / 2
    codes = np.round(x / scale[..., None].astype(np.float32) + zero[..., None]).clip(0, top)
    codes, zero = codes.astype(np.int64).reshape(n, k), zero.astype(np.int64)
    codes[0, :2], codes[-1, -2:] = (0, top), (top, 0)
    if not symmetric:
        zero[0, 0], zero[-1, -1] = 0, top
    return codes, zero, scale


N, K, KEY = 128, 256, "m.weight"


def check(config: dict[str, Any], store: Store) -> None:
    """Compares one weight, bit for bit."""
    tensors, wanted = store("m.", 0.02 * torch.randn(N, K, generator=torch.manual_seed(0)))
    types = {
        key: TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for key, tensor in tensors.items()
    }
    scheme = scheme_of(config, lambda key: json.loads(bytes(tensors[key])))
    stored = scheme.stored(KEY, TensorType("float32", (N, K)), types)
    assert stored is not None
    graph = expanded(models.linear(KEY, N, K), {KEY: stored})
    np.testing.assert_array_equal(models.weight_of(graph, tensors), wanted.numpy())


def check_model(folder: Path, config: dict[str, Any], store: Store) -> None:
    """Compares the logits of a model whose projections are all stored so."""
    made = models.model()
    models.write(folder, made, config, store)
    models.near(models.computed(folder), models.expected(made))


def value(codes: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> Tensor:
    group = codes.shape[1] // scale.shape[1]
    shifted = (codes - zero.repeat(group, 1)).astype(np.float32)
    return torch.from_numpy(shifted * scale.astype(np.float32).repeat(group, 1))


@pytest.mark.parametrize("group", [32, 128])
def test_awq(group: int) -> None:
    def store(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, zero, scale = codes_of(weight, 4, group)
        tensors = {
            f"{base}qweight": words(codes.T, 4, 1, AWQ_ORDER),
            f"{base}qzeros": words(zero.T, 4, 1, AWQ_ORDER),
            f"{base}scales": torch.from_numpy(scale.T.copy()),
        }
        return tensors, value(codes, zero, scale)

    check({"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}, store)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("order", ["no groups named", "in order", "by activation"])
def test_gptq(bits: int, form: str, order: str) -> None:
    def store(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, zero, scale = codes_of(weight, bits, 64)
        columns = np.arange(weight.shape[1])
        if order == "by activation":
            np.random.default_rng(0).shuffle(columns)
        if form == "gptq":
            zero = zero.clip(1)  # is stored less one
        groups = (columns // 64).astype(np.int32)
        tensors = {
            f"{base}qweight": words(codes.T, bits, 0),
            f"{base}qzeros": words(zero.T - (form == "gptq"), bits, 1),
            f"{base}scales": torch.from_numpy(scale.T.copy()),
            f"{base}g_idx": torch.from_numpy(groups),
        }
        if order == "no groups named":
            del tensors[f"{base}g_idx"]
        shifted = (codes - zero[:, groups]).astype(np.float32)
        return tensors, torch.from_numpy(shifted * scale[:, groups].astype(np.float32))

    check(
        {"quant_method": "gptq", "bits": bits, "group_size": 64, "checkpoint_format": form}, store
    )


def packed_config(bits: int, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, **weights}}}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups,
    }  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric", "ordered", "a scale a row"])
def test_packed_compressed_tensors(bits: int, kind: str) -> None:
    def store(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        k = weight.shape[1]
        group = k if kind == "a scale a row" else 128
        codes, zero, scale = codes_of(weight, bits, group, symmetric=kind != "asymmetric")
        groups = np.arange(k) // group
        tensors = {
            f"{base}weight_packed": words(codes, bits, 1),
            f"{base}weight_scale": torch.from_numpy(scale),
            f"{base}weight_shape": torch.tensor(weight.shape),
        }
        if kind == "asymmetric":
            tensors[f"{base}weight_zero_point"] = words(zero, bits, 0)
        if kind == "ordered":
            groups = np.random.default_rng(1).permutation(groups)
            tensors[f"{base}weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        shifted = (codes - zero[:, groups]).astype(np.float32)
        return tensors, torch.from_numpy(shifted * scale[:, groups].astype(np.float32))

    check(packed_config(bits, strategy="group", group_size=128), store)


@pytest.mark.parametrize("shape", ["tensor", "channel", "group", "block"])
@pytest.mark.parametrize("form", ["int-quantized", "float-quantized"])
def test_plain_compressed_tensors(shape: str, form: str) -> None:
    block = {"tensor": None, "channel": (1, None), "group": (1, 64), "block": (128, 128)}[shape]

    def store(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        n, k = weight.shape
        rows, columns = block or (n, k)
        columns = columns or k
        scale = weight.reshape(n // rows, rows, k // columns, columns).abs().amax((1, 3))
        scale = scale / (127 if form == "int-quantized" else 448)
        wide = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        if form == "int-quantized":
            codes = (weight / wide).round().clamp(-127, 127).to(torch.int8)
            codes[0, 0] = -128
        else:
            codes = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored = scale.reshape(1) if shape == "tensor" else scale
        return {f"{base}weight": codes, f"{base}weight_scale": stored}, codes.float() * wide

    weights: dict[str, Any] = {"strategy": shape, "group_size": 64 if shape == "group" else None}
    if shape == "block":
        weights["block_structure"] = [128, 128]
    check({**packed_config(8, **weights), "format": form}, store)


def test_blocks_of_float8() -> None:
    def store(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        n, k = weight.shape
        rows, columns = (-(-size // 96) for size in (n, k))  # the last block is cut off
        wide = torch.empty(n, k)
        scale = torch.rand(rows, columns) / 100 + 1e-4
        wide[:] = scale.repeat_interleave(96, 0)[:n].repeat_interleave(96, 1)[:, :k]
        codes = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {f"{base}weight": codes, f"{base}weight_scale_inv": scale}, codes.float() * wide

    check({"quant_method": "fp8", "weight_block_size": [96, 96]}, store)


def test_every_float8() -> None:
    from npusim.frontends.checkpoints.float8 import e4m3fn

    data = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(
        e4m3fn(data), data.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("nested", [False, True])
def test_four_bits_of_bitsandbytes(nested: bool) -> None:
    rng = np.random.default_rng(2)
    table = torch.linspace(-1, 1, 16)

    def store(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes = rng.integers(0, 16, weight.numel())
        count = weight.numel() // 64
        absmax = torch.from_numpy(rng.uniform(0.01, 0.05, count).astype(np.float32))
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": [*weight.shape]}
        tensors = {f"{base}weight.quant_map": table.clone()}
        if nested:
            coarse = torch.from_numpy(rng.integers(0, 256, count).astype(np.uint8))
            nested_table = torch.linspace(0, 1, 256)
            outer = torch.full((-(-count // 256),), 0.04)
            tensors[f"{base}weight.absmax"] = coarse
            tensors[f"{base}weight.nested_absmax"] = outer
            tensors[f"{base}weight.nested_quant_map"] = nested_table
            state.update(nested_blocksize=256, nested_offset=0.011)
            spread = outer.repeat_interleave(256)[:count]
            absmax = nested_table[coarse.long()] * spread + 0.011
        else:
            tensors[f"{base}weight.absmax"] = absmax
        packed = (codes[0::2] << 4 | codes[1::2]).astype(np.uint8).reshape(-1, 1)
        tensors[f"{base}weight"] = torch.from_numpy(packed)
        text = json.dumps(state).encode()
        tensors[f"{base}weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(text)).to(
            torch.uint8
        )
        values = table[torch.from_numpy(codes)] * absmax.repeat_interleave(64)
        return tensors, values.reshape(weight.shape)

    check({"quant_method": "bitsandbytes", "load_in_4bit": True}, store)


def test_eight_bits_of_bitsandbytes() -> None:
    def store(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        row = weight.abs().amax(1)
        codes = (weight / row[:, None] * 127).round().to(torch.int8)
        return {f"{base}weight": codes, f"{base}SCB": row}, codes.float() * (row[:, None] / 127)

    check({"quant_method": "bitsandbytes", "load_in_8bit": True}, store)


# ---- what is refused ----


def unchanged(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {f"{base}weight": weight}, weight


def lost(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {f"{base}other": weight}, weight


def short(base: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    n, k = weight.shape
    tensors = {
        f"{base}qweight": torch.zeros(k, n // 16, dtype=torch.int32),
        f"{base}qzeros": torch.zeros(1, n // 16, dtype=torch.int32),
        f"{base}scales": torch.ones(1, n // 2, dtype=torch.float16),
    }
    return tensors, weight


@pytest.mark.parametrize(
    ("config", "store", "message"),
    [
        ({"quant_method": "awq", "bits": 3}, unchanged, "AWQ of 3 bits"),
        ({"quant_method": "awq", "version": "gemv"}, unchanged, "version 'gemv'"),
        ({"quant_method": "gptq", "bits": 3}, unchanged, "GPTQ of 3 bits"),
        ({"quant_method": "hqq"}, unchanged, "quantized by 'hqq'"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
          "config_groups": {"0": {}}}, unchanged, "nvfp4-pack-quantized"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, unchanged, "'e5m2'"),
        ({"quant_method": "awq"}, lost, "holds nothing for"),
        ({"quant_method": "awq"}, short, "a weight of"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(
    tmp_path: Path, config: dict[str, Any], store: Store, message: str
) -> None:
    models.write(tmp_path, models.model(), config, store)
    with pytest.raises(npusim.ExportError, match=message):
        models.computed(tmp_path)


def test_a_configuration_without_its_tensors_is_refused(tmp_path: Path) -> None:
    made = models.model()
    models.write(tmp_path, made, {"quant_method": "awq"}, unchanged)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(npusim.ExportError, match="without its tensors"):
        npusim.extract_llm(tmp_path, max_context=32)
