"""What the rules choose, recorded for commands of many shapes: choices change on purpose only.

A golden file shows the first commands of a stem, and a digest of all. What is fitted to a device
decides them, so a number that is changed, lost or read in another unit is seen here. Names of
macros and variants are not recorded: of macros the values, of a variant its place among them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen.cuda.choices import default_choice
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.cuda.variants import variants
from npusim.codegen.launch_config import LaunchConfig
from npusim.passes.select_kernels import winograd_tile
from npusim.targets import TargetConfig
from tests.codegen.shapes import BUILDERS, commands

_COMMANDS = 400
_SHOWN = 6
_SIZES = ("batch", "m", "n", "k", "q_len", "kv_len", "limit", "head_dim", "in_channels",
          "out_channels", "out_size", "kernel", "outer", "size", "inner", "rows", "spatial",
          "shape", "reduced", "op", "gated", "groups", "dtype", "x_dtype")  # fmt: skip


def _shown(config: LaunchConfig) -> str:
    launches = (
        f"{x.entry} {x.grid} {x.block} {x.shared} {x.padded_shared} {x.elsewhere}"
        for x in config.launches
    )
    defines = " ".join(map(str, sorted(config.defines.values())))
    return f"{'; '.join(launches) or 'nothing'} scratch {config.scratch} defines {defines}"


def _chosen(stem: str, packed: bytes, target: TargetConfig) -> str:
    choice = default_choice(stem, packed, target)
    names = ["", *variants(stem, packed)]
    # What keeps one order for any number of rows is named by its tile, and no variant to measure.
    place = names.index(choice.variant) if choice.variant in names else "in one order"
    return f"{target.arch} {choice.library or 'own'} {place}"


def _sizes(p: Params) -> str:
    return " ".join(f"{name}={p[name]}" for name in _SIZES if name in p)


@pytest.mark.parametrize("stem", BUILDERS)
def test_recorded(stem: str, golden: Callable[[str], None]) -> None:
    targets = [TargetConfig.named(f"cuda:{arch}") for arch in ("sm_80", "sm_90a")]
    lines = []
    for p in commands(stem, _COMMANDS):
        packed = KERNELS[stem].pack(p)
        text = [_sizes(p), f"  {_shown(RULES[stem](p))}"]
        text += [f"  {_chosen(stem, packed, target)}" for target in targets]
        others = variants(stem, packed).values()
        lines.append("\n".join((*text, *(f"    {_shown(config)}" for config in others))))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    golden("\n".join((*lines[:_SHOWN], f"all {_COMMANDS}: {digest}")) + "\n")


def test_winograd_recorded(golden: Callable[[str], None]) -> None:
    """The tile by channels (in, out), over images of one size a row, 0 for none."""
    costs = TargetConfig.named("cpu").measurements.winograd
    assert costs is not None
    channels, sizes = (3, 31, 32, 64, 96, 256, 512), (1, 2, 3, 4, 6, 7, 8, 12, 14, 28, 56, 112)
    head = "size  " + " ".join(f"{a},{b}" for a in channels for b in channels)
    rows = [
        f"{size:4}  "
        + " ".join(
            f"{winograd_tile(a, (batch, b, size, size), (2, 4), costs):{len(f'{a},{b}')}}"
            for a in channels
            for b in channels
        )
        for batch in (1, 4)
        for size in sizes
    ]
    golden("\n".join((head, *rows)) + "\n")
