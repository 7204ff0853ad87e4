"""Attention over pages on a GPU: what rows get, to the bit, and how long it takes.

    python benchmarks/paged_attention_cuda.py [--times]

Kernels alone, without programs around them: a row's result has to be the same alone and among
others, and near what float64 says; then the time of rows behind 1,024 tokens, over several pools so
that no keys are in a cache, beside what reading them at 4.3 TB/s takes.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import cupy
import numpy as np
import torch

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.ops.paged import reference_paged_attention

PAGE = 64
TERABYTES = 4.3e12  # a second, measured reads of an H200


class Kernel:
    """A stem for these parameters, loaded."""

    def __init__(self, stem: str, params: dict[str, Any]) -> None:
        source, self.config, options = specialise(stem, KERNELS[stem].pack(params))
        compiler = nvrtc.load()
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
        arch = "sm_90a" if arch == "sm_90" else arch
        cubin, _ = compiler.compile(source, (f"--gpu-architecture={arch}", *options), stem)
        with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
            file.write(cubin)
        self.module = cupy.RawModule(path=file.name)
        self.launches = []
        for launch in self.config.launches:
            entry = self.module.get_function(launch.entry)
            entry.max_dynamic_shared_size_bytes = launch.shared
            self.launches.append((entry, launch))
        self.scratch = torch.zeros(max(self.config.scratch, 1), dtype=torch.uint8, device="cuda")
        self.failure = torch.zeros(3, dtype=torch.int64, device="cuda")

    def __call__(self, *tensors: torch.Tensor) -> None:
        given = [t.data_ptr() for t in tensors]
        given += [self.scratch.data_ptr()] if self.config.scratch else []
        given += [self.failure.data_ptr()] if self.config.failure else []
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            for entry, launch in self.launches:
                entry(launch.grid, launch.block, tuple(np.uint64(p) for p in given),
                      shared_mem=launch.shared)  # fmt: skip


def attention_of(
    rows: int, requests: int, table: int, pools: tuple[torch.Tensor, torch.Tensor], heads: int,
    window: int = 0, softcap: float = 0.0,
) -> Kernel:  # fmt: skip
    """Returns the kernel for rows of q [rows, heads, d] over pools [pages, g, PAGE, d]."""
    k, v = pools
    d, dv = k.shape[3], v.shape[3]
    dtypes = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
    return Kernel("paged_attention", {
        "heads": heads, "kv_heads": k.shape[1], "length": rows, "head_dim": d, "v_dim": dv,
        "pages": k.shape[0], "page_tokens": k.shape[2], "requests": requests,
        "table_length": table, "window": window, "q_strides": [d, heads * d],
        "k_strides": list(k.stride()[:3]), "v_strides": list(v.stride()[:3]),
        "y_strides": [dv, heads * dv], "dtype": dtypes[k.dtype], "scale": d**-0.5,
        "softcap": softcap,
    })  # fmt: skip


def check(dtype: torch.dtype, g: int, heads: int, d: int, window: int, softcap: float) -> None:
    """Holds rows of requests of all lengths to float64, and to themselves alone."""
    torch.manual_seed(1)
    requests, table = 32, 40
    pages = requests * table
    pools = [torch.randn(pages, g, PAGE, d, device="cuda").to(dtype) for _ in range(2)]
    tables = torch.randperm(pages, device="cuda").reshape(requests, table)
    lengths = torch.randint(0, table * PAGE, (requests,), device="cuda")
    lengths[:6] = torch.tensor([0, 63, 64, 255, 256, table * PAGE - 1], device="cuda")
    own = torch.arange(requests, device="cuda")
    q = torch.randn(requests, heads, d, device="cuda").to(dtype)
    y = torch.full_like(q, torch.nan)
    at = attention_of(requests, requests, table, (pools[0], pools[1]), heads, window, softcap)
    at(q, *pools, lengths, own, tables, y)
    wide = [x.double() for x in pools]
    want = reference_paged_attention(
        q.double().permute(1, 0, 2)[None].cpu(), *(x.cpu() for x in wide), lengths.cpu(), own.cpu(),
        tables.cpu(), scale=d**-0.5, softcap=softcap, window=window,
    )[0].permute(1, 0, 2)  # fmt: skip
    error = (y.double().cpu() - want).norm() / want.norm()
    alone = attention_of(1, 1, table, (pools[0], pools[1]), heads, window, softcap)
    many = attention_of(256, requests, table, (pools[0], pools[1]), heads, window, softcap)
    where = torch.arange(256, device="cuda") % requests
    spread = torch.full((256, heads, d), torch.nan, device="cuda", dtype=dtype)
    places = where.clone()
    places[5] = -1
    many(q[where].contiguous(), *pools, lengths[where], places, tables, spread)
    zero = bool((spread[5] == 0).all())
    same = all(torch.equal(spread[i], y[i % requests]) for i in range(256) if i != 5)
    for i in range(requests):
        one = torch.full((1, heads, d), torch.nan, device="cuda", dtype=dtype)
        alone(q[i : i + 1], *pools, lengths[i : i + 1], own[:1], tables[i : i + 1], one)
        same = same and torch.equal(one[0], y[i])
    failed = [int(k.failure[0]) for k in (at, alone, many)]
    splits = [k.config.defines.get("SPLIT") for k in (alone, at, many)]
    print(f"{dtype} g {g} heads {heads} d {d} window {window} cap {softcap}: error {error:.2e}, "
          f"same bits {same}, no row is zero {zero}, failures {failed}, splits {splits}",
          flush=True)  # fmt: skip
    if dtype == torch.bfloat16 and window == 0:
        for name, wrong in (("page", None), ("request", 40), ("position", table * PAGE)):
            bad_tables, bad, bad_at = tables.clone(), own.clone(), lengths.clone()
            if name == "page":
                bad_tables[3, 0] = pages
            if name == "request":
                bad[3] = wrong
            if name == "position":
                bad_at[3] = wrong
            at.failure.zero_()
            at(q, *pools, bad_at, bad, bad_tables, y)
            torch.cuda.synchronize()
            print(f"  wrong {name}: reported {at.failure.tolist()}")


def time_of(rows: int, context: int = 1024, layers: int = 28, g: int = 2, heads: int = 12) -> None:
    """Prints the time of rows of as many requests, a layer; by default Qwen2.5-1.5B's heads."""
    d, table = 128, 64
    used = -(-(context + 1) // PAGE)
    pages = rows * used
    kept = max(1, min(layers, (6 << 30) // (pages * g * PAGE * d * 4)))
    pools = [[torch.randn(pages, g, PAGE, d, device="cuda", dtype=torch.bfloat16) for _ in "kv"]
             for _ in range(kept)]  # fmt: skip
    tables = torch.full((rows, table), -1, device="cuda")
    tables[:, :used] = torch.randperm(pages, device="cuda").reshape(rows, used)
    positions = torch.full((rows,), context, device="cuda")
    own = torch.arange(rows, device="cuda")
    q = torch.randn(rows, heads, d, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(q)
    kernel = attention_of(rows, rows, table, (pools[0][0], pools[0][1]), heads)
    append = Kernel("paged_append", {
        "heads": g, "length": rows, "head_dim": d, "pages": pages, "page_tokens": PAGE,
        "requests": rows, "table_length": table, "x_strides": [d, heads * d],
        "y_strides": list(pools[0][0].stride()[:3]), "dtype": 2,
    })  # fmt: skip

    def measured(run: Any) -> float:
        graph = torch.cuda.CUDAGraph()
        run(0)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for layer in range(layers):
                run(layer)
        times = []
        for _ in range(15):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / layers)
        return sorted(times)[len(times) // 2]

    us = measured(lambda i: kernel(q, *pools[i % kept], positions, own, tables, y))
    each = measured(lambda i: append(q, positions, own, tables, pools[i % kept][0]))
    floor = rows * (context + 1) * g * d * 4 / TERABYTES * 1e6
    split = kernel.config.defines["SPLIT"]
    print(f"rows {rows:4} of {heads} heads: attention {us:7.2f} us a layer, floor {floor:6.2f}; "
          f"append {each:5.2f}; split {split}, pools {kept}", flush=True)  # fmt: skip


if __name__ == "__main__":
    if "--times" not in sys.argv:
        check(torch.bfloat16, 2, 12, 128, 0, 0.0)
        check(torch.float16, 8, 32, 128, 300, 0.0)
        check(torch.bfloat16, 1, 8, 256, 0, 30.0)
        check(torch.bfloat16, 4, 4, 64, 1, 0.0)
        check(torch.float32, 2, 12, 64, 0, 0.0)
    for count in (1, 8, 32, 64, 128, 256):
        time_of(count)
    for count in (8, 64, 128):  # Llama-3-8B's
        time_of(count, g=8, heads=32, layers=16)
