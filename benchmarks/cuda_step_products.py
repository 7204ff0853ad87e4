"""Products of steps of many requests on this machine's GPU: checked, held to one order, and timed.

    PYTHONPATH=python:. python -m benchmarks.cuda_step_products [--check] [--chain] [--time]
        [--schemes none int8 …]

Every way to compute a product in one order (codegen/cuda/one_order.py) is compared with float64,
and, bit by bit, with the same rows among 257 of them: products over weights as Qwen2.5's and
Llama's, and odd ones, with biases, residuals, gates, and RMS norms before and after. Then the
products of Qwen2.5-1.5B's layers and its head are timed by rows, in a graph whose weights rotate
past the cache, launches one after another, beside what is chosen where no order is kept; and the
products of 28 layers, whose launches overlap, in several variations. `--schemes` says over which
weights: "none" is bfloat16; norms are never in products over codes. Microseconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from benchmarks.cuda_cases import GELU, SILU, Params, full, tensor
from benchmarks.cuda_code_rows import codes
from benchmarks.cuda_driver import Driver, Kernel, microseconds
from npusim.abi.kernels import KERNELS
from npusim.abi.quantization import FORMATS, Quantization, dequantize
from npusim.codegen.cuda import nvrtc, one_order, swap_ab, tma_codes
from npusim.codegen.cuda.choices import default_choice
from npusim.codegen.cuda.source import kernel_source, stem_source
from npusim.codegen.cuda.variants import config_of
from npusim.codegen.launch_config import LaunchConfig
from npusim.targets import TargetConfig

ROWS = (1, 8, 9, 33, 64, 128, 200, 256, 257, 600)
_ALL_WAYS = (8, 64, 128, 256)  # of these, every kind of kernel is checked
MOST = max(ROWS)
_OPTIONS = ("--std=c++20", "-default-device")
_EPS = 1e-6
_LAYERS = 28
_MOST_SHARED = 231424
_ROTATED = 256 << 20  # bytes of weights, more than the cache holds


@dataclass
class Product:
    """A product of any number of rows over its weights, perhaps beside a norm."""

    name: str
    n: int
    k: int
    segments: tuple[int, ...] = ()
    gated: bool = False
    bias: bool = False
    residual: bool = False
    act: int = 0
    stem: str = "linear"
    dtype: int = 2
    y_dtype: int = 2
    scheme: str = "none"  # of the weights: codes, or floats
    inputs: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.how = Quantization.parse(self.scheme)
        if self.how is not None:
            self.stem = "quantized_linear"  # norms have launches of their own
        self.before, self.behind = (
            self.stem.endswith(f"_{at}_norm") for at in ("before", "behind")
        )
        self.segments = self.segments or (self.n * (1 + self.gated),)
        self.slots = -(-(self.n if self.before else self.k) // 128) * 2
        self.x = tensor((MOST, self.k), self.dtype)
        if self.how is None:
            self.weights = [
                tensor((r, self.k), self.dtype, scale=self.k**-0.5) for r in self.segments
            ]
        else:
            self.weights = [codes(self.how, r, self.k) for r in self.segments]
        self.norm = tensor((self.n,), self.dtype)
        self.squares = torch.zeros(self.slots, MOST, device="cuda")
        if self.behind:
            padding = (0, self.slots * 64 - self.k)
            squares = torch.nn.functional.pad(self.x.float().square(), padding)
            self.squares = squares.view(MOST, self.slots, 64).sum(-1).T
        self.bias_of = tensor((sum(self.segments),), 0)
        self.residual_of = tensor((MOST, self.n), self.y_dtype)

    def params(self, m: int) -> Params:
        given = {
            "m": m, "n": self.n, "k": self.k, "ldx": self.k, "ldy": self.n, "ldr": self.n,
            "rows": self.segments, "segments": len(self.segments), "gated": int(self.gated),
            "x_dtype": self.dtype, "y_dtype": self.y_dtype, "r_dtype": self.y_dtype,
            "has_bias": int(self.bias), "residual": int(self.residual), "act": self.act,
        }  # fmt: skip
        if self.how is None:
            given |= {"ldw": (self.k,) * len(self.segments), "w_dtype": self.dtype}
        else:
            given |= {"format": FORMATS[self.how.format], "group": self.how.group}
        if self.before or self.behind:
            given["slots"] = self.slots
        if self.behind:
            given["norm_eps"] = _EPS
        return full(self.stem, given)

    @property
    def unwritten(self) -> int:
        """The weights, with the norm's, and the bias."""
        mask = ((1 << (len(self.weights) + self.before)) - 1) << 1
        return mask | (self.bias << (1 + len(self.weights) + self.before + self.behind))

    def reads(self, m: int, weights: Sequence[Tensor]) -> list[Tensor]:
        norm = [self.norm] * self.before
        if self.behind:
            norm = [self.squares[:, :m].contiguous()]
        extra = [self.bias_of] * self.bias + [self.residual_of[:m]] * self.residual
        return [self.x[:m], *weights, *norm, *extra]

    def outputs(self, m: int) -> list[Tensor]:
        y = torch.full((m, self.n), torch.nan, device="cuda").to(self.residual_of.dtype)
        if not self.before:
            return [y]
        return [y, torch.full_like(y, torch.nan), torch.full((self.slots, m), 9.0, device="cuda")]

    def expected(self) -> Tensor:
        weights = self.weights
        if self.how is not None:
            pairs = zip(weights, self.segments, strict=True)
            weights = [dequantize(q, self.how, rows, self.k) for q, rows in pairs]
        y = self.x.double() @ torch.cat(weights).double().T
        if self.behind:
            mean = self.x.double().square().mean(-1, keepdim=True)
            y = y / torch.sqrt(mean + _EPS)
        if self.bias:
            y = y + self.bias_of.double()
        act = {0: lambda v: v, SILU: torch.nn.functional.silu, GELU: torch.nn.functional.gelu}
        if self.gated:
            first, second = y.chunk(2, -1)
            return act[self.act](first) * second
        if self.residual:
            y = y + self.residual_of.double()
        return act[self.act](y)


def products(scheme: str) -> Iterator[Product]:
    """Yields what is checked over weights of a scheme, or "none"."""
    if scheme != "none":
        yield from _layer(scheme)
        yield Product("odd", 1000, 520, bias=True, gated=True, act=SILU, scheme=scheme)
        return
    before, behind = "linear_before_norm", "linear_behind_norm"
    yield Product("qwen qkv", 2048, 1536, (1536, 256, 256), bias=True, stem=behind)
    yield Product("qwen o", 1536, 1536, residual=True, stem=before)
    yield Product("qwen gate", 8960, 1536, (8960, 8960), gated=True, act=SILU, stem=behind)
    yield Product("qwen down", 1536, 8960, residual=True, stem=before)
    yield Product("qwen-0.5b qkv", 1152, 896, (896, 128, 128), bias=True)
    yield Product("qwen-0.5b down", 896, 4864, residual=True, stem=before)
    yield Product("llama down", 4096, 14336, residual=True, stem=before)
    yield Product("odd", 1000, 520, bias=True, gated=True, act=SILU)
    yield Product("odd act", 333, 1096, bias=True, act=GELU, dtype=1, y_dtype=1)
    yield Product("head", 4999, 1536, y_dtype=0)
    yield Product("no tma", 200, 516, residual=True)


def build(driver: Driver, cases: Sequence[tuple[Product, int, LaunchConfig]]) -> list[Kernel]:
    """Compiles in parallel, with weights and biases that may be read before the wait."""

    def text(case: tuple[Product, int, LaunchConfig]) -> tuple[str, tuple[str, ...]]:
        product, m, config = case
        body = stem_source(product.stem)
        assert body is not None
        macros = [f"-DNPUSIM_{name}={value}" for name, value in config.defines.items()]
        options = (*_OPTIONS, f"--gpu-architecture={driver.arch}", *macros)
        return kernel_source(product.stem, product.params(m), body, product.unwritten), options

    texts = [text(case) for case in cases]
    distinct = list(dict.fromkeys(texts))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiled = pool.map(lambda t: nvrtc.load().compile(*t, "product.cu")[0], distinct)
        cubins = dict(zip(distinct, compiled, strict=True))
    return [Kernel(driver, c[2], cubins[t]) for c, t in zip(cases, texts, strict=True)]


def configs(
    product: Product, m: int, kinds: Collection[str] = ("swapped", "bulk", "codes")
) -> dict[str, LaunchConfig]:
    """Returns the ways in one order, of these kinds; of many tiles the likeliest."""
    found = one_order.configs(product.stem, product.params(m))
    names = [name for name in found if "swapped" in name and "swapped" in kinds]
    for kind in ("bulk", "codes"):
        names += [name for name in found if kind in name and kind in kinds][:3]
    if len(found) == 1:
        names = list(found)
    return {name.removeprefix(one_order.PREFIX): found[name]() for name in names}


def check(driver: Driver, product: Product, rows: Sequence[int], kinds: Collection[str]) -> int:
    """Returns how many results are wrong, or have other bits than the same rows among many."""
    cases = []
    for m in rows:
        ways = configs(product, m, kinds)
        chosen = next(iter(one_order.configs(product.stem, product.params(m))))
        chosen = chosen.removeprefix(one_order.PREFIX)
        cases += [(m, n, way) for n, way in ways.items() if m in _ALL_WAYS or n == chosen]
    cases.sort(key=lambda case: ("swapped" in case[1], -case[0]))
    kernels = build(driver, [(product, m, config) for m, _, config in cases])
    want, first, faults = product.expected(), None, []
    worst = 0.0
    for (m, name, _), kernel in zip(cases, kernels, strict=True):
        outputs = product.outputs(m)
        kernel([*product.reads(m, product.weights), *outputs])
        torch.cuda.synchronize()
        y = outputs[0]
        error = float((y.double() - want[:m]).norm() / want[:m].norm())
        worst = max(worst, error) if error == error else float("inf")
        first = first or outputs
        if not error < 6e-3:
            faults.append(f"{m} {name}: error {error:.1e}")
        same = [
            torch.equal(a, b[:, :m] if a.dim() == 2 and a.shape[0] != m else b[:m])
            for a, b in zip(outputs[:2], first[:2], strict=True)
        ]
        if len(outputs) > 2:
            same.append(torch.equal(outputs[2], first[2][:, :m]))
            scaled = (y.float() * product.norm.float()).to(y.dtype)
            total = outputs[2].sum(0)
            close = torch.allclose(total, y.float().square().sum(-1), rtol=1e-4)
            if not torch.equal(outputs[1], scaled) or not close:
                faults.append(f"{m} {name}: what is left for the norm is wrong")
        if not all(same):
            faults.append(f"{m} {name}: other bits {same}")
    slices = {way.defines.get("CLUSTER_K", 1) for m, name, way in cases if m == 1}
    print(f"{product.scheme} {product.name}: {len(cases)} kernels, K in {slices}, error at most "
          f"{worst:.1e}, {len(faults)} faults", flush=True)  # fmt: skip
    for fault in faults[:8]:
        print("   ", fault, flush=True)
    return len(faults)


def timed(kernel: Kernel, product: Product, m: int, sets: list[list[Tensor]]) -> float:
    outputs = product.outputs(m)
    operands = [[*product.reads(m, w), *outputs] for w in sets]
    return microseconds([lambda o=o: kernel(o) for o in operands], 10)  # type: ignore[misc]


def time_all(
    driver: Driver, names: Sequence[str], rows: Sequence[int], kinds: Collection[str], scheme: str
) -> None:
    """Prints times of every way, the one that is chosen first, and of what is chosen without."""
    target = TargetConfig.named(f"cuda:{driver.arch}")
    for product in (*_layer(scheme), Product("head", 151936, 1536, scheme=scheme)):
        if product.name not in names:
            continue
        size = sum(w.numel() * w.element_size() for w in product.weights)
        count = max(2, min(24, _ROTATED // size))
        sets = [[w.clone() for w in product.weights] for _ in range(count)]
        cases = []
        for m in rows:
            ways = configs(product, m, kinds)
            packed = KERNELS[product.stem].pack(product.params(m))
            choice = default_choice(product.stem, packed, target).variant
            ways["now " + choice] = config_of(product.stem, packed, choice)
            cases += [(m, name, config) for name, config in ways.items()]
        kernels = build(driver, [(product, m, config) for m, _, config in cases])
        for m in rows:
            shown = [
                f"{timed(kernel, product, m, sets):.2f} {name}"
                for (at, name, _), kernel in zip(cases, kernels, strict=True)
                if at == m
            ]
            chosen = next(iter(one_order.configs(product.stem, product.params(m))))
            print(f"{product.name} {m}: {'; '.join(shown)} [{chosen}]", flush=True)


def variations(product: Product, m: int, on: Collection[str]) -> dict[str, LaunchConfig]:
    """Returns other launch configurations of a product, by what they try.

    Args:
        on: features of the architecture.
    """
    p = product.params(m)
    if product.how is not None:
        return {name: way.on(on) for name, way in code_variations(p).items()}
    slices = one_order.slices_of(p)
    found = {name: way().on(on) for name, way in one_order.configs(product.stem, p).items()}
    made = {"chosen": next(iter(found.values()))}
    for name, way in found.items():
        if product.gated and "bulk" in name:
            made.setdefault("gate and up by tiles", way)
        if product.gated and "bulk 64x144" in name:
            made.setdefault("gate and up by tiles of 144", way)
    tile = swap_ab.tile_of(p, 1, slices)
    if tile is None:
        return made
    swapped = swap_ab.swap_ab(p, tile, slices)
    unpadded = replace(swapped.launches[0], padded_shared=None)
    made["swapped"] = swapped.on(on)
    made["no padding"] = replace(swapped, launches=(unpadded,)).on(on)
    few = replace(tile, ahead=min(tile.ahead, 3))
    made["three blocks ahead"] = swap_ab.swap_ab(p, few, slices).on(on)
    short = replace(tile, stages=min(tile.stages, 6), ahead=min(tile.ahead, 6))
    made["rings of six"] = swap_ab.swap_ab(p, short, slices).on(on)
    long = replace(tile, stages=min(12, -(-p["k"] // 64 // slices)))
    long = replace(long, ahead=long.stages)
    made["rings of twelve"] = swap_ab.swap_ab(p, long, slices).on(on)
    small = replace(tile, stages=min(tile.stages, 4), ahead=min(tile.ahead, 4))
    made["rings of four"] = swap_ab.swap_ab(p, small, slices).on(on)
    two = swap_ab.tile_of(p, 2, slices)
    if two is not None and product.gated:
        made["gate and up by 128 rows"] = swap_ab.swap_ab(p, two, slices).on(on)
    for other in (2, 8):
        tile = swap_ab.tile_of(p, 1, other)
        if slices > 1 and tile is not None:
            made[f"{other} slices"] = swap_ab.swap_ab(p, tile, other).on(on)
    now = KERNELS[product.stem].pack(p)
    target = TargetConfig.named("cuda:sm_90a")
    choice = default_choice(product.stem, now, target).variant
    made["in no order"] = config_of(product.stem, now, choice).on(on)
    return {k: way for k, way in made.items() if way.launches[0].shared <= _MOST_SHARED}


def code_variations(p: Params) -> dict[str, LaunchConfig]:
    """Returns the same of a product over codes: other tiles, and of a launch that leaves processors
    free rings as they are where processors take several of its blocks."""
    tile, *others = tma_codes.ordered_tiles(p)
    made = {"chosen": tma_codes.tma_codes(p, tile)}
    if others:
        made["second"] = tma_codes.tma_codes(p, others[0])
    if not tile.sole:
        return made
    (crowded,) = (
        other
        for other in tma_codes.TILES
        if (other.groups, other.tokens, other.x_stages, other.split)
        == (tile.groups, tile.tokens, tile.x_stages, tile.split)
    )
    made["several a processor"] = tma_codes.tma_codes(
        p, replace(crowded, sums_groups=tile.sums_groups)
    )
    for stages in (6, 12):
        ring = replace(tile, code_stages=min(stages, tile.code_stages))
        made[f"rings of {stages}"] = tma_codes.tma_codes(p, ring)
    return made


def time_layers(driver: Driver, rows: Sequence[int], scheme: str) -> None:
    """Prints microseconds of a layer's products, of 28 layers whose launches overlap.

    Nothing runs between the products.
    """
    features = TargetConfig.named(f"cuda:{driver.arch}").features
    layers = [_layer(scheme) for _ in range(_LAYERS)]
    made = [(m, [variations(product, m, features) for product in layers[0]]) for m in rows]
    labels = list(dict.fromkeys(label for _, found in made for ways in found for label in ways))
    cases = [
        (product, m, ways[label])
        for m, found in made
        for product, ways in zip(layers[0], found, strict=True)
        for label in ways
    ]
    kernels = iter(build(driver, cases))
    for m, found in made:
        built = [{label: next(kernels) for label in ways} for ways in found]
        operands = [
            [[*product.reads(m, product.weights), *product.outputs(m)] for product in layer]
            for layer in layers
        ]
        shown = []
        for label in labels:
            if not any(label in ways for ways in built):
                continue
            chain = [ways.get(label, ways["chosen"]) for ways in built]
            shown.append((_chained(chain, operands), label))
        print(f"layer, {scheme}, {m}: " + "; ".join(f"{took:.2f} {label}" for took, label in shown),
              flush=True)  # fmt: skip


def _chained(chain: Sequence[Kernel], operands: Sequence[Sequence[list[Tensor]]]) -> float:
    def call() -> None:
        for layer in operands:
            for kernel, given in zip(chain, layer, strict=True):
                kernel(given, overlaps=True)

    return microseconds([call], 15) / len(operands)


def _layer(scheme: str) -> list[Product]:
    """Returns the products of a layer of Qwen2.5-1.5B."""
    behind, before = "linear_behind_norm", "linear_before_norm"
    return [
        Product("qkv", 2048, 1536, (1536, 256, 256), bias=True, stem=behind, scheme=scheme),
        Product("o", 1536, 1536, residual=True, stem=before, scheme=scheme),
        Product("gate_up", 8960, 1536, (8960, 8960), gated=True, act=SILU, stem=behind,
                scheme=scheme),
        Product("down", 1536, 8960, residual=True, stem=before, scheme=scheme),
    ]  # fmt: skip


def main() -> int:
    """Checks, times, prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--chain", action="store_true", help="time whole layers, overlapping")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--layers", nargs="*", default=["qkv", "o", "gate_up", "down", "head"])
    parser.add_argument("--kinds", nargs="*", default=["swapped", "bulk", "codes"])
    parser.add_argument("--schemes", nargs="*", default=["none"])
    args = parser.parse_args()
    torch.manual_seed(0)
    driver, wrong = Driver(), 0
    everything = not (args.check or args.time or args.chain)
    if args.check or everything:
        wrong = sum(
            check(driver, product, ROWS, args.kinds)
            for scheme in args.schemes
            for product in products(scheme)
        )
        print(f"{wrong} faults", flush=True)
    if args.chain or everything:
        for scheme in args.schemes:
            time_layers(driver, args.rows, scheme)
    if args.time or everything:
        for scheme in args.schemes:
            time_all(driver, args.layers, args.rows, args.kinds, scheme)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
