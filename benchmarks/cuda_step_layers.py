"""Layers of steps over pages on this machine's GPU, kernel by kernel: checked, and timed.

    PYTHONPATH=python:. python -m benchmarks.cuda_step_layers [--check] [--time] [--rows 1 8 …]

A product that turns and appends its columns itself (linear_rope_append) is held to the bits of the
product and the launch after it, for all its kernels, with rows of no request and rows that go to
one place. Then 28 layers of Qwen2.5-1.5B whose launches overlap, 1,024 tokens behind each row:
microseconds a layer, by who turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import cuda_step_products as products
from benchmarks.cuda_cases import Params, full
from benchmarks.cuda_driver import Driver, Kernel
from npusim.codegen.cuda import nvrtc, one_order, paging
from npusim.codegen.cuda.source import kernel_source, stem_source
from npusim.codegen.launch_config import LaunchConfig
from npusim.targets import TargetConfig

LAYERS, PAGE, BEHIND, TABLE = 28, 64, 1024, 136
ROPE, JOINED, ATTENTION = "paged_rope_append", "linear_rope_append", "paged_attention"
_OPTIONS = ("--std=c++20", "-default-device")


@dataclass
class Heads:
    """Heads of an attention over pages, and the rows of a step of so many requests."""

    heads: int = 12
    kv_heads: int = 2
    size: int = 128
    pages: int = 300 * (BEHIND // PAGE + 1)

    def places(self, rows: int) -> list[Tensor]:
        """Returns positions, requests and tables of rows with as many tokens behind them."""
        used = BEHIND // PAGE + 1
        tables = torch.full((rows, TABLE), -1, device="cuda")
        tables[:, :used] = torch.randperm(rows * used, device="cuda").view(rows, used)
        return [torch.full((rows,), BEHIND, device="cuda"), torch.arange(rows, device="cuda"),
                tables]  # fmt: skip

    def pools(self) -> list[Tensor]:
        """Returns keys and values of all pages."""
        shape = (self.pages, self.kv_heads, PAGE, self.size)
        return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv"]

    def shared(self, rows: int) -> dict[str, Any]:
        """Returns the parameters that all kernels over pages have."""
        return {
            "heads": self.heads, "kv_heads": self.kv_heads, "length": rows, "head_dim": self.size,
            "pages": self.pages, "page_tokens": PAGE, "requests": rows, "table_length": TABLE,
            "y_strides": (self.size, self.heads * self.size), "dtype": 2,
        }  # fmt: skip

    @property
    def _pool(self) -> tuple[int, int, int]:
        return self.kv_heads * PAGE * self.size, PAGE * self.size, self.size

    @property
    def columns(self) -> int:
        """Of the product that makes them."""
        return (self.heads + 2 * self.kv_heads) * self.size

    def rope(self, rows: int) -> Params:
        """Returns the parameters of the launch after a product."""
        own = {f"{name}_strides": (self.size, self.columns) for name in "qkv"}
        own |= {"v_dim": self.size, "rotary_dim": self.size, "interleaved": 0}
        return full(ROPE, self.shared(rows) | own | self._turned)

    @property
    def _turned(self) -> dict[str, Any]:
        pools = {"k_pool_strides": self._pool, "v_pool_strides": self._pool}
        return pools | {"cs_strides": (self.size, self.size), "cs_dtype": 2}

    def joined(self, product: Params, rows: int) -> Params:
        """Returns the parameters of the product that turns and appends."""
        none = {"slots": 0, "norm_eps": 0.0}
        return full(JOINED, none | dict(product) | self.shared(rows) | self._turned)

    def attention(self, rows: int) -> Params:
        """Returns the parameters of attention."""
        own = {"v_dim": self.size, "q_strides": (self.size, self.heads * self.size)}
        own |= {"k_strides": self._pool, "v_strides": self._pool, "scale": self.size**-0.5}
        return full(ATTENTION, self.shared(rows) | own)


def built(driver: Driver, cases: Sequence[tuple[str, Params, LaunchConfig, int]]) -> list[Kernel]:
    """Compiles (stem, parameters, configuration, unwritten operands) in parallel."""
    from concurrent.futures import ThreadPoolExecutor

    def made(case: tuple[str, Params, LaunchConfig, int]) -> bytes:
        stem, params, config, unwritten = case
        body = stem_source(stem)
        assert body is not None
        macros = [f"-DNPUSIM_{name}={value}" for name, value in config.defines.items()]
        options = (*_OPTIONS, f"--gpu-architecture={driver.arch}", *macros)
        source = kernel_source(stem, params, body, unwritten)
        return nvrtc.load().compile(source, options, f"{stem}.cu")[0]

    with ThreadPoolExecutor(16) as pool:
        cubins = list(pool.map(made, cases))
    return [Kernel(driver, case[2], cubin) for case, cubin in zip(cases, cubins, strict=True)]


def _unwritten(product: products.Product, joined: bool) -> int:
    """The weights, the bias, and the places."""
    count = 1 + len(product.weights) + (product.stem == "linear_behind_norm") + product.bias
    return product.unwritten | (0b111 << (count + 2) if joined else 0)


def check(driver: Driver, product: products.Product, heads: Heads, rows: int) -> int:
    """Returns how many kernels have other bits than the product and the launch after it."""
    joined, rope = heads.joined(product.params(rows), rows), heads.rope(rows)
    ways = one_order.configs(JOINED, joined)
    names = [n for n in ways if "swapped" in n] + [n for n in ways if "bulk" in n][:2]
    names += [n for n in ways if n.endswith("tiles")]
    plain = one_order.configs(product.stem, product.params(rows))
    apart = [(product.stem, product.params(rows), next(iter(plain.values()))(), product.unwritten),
             (ROPE, rope, paging.paged_rope_append(rope), 0b111 << 5)]  # fmt: skip
    kernels = built(
        driver, apart + [(JOINED, joined, ways[n](), _unwritten(product, True)) for n in names]
    )
    cos, sin = (torch.rand(rows, heads.size, device="cuda").bfloat16() for _ in "cs")
    places = heads.places(rows)
    places[1][rows // 2 :: 5] = -1
    if rows > 3:
        places[1][rows // 3], places[0][rows // 3] = places[1][0], places[0][0]
        places[1][rows - 1], places[0][rows - 1] = places[1][1], places[0][1]
    pools = heads.pools()
    product_of, rope_of, *others = kernels
    (y,) = product.outputs(rows)
    product_of([*product.reads(rows, product.weights), y])
    q, k, v = y.split([n * heads.size for n in (heads.heads, heads.kv_heads, heads.kv_heads)], 1)

    def outputs() -> list[Tensor]:
        shape = (rows, heads.heads * heads.size)
        made = torch.full(shape, torch.nan, device="cuda", dtype=torch.bfloat16)
        return [made, *(pool.clone() for pool in pools)]

    want = outputs()
    rope_of([q, k, v, cos, sin, *places, *want])
    faults = 0
    for name, kernel in zip(names, others, strict=True):
        for shift in (0, 1):  # cosines off 16 bytes: what the kernel does without wide loads
            room = torch.empty(rows * heads.size + 8, device="cuda", dtype=torch.bfloat16)
            angle = room[shift : shift + rows * heads.size].view(rows, heads.size)
            angle.copy_(cos)
            found = outputs()
            kernel([*product.reads(rows, product.weights), angle, sin, *places, *found])
            torch.cuda.synchronize()
            same = [torch.equal(a, b) for a, b in zip(found, want, strict=True)]
            close = [float((a.float() - b.float()).norm() / b.float().norm())
                     for a, b in zip(found, want, strict=True)]  # fmt: skip
            exact = shift == 0 or "swapped" not in name or rows > 64
            exact = exact and not name.endswith("tiles")
            wrong = not all(same) if exact else max(close) > 6e-3
            faults += wrong or bool(kernel.failure[0])
            if wrong or kernel.failure[0]:
                print(f"   {product.name} {rows} {name} shift {shift}: same {same}, apart by "
                      f"{close}, failure {kernel.failure.tolist()}", flush=True)  # fmt: skip
    places[1][0] = rows + 3
    kernel = others[0]
    kernel([*product.reads(rows, product.weights), cos, sin, *places, *outputs()])
    torch.cuda.synchronize()
    if kernel.failure.tolist()[1:] != [rows + 3, rows - 1]:
        faults += 1
        print(f"   {product.name} {rows}: reported {kernel.failure.tolist()}", flush=True)
    print(f"{product.name} {rows}: {len(names)} kernels, {faults} faults", flush=True)
    return faults


def time_layers(driver: Driver, rows: Sequence[int]) -> None:
    """Prints microseconds of a layer, of 28 whose launches overlap, by rows and ways."""
    features = TargetConfig.named(f"cuda:{driver.arch}").features
    layers = [products._layer() for _ in range(LAYERS)]
    heads = Heads()
    pools = [heads.pools() for _ in range(LAYERS)]
    for m in rows:
        qkv, *after = layers[0]
        given, rope, attention = qkv.params(m), heads.rope(m), heads.attention(m)
        joined = heads.joined(given, m)
        ways = one_order.configs(JOINED, joined)
        names = [n for n in ways if "swapped" in n] + [n for n in ways if "bulk" in n][:1]
        cases = []
        for p in (qkv, *after):
            config = next(iter(one_order.configs(p.stem, p.params(m)).values()))()
            cases.append((p.stem, p.params(m), config, p.unwritten))
        cases.append((ROPE, rope, paging.paged_rope_append(rope), 0b111 << 5))
        cases += [(JOINED, joined, ways[n](), _unwritten(qkv, True)) for n in names]
        cases.append((ATTENTION, attention, paging.paged_attention(attention), 0b111110))
        kernels = built(driver, [(s, p, c.on(features), u) for s, p, c, u in cases])
        own = list(kernels[: len(after) + 1])
        turn = kernels[len(own)]
        whole = dict(zip(names, kernels[len(own) + 1 :], strict=False))
        cos, sin = (torch.rand(m, heads.size, device="cuda").bfloat16() for _ in "cs")
        places = heads.places(m)
        size = heads.size
        calls: dict[str, list[tuple[Kernel, list[Tensor]]]] = {}
        labels = ["products", "and rotation", *(f"joined {n}" for n in names)]
        labels += ["apart, attention", *(f"joined {n}, attention" for n in names)]
        for label in labels:
            calls[label] = []
        for number, layer in enumerate(layers):
            (y,) = layer[0].outputs(m)
            q, k, v = y.split([n * size for n in (heads.heads, heads.kv_heads, heads.kv_heads)], 1)
            turned = torch.empty(m, heads.heads * size, device="cuda", dtype=torch.bfloat16)
            out = torch.empty_like(turned)
            keep = pools[number]
            reads = layer[0].reads(m, layer[0].weights)
            rest = [(kernel, [*p.reads(m, p.weights), *p.outputs(m)])
                    for kernel, p in zip(own[1:], layer[1:], strict=True)]  # fmt: skip
            apart = [(own[0], [*reads, y]),
                     (turn, [q, k, v, cos, sin, *places, turned, *keep])]  # fmt: skip
            for label in labels:
                head = label.partition(",")[0].removeprefix("joined ")
                first = apart[:1] if label == "products" else apart
                if head in whole:
                    first = [(whole[head], [*reads, cos, sin, *places, turned, *keep])]
                if "attention" in label:
                    first = [*first, (kernels[-1], [turned, *keep, *places, out])]
                calls[label] += [*first, *rest]
        shown = [f"{_microseconds(row) / LAYERS:.2f} {label}" for label, row in calls.items()]
        failures = [kernel.failure.tolist() for kernel in kernels if int(kernel.failure[0])]
        print(f"layer, {m}: " + "; ".join(shown) + f" {failures}", flush=True)


def _microseconds(calls: Sequence[tuple[Kernel, list[Tensor]]]) -> float:
    from benchmarks.cuda_driver import microseconds

    def run() -> None:
        for kernel, operands in calls:
            kernel(operands, overlaps=True)

    return microseconds([run], 12)


def main() -> int:
    """Checks, times, prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 64, 128, 256])
    args = parser.parse_args()
    torch.manual_seed(0)
    driver, wrong = Driver(), 0
    behind = "linear_behind_norm"
    if args.check or not args.time:
        qwen = products.Product("qwen qkv", 2048, 1536, (1536, 256, 256), bias=True, stem=behind)
        small = products.Product("qwen-0.5b qkv", 1152, 896, (896, 128, 128), bias=True)
        for rows in (1, 9, 64, 200, 256, 300):
            wrong += check(driver, qwen, Heads(), rows)
            wrong += check(driver, small, Heads(14, 2, 64), rows)
        print(f"{wrong} faults", flush=True)
    if args.time or not args.check:
        time_layers(driver, args.rows)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
