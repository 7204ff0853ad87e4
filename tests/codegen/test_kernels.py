"""CUDA kernels compile for every architecture without spilling, and compute what PyTorch does.

No GPU is needed: NVRTC compiles, and a host compiler runs the same sources (`host_cuda.h`). On a
GPU, `pytest tests/conformance --device cuda` runs all cases.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.cuda.variants import CLUSTER
from npusim.selftest.single_op import assert_close, reference
from tests.codegen import host
from tests.codegen.cases import Example, between_ranks, examples, models, spread
from tests.codegen.ptxas import SPILLED, spilled

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
_PART = 12  # of the others, three of so many are compiled in CI
_CODES = ("quantized_linear", "normed_quantized_linear")


@functools.cache
def kernels() -> tuple[list[host.Key], list[host.Key]]:
    """Returns some kernels of every stem, and all others of the test programs."""
    some = [*host.keys_of(example.program for example in spread(2)), *between_ranks()]
    known = set(some)
    programs = (*models(), *(example.program for example in examples()))
    return some, [key for key in host.keys_of(programs) if key not in known]


@pytest.mark.parametrize(
    "arch",
    [pytest.param(arch, marks=[pytest.mark.long] * (arch != "sm_90a")) for arch in ARCHITECTURES],
)
def test_kernels_compile_without_spilling(arch: str, compiler: nvrtc.Nvrtc) -> None:
    """Some of every stem for each architecture, and of all others a part for each."""
    some, others = kernels()
    assert {stem for stem, _ in (*some, *others)} >= RULES.keys()
    check_spilling(some + others[ARCHITECTURES.index(arch) :: _PART], arch, compiler)


@pytest.mark.long
@pytest.mark.parametrize("arch", (*ARCHITECTURES, "sm_120"))
def test_all_kernels_compile_without_spilling(arch: str, compiler: nvrtc.Nvrtc) -> None:
    some, others = kernels()
    check_spilling(some + others, arch, compiler)


def check_spilling(keys: list[host.Key], arch: str, compiler: nvrtc.Nvrtc) -> None:
    def log_of(key: host.Key) -> str:
        source, config, options = specialise(*key)
        if not config.launches:
            return ""
        options = (f"--gpu-architecture={arch}", *options, "--ptxas-options=-v")
        return f"{key[0]}: {compiler.compile(source, options, key[0])[1]}"

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        logs = list(pool.map(log_of, keys))
    for log in filter(None, logs):
        assert spilled(log) <= SPILLED, log


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_kernels_compute_what_pytorch_does(tmp_path: Path) -> None:
    chosen = list(spread(6))
    kernels = host.build(host.keys_of(example.program for example in chosen), tmp_path)
    for example in chosen:
        given = [_bytes(t) for t in example.tensors if t is not None]
        results = host.run_program(example.program, kernels, given)
        _check(example, results)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.long)])
def test_a_tokens_attention_and_normed_products_are_their_parts(dtype: str, tmp_path: Path) -> None:
    normed = ("npu.normed_linear", "npu.normed_gated_linear", "npu.normed_quantized_linear")
    ops = ("npu.attention_step", "npu.quantized_linear", *normed)
    chosen = [e for e in examples(*ops) if e.dtype == dtype]
    keys = host.keys_of(example.program for example in chosen)
    assert {stem for stem, _ in keys} >= {"attention_step", "normed_linear", *_CODES}
    kernels = host.build(keys, tmp_path)
    for example in chosen:
        given = [_bytes(t) for t in example.tensors if t is not None]
        _check(example, host.run_program(example.program, kernels, given))


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_a_row_hidden_by_the_least_number_is_the_mean_of_all_values(tmp_path: Path) -> None:
    """As Hugging Face's masks hide padding: a sentence of nothing else has finite results."""
    op = "aten.scaled_dot_product_attention.default"
    shape = (2, 1, 9, 11)  # the mask's
    given = ((e, e.tensors[3]) for e in examples(op))
    masked = [(e, m) for e, m in given if m is not None and m.shape == shape]
    masked = [(e, m) for e, m in masked if m.dtype in (torch.float32, torch.bfloat16)]
    assert {e.dtype for e, _ in masked} == {"float32", "bfloat16"}
    kernels = host.build(host.keys_of(e.program for e, _ in masked), tmp_path)
    for example, mask in masked:
        least = torch.finfo(mask.dtype).min
        mask.zero_()
        mask[0], mask[1, :, :4, 5:], mask[1, :, 4:, 7] = least, least, -torch.inf
        tensors = [_bytes(t) for t in example.tensors if t is not None]
        _check(example, host.run_program(example.program, kernels, tensors))


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize(
    "dtypes", [("float32", "bfloat16"), pytest.param(("float16",), marks=pytest.mark.long)]
)
def test_a_query_that_is_no_number_has_no_result(dtypes: tuple[str, ...], tmp_path: Path) -> None:
    """Whoever computes it: tiles, few rows, long heads, plain sums, a token's step."""
    sdpa, step = "aten.scaled_dot_product_attention.default", "npu.attention_step"
    taken = (example for example in examples(sdpa, step) if example.dtype in dtypes)
    chosen = [e for e in taken if e.tensors[0] is not None and e.tensors[0].numel()]
    paths = dict.fromkeys(host.keys_of(e.program for e in chosen))
    assert {stem for stem, _ in paths} >= {"attention", "attention_step"}
    kernels = host.build(list(paths), tmp_path)
    for example in chosen:
        query = example.tensors[0]
        assert query is not None
        query.reshape(-1, query.shape[-1])[0, 1] = torch.nan
        given = [_bytes(t) for t in example.tensors if t is not None]
        with sdpa_kernel(SDPBackend.MATH):  # the fused one has 0 for few keys, NaN for many
            _check(example, host.run_program(example.program, kernels, given))


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize(
    ("op", "operand", "value", "failure"),
    [
        ("aten.embedding.default", 1, 1000, (1, 1000)),
        ("aten.index_select.default", 1, -1000, (1, -1000)),
        ("aten.remainder.Tensor", 1, 0, (2, None)),
    ],
)
def test_kernels_report_what_only_running_reveals(
    op: str, operand: int, value: int, failure: tuple[int, int | None], tmp_path: Path
) -> None:
    def tensors_of(example: Example) -> list[torch.Tensor]:
        return [t.clone() for t in example.tensors if t is not None]

    example = next(e for e in examples(op) if tensors_of(e)[operand].dtype == torch.int64)
    kernels = host.build(host.keys_of([example.program]), tmp_path)
    tensors = tensors_of(example)
    tensors[operand].view(-1)[0] = value
    with pytest.raises(host.KernelFailure) as raised:
        host.run_program(example.program, kernels, [_bytes(t) for t in tensors])
    code, given, _ = raised.value.args
    assert code == failure[0]
    assert failure[1] in (None, given)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_reductions_of_many_elements_are_split_over_blocks(tmp_path: Path) -> None:
    """Of elements side by side, and of outputs side by side, the last block's not all there."""
    keys, wanted = {}, {}
    for rows, dim in ((3, 1), (35, 0), (3, 0)):
        x = torch.randn(rows, 20011, generator=torch.Generator().manual_seed(5)) + 300
        x[1, 17] = x[1, 17017] = 309.0  # the first position wins
        x[2, 11000] = float("nan")
        expected = {0: x.sum(1), 2: x.amax(1), 7: x.argmax(1), 12: x.norm(dim=1)}
        expected |= {9: x.var(1), 10: x.std(1), 14: x.logsumexp(1)}
        x = x if dim else x.T.contiguous()
        for op, want in expected.items():
            params = {
                "op": op,
                "x_dtype": 0,
                "y_dtype": 4 if op == 7 else 0,
                "correction": 1.0,
                "rank": 1,
                "shape": [rows],
                "x_strides": [x.stride(1 - dim)],
                "y_strides": [1],
                "reduced_rank": 1,
                "reduced": [20011],
                "reduced_strides": [x.stride(dim)],
            }
            keys[op, rows, dim] = ("reduce", KERNELS["reduce"].pack(params))
            wanted[op, rows, dim] = (x, want)
    kernels = host.build(list(keys.values()), tmp_path)
    for (op, rows, dim), (x, want) in wanted.items():
        kernel = kernels[keys[op, rows, dim]]
        assert len(kernel.config.launches) == 2 and kernel.config.defines["ACROSS"] == 1 - dim
        y = torch.empty_like(want)
        host.call(kernel, [x, y])
        assert_close(y, want, 10.0, f"reduction {op}")


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_extremes_of_rows_are_the_same_by_packs_and_alone(tmp_path: Path) -> None:
    """Ties, NaN, infinities, rows on and off 16 bytes, with and without a rest, split and whole."""
    nan, inf = float("nan"), float("inf")
    keys = {}
    for size in (1, 7, 75, 20013):
        for op, name in ((2, "amax"), (7, "argmax"), (8, "argmin")):
            params = {
                "op": op, "x_dtype": 2, "y_dtype": 4 if op > 2 else 2, "correction": 0.0, "rank": 1,
                "shape": [5], "x_strides": [size + 3], "y_strides": [1], "reduced_rank": 1,
                "reduced": [size], "reduced_strides": [1],
            }  # fmt: skip
            keys[size, name] = ("reduce", KERNELS["reduce"].pack(params))
    kernels = host.build(list(keys.values()), tmp_path)
    for (size, name), key in keys.items():
        room = torch.randn(5, size + 3, generator=torch.Generator().manual_seed(size)).bfloat16()
        x = room[:, :size]
        x[1] = -inf
        x[2, size // 2 :: 9] = nan
        x[3] = x[3].round()  # ties
        x[4, size - 1] = inf
        want = getattr(x, name)(1)
        for shift in (0, 1):
            moved = torch.cat([room.new_full((shift,), inf), room.flatten()])[shift:]
            y = torch.empty_like(want)
            host.call(kernels[key], [moved, y])
            same = torch.equal(y.float().nan_to_num(7e9), want.float().nan_to_num(7e9))
            assert same, (size, name, shift)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_weights_of_one_row_pass_through_shared_memory(tmp_path: Path) -> None:
    """Pieces that not all warps have, several tiles of a block, long rows, rows off 16 bytes."""
    shapes = [(1000, 264, 0), (5500, 136, 1), (400, 8960, 0)]
    keys, refilled = {}, []
    for dtype, code, some in ((torch.bfloat16, 2, shapes), (torch.float16, 1, shapes[:1])):
        for n, k, gated in some:
            params = _one_row(n, k, gated, code)
            keys[dtype, n, k, gated] = ("linear", KERNELS["linear"].pack(params))
    kernels = host.build(list(keys.values()), tmp_path)
    for seed, ((dtype, n, k, gated), key) in enumerate(keys.items()):
        config = kernels[key].config
        assert config.launches[0].grid[0] <= 132
        tiles = -(-config.defines["COLUMNS"] * (1 + gated) // 16)
        refilled.append((tiles, tiles * -(-k // 512) > config.defines["STAGES"]))
        rng = torch.Generator().manual_seed(seed)
        x = torch.randn(k, generator=rng).to(dtype)
        w = (torch.randn(n * (1 + gated), k, generator=rng) / k**0.5).to(dtype)
        residual = torch.randn(n, generator=rng).to(dtype)
        sums = w.double() @ x.double()
        want = (sums[:n] * sums[n:] if gated else sums + residual.double()).to(dtype)
        for shift in (0, 1):
            moved = torch.cat([w.new_zeros(shift), w.flatten()])[shift:]
            y = torch.empty(n, dtype=dtype)
            host.call(kernels[key], [x, moved, y] if gated else [x, moved, residual, y])
            assert_close(y, want, 10.0, f"{n} x {k} {dtype}, {shift} off")
    assert {(1, True), (6, True)} <= set(refilled)


def _one_row(n: int, k: int, gated: int, dtype: int) -> dict[str, Any]:
    given = {
        "m": 1, "n": n, "k": k, "ldx": k, "ldy": n, "ldr": n, "rows": (n * (1 + gated), 0, 0, 0),
        "ldw": (k, 0, 0, 0), "segments": 1, "gated": gated, "residual": 1 - gated,
        "x_dtype": dtype, "w_dtype": dtype, "y_dtype": dtype, "r_dtype": dtype,
    }  # fmt: skip
    fields = KERNELS["linear"].fields
    return {name: given.get(name, (0,) * count if count > 1 else 0) for name, _, count in fields}


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_blocks_of_a_cluster_have_rows_of_their_own_where_keys_are_few(tmp_path: Path) -> None:
    """Few keys, few of them for some rows alone, many, a window of few, and rows off 16 bytes."""
    shapes = {(64, 64, 0): 2, (96, 48, 0): 1, (64, 64, 30): 2}
    given = {shape: _clustered(*shape, dtype) for shape, dtype in shapes.items()}
    keys = {shape: ("attention", KERNELS["attention"].pack(p)) for shape, p in given.items()}
    kernels = host.build(list(keys.values()), tmp_path, CLUSTER)
    rng = torch.Generator().manual_seed(3)
    for (dim, v_dim, window), p in given.items():
        dtype = torch.bfloat16 if p["dtype"] == 2 else torch.float16
        q, k, v = (
            torch.randn(heads * rows * d + 1, generator=rng).to(dtype)
            for heads, rows, d in ((4, 21, dim), (2, 1024, dim), (2, 1024, v_dim))
        )
        for position, shift in ((0, 0), (240, 0), (900, 0), (0, 1)):
            x, keys_, values = (t[shift : t.numel() - 1 + shift] for t in (q, k, v))
            y = torch.full((4, 21, v_dim), torch.nan, dtype=dtype)
            operands = [x, keys_, values, torch.tensor([position]), y]
            host.call(kernels[keys[dim, v_dim, window]], operands)
            i, j = torch.arange(21)[:, None] + position, torch.arange(position + 21)
            hidden = (j > i) | ((j <= i - window) if window else False)
            wide = [t.view(-1, rows, d).double() for t, rows, d in (
                (x, 21, dim), (keys_, 1024, dim), (values, 1024, v_dim))]  # fmt: skip
            used = [t[:, : position + 21].repeat_interleave(2, 0) for t in wide[1:]]
            scores = (wide[0] @ used[0].mT * p["scale"]).masked_fill(hidden, -torch.inf)
            want = (torch.softmax(scores, -1) @ used[1]).to(dtype)
            assert_close(y, want, 10.0, f"{dim} {window} after {position}, {shift} off")


def _clustered(dim: int, v_dim: int, window: int, dtype: int) -> dict[str, Any]:
    given = {
        "batch": 1, "heads": 4, "kv_heads": 2, "q_len": 21, "kv_len": 1024, "head_dim": dim,
        "v_dim": v_dim, "q_strides": (0, 21 * dim, dim), "k_strides": (0, 1024 * dim, dim),
        "v_strides": (0, 1024 * v_dim, v_dim), "y_strides": (0, 21 * v_dim, v_dim), "causal": 1,
        "window": window, "has_position": 1, "dtype": dtype, "scale": 0.15,
    }  # fmt: skip
    fields = KERNELS["attention"].fields
    return {name: given.get(name, (0,) * count if count > 1 else 0) for name, _, count in fields}


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_copies_that_transpose_pass_through_tiles(tmp_path: Path) -> None:
    x = torch.arange(2 * 45 * 3 * 70, dtype=torch.int16).reshape(2, 45, 3, 70)
    want = x.permute(3, 2, 0, 1).contiguous()
    params = {
        "element_size": 2,
        "rank": 4,
        "shape": list(want.shape),
        "x_strides": x.permute(3, 2, 0, 1).stride(),
        "y_strides": want.stride(),
    }
    key = ("copy", KERNELS["copy"].pack(params))
    assert "tile" in specialise(*key)[0].split("npusim_kernel")[-1]
    y = torch.empty_like(want)
    host.call(host.build([key], tmp_path)[key], [x, y])
    assert torch.equal(y, want)


def _bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.contiguous()
    raw = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return raw.numpy().tobytes()


def _check(example: Example, results: list[bytes]) -> None:
    expected = reference(example.graph, example.tensors)
    for raw, want in zip(results, expected, strict=True):
        got = torch.empty(want.shape, dtype=want.dtype)
        if raw:
            got = torch.frombuffer(bytearray(raw), dtype=want.dtype).reshape(want.shape)
        assert_close(got, want, example.op.tolerance, f"{example.op.name} {example.dtype}")
