"""Checkpoints: every form they come in, and everything that can be wrong with them."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path

import numpy as np
import pytest

import npusim
from tests.runtime import programs


@pytest.fixture
def device() -> npusim.Device:
    return npusim.Device("cpu", threads=1)


def write_safetensors(path: Path, state: dict[str, np.ndarray]) -> Path:
    names = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64"}
    header, data = {}, b""
    for name, array in state.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": names[array.dtype.name], "shape": array.shape,
            "data_offsets": [len(data), end],
        }  # fmt: skip
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def assert_runs(source, state: dict[str, np.ndarray], device: npusim.Device) -> None:
    program = programs.mlp()
    weights = npusim.load_weights(source, program, device)
    gc.collect()
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
    (y,) = npusim.load(program, weights, device)(x)
    np.testing.assert_allclose(y, programs.mlp_reference(state, x), rtol=1e-4, atol=1e-4)


def test_safetensors_file_folder_and_shards(device: npusim.Device, tmp_path: Path) -> None:
    state = programs.mlp_weights()
    path = write_safetensors(tmp_path / "model.safetensors", state)
    assert_runs(path, state, device)
    assert_runs(tmp_path, state, device)
    folder = tmp_path / "sharded"
    folder.mkdir()
    parts = {"a.safetensors": ("w0", "b0", "w1"), "b.safetensors": ("b1", "w2", "b2")}
    for name, keys in parts.items():
        write_safetensors(folder / name, {key: state[key] for key in keys})
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {key: name for name, keys in parts.items() for key in keys}})
    )
    assert_runs(index, state, device)
    assert_runs(str(folder), state, device)


def test_state_dicts(device: npusim.Device, tmp_path: Path) -> None:
    state = programs.mlp_weights()
    assert_runs(state, state, device)
    assert_runs({k: np.asfortranarray(v) for k, v in state.items()}, state, device)
    assert_runs({k: v.astype(v.dtype.newbyteorder()) for k, v in state.items()}, state, device)
    torch = pytest.importorskip("torch")
    tensors = {k: torch.from_numpy(v) for k, v in state.items()}
    assert_runs(tensors, state, device)
    assert_runs({k: torch.stack((v, v), -1)[..., 0] for k, v in tensors.items()}, state, device)
    for suffix in (".pt", ".pth", ".bin"):
        path = tmp_path / f"model{suffix}"
        torch.save(tensors, path)
        assert_runs(path, state, device)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_float_dtypes_are_converted(device: npusim.Device, dtype: str) -> None:
    given = {k: v.astype(dtype) for k, v in programs.mlp_weights().items()}
    assert_runs(given, {k: v.astype(np.float32) for k, v in given.items()}, device)


def test_bfloat16_weights_are_converted(device: npusim.Device) -> None:
    torch = pytest.importorskip("torch")
    given = {k: torch.from_numpy(v).bfloat16() for k, v in programs.mlp_weights().items()}
    assert_runs(given, {k: v.float().numpy() for k, v in given.items()}, device)


def test_all_half_values_convert_as_numpy_does(device: npusim.Device) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    b = programs.Builder()
    y = b.output("output", (65536,))
    b.copy(b.weight("w", (65536,)), y, 65536)
    (out,) = npusim.load(b.build(), {"w": halves})()
    np.testing.assert_array_equal(out, halves.astype(np.float32))


@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_rounding_to_half_is_to_nearest_even(device: npusim.Device, target: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    random = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    near = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        ties = np.nextafter(near, np.float32(np.inf)), near * np.float32(1 + 2.0**-11)
        edges = near * np.float32(0.5)
    values = np.concatenate([random, near, *ties, edges])
    b = programs.Builder()
    y = b.output("output", values.shape, target)
    b.copy(b.weight("w", values.shape, target), y, len(values), size=2)
    (out,) = npusim.load(b.build(), {"w": values})()
    expected = torch.from_numpy(values).to(getattr(torch, target)).float().numpy()
    np.testing.assert_array_equal(out.astype(np.float32), expected)


def test_extra_tensors_are_listed(device: npusim.Device) -> None:
    state = {**programs.mlp_weights(), "z": np.ones(1), "a": np.ones(1), "step": 3}
    weights = npusim.load_weights(state, programs.mlp(), device)
    assert weights.extra == ["a", "z"]


def test_tied_weights_are_found_under_any_key(device: npusim.Device) -> None:
    b = programs.Builder()
    y = b.output("output", (4,))
    b.copy(b.weight(("embed.weight", "head.weight"), (4,)), y, 4)
    for key in ("embed.weight", "head.weight"):
        (out,) = npusim.load(b.build(), {key: np.arange(4, dtype=np.float32)})()
        assert (out == np.arange(4)).all()


def test_everything_wrong_is_listed_at_once(device: npusim.Device) -> None:
    state = programs.mlp_weights()
    del state["w0"], state["b2"]
    state["w1"] = state["w1"][:, :8]
    state["b1"] = state["b1"].astype(np.int64)
    with pytest.raises(npusim.WeightMismatchError) as caught:
        npusim.load_weights(state, programs.mlp(), device)
    message = str(caught.value)
    for words in [
        "4 tensors",
        "missing: w0",
        "missing: b2",
        "w1 is [16, 8], the program needs [16, 16]",
        "b1 is int64, the program needs float32",
    ]:
        assert words in message


def test_unknown_dtypes_are_refused_only_where_needed(device: npusim.Device) -> None:
    state = programs.mlp_weights()
    assert_runs({**state, "extra": np.ones(2, np.complex64)}, state, device)
    state["b0"] = state["b0"].astype(np.complex64)
    with pytest.raises(npusim.WeightMismatchError, match="b0 is complex64"):
        npusim.load_weights(state, programs.mlp(), device)


def test_nan_is_found_when_asked_for(device: npusim.Device) -> None:
    state = programs.mlp_weights()
    state["w1"][3, 5] = np.nan
    npusim.load_weights(state, programs.mlp(), device)
    with pytest.raises(npusim.WeightMismatchError, match="NaN: w1 at element 53"):
        npusim.load_weights(state, programs.mlp(), device, check_nan=True)


def test_missing_weights_are_refused(device: npusim.Device) -> None:
    with pytest.raises(npusim.WeightMismatchError, match="missing: w0"):
        npusim.load(programs.mlp())


def test_unreadable_checkpoints_are_refused(device: npusim.Device, tmp_path: Path) -> None:
    program = programs.mlp()
    for name in ("none.safetensors", "none.pt"):
        with pytest.raises(npusim.Error, match="none"):
            npusim.load_weights(tmp_path / name, program, device)
    (tmp_path / "short.safetensors").write_bytes(b"\1")
    with pytest.raises(npusim.Error, match="short"):
        npusim.load_weights(tmp_path / "short.safetensors", program, device)
    pytest.importorskip("torch")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(npusim.WeightMismatchError, match=r"junk\.pt"):
        npusim.load_weights(tmp_path / "junk.pt", program, device)


def test_pickles_that_run_code_are_refused(device: npusim.Device, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w0": Path(tmp_path)}, tmp_path / "evil.pt")
    with pytest.raises(npusim.WeightMismatchError, match="safely"):
        npusim.load_weights(tmp_path / "evil.pt", programs.mlp(), device)


def test_meta_tensors_are_refused(device: npusim.Device) -> None:
    torch = pytest.importorskip("torch")
    state = {k: torch.from_numpy(v) for k, v in programs.mlp_weights().items()}
    state["w0"] = state["w0"].to("meta")
    with pytest.raises(npusim.WeightMismatchError, match=r"w0.*meta"):
        npusim.load_weights(state, programs.mlp(), device)


def test_a_program_without_weights_computes_its_own(device: npusim.Device) -> None:
    b = programs.Builder()
    y = b.output("output", (4,))
    constant = b.constant(np.arange(4, dtype=np.float32))
    kept = b.buffer(programs.BufferKind.PERSISTENT, 16)
    b.copy(constant, kept, 4, init=True)
    b.copy(kept, y, 4)
    program = b.build()
    executor = npusim.Executor(program, device)
    assert (executor.run({})["output"].to_numpy() == np.arange(4)).all()
    assert (npusim.load(program)()[0] == np.arange(4)).all()
