"""What a change of kernels' sources does to their machine code, and what that costs.

    PYTHONPATH=python:. python -m benchmarks.cuda_code save FOLDER       # in each of two trees
    PYTHONPATH=python:. python -m benchmarks.cuda_code compare OLD NEW [--time]

`save` compiles every distinct command of the models below, and of about six conformance cases of
each kernel, for sm_90a; it needs NVRTC and no GPU. `compare` counts by stem the commands whose
machine code is the same bit for bit. `--time` runs the others on this machine's GPU, both in turns:
operands hold zeros, those of 8 bytes (positions) the number 100.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import npusim
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.launch_config import Launch, LaunchConfig
from npusim.program.program import CompiledProgram

ARCHITECTURE = "sm_90a"
POSITION = 100
ROUNDS = 5


def programs() -> Iterator[CompiledProgram]:
    """Yields programs without device code: models' kernels at real sizes, then cases of all."""
    import torch
    from tests.codegen.cases import models, spread
    from tests.models import build
    from transformers import Qwen2Config, Qwen2ForCausalLM

    target = replace(npusim.TargetConfig.named(f"cuda:{ARCHITECTURE}"), code_format="")
    model, (x,) = build("resnet50")
    yield npusim.compile((model.half(), (x.half().expand(64, -1, -1, -1).contiguous(),)), target)
    sizes = Qwen2Config(
        vocab_size=2048, hidden_size=1536, intermediate_size=8960, num_hidden_layers=2,
        num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    decoder = Qwen2ForCausalLM(sizes).to(torch.bfloat16).eval()
    module = npusim.extract_llm(decoder, max_context=4096, prefill_chunk=128)
    yield npusim.compile(module, target)
    yield from models()
    yield from (example.program for example in spread(6))


def operands(program: CompiledProgram) -> Iterator[tuple[tuple[str, bytes], tuple[int, ...]]]:
    """Yields each command's stem and parameters, and the bytes that its operands may touch."""
    for method in (program.init, *program.methods):
        for command in method.commands:
            sizes = (program.buffers[o.buffer].bytes - o.offset for o in command.operands)
            yield (program.kernels[command.kernel].name, command.params), tuple(sizes)


def machine_code(cubin: bytes) -> bytes:
    """Returns the names and bytes of a 64-bit ELF's sections of code."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    width, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    rows = [struct.unpack_from("<IIQQQQ", cubin, table + i * width) for i in range(count)]
    names = cubin[rows[names_at][4] :]
    found = b""
    for row in rows:
        name = names[row[0] : names.index(b"\0", row[0])]
        if name.startswith(b".text"):
            found += name + cubin[row[4] : row[4] + row[5]]
    return found


def save(folder: Path) -> None:
    """Writes `code.json` and a cubin for each distinct command."""
    folder.mkdir(parents=True, exist_ok=True)
    found = dict(row for program in programs() for row in operands(program))
    compiler = nvrtc.load()

    def one(row: tuple[tuple[str, bytes], tuple[int, ...]]) -> tuple[str, dict[str, Any]] | None:
        (stem, params), sizes = row
        source, config, options = specialise(stem, params)
        if not config.launches:
            return None
        options = (f"--gpu-architecture={ARCHITECTURE}", *options)
        cubin, _ = compiler.compile(source, options, f"{stem}.cu")
        name = f"{stem}-{hashlib.sha1(params).hexdigest()[:16]}"
        (folder / f"{name}.cubin").write_bytes(cubin)
        return name, {
            "code": hashlib.sha256(machine_code(cubin)).hexdigest(),
            "bytes": len(machine_code(cubin)),
            "launches": [[x.grid, x.block, x.shared, x.entry] for x in config.launches],
            "scratch": config.scratch,
            "failure": config.failure,
            "maps": len(config.maps),
            "operands": sizes,
        }

    with ThreadPoolExecutor() as pool:
        rows = dict(filter(None, pool.map(one, found.items())))
    (folder / "code.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} commands for {ARCHITECTURE}, NVRTC {compiler.version}")


def compare(old: Path, new: Path, timed: bool) -> None:
    """Prints, by stem, how many commands have the same code; then each that has not."""
    before, after = (json.loads((f / "code.json").read_text()) for f in (old, new))
    names = sorted(before.keys() & after.keys())
    changed = [n for n in names if before[n]["code"] != after[n]["code"]]
    print(f"{len(names) - len(changed)} of {len(names)} commands have the same machine code")
    print(f"only before: {len(before.keys() - after.keys())}, ", end="")
    print(f"only after: {len(after.keys() - before.keys())}")
    everyone, others = (Counter(n.split("-")[0] for n in group) for group in (names, changed))
    for stem, count in sorted(everyone.items()):
        print(f"  {stem:20} {count:4} commands, {others[stem]:3} changed")
    for name in changed:
        line = f"{name:40} {before[name]['bytes']:7} -> {after[name]['bytes']:7} bytes"
        if timed and not after[name]["maps"]:
            line += times(name, (old, before[name]), (new, after[name]))
        print(line, flush=True)


def times(name: str, *versions: tuple[Path, dict[str, Any]]) -> str:
    """Returns medians and spreads of ROUNDS timings of each version, in turns."""
    import torch

    from benchmarks.cuda_driver import Driver, Kernel, microseconds

    driver = Driver()
    memory = [
        torch.zeros(max(n, 16), dtype=torch.uint8, device="cuda")
        for n in versions[0][1]["operands"]
    ]
    for tensor, size in zip(memory, versions[0][1]["operands"], strict=True):
        if size == 8:
            tensor[:8].view(torch.int64).fill_(POSITION)
    calls = []
    for folder, row in versions:
        launches = tuple(Launch(tuple(g), tuple(b), s, e) for g, b, s, e in row["launches"])
        config = LaunchConfig(launches, scratch=row["scratch"], failure=row["failure"])
        kernel = Kernel(driver, config, (folder / f"{name}.cubin").read_bytes())
        calls.append(lambda k=kernel: k(memory))
    found: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for times_of, call in zip(found, calls, strict=True):
            times_of.append(microseconds([call] * 16))
    shown = (f"{statistics.median(t):8.2f} ({min(t):.2f} – {max(t):.2f})" for t in found)
    return " us ->".join(shown) + " us"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    saving = verbs.add_parser("save")
    saving.add_argument("folder", type=Path)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--time", action="store_true")
    args = parser.parse_args()
    if args.verb == "save":
        save(args.folder)
    else:
        compare(args.old, args.new, args.time)


if __name__ == "__main__":
    main()
