"""Every CUDA header stands by itself: it includes what it names, and compiles before any other.

Parameters are constants, so a header is compiled behind those of a stem that includes it.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.source import kernel_root, kernel_source, stem_source
from npusim.errors import Error
from tests.codegen import host
from tests.codegen.cases import models, spread

_INCLUDE = re.compile(r'^#include "(kernels/[\w./]+)"', re.MULTILINE)
_ALWAYS = '#include "kernels/cuda/common/dependent_launch.h"\n'  # code generation puts it there
# Parts of a kernel's text, not headers: the stem that includes one chooses by constants before it
# what the part computes. One that becomes complete leaves this list.
PARTS = {
    *("attention/few_keys.h", "attention/warp_tile.h"),
    *("conv/mma_conv.h", "conv/patch_conv.h", "conv/simt_conv.h"),
    *("matmul/gemv_epilogue.h", "matmul/gemv_multistage.h", "matmul/gemv_stream.h"),
    *("matmul/linear_entry.h", "matmul/linear_tile.h", "matmul/norm_between.h"),
    *("matmul/tma_entry.h", "matmul/tma_epilogue.h", "matmul/tma_matmul.h"),
    "rows/norm_entry.h",
}


def _included(text: str, seen: set[str]) -> set[str]:
    for name in _INCLUDE.findall(text):
        if name not in seen:
            seen.add(name)
            _included((kernel_root().parent / name).read_text("utf-8"), seen)
    return seen


@cache
def _examples() -> dict[str, host.Key]:
    """Returns a kernel of every stem that has a file."""
    found: dict[str, host.Key] = {}
    for key in host.keys_of((*models(), *(example.program for example in spread(1)))):
        if stem_source(key[0]) is not None:
            found.setdefault(key[0], key)
    return found


def _problem(compiler: nvrtc.Nvrtc, header: Path) -> str:
    """Returns why a header does not compile behind any stem's parameters; "" where it does."""
    name = f"kernels/{header.relative_to(kernel_root())}"
    problem = f"no stem includes {name}"
    for stem, (_, params) in _examples().items():
        if name not in _included(_ALWAYS + (stem_source(stem) or ""), set()):
            continue
        _, _, options = specialise(stem, params)
        source = kernel_source(stem, KERNELS[stem].unpack(params), f'#include "{name}"\n')
        try:
            compiler.compile(source, ("--gpu-architecture=sm_90a", *options), name)
        except Error as error:
            problem = f"behind {stem}: {error}"
        else:
            return ""
    return problem


def test_every_header_compiles_alone(compiler: nvrtc.Nvrtc) -> None:
    headers = sorted(kernel_root().glob("cuda/*/*.h"))
    assert len(headers) > 30
    _examples()
    with ThreadPoolExecutor(4) as pool:
        problems = list(pool.map(lambda header: _problem(compiler, header), headers))
    names = [f"{header.parent.name}/{header.name}" for header in headers]
    rows = dict(zip(names, problems, strict=True))
    assert {n: p for n, p in rows.items() if p and n not in PARTS} == {}
    assert {n for n in PARTS if not rows.get(n, "")} == set(), "complete by now: take it off PARTS"
