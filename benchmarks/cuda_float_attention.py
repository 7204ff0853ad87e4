"""Checks and times attention of float32 on this machine's GPU, beside PyTorch's, and their errors.

    PYTHONPATH=python:. python -m benchmarks.cuda_float_attention [--only NAME …]

Cases are layers of models: heads of queries and of keys, rows, keys, columns. Times are medians of
launches in one CUDA graph, microseconds: the rule's choice, other numbers of warps, of splits of
keys and of blocks that a processor is to hold, and PyTorch's scaled_dot_product_attention in
float32. Errors are the largest and the root of the mean square beside float64, relative to the
largest value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cuda_cases import Case, Params, attention
from benchmarks.cuda_driver import Driver, build, microseconds
from npusim.codegen.cuda import attention_rules
from npusim.codegen.launch_config import LaunchConfig

_layer = partial(attention, dtype=0)
LAYERS: dict[str, Callable[[], Case]] = {
    "ViT-B/16, batch 8": lambda: _layer(12, 12, 197, 197, 64, batch=8, causal=0),
    "MiniLM, batch 8": lambda: _layer(12, 12, 128, 128, 32, batch=8, causal=0),
    "Whisper-tiny": lambda: _layer(6, 6, 1500, 1500, 64, causal=0),
    "Swin-T, batch 8": lambda: _layer(3, 3, 49, 49, 32, batch=512, causal=0, mask=0),
    "GPT-2, batch 8": lambda: _layer(12, 12, 128, 128, 64, batch=8),
    "Qwen2.5-1.5B, 512": lambda: _layer(12, 2, 512, 512, 128),
    "Gemma-2-2B, 512": lambda: _layer(8, 4, 512, 512, 256),
    "SAM, windows of 80": lambda: _layer(16, 16, 196, 196, 80, batch=25, causal=0),
    "4,096 keys": lambda: _layer(8, 8, 4096, 4096, 64, causal=0),
    "a token, 1,500 keys": lambda: _layer(6, 6, 1, 1500, 64, causal=0),
    "a token, 4,096 keys of 128": lambda: _layer(12, 2, 1, 4096, 128, causal=0, batch=4),
}


def _configs(p: Params) -> dict[str, LaunchConfig]:
    rule = attention_rules.attention(p)
    rows, found = rule.defines["ROW_WARPS"], {"rule": rule}
    for warps in (4, 8) if rows == 4 else (rule.defines["WARPS"],):
        for split in sorted({1, 2, 3, rule.defines["SPLIT"]}):
            config = attention_rules.attention_tiles(p, rows, split, warps=warps)
            if config.defines["WARPS"] != warps:
                continue
            for per in (0, 2, 3) if split in (1, rule.defines["SPLIT"]) else (0,):
                more = {"BLOCKS_PER_SM": per} if per else {}
                named = replace(config, defines={**config.defines, **more})
                found[f"{warps} warps/{split}{f', {per} blocks' if per else ''}"] = named
    return found


def _errors(got: Tensor, exact: Tensor) -> str:
    error = (got.double() - exact).abs() / exact.abs().max()
    return f"{float(error.max()):.1e} ({float(error.square().mean().sqrt()):.1e})"


def measure(driver: Driver, name: str, case: Case) -> None:
    """Prints the lines of a layer."""
    configs = _configs(case.params)
    kernels = build(driver, [("attention", case.params, config) for config in configs.values()])
    q, k, v, *masks = case.inputs
    (y,), (exact,) = case.outputs, case.expected()
    errors = {}
    for label, kernel in zip(configs, kernels, strict=True):
        y.fill_(torch.nan)
        kernel((*case.inputs, y))
        errors[label] = _errors(y, exact)
    calls = {
        label: partial(kernel, (*case.inputs, y))
        for label, kernel in zip(configs, kernels, strict=True)
    }
    calls["PyTorch"] = partial(
        F.scaled_dot_product_attention, q, k, v, *masks, is_causal=bool(case.params["causal"]),
        enable_gqa=case.params["heads"] != case.params["kv_heads"],
    )  # fmt: skip
    errors["PyTorch"] = _errors(calls["PyTorch"](), exact)
    series = [{label: microseconds([f] * 6, 8) for label, f in calls.items()} for _ in range(3)]
    p = case.params
    flops = 2 * p["batch"] * p["heads"] * p["q_len"] * p["kv_len"] * (p["head_dim"] + p["v_dim"])
    print(f"{name}: {case.note}")
    for label in calls:
        times = sorted(times[label] for times in series)
        rate = flops / times[1] / 1e6
        print(
            f"    {label:20} {times[1]:8.2f} us ({times[0]:.2f} - {times[2]:.2f}),"
            f" {rate:5.1f} TFLOP/s of all scores; error {errors[label]}",
            flush=True,
        )


def main() -> None:
    """Times and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(LAYERS))
    torch.manual_seed(0)
    driver = Driver()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name in parser.parse_args().only:
        measure(driver, name, LAYERS[name]())


if __name__ == "__main__":
    main()
