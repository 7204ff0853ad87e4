"""What a prompt takes on a GPU: the graphs of a language model's `prefill` methods, by themselves.

    PYTHONPATH=python:. python -m benchmarks.llm_prefill FOLDER PROGRAM [PROGRAM ...]
        [--chunks 128 1024] [--profile]

Programs come from `npusim compile` of one extracted language model; FOLDER holds its `config.json`.
Weights are seeded random numbers. Prints for each program and each chunk the median time of an
empty session's first chunk, with launches that overlap and with launches one after another, how
far the logits are from those of transformers in the same dtype, and whether bits agree: with
overlap, without, and from call to call; and what a session takes for the same prompt, which uploads
tokens and brings the logits of the last one to the host as float32. `--profile` adds the time of
each kind of command.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npusim
from npusim.abi.kernels import KERNELS
from npusim.runtime import DeviceBuffer, Executor, State, load_weights

REPEATS = 20
Tensors = dict[str, torch.Tensor]


def make_weights(folder: Path) -> tuple[Any, Tensors]:
    """Returns a configuration's model on the GPU with seeded weights, and these on the host."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    torch.manual_seed(0)
    made = {}
    for name, shape in shapes.items():
        if "norm" in name:
            made[name] = torch.ones(shape, dtype=torch.bfloat16, device="cuda")
        elif name != "lm_head.weight":
            made[name] = torch.randn(shape, dtype=torch.bfloat16, device="cuda") * 0.02
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(made, strict=False)
    return model.eval(), {name: tensor.cpu() for name, tensor in made.items()}


def chunk_of(program: npusim.CompiledProgram, method: str) -> int:
    """Returns how many tokens a method appends."""
    (tokens,) = (s for s in program.method(method).inputs if s.name == "tokens")
    return int(tokens.shape[1])


def run(
    executor: Executor, state: State, weights: npusim.Weights, method: str, tokens: np.ndarray
) -> tuple[list[float], np.ndarray]:
    """Returns the times of calls in ms, the first three not counted, and the last one's logits."""
    given = {"tokens": tokens[None], "length": np.array([tokens.size], np.int64)}
    inputs = {name: DeviceBuffer.from_numpy(v, executor.device) for name, v in given.items()}
    took, outputs = [], None
    for _ in range(REPEATS + 3):
        state.set("position", np.zeros(1, np.int64))
        start = time.perf_counter()
        outputs = executor.run(inputs, weights, method, outputs=outputs, state=state)
        took.append(1e3 * (time.perf_counter() - start))
    assert outputs is not None
    return took[3:], outputs["logits"].to_numpy()


def run_session(session: npusim.LanguageSession, tokens: np.ndarray) -> list[float]:
    """Returns the times of a session's calls in ms, the first three not counted."""
    took, prompt = [], tokens.tolist()
    for _ in range(REPEATS + 3):
        session.reset()
        start = time.perf_counter()
        session.append(prompt)
        took.append(1e3 * (time.perf_counter() - start))
    return took[3:]


def spread(times: list[float]) -> str:
    """Returns the median and the 10th to 90th percentile."""
    tenths = statistics.quantiles(times, n=10)
    return f"{statistics.median(times):.3f} ({tenths[0]:.3f} - {tenths[-1]:.3f}) ms"


def profile(
    program: npusim.CompiledProgram, weights: npusim.Weights, method: str, device: npusim.Device
) -> None:
    """Prints the median time of each kind of command of a method."""
    found = npusim.profile_program(program, weights, method=method, device=device, seconds=0.2)
    kinds = defaultdict(list)
    for command in found.commands:
        source = program.method(method).commands[command.index]
        params = KERNELS[command.kernel].unpack(source.params)
        shape = "x".join(str(params[n]) for n in ("m", "n", "k") if n in params)
        kinds[f"{command.kernel} {shape}"].append(1e6 * command.seconds)
    for kind, times in kinds.items():
        if len(times) > 1:
            print(f"    {len(times):4} {kind:32} {statistics.median(times):8.2f} us", flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", type=Path, nargs="+")
    parser.add_argument("--chunks", type=int, nargs="*", help="of so many tokens; else of all")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    model, tensors = make_weights(args.folder)
    wanted: dict[int, np.ndarray] = {}
    for path in args.programs:
        program = npusim.CompiledProgram.load(path)
        for method in (m.name for m in program.methods if m.name.startswith("prefill")):
            chunk = chunk_of(program, method)
            if args.chunks and chunk not in args.chunks:
                continue
            tokens = np.random.default_rng(0).integers(10, 100_000, chunk)
            if chunk not in wanted:
                ids = torch.from_numpy(tokens)[None].cuda()
                wanted[chunk] = model(ids, logits_to_keep=1).logits.float().cpu().numpy()
            found = []
            for overlapping in (True, False):
                os.environ["NPUSIM_CUDA_DEPENDENT_LAUNCH"] = str(int(overlapping))
                executor = Executor(program, npusim.Device("cuda"))
                weights = load_weights(tensors, program, executor.device)
                state = State(program, executor.device)
                times, logits = run(executor, state, weights, method, tokens)
                found += [logits, run(executor, state, weights, method, tokens)[1]]
                how = "overlapping" if overlapping else "one after another"
                print(f"{path.stem:12} {chunk:5} {how:22} {spread(times)}", flush=True)
                if overlapping:
                    lm = npusim.LanguageModel.load(program, weights=weights, device=executor.device)
                    calls = run_session(lm.new_session(), tokens)
                    print(f"{'':18} {'a session':22} {spread(calls)}", flush=True)
            want = wanted[chunk]
            error = np.abs(found[0].astype(np.float32) - want).max() / np.abs(want).max()
            same = all(np.array_equal(found[0], other) for other in found[1:])
            print(f"    logits off by {error:.2e} of the largest; same bits: {same}", flush=True)
            if args.profile:
                profile(program, weights, method, executor.device)


if __name__ == "__main__":
    main()
