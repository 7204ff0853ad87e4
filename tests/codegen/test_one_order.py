"""Products of steps: which kernels add in one order, and that every number of rows has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import npusim
from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS
from npusim.codegen.choice import Choice
from npusim.codegen.cuda import nvrtc, one_order, swap_ab, tma_codes
from npusim.codegen.cuda.choices import sized_choice
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.generator import CudaGenerator
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.cuda.variants import config_of
from npusim.codegen.image_bytes import recipe_fields, recipe_of
from npusim.codegen.launch_config import LaunchConfig
from npusim.codegen.wanted import Recipe, WantedImage
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.codegen.entry_parameters import entry_parameters, taken
from tests.codegen.ptxas import SPILLED, spilled
from tests.codegen.test_matmul_rules import _full, _linear
from tests.codegen.test_tma_matmul import (
    _QKV,
    _after_norm,
    _before_norm,
    _gated,
    check_norm_between,
)
from tests.serve.test_step_method import SIZES, SMALL

ROWS = (1, 2, 8, 9, 64, 65, 100, 256, 257, 2048)
_STEP, _ALL = Recipe(0, "auto", False, "auto"), Recipe(0, "auto", False, "all")


def _chosen(stem: str, p: dict[str, Any], arch: str, recipe: Recipe = _STEP) -> LaunchConfig:
    params = KERNELS[stem].pack(_full(stem, p))
    choice = sized_choice(stem, params, TargetConfig.named(f"cuda:{arch}"), None, recipe)
    assert not choice.library
    return config_of(stem, params, choice.variant)


def _order(config: LaunchConfig) -> tuple[bool, int]:
    """Returns whether TMA loads the operands, and into how many slices K is cut."""
    defines = config.defines
    if defines["PATH"] == KernelPath.SWAP_AB:
        return True, defines["CLUSTER_K"]
    if defines["PATH"] == KernelPath.TMA:
        assert defines["CLUSTER_K"] == 1
        return True, defines["ORDERED_SLICES"]
    return False, defines["SPLIT"]


@pytest.mark.parametrize("n, k", [(2048, 1536), (200, 516)])
def test_float32_is_multiplied_by_one_instruction_for_any_number_of_rows(n: int, k: int) -> None:
    """Tiles of fewer rows than a warpgroup has are multiplied by another than the others."""
    found = {
        (config.defines["PATH"], config.defines["TILE_ROWS"] % 64, config.defines["SPLIT"])
        for m in ROWS
        for config in [_chosen("linear", _linear(m, n, k, 0), "sm_90a", _ALL)]
    }
    assert len(found) == 1
    assert found.pop()[:2] == (KernelPath.TILE_FLOAT, 0)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
@pytest.mark.parametrize(
    ("n", "k", "more"),
    [
        (2048, 1536, _QKV),
        (1536, 8960, {"residual": 1}),
        (151936, 1536, {}),
        (333, 1096, {"dtype": 1}),
        (200, 516, {}),  # rows that TMA does not load
        (96, 4096, {"dtype": 0}),
    ],
)
def test_any_number_of_rows_has_one_order(n: int, k: int, more: dict[str, Any], arch: str) -> None:
    orders = {_order(_chosen("linear", _linear(m, n, k, **more), arch, _ALL)) for m in ROWS}
    assert len(orders) == 1


def test_what_tma_does_not_load_has_one_order_where_it_is_asked_for() -> None:
    for arch, k in (("sm_80", 1536), ("sm_90a", 1540)):
        p = _linear(1, 1536, k)
        assert _chosen("linear", p, arch).defines["PATH"] != KernelPath.TILE_MMA
        assert _chosen("linear", p, arch, _ALL).defines["PATH"] == KernelPath.TILE_MMA


def test_norms_between_products_keep_the_order_too() -> None:
    before = [_chosen("linear_before_norm", _before_norm(m, 1536, 8960), "sm_90a") for m in ROWS]
    assert {_order(config) for config in before} == {(True, 4)}
    for config in before:  # squares are summed by 64 columns
        assert config.defines.get("TMA_COLUMNS", 64) % 64 == 0
    lanes = set()
    for m in ROWS:
        p = {"rows": m, "size": 896, "x_row_stride": 896, "y_row_stride": 896, "has_weight": 1}
        p |= {"x_dtype": 2, "w_dtype": 2, "y_dtype": 2}
        lanes.add(_chosen("norm", p, "sm_90a").defines["LANES"])
    assert len(lanes) == 1


def test_all_ways_that_are_offered_have_the_order() -> None:
    for m in ROWS:
        p = _linear(m, 1536, 8960, residual=1)
        found = one_order.configs("linear", p)
        assert {_order(make()) for name, make in found.items() if not name.endswith("tiles")} == {
            (True, one_order.slices_of(p))
        }


def test_slices_are_those_that_fill_the_device() -> None:
    """Of Qwen2.5-1.5B: q, k and v, o, gate and up, down, and the head."""
    shapes = [(2048, 1536, 0), (1536, 1536, 0), (8960, 1536, 1), (1536, 8960, 0), (151936, 1536, 0)]
    found = [one_order.slices_of(_linear(1, n, k, gated=gated)) for n, k, gated in shapes]
    assert found == [4, 4, 1, 4, 1]


def _codes(m: int, code_format: int = 1, rows: tuple[int, ...] = (512,)) -> dict[str, Any]:
    n, group = sum(rows), 0 if code_format == 1 else 32
    given = {"m": m, "n": n, "k": 1024, "ldx": 1024, "ldy": n, "rows": rows, "segments": len(rows)}
    return {**given, "format": code_format, "group": group, "x_dtype": 2, "y_dtype": 2}


@pytest.mark.parametrize("recipe", [_STEP, _ALL], ids=["auto", "all"])
@pytest.mark.parametrize("code_format", [1, 2, 3])
def test_codes_that_tma_loads_have_one_order(code_format: int, recipe: Recipe) -> None:
    orders = set()
    for m in ROWS:
        config = _chosen("quantized_linear", _codes(m, code_format), "sm_90a", recipe)
        assert config.defines["PATH"] == KernelPath.CODES_TMA
        orders.add((config.defines["CLUSTER_K"], config.defines["SUMS_GROUPS"]))
    ((slices, sums),) = orders
    assert slices > 1 and sums == (code_format != 1)


def test_slices_of_codes_are_those_that_steps_need() -> None:
    """Of Qwen2.5-1.5B: gate and up, down; q, k and v, o."""
    shapes = [(8960, 1536, 1), (1536, 8960, 0), (2048, 1536, 0), (1536, 1536, 0)]
    for code_format, expected in ((1, [1, 4, 2, 2]), (2, [1, 4, 2, 2])):
        found = []
        for n, k, gated in shapes:
            rows = (n, n) if gated else (n,)
            p = _codes(1, code_format, rows) | {"n": n, "k": k, "ldx": k, "gated": gated}
            found.append({t.split for t in tma_codes.ordered_tiles(_full("quantized_linear", p))})
        assert found == [{count} for count in expected]


@pytest.mark.parametrize(("arch", "rows"), [("sm_80", (512,)), ("sm_90a", (72, 64))])
def test_other_codes_have_one_order_up_to_64_rows_or_wherever_it_is_asked_for(
    arch: str, rows: tuple[int, ...]
) -> None:
    few = (KernelPath.GEMV_MULTISTAGE, KernelPath.CODES_ROWS)
    for m in (1, 5, 64):
        assert _chosen("quantized_linear", _codes(m, 1, rows), arch).defines["PATH"] in few
    many = _chosen("quantized_linear", _codes(300, 1, rows), arch)
    assert many.defines["PATH"] not in few
    ordered = _chosen("quantized_linear", _codes(300, 1, rows), arch, _ALL)
    assert ordered.defines["PATH"] == KernelPath.CODES_ROWS
    tokens = 8 * ordered.defines["TOKENS"]
    assert ordered.launches[0].grid[0] % -(-300 // tokens) == 0


def test_other_methods_and_targets_that_ask_for_speed_choose_freely() -> None:
    recipe = Recipe(0, "auto", False)
    config = _chosen("linear", _linear(1, 1536, 1536), "sm_90a", recipe)
    assert config.defines["PATH"] == KernelPath.GEMV_MULTISTAGE
    few = {m: _chosen("quantized_linear", _codes(m), "sm_90a", recipe) for m in (1, 64)}
    assert few[1].defines["PATH"] == KernelPath.GEMV_MULTISTAGE
    assert few[64].defines["PATH"] == KernelPath.CODES_ROWS


def test_the_recipe_of_an_image_says_how_far_the_order_goes() -> None:
    for recipe in (_STEP, _ALL, Recipe(6, "none", True)):
        assert recipe_of({"recipe": recipe_fields(recipe)}) == recipe


@pytest.fixture(scope="module")
def made() -> list[tuple[WantedImage, str]]:
    """What a small model with methods over pages wants of the code generator, and how."""
    made: list[tuple[WantedImage, str]] = []

    class Seen(Exception):
        """What is wanted is known, and need not be compiled."""

    def images(_: CudaGenerator, wanted: Sequence[tuple[WantedImage, Choice]], *__: Any) -> None:
        made.extend((image, choice.variant) for image, choice in wanted)
        raise Seen

    heads = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**(SMALL | heads))).bfloat16().eval()
    sizes = replace(SIZES, max_step_tokens=128)
    module = npusim.extract_llm(model, max_context=96, prefill_chunk=8, serve=sizes)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Seen):
        patch.setattr(CudaGenerator, "images", images)
        npusim.compile(module, "cuda:sm_90a")
    return made


def test_entries_take_what_the_runtime_gives_them(
    made: list[tuple[WantedImage, str]], compiler: nvrtc.Nvrtc
) -> None:
    """All launches of a command are given its pointers and maps: one kernel of each form."""
    forms = {}
    for wanted, variant in made:
        config = config_of(wanted.stem, wanted.params, variant)
        entries = tuple(launch.entry for launch in config.launches)
        path = config.defines.get("PATH")
        forms.setdefault((wanted.stem, path, len(config.maps), entries), (wanted, variant))
    turning = {(maps, entries) for stem, _, maps, entries in forms if stem == "linear_rope_append"}
    assert {(4, ("npusim_kernel",)), (4, ("npusim_kernel", "npusim_rope"))} <= turning
    for (stem, _, maps, entries), (wanted, variant) in forms.items():
        if not maps and len(entries) == 1:
            continue  # one signature for all
        source, config, options = specialise(stem, wanted.params, wanted.unwritten, variant)
        options = ("--gpu-architecture=sm_90a", *options)
        cubin, _ = compiler.compile(source, options, stem)
        fields = KERNELS[stem].unpack(wanted.params)
        operands = len(kernel_cost(stem, fields).operand_bytes)
        found = entry_parameters(cubin)
        for entry in entries:
            assert found[entry] == taken(config, operands), (stem, variant, entry)


def test_methods_over_pages_keep_the_order_and_have_norms_in_products(
    made: list[tuple[WantedImage, str]],
) -> None:
    steps = [row for row in made if row[0].recipe is not None]
    products = [(w, name) for w, name in steps if w.stem in one_order.STEMS]
    assert {w.stem for w, _ in products} == set(one_order.STEMS) - {"quantized_linear"}
    for wanted, name in products:
        assert wanted.recipe is not None
        assert wanted.recipe.batch_invariance == "auto"
        assert name.startswith(one_order.PREFIX), (wanted.stem, name)
    for wanted, name in made:  # sessions choose freely
        assert wanted.recipe is not None or not name.startswith(one_order.PREFIX)


def test_swapped_tiles_fit_in_shared_memory_for_any_rows() -> None:
    for n, k in ((1536, 8960), (8960, 1536), (64, 64), (4096, 14336)):
        p = _linear(1, n, k)
        for m in (1, 8, 16, 17, 100, 129, 256):
            tile = swap_ab.tile_of(p | {"m": m}, 1, one_order.slices_of(p))
            assert tile is not None, (m, n, k)
            config = swap_ab.swap_ab(p | {"m": m}, tile, one_order.slices_of(p))
            assert config.launches[0].shared <= 231424


def test_no_processor_takes_two_blocks_of_a_launch_that_leaves_some_free() -> None:
    for n, k, stages in ((1536, 8960, 10), (1536, 1536, 6)):
        slices = one_order.slices_of(_linear(1, n, k))
        for m in (1, 8, 16, 32, 64):
            p = _linear(m, n, k)
            tile = swap_ab.tile_of(p, 1, slices)
            assert tile == swap_ab.SwapTile(1, stages, stages), (n, k, m)
            shared = swap_ab.swap_ab(p, tile, slices).launches[0].padded_shared
            assert shared is not None
            assert 2 * (shared + 1024) > 233472, (n, k, m)


def test_swapped_tiles_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    before = _before_norm(8, 1536, 8960)
    cases = [
        ("linear_before_norm", before),
        ("linear_behind_norm", _after_norm(before, _gated(128, 8960, 1536))),
    ]
    for stem, params in cases:
        packed = KERNELS[stem].pack(params)
        name = next(n for n in one_order.configs(stem, params) if "swapped" in n)
        source, _, options = specialise(stem, packed, 0b110, name)
        options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
        assert spilled(compiler.compile(source, options, stem)[1]) <= SPILLED, name


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_devices_without_tma_compute_the_same(tmp_path: Path) -> None:
    def swapped(key: host.Key) -> str:
        configs = one_order.configs(key[0], KERNELS[key[0]].unpack(key[1]))
        return next(name for name in configs if "swapped" in name)

    check_norm_between(70, tmp_path, swapped)
