"""Products of rows with quantized weights on this machine's GPU, checked and timed by row count.

    PYTHONPATH=python:. python -m benchmarks.cuda_code_rows [--rows 1 8 64] [--schemes int8 …]
        [--layers gate_up …] [--check] [--tiles]

Products of Qwen2.5-1.5B's layers over random codes are compared with float64, few rows bit by bit
with those of the largest count of them, and timed in a graph whose weights rotate past the cache,
beside the same product over bfloat16. The likeliest way in the order of steps is timed, too, and of
more than 64 rows the likeliest tile of `tma_codes.py` and of `expanded_codes.py`, what the rule
chooses marked by a star. `--tiles` times more of these, and the tiles of
`codegen/cuda/code_rows.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.cuda_cases import SILU, Params, full, linear, tensor
from benchmarks.cuda_driver import Driver, Kernel, build, microseconds
from npusim.abi.quantization import FORMATS, Quantization, dequantize, quantized_bytes, sections
from npusim.codegen.cuda import code_rows, decoding, expanded_codes, one_order, tma_codes
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.cuda.tma_matmul import tiles as tma_tiles
from npusim.codegen.cuda.tma_matmul import tma_matmul
from npusim.codegen.launch_config import LaunchConfig

LAYER = {
    "qkv": (2048, 1536, (1536, 256, 256), False),
    "o": (1536, 1536, (1536,), False),
    "gate_up": (8960, 1536, (8960, 8960), True),
    "down": (1536, 8960, (1536,), False),
}
_ROTATED = 256 << 20  # bytes of weights, more than the cache holds


def codes(how: Quantization, rows: int, k: int) -> Tensor:
    """Returns a weight of random codes, as `quantize` stores them."""
    sizes = sections(how, rows, k)
    made = torch.zeros(quantized_bytes(how, rows, k), dtype=torch.uint8, device="cuda")
    made[: sizes[0]].random_(0, 256)
    at = -(-sizes[0] // 64) * 64
    if how.group:
        scale = torch.rand(sizes[1] // 2, device="cuda").half() * 0.1 * k**-0.5
    else:
        unused = made[: sizes[0]] == 128 if how.format == "int8" else made[: sizes[0]] % 128 == 127
        made[: sizes[0]][unused] = 0
        scale = torch.rand(sizes[1] // 4, device="cuda") * 0.01 * k**-0.5
    made[at : at + sizes[1]] = scale.view(torch.uint8)
    at += -(-sizes[1] // 64) * 64
    made[at : at + sizes[2]].random_(0, 241)
    return made


@dataclass
class Product:
    """A layer's product over codes."""

    name: str
    how: Quantization
    dtype: int = 2

    def __post_init__(self) -> None:
        self.n, self.k, self.rows, self.gated = LAYER[self.name]
        self.weights = [codes(self.how, rows, self.k) for rows in self.rows]

    def params(self, m: int) -> Params:
        given = {
            "m": m, "n": self.n, "k": self.k, "ldx": self.k, "ldy": self.n, "ldr": self.n,
            "group": self.how.group, "rows": self.rows, "segments": len(self.rows),
            "gated": int(self.gated), "format": FORMATS[self.how.format], "x_dtype": self.dtype,
            "y_dtype": self.dtype, "r_dtype": self.dtype, "act": SILU * self.gated,
        }  # fmt: skip
        return full("quantized_linear", given)

    def expected(self, x: Tensor) -> Tensor:
        w = [
            dequantize(q, self.how, r, self.k).double()
            for q, r in zip(self.weights, self.rows, strict=True)
        ]
        y = x.double() @ torch.cat(w).T
        if self.gated:
            first, second = y.chunk(2, -1)
            y = torch.nn.functional.silu(first) * second
        return y

    def sets(self) -> Iterator[list[Tensor]]:
        size = sum(w.numel() for w in self.weights)
        for _ in range(max(2, min(24, _ROTATED // size))):
            yield [w.clone() for w in self.weights]


def bfloat16_us(driver: Driver, name: str, counts: list[int]) -> list[float]:
    """Returns what the product over bfloat16 takes by its rule, for numbers of rows."""
    n, k, rows, gated = LAYER[name]
    cases = [linear(m, n, k, rows=rows, gated=int(gated), act=SILU * gated) for m in counts]
    bests = [tma_tiles(case.params, 1) for case in cases]
    configs = [
        tma_matmul(case.params, best[0]) if best else RULES["linear"](case.params)
        for case, best in zip(cases, bests, strict=True)
    ]
    parts = zip(cases, configs, strict=True)
    kernels = build(driver, [("linear", case.params, config) for case, config in parts])
    sets = [[tensor((r, k), 2) for r in rows] for _ in range(5)]
    return [
        timed(kernel, case.inputs[0], sets, (m, n))
        for kernel, case, m in zip(kernels, cases, counts, strict=True)
    ]


def timed(kernel: Kernel, x: Tensor, sets: list[list[Tensor]], shape: tuple[int, int]) -> float:
    y = torch.empty(shape, dtype=x.dtype, device="cuda")
    return microseconds([lambda w=w: kernel([x, *w, y]) for w in sets], 12)  # type: ignore[misc]


def candidates(p: Params, everything: bool) -> list[tuple[str, LaunchConfig]]:
    found = [("rule", RULES["quantized_linear"](p))]
    arguments = 1 + p["segments"] + 1
    if p["m"] <= 8:
        old = decoding._multistage_codes(p, arguments)
        if old is not None:
            found.append(("multistage", old))
    split = decoding.split_of(p)
    if everything and split is not None and 1 < p["m"] <= code_rows.MOST_ROWS:
        for tile in code_rows.row_tiles(p, split[0]):
            config = code_rows.code_rows(p, arguments, split, tile)
            if config is not None:
                found.append((f"{tile.tiles}x{tile.tokens}", config))
    ordered = list(one_order.configs("quantized_linear", p).items())[:-1]  # the last: ordinary
    found += [(name, make()) for name, make in ordered[: 4 if everything else 1]]
    if p["m"] <= code_rows.MOST_ROWS:
        return found
    codes = tma_codes.tiles(p, 9 if everything else 1)
    more = expanded_codes.tiles(p, 3 if everything else 1)
    ways = [(t.name, tma_codes.tma_codes(p, t)) for t in codes]
    ways += [(expanded_codes.name_of(t), expanded_codes.expanded(p, t)) for t in more]
    best = expanded_codes.best(p)
    marked = [(f"{name}*" if name == best else name, config) for name, config in ways]
    return found[1:] + marked


def main() -> int:
    """Checks, times, prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 24, 32, 48, 64])
    parser.add_argument(
        "--schemes", nargs="*", default=["int8", "int4-g32", "int4-g128-asymmetric"]
    )
    parser.add_argument("--layers", nargs="*", default=list(LAYER))
    parser.add_argument("--check", action="store_true", help="do not time anything")
    parser.add_argument("--tiles", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    driver, wrong = Driver(), 0
    for name in args.layers:
        if not args.check:
            took = bfloat16_us(driver, name, args.rows)
            listed = [f"{m}: {us:.2f}" for m, us in zip(args.rows, took, strict=True)]
            print(f"{name} bfloat16 us {', '.join(listed)}", flush=True)
        for scheme in args.schemes:
            how = Quantization.parse(scheme)
            assert how is not None
            product = Product(name, how)
            x = torch.randn(max(args.rows), product.k, device="cuda").bfloat16()
            want = product.expected(x)
            made = [(m, *c) for m in args.rows for c in candidates(product.params(m), args.tiles)]
            kernels = build(
                driver, [("quantized_linear", product.params(m), config) for m, _, config in made]
            )
            sets, shown, last = list(product.sets()), {}, None
            results = {}
            for (m, label, _), kernel in zip(made, kernels, strict=True):
                y = torch.full((m, product.n), torch.nan, dtype=x.dtype, device="cuda")
                kernel([x, *product.weights, y])
                torch.cuda.synchronize()
                error = float((y.double() - want[:m]).norm() / want[:m].norm())
                results[m, label] = y
                note = "" if error < 1e-2 else f" WRONG {error:.1e}"
                wrong += error >= 1e-2 or error != error
                took = 0.0 if args.check else timed(kernel, x, sets, (m, product.n))
                shown.setdefault(m, []).append(f"{label} {took:.2f}{note}")
            few = [
                key for key in results if key[0] <= code_rows.MOST_ROWS and "codes" not in key[1]
            ]
            last = results[max(few)] if few else None
            odd = [
                f"{m} {label}" for m, label in few if not torch.equal(results[m, label], last[:m])
            ]
            for m, texts in shown.items():
                print(f"  {scheme} {m}: {', '.join(texts)}", flush=True)
            print(f"  {scheme} other bits: {odd}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
