"""Programs with other CUDA images than the compiler gave them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import npusim
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.image import MAGIC
from npusim.program.program import CompiledProgram

Header = dict[str, Any]
Change = Callable[[Header, bytes, int], tuple[Header, bytes]]


def small_program(target: str = "cuda") -> tuple[CompiledProgram, torch.nn.Module, torch.Tensor]:
    """Returns a two-layer network's program, the network, and an input."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
    x = torch.randn(5, 96)
    return npusim.compile((model.eval(), (x,)), target), model, x


def with_images(program: CompiledProgram, change: Change) -> CompiledProgram:
    """Returns the program with other images for its first method's kernels.

    `change` gets an image's header, its blobs, and the number of pointers the kernel takes; it
    returns header and blobs.
    """
    kernels = list(program.kernels)
    for command in program.methods[0].commands:
        image = program.kernels[command.kernel].image
        start = len(MAGIC) + 4
        (size,) = struct.unpack_from("<I", image, len(MAGIC))
        header = json.loads(image[start : start + size])
        more = bool(header["scratch"]) + bool(header["failure"])
        header, blobs = change(header, image[start + size :], len(command.operands) + more)
        text = json.dumps(header).encode()
        image = MAGIC + struct.pack("<I", len(text)) + text + blobs
        kernels[command.kernel] = replace(kernels[command.kernel], image=image)
    return replace(program, kernels=tuple(kernels))


def without_source(header: Header, blobs: bytes, _: int) -> tuple[Header, bytes]:
    """An image that only its own architecture can use."""
    return {key: value for key, value in header.items() if key != "source"}, blobs


def trapping(header: Header, _: bytes, pointers: int) -> tuple[Header, bytes]:
    """A kernel that stops at once, as at a fault of the device."""
    arguments = ", ".join(f"void* a{i}" for i in range(pointers))
    source = f'extern "C" __global__ void npusim_kernel({arguments}) {{ asm("trap;"); }}'
    options = (f"--gpu-architecture={header['arch']}",)
    cubin, _log = nvrtc.load().compile(source, options, "trap.cu")
    launches = [{**header["launches"][0], "entry": "npusim_kernel"}]
    kept = {key: header[key] for key in ("arch", "scratch", "failure")}
    return {**kept, "launches": launches, "cubin": [0, len(cubin)]}, cubin
