"""Every CUDA header is complete: it includes what it names, and compiles before any other.

Parameters and launch configurations are constants, so a header is compiled after those of commands
whose stem includes it.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from npusim.abi.kernels import KERNELS
from npusim.binding import kernel_root
from npusim.codegen.cuda import nvrtc, one_order
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.cuda.source import (
    EXPANDED_CODES,
    expanded_source,
    kernel_source,
    stem_source,
)
from npusim.codegen.cuda.variants import variants
from npusim.errors import Error
from tests.codegen import host
from tests.codegen.cases import between_ranks, examples, models, spread

_INCLUDE = re.compile(r'^#include "(kernels/[\w./]+)"', re.MULTILINE)
_ALWAYS = '#include "kernels/cuda/common/dependent_launch.h"\n'  # code generation puts it there


def _included(text: str, seen: set[str]) -> set[str]:
    for written in _INCLUDE.findall(text):
        name = written.replace("kernels/device/", "kernels/cuda/common/")
        if name not in seen:
            seen.add(name)
            _included((kernel_root().parent / name).read_text("utf-8"), seen)
    return seen


@cache
def _examples() -> dict[tuple[str, tuple[str, ...]], tuple[host.Key, str]]:
    """Returns a kernel of every stem that has a file and each set of macros, and its variant."""
    found: dict[tuple[str, tuple[str, ...]], tuple[host.Key, str]] = {}
    ways = examples("npu.paged_attention", "aten.index_add.default")  # each has a path
    single = (*spread(1), *ways)
    keys = host.keys_of((*models(), *(example.program for example in single)))
    for key in (*keys, *between_ranks()):
        if stem_source(key[0]) is None:
            continue
        for variant in ("", *variants(*key), *_in_one_order(*key)):
            _, config, _ = specialise(*key, variant=variant)
            path = str(config.defines.get("PATH", config.defines.get("WAY")))
            if config.launches:
                found.setdefault((key[0], (path, *config.defines)), (key, variant))
    return found


def _in_one_order(stem: str, params: bytes) -> list[str]:
    """Returns the variant that a step over pages has, which is not among those to measure."""
    name = one_order.variant_of(stem, KERNELS[stem].unpack(params), tma=True, how="auto")
    return [] if name is None else [name]


def _problem(compiler: nvrtc.Nvrtc, header: Path) -> str:
    """Returns why a header does not compile after any command's parameters; "" where it does."""
    name = f"kernels/{header.relative_to(kernel_root())}"
    problem = f"no stem includes {name}"
    for (stem, params), variant in _examples().values():
        expands = variant.startswith("expanded")
        written = EXPANDED_CODES if expands else stem_source(stem) or ""
        if name not in _included(_ALWAYS + written, set()):
            continue
        _, config, options = specialise(stem, params, variant=variant)
        fields, include = KERNELS[stem].unpack(params), f'#include "{name}"\n'
        if config.product is not None:
            source = expanded_source(fields, config.product, body=include)
        else:
            source = kernel_source(stem, fields, include)
        try:
            compiler.compile(source, ("--gpu-architecture=sm_90a", *options), name)
        except Error as error:
            problem = f"after {stem}: {error}"
        else:
            return ""
    return problem


def test_every_header_compiles_alone(compiler: nvrtc.Nvrtc) -> None:
    headers = sorted((*kernel_root().glob("cuda/*/*.h"), *kernel_root().glob("gpu/*/*.h")))
    assert len(headers) > 30
    _examples()
    with ThreadPoolExecutor(4) as pool:
        problems = list(pool.map(lambda header: _problem(compiler, header), headers))
    names = [f"{header.parent.name}/{header.name}" for header in headers]
    rows = dict(zip(names, problems, strict=True))
    assert {name: problem for name, problem in rows.items() if problem} == {}


def test_paths_have_the_numbers_of_python() -> None:
    text = (kernel_root() / "cuda/common/paths.h").read_text("utf-8")
    defined = re.findall(r"^#define NPUSIM_PATH_(\w+) (\d+)\b", text, re.MULTILINE)
    assert {name: int(number) for name, number in defined} == dict(KernelPath.__members__)
    used = set()
    for path in kernel_root().glob("cuda/*/*"):
        used |= set(re.findall(r"\bNPUSIM_PATH_(\w+)", path.read_text("utf-8")))
    assert used == set(KernelPath.__members__), "the preprocessor takes unknown names for 0"
