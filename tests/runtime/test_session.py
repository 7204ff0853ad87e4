"""Calling a program like a function: which arrays go in, which come out, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim import _runtime
from tests.runtime import programs


@pytest.fixture(params=_runtime.isa_names())
def device(request: pytest.FixtureRequest) -> Iterator[npusim.Device]:
    yield npusim.Device("cpu", threads=2, isa=request.param)


def close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def session_of(program: npusim.CompiledProgram) -> npusim.Session:
    return npusim.load(program, device="cpu", threads=2)


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_mlp(device: npusim.Device, rows: int) -> None:
    state = programs.mlp_weights((40, 100, 33, 16))
    session = npusim.load(programs.mlp(rows, (40, 100, 33, 16)), state, device)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((rows, 40)).astype(np.float32)
        (y,) = session(x)
        close(y, programs.mlp_reference(state, x))


def test_a_saved_program_runs_from_its_path(tmp_path: Path) -> None:
    state = programs.mlp_weights()
    path = tmp_path / "model.npubin"
    programs.mlp().save(path)
    x = np.ones((1, 16), np.float32)
    for form in (path, str(path), npusim.CompiledProgram.load(path)):
        (y,) = npusim.load(form, state)(x)
        close(y, programs.mlp_reference(state, x))


def test_inputs_by_position_and_by_name() -> None:
    session = session_of(programs.swap(3))
    p, q = np.arange(3, dtype=np.float32), np.full(3, 9, np.float32)
    for first, second in (session(p, q), session(p, q=q), session(q=q, p=p)):
        assert (first == q).all() and (second == p).all()


def test_the_same_array_twice() -> None:
    x = np.arange(5, dtype=np.float32)
    first, second = session_of(programs.swap(5))(x, x)
    assert (first == x).all() and (second == x).all()
    assert not np.shares_memory(first, second)


def test_outputs_are_fresh_arrays() -> None:
    session = session_of(programs.identity((4,)))
    x = np.arange(4, dtype=np.float32)
    (first,) = session(x)
    (second,) = session(x + 1)
    assert (first == x).all() and (second == x + 1).all()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::2],
        lambda x: x[::-1, :8],
        lambda x: np.asfortranarray(x[:, :8]),
        lambda x: x.astype(">f4")[:, :8],
        lambda x: np.frombuffer(b"\0" + x[:, :8].tobytes(), np.uint8)[1:].view(np.float32)
        .reshape(6, 8),
    ],
    ids=["strided", "reversed", "fortran", "big-endian", "unaligned"],
)  # fmt: skip
def test_arrays_of_any_layout(view) -> None:
    x = view(np.arange(96, dtype=np.float32).reshape(6, 16))
    (y,) = session_of(programs.identity((6, 8)))(x)
    assert (y == x).all() and y.flags.c_contiguous


def test_read_only_input() -> None:
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    (y,) = session_of(programs.identity((4,)))(x)
    assert (y == x).all()


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_dtypes(dtype: str) -> None:
    x = np.array([0, 1, 1, 0, 1], dtype)
    (y,) = session_of(programs.identity((5,), dtype))(x)
    assert y.dtype == x.dtype and (y == x).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "bool"])
def test_results_print_as_numpys_own(dtype: str) -> None:
    """NumPy has two types that it calls int64; results are of the one that arrays have."""
    torch = pytest.importorskip("torch")
    given = np.array([[0, 1, 1]], dtype)

    class Twice(torch.nn.Module):
        def forward(self, x):
            return torch.cat([x, x], 0)

    ir = npusim.extract_ir(Twice().eval(), (torch.from_numpy(given),))
    session = npusim.load(npusim.compile(ir))
    truth = np.concatenate([given, given], 0)
    wide = np.concatenate([given, given], 1)[:, ::2]  # strided: not served by the fast path
    assert not wide.flags.c_contiguous
    for x, wanted in ((given, truth), (wide, np.concatenate([wide, wide], 0))):
        (result,) = session(x)
        assert result.dtype.char == wanted.dtype.char
        assert repr(result) == repr(wanted)


def test_bfloat16_shows_as_float32_in_numpy() -> None:
    session = session_of(programs.identity((6,), "bfloat16"))
    x = np.array([1.0, 1.0039062, -3.0e38, 3.4e38, np.inf, np.nan], np.float32)
    (y,) = session(x)
    torch = pytest.importorskip("torch")
    assert y.dtype == np.float32
    expected = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("shape", [(), (0,), (6,), (2, 3)])
def test_arrays_of_ml_dtypes_bfloat16_come_back_as_such(shape: tuple[int, ...]) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    session = session_of(programs.identity(shape, "bfloat16"))
    values = np.resize(np.array([1.0, -0.0, 3e38, np.inf, np.nan, 1e-40], np.float32), shape)
    x = values.astype(bfloat16)
    swapped = np.asfortranarray(x).reshape(
        shape
    )  # strided where it has two dimensions: the long way
    for (y,) in (session(x), session(x=x), session(swapped)):
        assert y.dtype == bfloat16 and y.shape == shape and y.base is not x
        np.testing.assert_array_equal(y.view(np.uint16), x.view(np.uint16))
    assert session(values)[0].dtype == np.float32, "as it was given"
    with pytest.raises(npusim.ShapeError, match="float16"):
        session(values.astype(np.float16))


def test_ml_dtypes_may_be_imported_after_a_session_was_made() -> None:
    code = """
import sys
import numpy as np
from tests.runtime import programs
from tests.runtime.test_session import session_of
session = session_of(programs.identity((3,), "bfloat16"))
assert session(np.ones(3, np.float32))[0].dtype == np.float32 and "ml_dtypes" not in sys.modules
import ml_dtypes
for _ in range(2):
    assert session(np.ones(3, ml_dtypes.bfloat16))[0].dtype == ml_dtypes.bfloat16
    assert session(np.ones(3, np.float32))[0].dtype == np.float32
"""
    pytest.importorskip("ml_dtypes")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_scalars_and_empty_tensors(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 7, np.float32)
    (y,) = session_of(programs.identity(shape))(x)
    assert y.shape == shape and (y == x).all()


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")
    for dtype in ("float32", "float16", "bfloat16", "int64", "uint8", "bool"):
        session = session_of(programs.identity((2, 3), dtype))
        x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, dtype))
        (y,) = session(x)
        assert isinstance(y, torch.Tensor) and y.dtype == x.dtype and torch.equal(x, y)
        (y,) = session(x=x.T.contiguous().T)
        assert torch.equal(x, y)


def test_torch_tensors_that_require_grad() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    (y,) = session_of(programs.identity((3,)))(x)
    assert torch.equal(x.detach(), y) and not y.requires_grad


def test_padded_buffers() -> None:
    session = session_of(programs.identity((3, 5), alloc=(4, 8)))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    (y,) = session(x)
    assert (y == x).all()
    torch = pytest.importorskip("torch")
    (y,) = session(torch.from_numpy(x))
    assert torch.equal(y, torch.from_numpy(x))


def test_state_survives_calls_and_is_each_sessions_own() -> None:
    program = programs.memory_of_last_call(3)
    one, other = session_of(program), session_of(program)
    x = np.arange(3, dtype=np.float32)
    assert (one(x)[0] == 0).all()
    assert (one(x * 2)[0] == x).all()
    assert (one(x)[0] == x * 2).all()
    assert (other(x)[0] == 0).all()


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, ["takes 1 input", "x: float32[2, 3]", "got 0"]),
        ((np.ones((2, 3), np.float32),) * 2, {}, ["takes 1 input", "got 2"]),
        ((), {"z": 1}, ["x: float32[2, 3]", "z"]),
        ((np.ones((2, 3), np.float32),), {"x": 1}, ["takes 1 input", "got 2"]),
        ((np.ones((3, 2), np.float32),), {}, ["'x'", "[3, 2]", "[2, 3]"]),
        ((np.ones((2, 3)),), {}, ["'x'", "float64", "float32", "astype"]),
        ((np.ones((2, 3), np.int32),), {}, ["'x'", "int32", "float32", "astype"]),
        ((np.ones((2, 3), np.complex64),), {}, ["'x'", "complex64"]),
        (([[1.0, 2.0, 3.0]] * 2,), {}, ["'x'", "list", "NumPy"]),
        ((None,), {}, ["'x'", "NoneType"]),
        ((np.array([["a"] * 3] * 2),), {}, ["'x'", "str"]),
    ],
)
def test_wrong_inputs_are_refused(args, kwargs, words: list[str]) -> None:
    session = session_of(programs.identity((2, 3)))
    with pytest.raises(npusim.ShapeError) as caught:
        session(*args, **kwargs)
    for word in words:
        assert word in str(caught.value)


def test_wrong_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    session = session_of(programs.identity((2, 3)))
    for x, words in [
        (torch.ones(2, 3, device="meta"), ["meta", "no data"]),
        (torch.ones(2, 3).double(), ["float64", "x.to(torch.float32)"]),
        (torch.ones(3, 2), ["[3, 2]", "[2, 3]"]),
    ]:
        with pytest.raises(npusim.ShapeError) as caught:
            session(x)
        for word in words:
            assert word in str(caught.value)


def test_an_index_out_of_range_names_the_node(device: npusim.Device) -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    session = npusim.load(programs.lookup(), {"table": table}, device)
    assert (session(np.array([0, -1, 9]))[0] == table[[0, -1, 9]]).all()
    for bad in (10, -11, 2**62):
        with pytest.raises(npusim.Error) as caught:
            session(np.array([0, bad, 1]))
        assert "index" in str(caught.value) and "net.py:7" in str(caught.value)
        assert str(bad) in str(caught.value)
    assert (session(np.array([1, 2, 3]))[0] == table[[1, 2, 3]]).all()


def test_sessions_on_many_threads() -> None:
    state = programs.mlp_weights((64, 256, 64))
    program = programs.mlp(64, (64, 256, 64))
    device = npusim.Device("cpu", threads=3)
    weights = npusim.load_weights(state, program, device)
    wrong: list[str] = []

    def work(seed: int) -> None:
        session = npusim.load(program, weights, device)
        x = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
        expected = programs.mlp_reference(state, x)
        for _ in range(50):
            if np.abs(session(x)[0] - expected).max() > 1e-4:
                wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_session_on_two_threads_is_refused_or_right() -> None:
    state = programs.mlp_weights((256, 512, 256))
    session = npusim.load(programs.mlp(256, (256, 512, 256)), state, threads=2)
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    expected = programs.mlp_reference(state, x)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(30):
            try:
                (y,) = session(x)
            except npusim.DeviceError as error:
                if "another thread" not in str(error):
                    wrong.append(str(error))
            else:
                if np.abs(y - expected).max() > 1e-3:
                    wrong.append("wrong values")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_belong_to_the_device() -> None:
    with pytest.raises(npusim.DeviceError, match="where the device is made"):
        npusim.load(programs.identity((1,)), device=npusim.Device("cpu"), threads=2)


def test_a_session_without_init_is_refused() -> None:
    with pytest.raises(TypeError):
        npusim.Session.__new__(npusim.Session)()


def test_outputs_keep_the_keys_of_the_models_result() -> None:
    torch = pytest.importorskip("torch")
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Nested(torch.nn.Module):
        def forward(self, x, y):
            return {"b": {"top": x + 1, "all": [x * 2, y]}, "a": x.argmax(-1), 3: x - y}

    class Named(torch.nn.Module):
        def forward(self, x, y):
            return outputs.BaseModelOutput(last_hidden_state=x + y, hidden_states=(x - 1, y * 2))

    class Lone(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    wanted = {
        Nested: ("b.top", "b.all_0", "b.all_1", "a", "3"),
        Named: ("last_hidden_state", "hidden_states_0", "hidden_states_1"),
        Lone: ("output",),
    }
    x = torch.arange(6.0).reshape(2, 3)
    for kind, names in wanted.items():
        model = kind().eval()
        program = npusim.compile(npusim.extract_ir(model, (x, -x)))
        session = npusim.load(npusim.CompiledProgram.from_bytes(program.to_bytes()))
        assert session.input_names == ("x", "y")
        assert session.output_names == names
        assert tuple(spec.name for spec in program.output_specs) == names
        expected = torch.utils._pytree.tree_leaves(model(x, -x))
        for ours, truth in zip(session(x, -x), expected, strict=True):
            assert torch.equal(ours, truth)
